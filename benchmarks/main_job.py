"""The main job: real models trained under a capacity below their peak, beside the same training without one.

For every model, link and fraction of the peak, interleaved in one process: the recorder alone (uncapped), eviction
alone, and eviction with a plan; plain PyTorch once a round. Every run must give the same bits.

    python -m benchmarks.main_job --json FILE [--models a,b] [--fractions 1/2,1/4,1/8]
        [--link 8GiB/s] [--slow-link 0.2GiB/s] [--rounds N] [--steps N] [--threads N] [--quick]
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any

import torch

import chameleon_lab as cl
from chameleon_lab.policy import floor, lower_bound, simulate
from chameleon_lab.units import format_bytes, parse_bandwidth

from . import measure
from .measure import Comparison, Run, median, mib, milliseconds, progress, ratio, yes
from .models import CASES, Case

PLAIN, UNCAPPED, EVICTION, PLANNED = "plain", "uncapped", "eviction", "planned"


@dataclass
class Cell:
    """One row: a model in one variant; of a capped one, also at one fraction of the peak on one link."""

    case: Case
    variant: str
    fraction: Fraction | None = None
    link: str | None = None
    capacity_bytes: int | None = None
    runs: list[Run] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    base: list[Run] = field(default_factory=list)
    """The uncapped runs that were interleaved with this row's."""
    error: str = ""

    @property
    def label(self) -> str:
        """The row in words."""
        parts = [self.case.name]
        if self.fraction is not None:
            parts.append(f"{self.fraction} of the peak")
        if self.link is not None:
            parts.append(f"link {self.link}")
        return ", ".join([*parts, self.variant])

    @property
    def bit_identical(self) -> bool:
        """Was every run the same as the first plain one, to the last bit?"""
        return bool(self.comparisons) and not self.error and all(c.identical for c in self.comparisons)

    @property
    def within_capacity(self) -> bool | None:
        """Did the peak of every step stay within the capacity? None where there is none."""
        if self.capacity_bytes is None:
            return None
        return all(peak <= self.capacity_bytes for run in self.runs for peak in run.peaks)

    def pooled(self, name: str) -> list[Any]:
        """A list field of all runs as one list."""
        return _pooled(self.runs, name)


def _pooled(runs: Sequence[Run], name: str) -> list[Any]:
    return [value for run in runs for value in getattr(run, name)]


def busy_s(runs: Sequence[Run]) -> list[float]:
    """Per step, the processor time of the training thread and its stalls: the step without other programs' share."""
    stalls = _pooled(runs, "stall_s") or [0.0] * len(_pooled(runs, "cpu_s"))
    return [cpu + stall for cpu, stall in zip(_pooled(runs, "cpu_s"), stalls, strict=True)]


