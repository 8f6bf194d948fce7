"""How far from the optimum plans are: the planner's own, others' rules, and a bound that no policy can beat.

Full training steps of models of real size, traced without a device; op times are those of a roofline and no
measurement. Every rule is judged by the same simulator, on the same link. "mixed" may rematerialize too: its cost is
that of stalls and replays, and it has a bound of its own; "first" is the plan that a session follows while that one is
searched. Beside it stands checkpointing (of whole blocks, selective,
and with the blocks' inputs on the host), each with the rest swapped by the planner's passes.

    python -m benchmarks.planner --json FILE [--models a,b] [--percent 90,80,…,20] [--device H100]
        [--traces FOLDER] [--rounds N] [--ops 9000,100000]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import chameleon_lab as cl
from chameleon_lab.planner import Prediction, floor, lower_bound, plan, simulate
from chameleon_lab.planner.memory import step_memory
from chameleon_lab.planner.program import compile_program
from chameleon_lab.planner.simulate import simulate_swaps
from chameleon_lab.policy import Link
from chameleon_lab.trace import StepTrace, Trace
from chameleon_lab.util.units import format_percent

from . import baselines, measure
from .baselines import checkpointing
from .measure import progress
from .shapes import SHAPES

OURS = "ours"
MIXED = "mixed"
FIRST = "first"
OTHERS = {"greedy": baselines.greedy, "mindspeed": baselines.mindspeed, "naive": baselines.naive}

WANTED = {
    ("llama-7b", 60): 0.02,
    ("llama-7b", 50): 0.10,
    ("llama-7b", 40): 0.30,
    ("llama-7b", 30): 0.46,
    ("llama-7b", 20): 0.66,
    ("llama-1b", 60): 0.08,
    ("llama-1b", 50): 0.16,
    ("llama-1b", 40): 0.43,
    ("gpt2", 60): 0.097,
}
"""Stalls and replays of the mixed plan, as a share of compute on an H100: at most this."""

PLANNED = ("gpt2", "llama-1b", "llama-7b", "moe", "vit-l")
"""The shapes that are planned for where none is named."""

MANY_OPS = (9_000, 100_000)
"""Planning is also timed on steps of at least so many ops, made of the largest model's in a row."""

TOLERANCE = 1e-4
"""Of the compute time: the solver of the bound is not exact, and stalls so small mean nothing."""


# ------------------------------------------------------------------------------------------------------ stalls


def row_of(model: str, step: StepTrace, percent: float, capacity: int, link: Link) -> dict[str, Any]:
    """The bound and every rule at one capacity. Below the floor there are none."""
    times = step.ops.duration_s
    row: dict[str, Any] = {
        "model": model,
        "percent": percent,
        "capacity_bytes": capacity,
        "ops": len(step.ops),
        "floor_bytes": floor(step).bytes,
        "feasible": capacity >= floor(step).bytes,
        "bound": None,
        "mixed_bound": None,
        "wanted": WANTED.get((model, percent)),
        "rules": {},
        "checkpointed": {},
    }
    if not row["feasible"]:
        return row
    row["bound"] = _bound(step, capacity, link, times, rematerialize=False)
    row["mixed_bound"] = _bound(step, capacity, link, times, rematerialize=True)
    row["rules"][OURS] = _figures(simulate(step, plan(step, capacity, link, op_times=times), op_times=times))
    # Not told the op times, as a session plans: it takes them for equal.
    row["untold"] = _figures(simulate(step, plan(step, capacity, link), op_times=times))
    mixed = plan(step, capacity, link, op_times=times, rematerialize=True)
    row[MIXED] = _figures(simulate(step, mixed, op_times=times)) | {
        "swaps": len(mixed.swaps),
        "drops": len(mixed.drops),
    }
    first = plan(step, capacity, link, op_times=times, rematerialize=True, quick=True)
    row[FIRST] = _figures(simulate(step, first, op_times=times))
    for kind in checkpointing.KINDS:
        found = checkpointing.checkpointed(kind, step, capacity, link, times)
        row["checkpointed"][kind] = None if found is None else _figures(found)
    memory = step_memory(step)
    for name, rule in OTHERS.items():
        swaps = rule(step, memory, capacity, link, times)
        row["rules"][name] = _figures(simulate_swaps(memory, swaps, capacity, link, times))
    return row


