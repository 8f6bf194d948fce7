"""Runs the programs of this folder: plainly, recorded, and in sessions with a share of their peak.

python tests/programs/runner.py [NAME ...] prints the table of those programs.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import importlib.util
import io
import json
import logging
import os
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

import chameleon_lab as cl

os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported: programs run on the CPU device

HERE = Path(__file__).parent
PACKAGES = HERE.parents[1] / "build" / "packages"
"""What `scripts/setup.sh apart` has installed apart from the others, a folder each."""
NAMES = tuple(
    sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith(("test_", "_", "runner")))
)
SHARES = (0.5, 0.33, 0.25)
"""Of a program's peak."""
STEPS = 5
LINK = "8GiB/s"
_NEAR = 0.02
"""Below the floor by more than this share nothing runs, and above it by more everything does."""


@dataclass(frozen=True)
class Run:
    """What a program left behind, and what it took."""

    bits: dict[str, str]
    """Digests of all numbers that it returned."""
    wall_s: float
    step_s: float | None
    """Of the second half of its steps; None where it had none (`typical_s`)."""
    report: cl.Report | None

    @property
    def evictions(self) -> float:
        """A step, over the second half of the steps."""
        newest = _second_half(self.report)
        return statistics.fmean(step.evictions for step in newest) if newest else 0.0


@dataclass(frozen=True)
class Tried:
    """One program in one share of its peak."""

    program: str
    share: float
    peak_bytes: int
    capacity_bytes: int
    floor_bytes: int
    floor_op: str
    run: Run | None
    """None: it is below the floor, and the session said so."""
    ratio: float | None
    """Of its step time to that of the run that only recorded; of the whole run's, where it has no steps."""

    @property
    def below_floor(self) -> bool:
        """Is the capacity one at which nothing could run the program?"""
        return self.capacity_bytes < self.floor_bytes * (1 - _NEAR)

    @property
    def above_floor(self) -> bool:
        """Is it one at which it has to run?"""
        return self.capacity_bytes >= self.floor_bytes * (1 + _NEAR)


