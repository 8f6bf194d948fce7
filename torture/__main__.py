"""Tries to break the promises of Chameleon Lab, and counts what it tried and what went wrong (0 is wanted).

    python -m torture [PART ...] [--share] [--jobs N] [--seed N] [--only TEXT] [--json FILE] [--docs FILE]

Without parts: all. ``--json`` and ``--docs`` keep what the file says of parts that are not run now; and of the cases of
``machines``, each of which takes long. The exit code is 1 if anything went wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import measure

from . import pool
from .outcome import Outcome, total

PARTS = {
    "operators": "every operator (OpInfo): dtypes, samples, in place, backward",
    "modules": "every module (ModuleInfo), training and evaluation",
    "composite": "what ops made of others need, as one and op by op (OpInfo)",
    "optimizers": "every optimizer (OptimizerInfo): each, foreach, fused",
    "bypass": "ways around the dispatcher",
    "faults": "faults",
    "disk": "a disk that fails",
    "models": "architectures of others, 5 steps at 1/4 of the peak",
    "files": "damaged and hostile files and messages",
    "off": "off means off",
    "soak": "soak",
    "machines": "the tests as on other machines",
}
_TIMEOUT_S = {
    "operators": 1800.0,
    "machines": 15000.0,
    "soak": 3000.0,
    "files": 1500.0,
    "faults": 900.0,
    "disk": 900.0,
}
_BY_CASE = {"machines"}
"""Parts each of whose cases takes long: the file keeps them apart, and a run of some leaves the others."""
_ALONE = {"machines"}
"""Parts whose cases are run one after the other: each has workers of its own."""
_TOLD = 40
_BEGIN, _END = "<!-- begin: python -m torture -->", "<!-- end -->"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write."""
    os.environ["CUDA_VISIBLE_DEVICES"] = (
        ""  # else sessions would take a GPU, and all that is tried is on the CPU
    )
    parser = argparse.ArgumentParser(
        "python -m torture", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--share", action="store_true", help="a small share of each, as the test suite runs")
    parser.add_argument("--jobs", type=measure.count, default=2, help="worker processes (default 2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose names contain it")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--docs", metavar="FILE", help="a page to write the counts into, between its marks")
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.parts if name not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}: there are {', '.join(PARTS)}")

    options = pool.Options(share=chosen.share, seed=chosen.seed)
    document = _known(chosen.json)
    document["environment"] = measure.environment(vars(chosen))
    for name in chosen.parts or PARTS:
        before = document["parts"].get(name, {})

        def keep(part: dict[str, Any], name: str = name) -> None:
            document["parts"][name] = part
            if chosen.json:
                measure.write_json(chosen.json, document)  # after each: the whole takes long

        _run(name, options, chosen, before, keep)
    print(_table(document["parts"]))
    print(_details(document["parts"]))
    if chosen.docs:
        _write_docs(chosen.docs, document)
    return int(any(document["parts"][name]["wrong"] for name in chosen.parts or PARTS))


def _run(
    name: str,
    options: pool.Options,
    chosen: argparse.Namespace,
    before: dict[str, Any],
    keep: Callable[[dict[str, Any]], None],
) -> None:
    """Check a part's cases and ``keep`` what became of them. ``before``: what the file says of the part."""
    cases = [case for case in pool.part(name).cases(options) if chosen.only in case]
    measure.progress(f"{name}: {len(cases)} cases")
    done: list[Outcome] = []
    commit, start_s = measure.environment({})["commit"], time.monotonic()

    def told(outcome: Outcome) -> None:
        done.append(outcome)
        for text in outcome.wrong[:3]:
            measure.progress(f"  WRONG {outcome.case}: {text}")
        if len(done) % 100 == 0:
            measure.progress(f"  {len(done)} of {len(cases)}, {time.monotonic() - start_s:.0f} s")
        if name in _BY_CASE:
            keep(_merged(name, options, before, done, commit))

    timeout_s = _TIMEOUT_S.get(name, 600.0)
    jobs = 1 if name in _ALONE else chosen.jobs
    outcomes = pool.run(name, cases, options, jobs=jobs, timeout_s=timeout_s, told=told)
    if name not in _BY_CASE:
        keep(_counted(outcomes, options, commit, time.monotonic() - start_s))