def row_of(cell: Cell, peak_bytes: int, uncapped_memory_bytes: float) -> dict[str, Any]:
    """The row's figures as plain values; see the README for what each is."""
    steps, base_steps = cell.pooled("step_s"), _pooled(cell.base, "step_s")
    step_s = median(steps)
    stall_s = median(cell.pooled("stall_s"))
    traffic = cell.pooled("traffic")
    copies_s = sum(t.busy_s for t in traffic)
    memory_bytes = median([run.memory_bytes for run in cell.runs])
    row: dict[str, Any] = {
        "model": cell.case.name,
        "fraction": None if cell.fraction is None else str(cell.fraction),
        "link": cell.link,
        "variant": cell.variant,
        "capacity_bytes": cell.capacity_bytes,
        "unswapped_peak_bytes": peak_bytes,
        "peak_bytes": max(cell.pooled("peaks"), default=None),
        "peak_reserved_bytes": max((run.peak_reserved_bytes for run in cell.runs), default=0) or None,
        "within_capacity": cell.within_capacity,
        "memory_bytes": memory_bytes,
        "released_bytes": uncapped_memory_bytes - memory_bytes if cell.runs else None,
        "step_s": step_s,
        "step_min_s": min(steps, default=0.0),
        "steps_s": [run.step_s for run in cell.runs],
        "uncapped_step_s": median(base_steps),
        "ratio": ratio(steps, base_steps),
        "ratio_of_minima": ratio(steps, base_steps, min),
        "cpu_s": median(cell.pooled("cpu_s")),
        "ratio_of_cpu": ratio(busy_s(cell.runs), busy_s(cell.base)),
        "overlap": max(0.0, 1.0 - sum(t.stall_s for t in traffic) / copies_s) if copies_s > 0 else None,
        "stall_s": stall_s,
        "stall_share": stall_s / step_s if step_s else 0.0,
        "replay_s": median(cell.pooled("replay_s")),
        "out_bytes": median(cell.pooled("out_bytes")),
        "in_bytes": median(cell.pooled("in_bytes")),
        "dropped_bytes": median(cell.pooled("dropped_bytes")),
        "evictions": median(cell.pooled("evictions")),
        "demand_swap_ins": median(cell.pooled("demand_swap_ins")),
        "match_rate": median(cell.pooled("match_rate")),
        "decisions": max((run.decisions for run in cell.runs), default=0),
        "predicted": cell.runs[-1].predicted if cell.runs else {},
        "losses_identical": bool(cell.comparisons) and all(c.losses for c in cell.comparisons),
        "weights_identical": bool(cell.comparisons) and all(c.weights for c in cell.comparisons),
        "first_difference": next((c.first_difference for c in cell.comparisons if c.first_difference), ""),
        "bit_identical": cell.bit_identical,
        "notes": list(dict.fromkeys(note for run in cell.runs for note in run.notes)),
        "error": cell.error,
        "correct": cell.bit_identical and cell.within_capacity is not False,
    }
    row["arithmetic"] = arithmetic(cell, row)
    return row


def arithmetic(cell: Cell, row: dict[str, Any]) -> dict[str, Any] | None:
    """The stall that the link's bandwidth explains, beside the measured one.

    ``expected_stall_s`` = max over the directions of (bytes moved / bandwidth) - compute time of the step, at least
    0: no schedule can stall less. The copies of a training step can't use all of it, though: what leaves does so
    mostly before the peak, what returns after it. ``by_op_s`` counts copy by copy what compute can hide: the policy in
    the simulator, with the bytes and the op times of the newest timed step. ``bound_s`` is the least that stalls and
    replays together could take under any policy there (:func:`chameleon_lab.policy.lower_bound`).
    """
    if cell.link is None or not cell.runs:
        return None
    bandwidth = parse_bandwidth(cell.link)
    steps = zip(cell.pooled("step_s"), cell.pooled("stall_s"), cell.pooled("replay_s"), strict=True)
    compute_s = median([step_s - stall_s - replay_s for step_s, stall_s, replay_s in steps])
    moved_s = max(row["out_bytes"], row["in_bytes"]) / bandwidth
    expected_s = max(0.0, moved_s - compute_s)
    step, policy = cell.runs[-1].step, cell.runs[-1].policy
    by_op_s = bound_s = None
    if step is not None and policy is not None:
        by_op_s = simulate(step, policy).stall_s
        bound_s = lower_bound(step, policy.capacity_bytes, policy.link, rematerialise=True).stall_s
    return {
        "formula": "max(out_bytes, in_bytes) / bandwidth - compute_s, at least 0",
        "bandwidth_bytes_per_s": bandwidth,
        "compute_s": compute_s,
        "link_s": moved_s,
        "expected_stall_s": expected_s,
        "by_op_s": by_op_s,
        "bound_s": bound_s,
        "predicted_stall_s": row["predicted"].get("stall_s"),
        "measured_stall_s": row["stall_s"],
        "measured_over_expected": row["stall_s"] / expected_s if expected_s > 0 else None,
        "measured_over_by_op": row["stall_s"] / by_op_s if by_op_s else None,
        "measured_over_bound": (row["stall_s"] + row["replay_s"]) / bound_s if bound_s else None,
    }