@cache
def module_of(name: str) -> ModuleType:
    """The program as a module."""
    spec = importlib.util.spec_from_file_location(f"chameleon_program_{name}", HERE / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # workers and pickles look for it there
    spec.loader.exec_module(module)
    return module


def missing(name: str) -> list[str]:
    """The libraries that a program needs and that are not installed, or cannot be imported."""
    module, lacking = module_of(name), []
    with path_of(name):
        if hasattr(module, "prepare"):
            module.prepare()
        for library in module.NEEDS:
            try:
                importlib.import_module(library)
            except Exception:  # such as one that finds no CUDA
                lacking.append(library)
    return lacking


def plain(name: str, steps: int) -> Run:
    """Without Chameleon Lab."""
    if getattr(module_of(name), "FIRST_DIFFERS", False):
        _run(name, steps, None)
    return _run(name, steps, None)


def recorded(name: str, steps: int) -> Run:
    """In a session that only records."""
    return _run(name, steps, cl.Session(device="cpu"))


def tried(name: str, steps: int, share: float, without: Run) -> Tried:
    """In a share of the peak of the recorded run ``without``."""
    assert without.report is not None and without.report.floor is not None
    peak, lowest = without.report.peak_bytes, without.report.floor
    capacity, run, ratio = int(share * peak), None, None
    try:
        run = within(name, steps, capacity)
    except cl.BelowFloorError:
        pass
    else:
        times = (run.step_s, without.step_s)
        ratio = times[0] / times[1] if all(times) else run.wall_s / without.wall_s  # type: ignore[operator]
    return Tried(name, share, peak, capacity, lowest.bytes, lowest.op_name, run, ratio)


def within(name: str, steps: int, capacity: int | str) -> Run:
    """Under a capacity."""
    return _run(name, steps, cl.Session(capacity, device="cpu", link=LINK))


def table(name: str, rows: list[dict[str, Any]]) -> list[str]:
    """A headline, and a line: peak, floor, and for each share ratio and evictions, or that it is below the floor.

    Args:
        name: of the program.
        rows: of it, as :func:`plain_values` gives them.
    """
    headline = f"{'program':<20} {'peak MiB':>8} {'floor':>6}"
    headline += "".join(f" | {f'{s:.0%}':>5} {'evict':>6}" for s in SHARES)
    own, first = {row["share"]: row for row in rows}, rows[0]
    line = f"{name:<20} {first['peak_bytes'] / 2**20:8.2f} {first['floor_bytes'] / first['peak_bytes']:6.0%}"
    for share in SHARES:
        row = own.get(share)
        if row is None or row["below_floor"]:
            line += f" | {'below floor' if row else '':>12}"
        else:
            line += f" | {row['ratio']:4.2f}x {row['evictions']:6.1f}"
    if any(row["below_floor"] for row in rows):
        line += f"   floor set by {first['floor_op']}"
    return [headline, line]


def plain_values(row: Tried) -> dict[str, Any]:
    """What JSON can hold of it."""
    return {
        "share": row.share,
        "peak_bytes": row.peak_bytes,
        "capacity_bytes": row.capacity_bytes,
        "floor_bytes": row.floor_bytes,
        "floor_op": row.floor_op,
        "below_floor": row.run is None,
        "ratio": row.ratio,
        "step_s": row.run.step_s if row.run else None,
        "evictions": row.run.evictions if row.run else None,
        "unserved": row.run.report.unserved if row.run and row.run.report else None,
    }


def _run(name: str, steps: int, session: cl.Session | None) -> Run:
    module = module_of(name)
    with tempfile.TemporaryDirectory() as folder, _quiet(), path_of(name):
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        _forget_accelerator()
        gc.collect()
        start_s = time.perf_counter()
        if session is None:
            found = module.run(Path(folder), steps)
        else:
            with session:
                found = module.run(Path(folder), steps)
                if session.step_count == 0 or session.counters()["ops_in_step"]:
                    session.step()  # what came after the last step is measured too
        wall_s = time.perf_counter() - start_s
        report = session.report() if session else None
        newest = _second_half(report)
        step_s = typical_s([(step.ops, step.step_s) for step in newest]) if len(newest) > 1 else None
        return Run(dict(_bits(found)), wall_s, step_s, report)


def _forget_accelerator() -> None:
    """Accelerate keeps one state a process, and refuses a program that wants another than the one before it."""
    if (state := sys.modules.get("accelerate.state")) is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()


def typical_s(steps: list[tuple[int, float]]) -> float:
    """Of steps, each its number of ops and its time: the mean of what is usual for each one's number of ops.

    A program whose steps take turns between two forms has no usual step: the median of all is now of one, now of the
    other.
    """
    times: dict[int, list[float]] = {}
    for ops, step_s in steps:
        times.setdefault(ops, []).append(step_s)
    return sum(len(form) * statistics.median(form) for form in times.values()) / len(steps)


def _second_half(report: cl.Report | None) -> tuple[Any, ...]:
    steps = [step for step in report.history if step.ops] if report else []
    return tuple(steps[len(steps) // 2 :])


def _bits(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, torch.Tensor):
        dense = value.detach().to_dense() if value.is_sparse else value.detach()
        data = dense.clone(memory_format=torch.contiguous_format)
        raw = data.view(torch.uint8 if data.dim() else data.dtype).numpy().tobytes()
        yield path, hashlib.sha256(raw).hexdigest()[:16]
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _bits(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _bits(item, f"{path}[{number}]")
    else:
        yield path, repr(value)


@contextmanager
def path_of(name: str) -> Iterator[None]:
    """Inside, what the program needs and is installed apart can be imported."""
    folder = str(PACKAGES / getattr(module_of(name), "APART", "none"))
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


@contextmanager
def _quiet() -> Iterator[None]:
    """Libraries say much, and none may ask the network."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def described(name: str, steps: int) -> dict[str, Any]:
    """A program in every share, as plain values: its lines of the table, its rows, and what is wrong with it."""
    if lacking := missing(name):
        return {
            "program": name,
            "lines": ["", f"{name:<20} skipped: {', '.join(lacking)} cannot be imported here"],
            "wrong": [],
            "rows": [],
        }
    bare, without = plain(name, steps), recorded(name, steps)
    rows = [tried(name, steps, share, without) for share in SHARES]
    wrong = [] if bare.bits == without.bits else ["recording alone changed the numbers"]
    for row in rows:
        if row.run is None and row.above_floor:
            wrong.append(f"{row.share:.0%} is above the floor and did not run")
        elif row.run is not None and row.run.bits != bare.bits:
            wrong.append(f"other numbers in {row.share:.0%}")
    assert without.report is not None
    return _found(name, [plain_values(row) for row in rows], wrong) | {
        "libraries": versions(name),
        "kept_bytes": without.report.escaped_bytes,
    }


def versions(name: str) -> dict[str, str]:
    """Of the libraries that a program is written with."""
    with path_of(name):
        return {library: version(library) for library in module_of(name).NEEDS}


def _found(name: str, rows: list[dict[str, Any]], wrong: list[str]) -> dict[str, Any]:
    lines = [*table(name, rows), *(f"{'':<20} WRONG: {text}" for text in wrong)]
    return {"program": name, "lines": lines, "wrong": wrong, "rows": rows}


def middle(name: str, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """What several processes found of a program: in each share the row with the median ratio, with the others' ratios.

    The ratio of steps of 2 ms varies by a fifth from process to process, and hardly within one.
    """
    if not all(found["rows"] for found in rounds):
        return rounds[0]
    rows = []
    for same in zip(*(found["rows"] for found in rounds), strict=True):
        ran = sorted((row for row in same if not row["below_floor"]), key=lambda row: row["ratio"])
        one = ran[len(ran) // 2] if ran else same[0]
        rows.append(one | {"ratios": [row["ratio"] for row in same]})
    wrong = list(dict.fromkeys(text for found in rounds for text in found["wrong"]))
    return rounds[0] | _found(name, rows, wrong)


def main() -> int:
    """Try programs and print what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="a line of JSON a program")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    failed = False
    for name in options.names or NAMES:
        found = described(name, options.steps)
        print(json.dumps(found) if options.json else "\n".join(found["lines"]), flush=True)
        failed |= bool(found["wrong"])
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
