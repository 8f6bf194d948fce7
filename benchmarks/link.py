"""What plans cost where the link is slower than they assumed, and what a margin of the link costs and saves.

Full training steps of models of real size, traced without a device; op times are those of a roofline and no
measurement. At each capacity three plans are made, with replays: for the whole link, for the link less a margin, and
for half of it. Each is simulated on the whole link, on the link less the margin, and on half of it. Beside the plan for
half of it stands a bound that no policy can beat there.

    python -m benchmarks.link --json FILE [--models a,b] [--percent 60,40] [--margin 25%] [--device H100]
        [--traces FOLDER]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from chameleon_lab.planner import floor, lower_bound, plan, simulate
from chameleon_lab.planner.arguments import checked_margin
from chameleon_lab.policy import Link, Policy
from chameleon_lab.trace import StepTrace
from chameleon_lab.util.units import format_percent

from . import measure
from .measure import progress
from .planner import TOLERANCE, environment_of, link_of, parse_with_steps, trace_of

HALF = 0.5

HEADERS = (
    *("model", "of peak"),
    *("whole link", "with margin"),
    *("link less margin", "with margin"),
    *("half the link", "with margin", "knowing it", "its bound"),
)


def row_of(
    model: str, step: StepTrace, percent: float, capacity: int, link: Link, margin: float
) -> dict[str, Any]:
    """Stalls and replays of each plan on each link, as shares of the compute time. Below the floor there are none."""
    row: dict[str, Any] = {
        "model": model,
        "percent": percent,
        "capacity_bytes": capacity,
        "ops": len(step.ops),
        "margin": margin,
        "feasible": capacity >= floor(step).bytes,
        "overheads": {},
        "fits": True,
        "predicted_apart": 0.0,
        "bound": None,
        "same_as_for_less": True,
    }
    if not row["feasible"]:
        return row
    times = step.ops.duration_s

    def planned(on: Link, link_margin: float = 0.0) -> Policy:
        return plan(step, capacity, on, op_times=times, link_margin=link_margin, rematerialize=True)

    plans = {"whole": planned(link), "margin": planned(link, margin), "half": planned(link.reduced(HALF))}
    row["same_as_for_less"] = plans["margin"].decisions == planned(link.reduced(margin)).decisions
    links = {"whole": link, "less": link.reduced(margin), "half": link.reduced(HALF)}
    row["bound"] = lower_bound(step, capacity, links["half"], times, rematerialize=True).stall_share
    for name, policy in plans.items():
        found = {on: simulate(step, policy, link=links[on], op_times=times) for on in links}
        row["overheads"][name] = {on: prediction.overhead_share for on, prediction in found.items()}
        row["fits"] &= all(prediction.fits for prediction in found.values())
        own = found["half" if name == "half" else "whole"].step_s
        row["predicted_apart"] = max(row["predicted_apart"], abs(policy.predicted["step_s"] / own - 1.0))
    return row


def faults(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What must never be: a plan over its capacity, or that predicts something else of its own, or beats the bound."""
    found = []
    for row in rows:
        where = f"{row['model']} at {row['percent']:g} %"
        if not row["fits"]:
            found.append(f"{where}: a plan is over its capacity")
        if row["predicted_apart"] > TOLERANCE:
            found.append(f"{where}: a plan predicts another step than it is simulated to take")
        if not row["same_as_for_less"]:
            found.append(f"{where}: the plan with a margin is not the one for the link less that")
        at_half = [shares["half"] for shares in row["overheads"].values()]
        if at_half and min(at_half) < row["bound"] - TOLERANCE:
            found.append(f"{where}: a plan beats the bound: the simulator is wrong, or the bound")
    return found


def screen_row(row: dict[str, Any]) -> list[str]:
    """A row as the table shows it: stalls and replays in % of compute."""
    head = [row["model"], f"{row['percent']:g} %"]
    if not row["feasible"]:
        return [*head, "below the floor", *["-"] * (len(HEADERS) - 3)]
    shares = row["overheads"]
    cells = (
        *((name, "whole") for name in ("whole", "margin")),
        *((name, "less") for name in ("whole", "margin")),
        *((name, "half") for name in ("whole", "margin", "half")),
    )
    return [*head, *(f"{100 * shares[name][on]:.1f}" for name, on in cells), f"{100 * row['bound']:.1f}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 if all plans fit, predict what they are simulated to take, and cost no less than the bound."""
    parser = measure.parser_of("link", __doc__)
    parser.add_argument("--margin", type=checked_margin, default=0.25, help="of the link (25%%)")
    options = parse_with_steps(parser, arguments, (60.0, 40.0))
    environment = environment_of(options)
    rows: list[dict[str, Any]] = []
    for name in options.models:
        peak = trace_of(name, options).last.live_peak_bytes
        for percent in options.percent:
            capacity = int(peak * percent / 100)
            trace = trace_of(name, options, capacity)
            rows.append(row_of(name, trace.last, percent, capacity, link_of(trace), options.margin))
            progress("  ".join(screen_row(rows[-1])))
    found = faults(rows)
    if options.json:
        document = {"benchmark": "link", "environment": environment, "correct": not found, "faults": found}
        measure.write_json(options.json, document | {"rows": rows})
    margin = format_percent(options.margin, 0)
    print(
        f"Stalls and replays in % of the step's compute, of plans for the whole link, with a margin of {margin} of it, "
        "and knowing\nthat there is half of it.\n"
    )
    print(measure.table(HEADERS, [screen_row(row) for row in rows], left=1))
    print(f"\nOp times: {environment['device']}.")
    for fault in found:
        print(f"WRONG: {fault}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
