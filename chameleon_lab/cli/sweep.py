"""``chameleon sweep``: step time against capacity."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import click

from ..planner import Sweep, SweepPoint
from ..planner import sweep as sweep_capacities
from ..policy import Link
from ..trace import Trace
from .common import (
    CAPACITY,
    failing_well,
    host_capacity_option,
    json_option,
    link_of,
    link_option,
    load_trace,
    print_json,
    rematerialize_option,
    step_of,
    step_option,
    with_examples,
)


@click.command(
    "sweep",
    short_help="Show step time against capacity.",
    epilog=with_examples(
        """
        chameleon sweep t.parquet
        chameleon sweep t.parquet --capacity 80% --capacity 60% --capacity 512MiB --link 16GiB/s
        chameleon sweep t.parquet --json | jq .knee.capacity_bytes
        """
    ),
)
@click.argument("trace_file", metavar="TRACE")
@click.option(
    "--capacity",
    "capacities",
    type=CAPACITY,
    metavar="SIZE",
    multiple=True,
    help="Look at this one, such as 256MiB or 60% of what the step keeps alive; may be given several times. Left out: "
    "from the floor to the peak.",
)
@host_capacity_option
@link_option
@rematerialize_option
@step_option
@json_option
def sweep(
    trace_file: str,
    capacities: tuple[str, ...],
    host_capacity: str | None,
    link: Link | None,
    rematerialize: str | None,
    index: int | None,
    as_json: bool,
) -> None:
    """Plan and predict the newest step of TRACE at several capacities: what one needs to choose a capacity.

    Of a file whose end is missing, the newest step that is whole, with a warning.
    """
    trace = load_trace(trace_file)
    step = step_of(trace, index)
    link = link or link_of(trace)
    with failing_well(trace_file):
        found = sweep_capacities(
            Trace([step], trace.meta),
            capacities or None,
            link,
            rematerialize=rematerialize,
            host_capacity_bytes=host_capacity,
        )
    if as_json:
        print_json(sweep_values(found) | {"lost": trace.lost})
    else:
        print(found)


def sweep_values(found: Sweep) -> dict[str, Any]:
    """A sweep as plain values; JSON knows no infinity, so infeasible points have null for their step."""
    return asdict(found) | {
        "points": [_point(point) for point in found.points],
        "knee": None if found.knee is None else _point(found.knee),
    }


def _point(point: SweepPoint) -> dict[str, Any]:
    values = {
        name: None if value is None or not math.isfinite(value) else value
        for name, value in asdict(point).items()
    }
    return values | {"feasible": point.feasible}