class MainJob:
    """All runs of all models, in the order in which they are interleaved."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.cases = [CASES[name] for name in arguments.models]
        self.fractions = arguments.fractions
        self.links = arguments.links
        self.rounds, self.steps, self.tiny = arguments.rounds, arguments.steps, arguments.quick
        self.rows: list[dict[str, Any]] = []
        self.peaks: dict[str, dict[str, Any]] = {}

    def run(self) -> Iterator[bool]:
        """Measure everything; comes back after each model: was it the last one?"""
        for case in self.cases:
            self._run_case(case)
            yield case is self.cases[-1]

    @property
    def correct(self) -> bool:
        """Is every row so far bit-identical and within its capacity?"""
        return all(row["correct"] for row in self.rows)

    def _train(self, case: Case, session: Callable[[], cl.Session] | None) -> Run:
        return measure.train(case, self.steps, session, tiny=self.tiny, skipped=measure.SETTLING_STEPS)

    def _run_case(self, case: Case) -> None:
        progress(f"{case.name}: {case.about}")
        peak = self._peak(case)
        reference = self._train(case, None)  # also takes what a first run costs
        if not all(map(math.isfinite, reference.losses)):
            raise RuntimeError(
                f"{case.name}: the plain run's losses are not finite, so nothing can be compared"
            )
        plain, uncapped = Cell(case, PLAIN), Cell(case, UNCAPPED)
        fractions = self.fractions if case.fractions is None else case.fractions
        groups: list[tuple[Cell, Cell, Cell]] = []
        for link in self.links:
            for fraction in fractions:
                capacity = int(peak * fraction)
                groups.append(
                    (
                        Cell(case, UNCAPPED, fraction, link),
                        Cell(case, EVICTION, fraction, link, capacity),
                        Cell(case, PLANNED, fraction, link, capacity),
                    )
                )
        for number in range(self.rounds):
            self._run_cell(plain, number, reference)
            for group in groups:
                # Another one begins in every round, so that none always finds the machine as its forerunner left it.
                for k in range(len(group)):
                    self._run_cell(group[(k + number) % len(group)], number, reference)
        for base, *capped in groups:
            uncapped.runs += base.runs
            uncapped.comparisons += base.comparisons
            uncapped.error = uncapped.error or base.error
            for cell in capped:
                cell.base = base.runs
        plain.base = uncapped.base = uncapped.runs
        memory_bytes = median([run.memory_bytes for run in uncapped.runs])
        cells = [plain, uncapped, *(cell for _, *capped in groups for cell in capped)]
        self.rows += [row_of(cell, peak, memory_bytes) for cell in cells]

    def _peak(self, case: Case) -> int:
        """Most bytes alive at once in a step of the uncapped run."""
        floors: list[int] = []
        run = measure.train(
            case,
            1,
            lambda: cl.Session(capacity=None, device="cpu"),
            tiny=self.tiny,
            on_end=lambda session: floors.append(floor(session.trace()).bytes),
        )
        self.peaks[case.name] = {"unswapped_peak_bytes": run.live_peak_bytes, "floor_bytes": floors[0]}
        progress(f"  peak {format_bytes(run.live_peak_bytes)}, floor {format_bytes(floors[0])}")
        return run.live_peak_bytes

    def _run_cell(self, cell: Cell, number: int, reference: Run) -> None:
        if cell.error:
            return
        session = None
        if cell.variant != PLAIN:
            session = partial(
                cl.Session,
                cell.capacity_bytes,
                device="cpu",
                link=cell.link,
                planning=cell.variant != EVICTION,
            )
        try:
            run = self._train(cell.case, session)
        except (
            Exception
        ) as error:  # the other rows still count; this one is reported, and fails the benchmark
            cell.error = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            progress(f"  {cell.label}: {cell.error}")
            return
        comparison = measure.compare(run.losses, reference.losses, run.digests, reference.digests)
        cell.runs.append(run)
        cell.comparisons.append(comparison)
        verdict = "bit-identical" if comparison.identical else f"DIFFERS: {comparison.first_difference}"
        progress(
            f"  round {number + 1}/{self.rounds} {cell.label}: {milliseconds(median(run.step_s))} ms a step, {verdict}"
        )


HEADERS = (
    "model", "of peak", "link", "variant", "capacity MiB", "peak MiB", "within", "unswapped MiB", "released MiB",
    "step ms", "ratio", "min ratio", "cpu ratio", "overlap", "stall ms", "stall", "replay ms", "out MiB", "in MiB",
    "dropped MiB", "evict", "demand", "losses =", "weights =",
)  # fmt: skip


def screen_row(row: dict[str, Any]) -> list[str]:
    """A row as it is printed."""

    def shown(value: Any, text: Callable[[Any], str]) -> str:
        return "-" if value is None else text(value)

    in_session, moves = row["variant"] != PLAIN, row["capacity_bytes"] is not None
    cells = [
        row["model"],
        shown(row["fraction"], str),
        shown(row["link"], str),
        row["variant"],
        shown(row["capacity_bytes"], mib),
        shown(row["peak_bytes"], mib),
        shown(row["within_capacity"], yes),
        mib(row["unswapped_peak_bytes"]),
    ]
    if row["error"]:
        return [*cells, row["error"], *[""] * (len(HEADERS) - len(cells) - 3), "NO", "NO"]
    return [
        *cells,
        shown(row["released_bytes"], mib),
        milliseconds(row["step_s"]),
        f"{row['ratio']:.3f}",
        f"{row['ratio_of_minima']:.3f}",
        f"{row['ratio_of_cpu']:.3f}",
        shown(row["overlap"], "{:.1%}".format),
        milliseconds(row["stall_s"]) if in_session else "-",
        f"{row['stall_share']:.1%}" if in_session else "-",
        milliseconds(row["replay_s"]) if moves else "-",
        mib(row["out_bytes"]) if moves else "-",
        mib(row["in_bytes"]) if moves else "-",
        mib(row["dropped_bytes"]) if moves else "-",
        f"{row['evictions']:.0f}" if moves else "-",
        f"{row['demand_swap_ins']:.0f}" if moves else "-",
        yes(row["losses_identical"]),
        yes(row["weights_identical"]),
    ]


ARITHMETIC_HEADERS = (
    "model", "of peak", "link", "variant", "moved/bandwidth ms", "compute ms", "expected stall ms", "bound ms",
    "planned ms", "by op ms", "measured ms", "measured/expected", "measured/bound", "measured/by op",
)  # fmt: skip


def arithmetic_row(row: dict[str, Any]) -> list[str]:
    """The stall arithmetic of a row as it is printed."""
    values = row["arithmetic"]

    def quotient(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    def time_of(name: str) -> str:
        return "-" if values[name] is None else milliseconds(values[name])

    return [
        row["model"],
        row["fraction"],
        row["link"],
        row["variant"],
        time_of("link_s"),
        time_of("compute_s"),
        time_of("expected_stall_s"),
        time_of("bound_s"),
        time_of("predicted_stall_s"),
        time_of("by_op_s"),
        time_of("measured_stall_s"),
        quotient(values["measured_over_expected"]),
        quotient(values["measured_over_bound"]),
        quotient(values["measured_over_by_op"]),
    ]


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in CASES:
            raise argparse.ArgumentTypeError(f"there is no model {name!r}: choose from {', '.join(CASES)}")
    return names


def fractions_of(text: str) -> list[Fraction]:
    """A command-line argument that lists fractions between 0 and 1."""
    try:
        fractions = [Fraction(part.strip()) for part in text.split(",")]
    except (ValueError, ZeroDivisionError):
        fractions = []
    if not fractions or not all(0 < fraction < 1 for fraction in fractions):
        raise argparse.ArgumentTypeError(f"{text!r}: write fractions between 0 and 1 like 1/2,1/4")
    return fractions


def _bandwidth(text: str) -> str:
    try:
        parse_bandwidth(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def parse_arguments(arguments: Sequence[str] | None, program: str = "main_job") -> argparse.Namespace:
    """The command line; adds ``links``, the two bandwidths or with --quick the first."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{program}")
    parser.add_argument("--json", metavar="FILE", help="write the rows there")
    parser.add_argument("--models", type=_names, default=list(CASES), help=f"default: {','.join(CASES)}")
    parser.add_argument(
        "--fractions", type=fractions_of, help="capacities as fractions of the peak (1/2,1/4,1/8)"
    )
    parser.add_argument("--link", type=_bandwidth, default="8GiB/s", help="one that can hide the traffic")
    parser.add_argument("--slow-link", type=_bandwidth, default="0.2GiB/s", help="one that can't")
    parser.add_argument("--rounds", type=measure.count, help="runs of each row (3)")
    parser.add_argument("--steps", type=measure.count, help="timed steps of each run (5)")
    parser.add_argument(
        "--threads", type=measure.count, default=1, help="threads of an op (1: the copies have the rest)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny models, 1 round, 2 steps, no slow link, 1/2 only"
    )
    options = parser.parse_args(arguments)
    options.fractions = options.fractions or [
        Fraction(f) for f in (["1/2"] if options.quick else ["1/2", "1/4", "1/8"])
    ]
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.steps = options.steps or (2 if options.quick else 5)
    options.links = [options.link] if options.quick else [options.link, options.slow_link]
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 if every row is bit-identical and within its capacity, else 1."""
    options = parse_arguments(arguments)
    torch.set_num_threads(options.threads)
    job = MainJob(options)
    environment = measure.environment(vars(options))
    for done in job.run():
        if options.json:  # after every model: a long run that is stopped leaves what it has measured
            document = {"benchmark": "main_job", "environment": environment, "complete": done}
            document |= {"correct": job.correct}
            document |= {"models": job.peaks, "rows": job.rows}
            measure.write_json(options.json, document)
    print(measure.table(HEADERS, [screen_row(row) for row in job.rows], left=4))
    slow = [row for row in job.rows if row["arithmetic"] and row["link"] == options.slow_link]
    if slow:
        print(
            f"\nStall on the slow link. Expected = max over directions of (bytes moved / bandwidth) - compute time of "
            f"the step.\nBound: the least that stalls and replays could take together, and 'measured/bound' "
            f"is of both.\nPlanned: as foretold. By op: the policy in the simulator, with the op times of the newest "
            f"timed step.\n"
            f"{measure.table(ARITHMETIC_HEADERS, [arithmetic_row(row) for row in slow], left=4)}"
        )
        hidden = sum(row["arithmetic"]["expected_stall_s"] == 0 for row in slow)
        if hidden:
            print(
                f"In {hidden} of {len(slow)} rows compute could hide it all: give a lower --slow-link for these."
            )
    print(f"\n{measure.device_line(environment)}")
    print(
        "Ratios are to the uncapped runs interleaved with the row's; released is less process memory than theirs."
    )
    if options.json:
        print(f"Written to {options.json}")
    for row in job.rows:
        where = " ".join(
            str(row[key]) for key in ("model", "fraction", "link", "variant") if row[key] is not None
        )
        if row["error"]:
            print(f"FAILED: {where}: {row['error']}")
        elif not row["bit_identical"]:
            print(f"NOT IDENTICAL: {where}: {row['first_difference']}")
        elif row["within_capacity"] is False:
            print(f"OVER CAPACITY: {where}: {row['peak_bytes']} > {row['capacity_bytes']} bytes")
    return 0 if job.correct else 1


if __name__ == "__main__":
    sys.exit(main())
