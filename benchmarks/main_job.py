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
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

import chameleon_lab as cl
from chameleon_lab.planner import floor, lower_bound, simulate
from chameleon_lab.util.units import format_bytes, parse_bandwidth

from . import measure
from .campaign import UNCAPPED, Campaign, Cell, names_of, parsed, pooled
from .measure import median, mib, milliseconds, progress, yes
from .models import CASES, Case

PLAIN, EVICTION, PLANNED = "plain", "eviction", "planned"


_MEDIANS = (
    "replay_s", "out_bytes", "in_bytes", "dropped_bytes", "evictions", "demand_swap_ins", "match_rate",
)  # fmt: skip


def row_of(cell: Cell, peak_bytes: int, uncapped_memory_bytes: float) -> dict[str, Any]:
    """The row's figures as plain values; see the README for what each is."""
    times = cell.times()
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
        **times,
        "uncapped_step_s": median(pooled(cell.base, "step_s")),
        **cell.ratios(),
        "cpu_s": median(cell.pooled("cpu_s")),
        "overlap": max(0.0, 1.0 - sum(t.stall_s for t in traffic) / copies_s) if copies_s > 0 else None,
        "stall_s": stall_s,
        "stall_share": stall_s / times["step_s"] if times["step_s"] else 0.0,
        **cell.medians(*_MEDIANS),
        "decisions": max((run.decisions for run in cell.runs), default=0),
        "predicted": cell.runs[-1].predicted if cell.runs else {},
        **cell.verdict(),
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
    replays together could take under any policy there (:func:`chameleon_lab.planner.lower_bound`).
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
        bound_s = lower_bound(step, policy.capacity_bytes, policy.link, rematerialize=True).stall_s
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


class MainJob(Campaign[Cell]):
    """The models of the main job."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__("main_job", [CASES[name] for name in options.models], options)

    def session(self, cell: Cell) -> Callable[[], cl.Session] | None:
        """A session of the row's capacity, with plans or without; none for plain PyTorch."""
        if cell.variant == PLAIN:
            return None
        return partial(
            cl.Session, cell.capacity_bytes, device="cpu", link=cell.link, planning=cell.variant != EVICTION
        )

    def measure_case(self, case: Case) -> None:
        """Train it in every variant."""
        peak = self._peak(case)
        reference = self.references[case.name] = self.train(case, None)  # also takes what a first run costs
        if not all(map(math.isfinite, reference.losses)):
            raise RuntimeError(
                f"{case.name}: the plain run's losses are not finite, so nothing can be compared"
            )
        plain, uncapped = Cell(case, PLAIN), Cell(case, UNCAPPED)
        groups = []
        for link in self.options.links:
            for fraction in self.options.fractions if case.fractions is None else case.fractions:
                base = Cell(case, UNCAPPED, fraction, link)
                capacity = int(peak * fraction)
                groups.append(
                    [base, *(Cell(case, name, fraction, link, capacity) for name in (EVICTION, PLANNED))]
                )
        self.run_rounds([[plain], *groups])
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
            tiny=self.options.quick,
            on_end=lambda session: floors.append(floor(session.trace()).bytes),
        )
        self.models[case.name] = {"unswapped_peak_bytes": run.live_peak_bytes, "floor_bytes": floors[0]}
        progress(f"  peak {format_bytes(run.live_peak_bytes)}, floor {format_bytes(floors[0])}")
        return run.live_peak_bytes


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


def _bandwidth(text: str) -> str:
    try:
        parse_bandwidth(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def parse_arguments(arguments: Sequence[str] | None, program: str = "main_job") -> argparse.Namespace:
    """The command line; adds ``links``, the two bandwidths or with --quick the first."""
    parser = measure.parser_of(program)
    parser.add_argument(
        "--models",
        type=names_of(list(CASES), "model"),
        default=list(CASES),
        help=f"default: {','.join(CASES)}",
    )
    parser.add_argument("--link", type=_bandwidth, default="8GiB/s", help="one that can hide the traffic")
    parser.add_argument("--slow-link", type=_bandwidth, default="0.2GiB/s", help="one that can't")
    options = parsed(
        parser,
        arguments,
        fractions="1/2,1/4,1/8",
        steps=5,
        quick="tiny models, 1 round, 2 steps, no slow link, 1/2 only",
    )
    options.links = [options.link] if options.quick else [options.link, options.slow_link]
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 if every row is bit-identical and within its capacity, else 1."""
    options = parse_arguments(arguments)
    torch.set_num_threads(options.threads)
    job = MainJob(options)
    environment = job.run()
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
