"""``chameleon advise``: which capacity to start with."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from ..planner import Sweep, SweepPoint, floor
from ..planner import sweep as sweep_capacities
from ..planner.memory import step_op_times
from ..planner.sweep import POINTS
from ..policy import Link
from ..policy.model import fingerprint
from ..report.enough import above, typed
from ..run_files import NO_STEP, RunFiles
from ..trace import Stage, StepTrace, Trace
from ..util.torch_version import require
from ..util.units import format_bytes, format_percent, format_seconds
from .common import (
    ALIKE,
    LINK_TEXT,
    SHARE,
    ExitCode,
    Failure,
    failing_well,
    inference_steps_option,
    json_option,
    link_of,
    load_trace,
    print_json,
    with_examples,
    working,
)
from .output import tell
from .run import Run
from .script import Script
from .sweep import sweep_values

_MARGIN = 0.02
"""What sessions leave free of their capacity."""

_FINER = 4
"""Capacities looked at beside the knee of a sweep, to find it more exactly."""

_ABOVE_FLOOR = 1.25
"""A first capacity is at least so many times the floor: an evaluation, or a longer batch, needs more than the step that
was recorded."""


@dataclass(frozen=True)
class Advice:
    """A capacity to start with, and what speaks for it."""

    found: Sweep
    """Of the step that keeps most alive, but for the first one, which runs once."""
    chosen: SweepPoint
    capacity_bytes: int
    steps: tuple[StepTrace, ...]
    """Those that were looked at."""
    words: tuple[str, ...]
    """Of the command that runs the script so, from ``run`` on."""

    @property
    def command(self) -> str:
        """What to type."""
        return shlex.join(["chameleon", *self.words])

    def __str__(self) -> str:
        found, chosen = self.found, self.chosen
        longer = chosen.step_s / found.compute_s - 1.0 if found.compute_s else 0.0
        lines = [
            f"Start with {typed(self.capacity_bytes)}, "
            f"{format_percent(self.capacity_bytes / found.live_peak_bytes, 0)} of what a step keeps alive: it should "
            f"take {format_seconds(chosen.step_s)}, {format_percent(max(longer, 0.0))} longer than with all of it.",
            f"The smallest possible capacity is the floor, {format_bytes(found.floor.bytes)}.",
        ]
        return "\n".join([str(found), "", *lines, *self._remarks(), f"  {self.command}"])

    def _remarks(self) -> Iterator[str]:
        """What the advice rests on, where that may not be what was meant."""
        if not self.trains:
            yield (
                "No step has a backward: each is a call of the model without gradients, or what session.step() ends. "
                "If the script trains later, ask with --no-inference-steps."
            )
        if len(self.steps) == 1:
            if self.trains:
                yield (
                    "Only the first step was recorded, which creates the optimizer's states: more steps are more "
                    "certain."
                )
            return
        first, *others = (step.live_peak_bytes for step in self.steps)
        if self.steps[0].index > 0:
            others.append(first)
        elif first > (1.0 + ALIKE) * max(others):
            yield f"The first step, which runs once, keeps {format_bytes(first)} alive."
        if min(others) < (1.0 - ALIKE) * max(others):
            yield (
                f"The steps differ: they keep {format_bytes(min(others))} to {format_bytes(max(others))} alive. The "
                "table is of the largest; a step that is larger still needs more, and --steps records more of them."
            )

    @property
    def trains(self) -> bool:
        """Has one of the steps a backward?"""
        return any((step.ops.stage == Stage.BACKWARD).any() for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "capacity_bytes": self.capacity_bytes,
            "command": self.command,
            "steps": len(self.steps),
            "live_peak_bytes": [step.live_peak_bytes for step in self.steps],
            "trains": self.trains,
            "link": asdict(self.found.link),
            "sweep": sweep_values(self.found),
        }


@click.command(
    "advise",
    short_help="Find a capacity to start with: record, sweep, and run if asked to.",
    context_settings={"allow_interspersed_args": False},
    epilog=with_examples(
        """
        chameleon advise train.py --epochs 3
        chameleon advise --run train.py --epochs 3
        chameleon advise --device cpu --link 8GiB/s --within 20% -m my_package.train
        chameleon advise --json train.py | jq .capacity_bytes
        """
    ),
)
@click.option(
    "--steps",
    type=click.IntRange(min=2),
    default=6,
    show_default=True,
    metavar="N",
    help="Record so many steps. The first one often differs.",
)
@click.option(
    "--within",
    type=SHARE,
    metavar="FRACTION",
    default="5%",
    show_default=True,
    help="How much longer a step may take than with all the memory it likes.",
)
@click.option("--run", "runs", is_flag=True, help="Then run the whole SCRIPT in that capacity.")
@click.option("--save-trace", metavar="FILE", help="Save the trace, for chameleon plan and the panel.")
@click.option("--device", metavar="NAME", help="As for chameleon run.")
@click.option(
    "--link",
    type=LINK_TEXT,
    metavar="BANDWIDTH",
    help="Between device and host, such as 8GiB/s, or OUT,IN; only the cpu device's can be set.",
)
@inference_steps_option
@json_option
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module, as for python -m.")
@click.argument("script")
@click.argument("arguments", metavar="[ARGUMENTS]...", nargs=-1, type=click.UNPROCESSED)
def advise(
    steps: int,
    within: float,
    runs: bool,
    save_trace: str | None,
    device: str | None,
    link: str | None,
    inference_steps: bool | None,
    as_json: bool,
    is_module: bool,
    script: str,
    arguments: tuple[str, ...],
) -> Run | int:
    """Train a few steps of SCRIPT, look at every capacity for them, and say which one to start with.

    The steps are real ones, in a process that ends after the last of them as if killed: what SCRIPT writes until then
    is written. What it prints then goes to stderr.
    """
    if runs and as_json:
        raise click.UsageError("--json and --run: stdout is the script's when it runs; leave one out")
    if not is_module and not Path(script).exists():
        raise click.UsageError(f"{script}: there is no such script: check the path, or give a module with -m")
    with failing_well():
        require()
        RunFiles(trace=save_trace)  # can it be written?
    where = [*_given("--device", device), *_given("--link", link)]
    if inference_steps is not None:
        where.append("--inference-steps" if inference_steps else "--no-inference-steps")
    target = [*(["-m"] if is_module else []), script, *arguments]
    with tempfile.TemporaryDirectory(prefix="chameleon-") as folder:
        file = Path(folder, "trial.parquet")
        code = _trial(steps, file, [*where, *target], on_gpu=_on_gpu(device))
        if code:
            return code
        if not file.exists():
            raise Failure(f"{script}: {NO_STEP}", ExitCode.BAD_FILE)
        trace = load_trace(str(file))
        if save_trace is not None:
            with failing_well(save_trace):
                trace.save(save_trace)
    with failing_well(), working("Looking at capacities"):
        advice = _advice(trace, link_of(trace), within, where, target)
    if as_json:
        print_json(advice.to_dict())
    elif not runs:
        print(advice)
    else:
        from ..session import Session

        tell(f"{advice}\n")
        session = Session(advice.capacity_bytes, device=device, link=link, inference_steps=inference_steps)
        return Run(Script(script, arguments, is_module), session, RunFiles(), quiet=False)
    return ExitCode.OK


def _given(option: str, value: str | None) -> list[str]:
    return [] if value is None else [option, value]


def _on_gpu(device: str | None) -> bool:
    """Will a session take a GPU? Found out without touching it: this process wants none of its memory."""
    import torch

    from ..runtime import core

    if device is not None:
        try:
            return not core.device_traits(device)["emulated"]
        except RuntimeError:  # there is none such: the run says so
            return False
    return torch.cuda.is_available() and not core.missing_device("cuda:0")


def _trial(steps: int, file: Path, words: list[str], *, on_gpu: bool) -> int:
    """Record the script's first steps with all the memory there is: the exit code of what did it.

    With a capacity, however large: such a session measures the link, and knows what can be replayed.
    """
    capacity = [] if on_gpu else ["--capacity", "100%"]
    recording = ["--stop-after", str(steps), "--warmup-steps", str(steps - 1), "--save-trace", str(file)]
    command = [sys.executable, "-m", "chameleon_lab", "run", "-q", "--trial", *capacity, *recording, *words]
    # What is printed is the advice: the script's own output goes where it does not mix with it.
    code = subprocess.run(command, stdout=2 if sys.stderr is not None else subprocess.DEVNULL).returncode
    if code < 0:
        if -code == signal.SIGINT:
            return ExitCode.INTERRUPTED
        name = signal.Signals(-code).name
        raise Failure(
            f"the recording was ended by {name}: run the script with plain python", ExitCode.DIFFERENT
        )
    return code


def _advice(trace: Trace, link: Link, within: float, where: list[str], target: list[str]) -> Advice:
    repeated = [step for step in trace if step.index > 0] or list(trace)
    largest = max(reversed(repeated), key=lambda step: step.live_peak_bytes)
    seen = Trace([largest], trace.meta)
    floors = (floor(Trace([step], trace.meta)) for step in trace if len(step.ops))
    lowest = max(floors, key=lambda one: one.bytes)

    # Of each op the least that it took: a busy machine makes copies seem to hide behind it.
    op_times = np.minimum.reduce([step_op_times(step) for step in trace if _same_work(step, largest)])

    def swept(capacities: list[int]) -> Sweep:
        return sweep_capacities(seen, capacities, link, op_times=op_times, within=within, margin=_MARGIN)

    peak_bytes = max(largest.live_peak_bytes, lowest.bytes)
    found = replace(swept(np.linspace(lowest.bytes, peak_bytes, POINTS).astype(int).tolist()), floor=lowest)
    points = {point.capacity_bytes: point for point in found.points}
    knee = found.knee
    below = max((size for size in points if knee is not None and size < knee.capacity_bytes), default=None)
    if knee is not None and below is not None:
        between = np.linspace(below, knee.capacity_bytes, _FINER + 2).astype(int)[1:-1].tolist()
        points |= {point.capacity_bytes: point for point in swept(between).points}
        found = replace(found, points=tuple(points[size] for size in sorted(points)))
    best = found.knee or min(found.points, key=lambda point: point.step_s)
    if not best.feasible:
        raise Failure(
            f"no policy was found for a step at any capacity up to {format_bytes(best.capacity_bytes)}",
            ExitCode.DOES_NOT_FIT,
        )
    capacity_bytes = max(above(best.capacity_bytes), above(int(_ABOVE_FLOOR * lowest.bytes)))
    (chosen,) = swept([capacity_bytes]).points
    words = ("run", "--capacity", typed(capacity_bytes), *where, *target)
    return Advice(found, chosen, capacity_bytes, tuple(trace), words)


def _same_work(step: StepTrace, other: StepTrace) -> bool:
    """Do two steps run the same ops on storages of the same sizes?"""
    sizes, others = step.storages.bytes, other.storages.bytes
    return fingerprint(step) == fingerprint(other) and np.array_equal(sizes, others)
