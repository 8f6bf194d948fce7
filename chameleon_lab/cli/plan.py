"""``chameleon plan``: a policy from a trace."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from ..planner import floor, lower_bound, simulate
from ..planner import plan as plan_policy
from ..planner.memory import MIN_SWAP_BYTES
from ..policy import Link, Policy
from ..policy.model import Action
from ..report.trace_report import place
from ..trace import Trace
from ..util.units import format_bytes, format_seconds
from .common import (
    CAPACITY,
    MARGIN,
    MIN_SWAP,
    failing_well,
    host_capacity_option,
    json_option,
    link_margin_option,
    link_of,
    link_option,
    load_trace,
    print_json,
    rematerialize_option,
    step_of,
    step_option,
    with_examples,
    working,
)
from .simulate import prediction_values


@click.command(
    "plan",
    short_help="Make a policy from a trace.",
    epilog=with_examples(
        """
        chameleon plan t.parquet --capacity 256MiB -o policy.json
        chameleon plan t.parquet --capacity 60% --link 16GiB/s --rematerialize all
        chameleon plan t.parquet --capacity 40GiB --host-capacity 96GiB
        chameleon plan t.parquet --capacity 256MiB --json | jq .predicted.stall_s
        """
    ),
)
@click.argument("trace_file", metavar="TRACE")
@click.option(
    "--capacity",
    type=CAPACITY,
    metavar="SIZE",
    required=True,
    help="Device bytes, such as 256MiB, or a fraction of what the step keeps alive, such as 0.6 or 60%.",
)
@host_capacity_option
@link_option
@click.option("-o", "--output", metavar="FILE", help="Write the policy there, as JSON.")
@click.option(
    "--margin",
    type=MARGIN,
    default="2%",
    show_default=True,
    metavar="FRACTION",
    help="Fraction of the capacity to leave free, for variation between steps.",
)
@link_margin_option
@click.option(
    "--min-swap", type=MIN_SWAP, default=MIN_SWAP_BYTES, metavar="SIZE", help="Smaller storages leave last."
)
@click.option(
    "--bound", "with_bound", is_flag=True, help="Also compute a lower bound of any policy (takes seconds)."
)
@rematerialize_option
@step_option
@json_option
def plan(
    trace_file: str,
    capacity: str,
    host_capacity: str | None,
    link: Link | None,
    output: str | None,
    margin: float,
    link_margin: float | None,
    min_swap: int,
    with_bound: bool,
    rematerialize: str | None,
    index: int | None,
    as_json: bool,
) -> None:
    """Make a policy for the newest step of TRACE, and predict what it costs.

    Of a file whose end is missing, the newest step that is whole, with a warning.

    Exits with 3 if the capacity is below the floor, or no policy was found that fits the host's.
    """
    trace = load_trace(trace_file)
    step = step_of(trace, index)
    link = link or link_of(trace)
    seen = Trace([step], trace.meta)
    with failing_well(trace_file), working(f"Planning {len(step.ops)} ops"):
        lowest = floor(seen)
        policy = plan_policy(
            seen,
            capacity,
            link,
            min_swap_bytes=min_swap,
            margin=margin,
            link_margin=link_margin or 0.0,
            rematerialize=rematerialize,
            host_capacity_bytes=host_capacity,
        )
        prediction = simulate(step, policy)
        at_half = simulate(step, policy, link=link.reduced(0.5))
    bound = None
    if with_bound:
        with failing_well(trace_file), working("Looking for the bound"):
            bound = lower_bound(
                seen, policy.capacity_bytes, link, min_swap_bytes=min_swap, rematerialize=rematerialize
            )
    if output is not None:
        with failing_well(output):
            policy.save(output)
    if as_json:
        print_json(
            {
                "capacity_bytes": policy.capacity_bytes,
                "host_capacity_bytes": policy.host_capacity_bytes,
                "link": asdict(link),
                "live_peak_bytes": step.live_peak_bytes,
                "floor": asdict(lowest),
                "swaps": len(policy.swaps),
                "categories": _categories(policy, Action.SWAP),
                "replays": len(policy.drops),
                "rematerialized": _categories(policy, Action.REMATERIALIZE),
                "predicted": prediction_values(prediction),
                "half_link_step_s": at_half.step_s,
                "lost": trace.lost,
                "lower_bound_stall_s": None if bound is None else bound.stall_s,
                "output": output,
            }
        )
        return
    print(policy)
    print(f"With the op times of the trace: {prediction}")
    print(f"At half the link: step {format_seconds(at_half.step_s)}, stall {format_seconds(at_half.stall_s)}")
    if bound is not None:
        print(bound)
    print(
        f"Floor: {format_bytes(lowest.bytes)}, set by {place(lowest.op_name, lowest.module)}; {lowest.measured_on}"
    )
    if output is not None:
        print(f"Saved in {output}")


def _categories(policy: Policy, action: Action) -> list[dict[str, Any]]:
    rows = policy.summary(action)
    return [{"category": category, "gaps": gaps, "bytes": size} for category, gaps, size in rows]
