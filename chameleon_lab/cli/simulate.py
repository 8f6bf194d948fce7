"""``chameleon simulate``: the effect of a policy on a recorded step."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import click

from ..planner import Prediction
from ..planner import simulate as simulate_policy
from ..policy import Link
from .common import (
    CAPACITY,
    LINK,
    ExitCode,
    failing_well,
    host_capacity_option,
    json_option,
    load_policy,
    load_trace,
    print_json,
    step_of,
    step_option,
    with_examples,
    working,
)


@click.command(
    "simulate",
    short_help="Predict a policy on a recorded step.",
    epilog=with_examples(
        """
        chameleon simulate t.parquet policy.json
        chameleon simulate t.parquet policy.json --link 16GiB/s --json
        chameleon simulate t.parquet policy.json --capacity 200MiB || echo does not fit
        """
    ),
)
@click.argument("trace_file", metavar="TRACE")
@click.argument("policy_file", metavar="POLICY")
@click.option(
    "--capacity",
    type=CAPACITY,
    metavar="SIZE",
    help="Hold the peak against this, such as 256MiB or 60% of what the step keeps alive. Left out: the policy's.",
)
@click.option(
    "--link",
    type=LINK,
    metavar="BANDWIDTH",
    help="Between device and host, such as 8GiB/s, or OUT,IN. Left out: the policy's.",
)
@host_capacity_option
@step_option
@json_option
@click.pass_context
def simulate(
    context: click.Context,
    trace_file: str,
    policy_file: str,
    capacity: str | None,
    link: Link | None,
    host_capacity: str | None,
    index: int | None,
    as_json: bool,
) -> None:
    """Predict the newest step of TRACE under POLICY: peak, step time, stall, overlap.

    Exits with 3 if the peak exceeds the capacity, or that of the copies the host's.

    Decisions of POLICY that fit no gap of the step are listed.

    Of a TRACE whose end is missing, the newest step that is whole, with a warning.
    """
    trace = load_trace(trace_file)
    step = step_of(trace, index)
    policy = load_policy(policy_file)
    with failing_well(trace_file), working(f"Simulating {len(step.ops)} ops"):
        prediction = simulate_policy(
            step,
            policy,
            capacity,
            link,
            host_capacity_bytes=host_capacity,
        )
    if as_json:
        print_json(prediction_values(prediction) | {"lost": trace.lost})
    else:
        print(prediction)
        for decision in prediction.unmatched:
            print(f"  unmatched: {decision}")
    if not prediction.fits:
        context.exit(ExitCode.DOES_NOT_FIT)


def prediction_values(prediction: Prediction) -> dict[str, Any]:
    """A prediction without its columns, as plain values."""
    values = {f.name: getattr(prediction, f.name) for f in fields(prediction)}
    plain = {name: value for name, value in values.items() if isinstance(value, int | float | str | tuple)}
    causes = {str(cause): seconds for cause, seconds in prediction.stall_by_cause.items()}
    return plain | {"stall_by_cause": causes, "overlap": prediction.overlap, "fits": prediction.fits}
