"""The programs of tests/programs in a half, a third and a quarter of their peak: ratios, evictions and floors.

    python -m benchmarks.programs --json FILE [--steps N] [--rounds N] [--only TEXT ...] [--libraries] [--threads N]

Each program runs in a process of its own: plainly, recorded, and in each share. Ratios are of the usual step of the
second half of the run to that of the recorded one (steps of each number of ops count by their median); of the whole
runs, where a program has no steps. With ``--rounds`` there are so many processes, and the median ratio of them counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from chameleon_lab.util.units import format_bytes, format_percent

from . import measure

RUNNER = Path(__file__).parents[1] / "tests" / "programs" / "runner.py"
sys.path.append(str(RUNNER.parent))
import runner  # noqa: E402  (it lies beside the programs, in no package)

_STEPS = 24


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them. Timing never fails it; other numbers than plain PyTorch's do, and so does a floor that is none."""
    parser = measure.parser_of("programs", __doc__.splitlines()[0])
    parser.add_argument("--steps", type=measure.count, default=_STEPS, help=f"of each program ({_STEPS})")
    parser.add_argument("--rounds", type=measure.count, default=1, help="processes of each program (1)")
    parser.add_argument(
        "--only", metavar="TEXT", action="append", default=[], help="programs with this in their name"
    )
    parser.add_argument(
        "--libraries", action="store_true", help="only programs that are written with a library"
    )
    parser.add_argument("--threads", type=measure.count, default=1, help="threads of an op")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    environment = measure.environment(vars(options))
    programs: list[dict[str, Any]] = []
    for name in runner.NAMES:
        if options.only and not any(text.lower() in name for text in options.only):
            continue
        if options.libraries and not runner.module_of(name).NEEDS:
            continue
        rounds = [_run(name, options.steps, options.threads) for _ in range(options.rounds)]
        programs.append(runner.middle(name, rounds))
        print("\n".join(programs[-1]["lines"][bool(programs[:-1]) :]), flush=True)
        if options.json:
            measure.write_json(
                options.json, {"benchmark": "programs", "environment": environment, "programs": programs}
            )
    print("\n".join(["", *by_library(programs), "", measure.device_line(environment)]))
    print("Ratio to the recorded run's step, and evictions a step, in shares of the program's peak.")
    if options.json:
        print(f"Written to {options.json}")
    return int(any(program["wrong"] for program in programs))


def by_library(programs: Sequence[dict[str, Any]]) -> list[str]:
    """Lines of a Markdown table: what each program is written with, what it keeps for good, and how it runs."""
    shares = " | ".join(f"{share:.0%}" for share in runner.SHARES)
    head = [f"| written with | program | kept | peak | floor | {shares} | bits |", "|" + "-|" * 9]
    lines: list[str] = []
    for found in programs:
        if not found["rows"]:
            lines.append(f"| {found['lines'][-1]} |" + " |" * 8)
        if not found.get("libraries"):
            continue
        written = ", ".join(f"{library} {version}" for library, version in found["libraries"].items())
        rows = found["rows"]
        cells = [
            written,
            found["program"],
            format_bytes(found["kept_bytes"]),
            format_bytes(rows[0]["peak_bytes"]),
        ]
        cells.append(format_percent(rows[0]["floor_bytes"] / rows[0]["peak_bytes"]))
        cells += ["below floor" if row["below_floor"] else f"{row['ratio']:.2f}" for row in rows]
        lines.append(f"| {' | '.join(cells)} | {'; '.join(found['wrong']) or 'the same'} |")
    return [*head, *lines] if lines else []


def _run(name: str, steps: int, threads: int) -> dict[str, Any]:
    command = [sys.executable, str(RUNNER), "--json", "--steps", str(steps), "--threads", str(threads), name]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        what = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        return {"program": name, "lines": ["", f"{name:<20} failed: {what}"], "wrong": [what], "rows": []}
    return json.loads(lines[-1])


if __name__ == "__main__":
    sys.exit(main())