def _bound(
    step: StepTrace, capacity: int, link: Link, times: np.ndarray, *, rematerialize: bool
) -> dict[str, Any]:
    begin = time.perf_counter()
    bound = lower_bound(step, capacity, link, times, rematerialize=rematerialize)
    return {
        "stall_s": bound.stall_s,
        "stall_share": bound.stall_share,
        "checkpoints": bound.checkpoints,
        "seconds": time.perf_counter() - begin,
    }


def _figures(prediction: Prediction) -> dict[str, Any]:
    return {
        "fits": prediction.fits,
        "peak_bytes": prediction.peak_bytes,
        "step_s": prediction.step_s,
        "stall_s": prediction.stall_s,
        "stall_share": prediction.stall_share,
        "stall_by_cause_s": {str(cause): stall_s for cause, stall_s in prediction.stall_by_cause.items()},
        "replay_s": prediction.replay_s,
        "overhead_share": prediction.overhead_share,
        "replayed_bytes": prediction.replayed_bytes,
        "overlap": prediction.overlap,
        "out_bytes": prediction.swapped_out_bytes,
        "in_bytes": prediction.swapped_in_bytes,
    }


def faults(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What must never be: the planner's policy over its capacity, worse than another rule's, or below the bound.

    The same of the mixed one, which must not be worse than swapping alone.
    """
    found = []
    for row in rows:
        if not row["feasible"]:
            continue
        where, ours = f"{row['model']} at {row['percent']:g} %", row["rules"][OURS]
        if not ours["fits"]:
            found.append(f"{where}: the plan takes {ours['peak_bytes']} of {row['capacity_bytes']} bytes")
        mixed = row[MIXED]
        if not mixed["fits"]:
            found.append(
                f"{where}: the mixed plan takes {mixed['peak_bytes']} of {row['capacity_bytes']} bytes"
            )
        first = row[FIRST]["overhead_share"]
        if first > ours["stall_share"] + TOLERANCE:
            found.append(f"{where}: the first plan costs more than swapping alone")
        if mixed["overhead_share"] > first + TOLERANCE:
            found.append(f"{where}: the mixed plan costs more than the first one")
        for kind, other in row.get("checkpointed", {}).items():
            if other and other["fits"] and other["overhead_share"] < mixed["overhead_share"] - TOLERANCE:
                found.append(f"{where}: checkpointing ({kind}) costs less than the mixed plan")
        if mixed["overhead_share"] < row["mixed_bound"]["stall_share"] - TOLERANCE:
            found.append(f"{where}: the mixed plan beats its bound: the simulator is wrong, or the bound")
        for name, other in row["rules"].items():
            if other["fits"] and other["stall_share"] < ours["stall_share"] - TOLERANCE:
                found.append(f"{where}: {name} stalls less than the planner's policy")
            if other["fits"] and other["stall_share"] < row["bound"]["stall_share"] - TOLERANCE:
                found.append(f"{where}: {name} beats the bound: the simulator is wrong, or the bound")
    return found


def missed(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows whose mixed plan costs more than is wanted."""
    return [
        row
        for row in rows
        if row["feasible"] and row["wanted"] is not None and row[MIXED]["overhead_share"] > row["wanted"]
    ]


def distance(row: dict[str, Any]) -> float:
    """Points of stall between the planner's policy and the bound."""
    return 100 * (row["rules"][OURS]["stall_share"] - row["bound"]["stall_share"])


# ------------------------------------------------------------------------------------------------- planning time


def in_a_row(step: StepTrace, count: int) -> StepTrace:
    """One step made of ``count`` copies of ``step``, as large as a step of many micro-batches.

    What a copy leaves to the next counts as live there, and is not followed further.
    """
    n, storages, uses = len(step.ops), step.storages, step.uses
    persistent = (storages.birth_op < 0) & (storages.death_op >= n)
    carried = (storages.birth_op < 0) & ~persistent
    rows: list[np.ndarray] = []
    shifts: list[np.ndarray] = []
    use_rows: list[np.ndarray] = []
    new_row = np.full(len(storages), -1, dtype=np.int64)
    used_storage: list[np.ndarray] = []
    total = 0
    for copy in range(count):
        own = np.flatnonzero(~persistent & ~carried if copy else np.ones(len(storages), dtype=bool))
        new_row[own] = np.arange(total, total + len(own))
        rows.append(own)
        shifts.append(np.where(persistent[own], 0, copy * n))
        kept = np.flatnonzero(~carried[uses.storage] | (copy == 0))
        use_rows.append(kept)
        used_storage.append(new_row[uses.storage[kept]])
        total += len(own)
    row, shift = np.concatenate(rows), np.concatenate(shifts)
    death = np.where(persistent[row], count * n, np.minimum(storages.death_op[row] + shift, count * n))
    birth = storages.birth_op[row]
    tiled = replace(storages, **{name: column[row] for name, column in storages.columns().items()})
    use = np.concatenate(use_rows)
    use_shift = np.repeat(np.arange(count) * n, [len(kept) for kept in use_rows])
    return replace(
        step,
        duration_s=step.duration_s * count,
        ops=replace(
            step.ops, **{name: np.tile(column, count) for name, column in step.ops.columns().items()}
        ),
        storages=replace(
            tiled,
            birth_op=np.where(birth < 0, -1, birth + shift).astype(np.int32),
            death_op=death.astype(np.int32),
            uid=np.arange(len(row), dtype=np.int64),
        ),
        uses=replace(
            uses,
            op=(uses.op[use] + use_shift).astype(np.int32),
            storage=np.concatenate(used_storage).astype(np.int32),
            reads=uses.reads[use],
            writes=uses.writes[use],
            part=uses.part[use],
        ),
    )


def timing_of(
    model: str, step: StepTrace, percents: Sequence[float], link: Link, rounds: int
) -> dict[str, Any]:
    """The longest that planning takes at any of the capacities, the best of ``rounds`` at each."""
    slowest: dict[str, Any] = {"model": model, "ops": len(step.ops), "plan_s": 0.0}
    slowest |= {"mixed_s": 0.0, "first_s": 0.0}
    for percent in percents:
        capacity = int(step.live_peak_bytes * percent / 100)
        if capacity < floor(step).bytes:
            continue
        plan_s = simulate_s = mixed_s = first_s = np.inf
        for _ in range(rounds):
            begin = time.process_time()
            policy = plan(step, capacity, link)
            planned = time.process_time()
            simulate(step, policy)
            simulated = time.process_time()
            plan(step, capacity, link, rematerialize=True)
            plan_s = min(plan_s, planned - begin)
            simulate_s = min(simulate_s, simulated - planned)
            mixed = time.process_time()
            compile_program(plan(step, capacity, link, rematerialize=True, quick=True), step)
            mixed_s = min(mixed_s, mixed - simulated)
            first_s = min(first_s, time.process_time() - mixed)
        slowest["mixed_s"] = max(slowest["mixed_s"], mixed_s)
        slowest["first_s"] = max(slowest["first_s"], first_s)
        if plan_s > slowest["plan_s"]:
            slowest |= {
                "percent": percent,
                "swaps": len(policy.swaps),
                "plan_s": plan_s,
                "simulate_s": simulate_s,
            }
    return slowest


# ------------------------------------------------------------------------------------------------------ the program

HEADERS = (
    "model",
    "of peak",
    "capacity GB",
    "bound",
    OURS,
    "untold",
    *OTHERS,
    "above bound",
    FIRST,
    MIXED,
    "of it replays",
    *checkpointing.KINDS,
    "its bound",
    "wanted",
    "out GB",
    "in GB",
    "overlap",
)
TIMING_HEADERS = (
    "model",
    "ops",
    "swaps",
    "at % of peak",
    "plan s",
    "simulate s",
    "first plan s",
    "mixed plan s",
)


def screen_row(row: dict[str, Any]) -> list[str]:
    """A row as the table shows it: stalls in % of compute."""
    head = [row["model"], f"{row['percent']:g} %", f"{row['capacity_bytes'] / 1e9:.1f}"]
    if not row["feasible"]:
        return [*head, "below the floor", *["-"] * (len(HEADERS) - 4)]
    ours, mixed = row["rules"][OURS], row[MIXED]
    return [
        *head,
        f"{100 * row['bound']['stall_share']:.1f}",
        *(
            f"{100 * rule['stall_share']:.1f}" if rule["fits"] else "infeasible"
            for rule in (ours, row["untold"], *(row["rules"][name] for name in OTHERS))
        ),
        f"{distance(row):.1f}",
        f"{100 * row[FIRST]['overhead_share']:.1f}",
        f"{100 * mixed['overhead_share']:.1f}" if mixed["fits"] else "infeasible",
        f"{100 * (mixed['overhead_share'] - mixed['stall_share']):.1f}",
        *(_screen_checkpointed(row["checkpointed"].get(kind)) for kind in checkpointing.KINDS),
        f"{100 * row['mixed_bound']['stall_share']:.1f}",
        "-" if row["wanted"] is None else f"{100 * row['wanted']:g}",
        f"{ours['out_bytes'] / 1e9:.1f}",
        f"{ours['in_bytes'] / 1e9:.1f}",
        format_percent(ours["overlap"], 0),
    ]


def _screen_checkpointed(figures: dict[str, Any] | None) -> str:
    return f"{100 * figures['overhead_share']:.1f}" if figures and figures["fits"] else "does not fit"


def screen_timing(row: dict[str, Any]) -> list[str]:
    """A timing as the table shows it."""
    times = (f"{row[name]:.2f}" for name in ("plan_s", "simulate_s", "first_s", "mixed_s"))
    return [row["model"], str(row["ops"]), str(row["swaps"]), f"{row['percent']:g}", *times]


def link_of(trace: Trace) -> Link:
    """The link that a trace was made for."""
    return Link(trace.meta["link_out_bytes_per_s"], trace.meta["link_in_bytes_per_s"])


def trace_of(name: str, options: argparse.Namespace, capacity: int | None = None) -> Trace:
    """A model's trace, made here or read from a file; as a session of that capacity would run it.

    A session splits the list ops of optimizers for its capacity, so that each capacity has its own ops.
    """
    if options.traces:
        return Trace.load(str(Path(options.traces) / f"{name}.parquet"))
    return cl.trace_meta(SHAPES[name].build, device=options.device, capacity=capacity)


def parse_with_steps(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None, percents: Sequence[float]
) -> argparse.Namespace:
    """A command line that names models and capacities, checked. ``percents``: of the peak, where none are named."""
    parser.add_argument(
        "--models", type=lambda text: text.split(","), default=list(PLANNED), help=f"of {', '.join(SHAPES)}"
    )
    parser.add_argument(
        "--percent",
        type=lambda text: [float(part) for part in text.split(",")],
        default=list(percents),
        help="capacities in %% of the peak",
    )
    parser.add_argument("--device", default="H100", help="whose op times and link (default: %(default)s)")
    parser.add_argument(
        "--traces", metavar="FOLDER", help="read NAME.parquet there, as benchmarks.shapes --save wrote it"
    )
    options = parser.parse_args(arguments)
    unknown = [name for name in options.models if name not in SHAPES and not options.traces]
    if unknown:
        parser.error(f"unknown model {unknown[0]!r}: known are {', '.join(SHAPES)}")
    return options


def environment_of(options: argparse.Namespace) -> dict[str, Any]:
    """Where this ran, and that nothing was measured on the device."""
    return measure.environment(vars(options)) | {
        "device": f"{options.device}, by roofline: op times come from shapes, and nothing was measured on it"
    }


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked."""
    parser = measure.parser_of("planner", __doc__)
    parser.add_argument("--rounds", type=measure.count, default=3, help="plans timed at each capacity (3)")
    parser.add_argument(
        "--ops",
        type=lambda text: [measure.count(part) for part in text.split(",")],
        default=list(MANY_OPS),
        help="ops of the steps in a row that planning is timed on (9000,100000)",
    )
    return parse_with_steps(parser, arguments, (90.0, 80.0, 70.0, 60.0, 50.0, 40.0, 30.0, 20.0))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 if no policy of the planner's is over its capacity, worse than another's, or below the bound."""
    options = parse_arguments(arguments)
    environment = environment_of(options)
    models: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    timings: list[dict[str, Any]] = []
    largest: tuple[str, StepTrace, Link] | None = None
    for name in options.models:
        begin = time.perf_counter()
        trace = trace_of(name, options)
        step, link = trace.last, link_of(trace)
        progress(f"{name}: {len(step.ops)} ops, traced in {time.perf_counter() - begin:.1f} s")
        models[name] = {
            "about": SHAPES[name].about if name in SHAPES else "",
            "ops": len(step.ops),
            "storages": len(step.storages),
            "live_peak_bytes": step.live_peak_bytes,
            "compute_s": step.duration_s,
            "link_out_bytes_per_s": link.out_bytes_per_s,
            "link_in_bytes_per_s": link.in_bytes_per_s,
            "traced_on": trace.meta["device"],
        }
        for percent in options.percent:
            capacity = int(step.live_peak_bytes * percent / 100)
            capped = trace_of(name, options, capacity).last
            rows.append(row_of(name, capped, percent, capacity, link))
            progress("  ".join(screen_row(rows[-1])))
        timings.append(timing_of(name, step, options.percent, link, options.rounds))
        if largest is None or len(step.ops) > len(largest[1].ops):
            largest = (name, step, link)
    for ops in options.ops if largest else ():
        name, step, link = largest
        count = -(-ops // len(step.ops))
        progress(f"planning {count} steps of {name} in a row")
        timings.append(timing_of(f"{count} x {name}", in_a_row(step, count), options.percent, link, 1))
    found = faults(rows)
    if options.json:
        document = {"benchmark": "planner", "environment": environment, "correct": not found, "faults": found}
        measure.write_json(options.json, document | {"models": models, "rows": rows, "timings": timings})
    print("Stall (of mixed: and replays) in % of the step's compute, in the steady state.\n")
    print(measure.table(HEADERS, [screen_row(row) for row in rows], left=1))
    print()
    print(measure.table(TIMING_HEADERS, [screen_timing(row) for row in timings], left=1))
    for row in missed(rows):
        share = format_percent(row[MIXED]["overhead_share"])
        print(
            f"{row['model']} at {row['percent']:g} %: mixed {share}, wanted {format_percent(row['wanted'])}"
        )
    for name, model in models.items():
        print(
            f"{name}: {model['ops']} ops, {model['compute_s'] * 1e3:.0f} ms of compute, peak "
            f"{model['live_peak_bytes'] / 1e9:.1f} GB, link {(model['link_out_bytes_per_s'] or 0) / 1e9:.0f} GB/s out"
        )
    print(f"\nOp times: {environment['device']}.\nPlanning times: {measure.device_line(environment)}")
    if options.json:
        print(f"Written to {options.json}")
    for fault in found:
        print(f"WRONG: {fault}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
