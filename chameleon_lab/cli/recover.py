"""``chameleon recover``: what each way to go on costs if a rank dies."""

from __future__ import annotations

import click

from ..policy import Link
from ..recovery import Costs, what_if
from ..recovery.outlook import KEEPS
from ..trace import Trace
from .common import (
    BANDWIDTH,
    CAPACITY,
    LINK,
    PAUSE,
    SECONDS,
    ExitCode,
    failing_well,
    json_option,
    load_trace,
    print_json,
    rematerialize_option,
    step_of,
    step_option,
    with_examples,
    working,
)

_DEFAULT = Costs()


@click.command(
    "recover",
    short_help="Show what each way to go on costs if a rank dies.",
    epilog=with_examples(
        """
        chameleon recover t.parquet --ranks 32 --mttr 10min
        chameleon recover t.parquet --ranks 32 --stages 4 --capacity 40GiB --link 25GB/s
        chameleon recover rank0.parquet rank1.parquet --ranks 8 --dead 2 --keep bits --json | jq .choice
        """
    ),
)
@click.argument("trace_files", metavar="TRACE...", nargs=-1, required=True)
@click.option("--ranks", type=int, required=True, help="Of the job.")
@click.option("--dead", type=int, default=1, show_default=True, help="How many die.")
@click.option(
    "--mttr",
    type=SECONDS,
    default="10min",
    show_default=True,
    metavar="TIME",
    help="Expected time until they are back, such as 90s, 10min or 4h.",
)
@click.option(
    "--capacity",
    type=CAPACITY,
    metavar="SIZE",
    help="Of a survivor, such as 40GiB or 90% of what the step keeps alive. Left out: the trace's.",
)
@click.option(
    "--link",
    type=LINK,
    metavar="BANDWIDTH",
    help="Between device and host, such as 8GiB/s, or OUT,IN. Left out: the trace's.",
)
@click.option("--shards", type=int, help="Ranks that share one set of parameters (FSDP, HSDP).")
@click.option("--stages", type=int, help="Of a pipeline; the trace is that of its first stage.")
@click.option(
    "--grains",
    type=int,
    help="Micro-batches of the global batch that can be dealt out. Left out: as many as run now.",
)
@click.option(
    "--samples",
    type=int,
    help="Of the global batch. Left out: samples/s are shares of what the job does now.",
)
@click.option(
    "--keep",
    type=click.Choice(KEEPS),
    default="batch",
    show_default=True,
    help="What the choice has to keep.",
)
@click.option(
    "--detect",
    type=PAUSE,
    default=_DEFAULT.detect_s,
    metavar="TIME",
    help="From a death to the next step. Default: 2s.",
)
@click.option(
    "--regroup",
    type=PAUSE,
    default=_DEFAULT.regroup_s,
    metavar="TIME",
    help="New process groups, where layers or shards move. Default: 15s.",
)
@click.option(
    "--network",
    type=BANDWIDTH,
    default=_DEFAULT.network_bytes_per_s,
    metavar="BANDWIDTH",
    help="Between ranks. Default: 25GB/s.",
)
@click.option(
    "--restart",
    type=PAUSE,
    default=_DEFAULT.restart_s,
    metavar="TIME",
    help="All processes start again and load a checkpoint. Default: 2min.",
)
@click.option(
    "--checkpoint-every",
    type=PAUSE,
    default=_DEFAULT.checkpoint_every_s,
    metavar="TIME",
    help="Default: 30min.",
)
@rematerialize_option
@step_option
@json_option
@click.pass_context
def recover(
    context: click.Context,
    trace_files: tuple[str, ...],
    ranks: int,
    dead: int,
    mttr: float,
    capacity: str | None,
    link: Link | None,
    shards: int | None,
    stages: int | None,
    grains: int | None,
    samples: int | None,
    keep: str,
    detect: float,
    regroup: float,
    network: float,
    restart: float,
    checkpoint_every: float,
    rematerialize: str | None,
    index: int | None,
    as_json: bool,
) -> None:
    """Scale the newest step of TRACE to what a survivor would run, plan it, and compare the ways to go on.

    Everything printed is calculated. Exits with 3 if no way fits that something can run today.

    Of several traces, each way counts as for the rank that is worst off.
    """
    traces = []
    for file in trace_files:
        trace = load_trace(file)
        traces.append(Trace([step_of(trace, index)], trace.meta))
    costs = Costs(
        detect_s=detect,
        regroup_s=regroup,
        network_bytes_per_s=network,
        restart_s=restart,
        checkpoint_every_s=checkpoint_every,
    )
    with failing_well(trace_files[0]), working("Planning for the survivors"):
        try:
            outlook = what_if(
                traces,
                ranks=ranks,
                dead=dead,
                capacity=capacity,
                link=link,
                mttr=mttr,
                shards=shards,
                stages=stages,
                grains=grains,
                samples=samples,
                keep=keep,
                costs=costs,
                rematerialize=rematerialize,
            )
        except ValueError as error:
            if type(error) is not ValueError:  # a trace's error, which has an exit code of its own
                raise
            raise click.UsageError(str(error)) from None
    if as_json:
        print_json(outlook.to_dict())
    else:
        print(outlook)
    if outlook.choice is None:
        context.exit(ExitCode.DOES_NOT_FIT)
