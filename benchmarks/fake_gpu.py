"""Random programs on the CUDA runtime for tests (tests/fake_cuda), by the ten thousand: what they read wrong.

What runs there is the CUDA device itself, and no GPU: streams do what they were given in any order that the waits
allow. Each run draws new programs, whose seeds are in the JSON; a program that reads wrong bytes fails the run.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from . import measure

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "integration"))

from fake_programs import failing_programs, planned_programs, programs, session_programs  # noqa: E402

_AT_ONCE = 250
"""Programs that a process runs: it takes a few seconds to begin, and results are written behind each."""

_KINDS: dict[str, tuple[str, Callable[[int, int], dict[str, Any]], int]] = {
    "swapper": ("toy kernels around the swapper, on one to three streams", programs, 1),
    "sessions": ("ops in sessions, on one to three streams", session_programs, 1),
    "more streams than lanes": (
        "ops in sessions, on 38 streams",
        lambda seed, count: session_programs(seed, count, lanes=(38,)),
        10,
    ),
    "two host threads": (
        "ops in sessions of two threads that take turns inside of ops, on two to four streams",
        lambda seed, count: session_programs(seed, count, (2, 3, 4), threads=2),
        1,
    ),
    "without the hook": (
        "ops in sessions as torch 2.11 and 2.12 run them, where nothing tells of a raw pointer",
        lambda seed, count: session_programs(seed, count, hook=False),
        1,
    ),
    "a call fails": (
        "ops in sessions, where one call of CUDA fails",
        lambda seed, count: failing_programs(seed, count, sticky=False),
        1,
    ),
    "a call fails beside another thread": (
        "the same in two threads",
        lambda seed, count: failing_programs(seed, count, sticky=False, threads=2),
        10,
    ),
    "a call fails without the hook": (
        "the same as torch 2.11 and 2.12 run them",
        lambda seed, count: failing_programs(seed, count, sticky=False, hook=False),
        1,
    ),
    "the GPU is gone": (
        "ops in sessions, where all calls of CUDA fail from one on, each program in a process of its own",
        lambda seed, count: failing_programs(seed, count, sticky=True),
        1,
    ),
    "the GPU is gone without the hook": (
        "the same as torch 2.11 and 2.12 run them",
        lambda seed, count: failing_programs(seed, count, sticky=True, hook=False),
        1,
    ),
    "the GPU is gone for two threads": (
        "the same in two threads",
        lambda seed, count: failing_programs(seed, count, sticky=True, threads=2),
        10,
    ),
    "plans": ("small trainings in sessions that plan, swap and replay", planned_programs, 10),
    "a call fails in a planned step": (
        "the same, where one call of CUDA fails",
        lambda seed, count: planned_programs(seed, count, "once"),
        1,
    ),
    "a call fails in a planned step without the hook": (
        "the same as torch 2.11 and 2.12 run them",
        lambda seed, count: planned_programs(seed, count, "once", hook=False),
        10,
    ),
    "the GPU is gone in a planned step": (
        "the same, where all calls of CUDA fail from one on, each program in a process of its own",
        lambda seed, count: planned_programs(seed, count, "gone"),
        10,
    ),
    "without a session": (
        "the programs of sessions without one: they are right themselves",
        lambda seed, count: session_programs(seed, count, session=False),
        10,
    ),
    "two host threads without a session": (
        "the programs of two threads without one: they are right themselves",
        lambda seed, count: session_programs(seed, count, (2, 3, 4), session=False, threads=2),
        10,
    ),
}
"""By name: what it is, who runs so many programs from a seed, and of how many programs it gets one."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them. Fails where any program read wrong bytes."""
    parser = measure.parser_of("fake_gpu", __doc__.splitlines()[0])
    parser.add_argument("--programs", type=measure.count, default=10_000, help="of each main kind (10,000)")
    parser.add_argument("--seed", type=int, default=None, help="what the seeds are drawn from (a new one)")
    parser.add_argument("--workers", type=measure.count, default=2, help="processes at a time (2)")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().getrandbits(32) if options.seed is None else options.seed
    chosen = {"programs": options.programs, "seed": seed, "workers": options.workers}
    environment = measure.environment(chosen) | {"device": "fake CUDA runtime"}
    draw, start_s = random.Random(seed), time.monotonic()
    kinds: dict[str, dict[str, Any]] = {}
    for name, (what, run, share) in _KINDS.items():
        left, jobs = max(1, options.programs // share), []
        while left > 0:
            jobs.append((draw.getrandbits(32), min(left, _AT_ONCE)))
            left -= jobs[-1][1]
        kinds[name] = kind = {
            "what": what,
            "programs": 0,
            "wrong": 0,
            "errors": [],
            "seeds": [],
            "contains": {},
        }
        with ThreadPoolExecutor(options.workers) as pool:
            for job, found in zip(jobs, pool.map(lambda job, run=run: run(*job), jobs), strict=True):
                _add(kind, job, found)
                if options.json:
                    seconds = time.monotonic() - start_s
                    measure.write_json(
                        options.json,
                        {
                            "benchmark": "fake_gpu",
                            "environment": environment,
                            "seconds": seconds,
                            "kinds": kinds,
                        },
                    )
        print(f"{name}: {kind['programs']:,} programs, {kind['wrong']:,} wrong: {what}", flush=True)
        for error in kind["errors"]:
            print(f"  {error}")
    print(f"On the fake CUDA runtime, torch {torch.__version__}, commit {environment['commit']}, seed {seed}")
    return int(any(kind["wrong"] for kind in kinds.values()))


def _add(kind: dict[str, Any], job: tuple[int, int], found: Mapping[str, Any]) -> None:
    """``job``: the seed that the programs were drawn from, and how many."""
    counts = Counter(kind["contains"]) + Counter(
        {name: count for name, count in found.items() if name != "errors"}
    )
    kind["programs"] += counts.pop("programs", 0)
    kind["wrong"] += counts.pop("wrong", 0)
    kind["contains"] = dict(sorted(counts.items()))
    kind["errors"] = (kind["errors"] + list(found["errors"]))[:10]
    kind["seeds"].append(list(job))


if __name__ == "__main__":
    raise SystemExit(main())