def _merged(
    name: str, options: pool.Options, before: dict[str, Any], done: list[Outcome], commit: str
) -> dict[str, Any]:
    """What the file says of a part's cases, with those that are done in the place of what was known of them."""
    by_case = dict(before.get("by_case", {})) if before.get("share") == options.share else {}
    by_case |= {outcome.case: {"commit": commit, **outcome.to_dict()} for outcome in done}
    by_case = {case: by_case[case] for case in pool.part(name).cases(options) if case in by_case}
    outcomes = [
        Outcome.from_dict({key: value for key, value in of_case.items() if key != "commit"})
        for of_case in by_case.values()
    ]
    seconds = sum(outcome.seconds for outcome in outcomes)
    return _counted(outcomes, options, commit, seconds) | {"by_case": by_case}


def _counted(outcomes: list[Outcome], options: pool.Options, commit: str, seconds: float) -> dict[str, Any]:
    whole = total(outcomes)
    return {
        "commit": commit,
        "share": options.share,
        "seed": options.seed,
        "cases": len(outcomes),
        "tried": whole.tried,
        "named": whole.named,
        "skipped": dict(whole.skipped.most_common()),
        "wrong": whole.wrong,
        "notes": {outcome.case: outcome.notes for outcome in outcomes if outcome.notes},
        "seconds": seconds,
    }


def _known(path: str | None) -> dict[str, Any]:
    if path and Path(path).exists():
        return json.loads(Path(path).read_text())
    return {"benchmark": "torture", "parts": {}}


def _table(parts: dict[str, Any]) -> str:
    rows = [
        [
            PARTS[name],
            *(str(part[key]) for key in ("cases", "tried", "named")),
            str(sum(part["skipped"].values())),
            str(len(part["wrong"])),
            f"{part['seconds']:.0f}",
        ]
        for name, part in parts.items()
    ]
    return measure.table(["part", "cases", "tried", "named errors", "skipped", "wrong", "s"], rows)


def _details(parts: dict[str, Any]) -> str:
    lines = []
    for name, part in parts.items():
        lines += [f"{name}: skipped {count}: {reason}" for reason, count in part["skipped"].items()]
        lines += [
            f"{name}: {case}: {', '.join(f'{key} {value:.3g}' for key, value in notes.items())}"
            for case, notes in part["notes"].items()
        ]
        lines += [f"{name}: WRONG {text}" for text in part["wrong"][:_TOLD]]
    return "\n".join(lines)


def _write_docs(path: str, document: dict[str, Any]) -> None:
    """Put the counts between the marks of a page."""
    page = Path(path).read_text()
    runs = [run for part in document["parts"].values() for run in part.get("by_case", {"": part}).values()]
    commits = sorted({re.sub("^(.{9})[0-9a-f]*", r"\1", run["commit"]) for run in runs})  # "+changes" stays
    environment = document["environment"]
    counts = [
        _BEGIN,
        f"At commit {', '.join(commits)}, torch {environment['torch']}, {environment['date'][:10]}:",
        "",
        "```",
        _table(document["parts"]),
        "",
        _details(document["parts"]),
        "```",
        _END,
    ]
    pattern = re.compile(re.escape(_BEGIN) + ".*?" + re.escape(_END), re.DOTALL)
    if not pattern.search(page):
        sys.exit(f"{path} has no place for the counts: it lacks {_BEGIN!r} and {_END!r}")
    measure.write_text(path, pattern.sub(lambda _: "\n".join(counts), page))


if __name__ == "__main__":
    sys.exit(main())
