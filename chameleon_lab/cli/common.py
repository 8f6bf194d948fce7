"""Shared by the commands: exit codes, argument types, files, tables and progress."""

from __future__ import annotations

import json
import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import BelowFloorError, ChameleonError
from ..planner.arguments import checked_margin
from ..planner.generate import REPLAY_CLASS_NAMES
from ..policy import Link, Policy
from ..policy.link import parse_link
from ..trace import StepTrace, Trace
from ..util.progress import hidden
from ..util.units import (
    format_bytes,
    parse_bandwidth,
    parse_bytes,
    parse_capacity,
    parse_fraction,
    parse_seconds,
)

_T = TypeVar("_T")


class ExitCode(IntEnum):
    """What the commands exit with."""

    OK = 0
    DIFFERENT = 1
    USAGE = 2
    DOES_NOT_FIT = 3
    BAD_FILE = 4
    INTERRUPTED = 130


class Failure(click.ClickException):
    """Ends a command with one line on stderr and an exit code."""

    def __init__(self, message: str, code: ExitCode) -> None:
        super().__init__(" ".join(message.split()))
        self.exit_code = code  # type: ignore[misc]  # click reads it from the instance
        self.ctx = click.get_current_context(silent=True)


@contextmanager
def failing_well(what: str = "") -> Iterator[None]:
    """Turns errors that say what to do into a Failure, with the exit code of their kind.

    ``what`` names the option or file in front of messages that do not.
    """
    before = f"{what}: " if what else ""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise Failure(f"{before}{error}", ExitCode.BAD_FILE) from error
        raise Failure(
            f"{os.fspath(error.filename)}: {error.strerror}: check the path", ExitCode.BAD_FILE
        ) from error
    except BelowFloorError as error:
        raise Failure(f"{before}{error}", ExitCode.DOES_NOT_FIT) from error
    except (ChameleonError, ImportError) as error:
        raise Failure(f"{before}{error}", ExitCode.BAD_FILE) from error


# ------------------------------------------------------------------------------------------------ arguments


class _Text(click.ParamType):  # type: ignore[type-arg]  # no generic in the oldest click that will do
    """An argument that a function reads, whose ValueError says what is wrong."""

    def __init__(self, name: str, read: Callable[[str, str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._read(value, param.opts[0] if param and param.opts else self.name)
        except ValueError as error:
            raise click.UsageError(str(error), ctx) from None


def _kept(read: Callable[[str, str], Any]) -> Callable[[str, str], str]:
    """Check a text, which somebody else will read."""

    def checked(text: str, what: str) -> str:
        read(text, what)
        return text

    return checked


MIN_SWAP = _Text("size", lambda text, what: parse_bytes(text, what, none=True))
"""A size, or 0 for none."""
SHARE = _Text("fraction", lambda text, what: parse_fraction(text, what, most=math.inf))
"""A fraction that may be more than the whole."""
MARGIN = _Text("fraction", checked_margin)
LINK = _Text("bandwidth", parse_link)
LINK_TEXT = _Text("bandwidth", _kept(parse_link))
CAPACITY = _Text("size", _kept(lambda text, what: parse_capacity(text, 1 << 40, what)))
"""Text that :func:`~chameleon_lab.util.units.parse_capacity` takes."""
SECONDS = _Text("duration", lambda text, what: parse_seconds(text, what))
PAUSE = _Text("duration", lambda text, what: parse_seconds(text, what, none=True))
"""A duration, or 0 for none."""
BANDWIDTH = _Text("bandwidth", parse_bandwidth)

link_option = click.option(
    "--link",
    type=LINK,
    metavar="BANDWIDTH",
    help="Between device and host, such as 8GiB/s, or OUT,IN. Default: the trace's.",
)
link_margin_option = click.option(
    "--link-margin",
    type=MARGIN,
    metavar="FRACTION",
    help="Fraction of the link to do without, such as 25%, for steps in which others use it. Left out: in a run that "
    "measures its link, what its slowest steps had less of it; else 0.",
)
host_capacity_option = click.option(
    "--host-capacity",
    "host_capacity",
    type=CAPACITY,
    metavar="SIZE",
    help="The most host bytes for copies, such as 4GiB, or 60% of what the step keeps alive. Left out: no limit.",
)
step_option = click.option(
    "--step", "index", type=int, metavar="N", help="The session's step number N of the trace, not the newest."
)


rematerialize_option = click.option(
    "--rematerialize",
    type=click.Choice(REPLAY_CLASS_NAMES),
    help="Replay ops instead of copying their results, if cheaper: none, those of class 1 (element-wise, "
    "norms, casts, copies), or matrix products, convolutions and attention too. Left out: what the trace says its "
    "session could.",
)
ALIKE = 0.02
"""Steps are called alike where what they keep alive differs by no more than this share."""

inference_steps_option = click.option(
    "--inference-steps/--no-inference-steps",
    default=None,
    help="Whether each call of a model that is called again and again without gradients ends a step, until an "
    "optimizer steps. Left out: unless an optimizer has been made that has not stepped.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def link_of(trace: Trace) -> Link:
    """The link that a trace was recorded with."""
    out, back = trace.meta.get("link_out_bytes_per_s"), trace.meta.get("link_in_bytes_per_s")
    if out is None or back is None:
        raise click.UsageError(
            "the trace knows no link, since it was recorded without a capacity: give one, such as --link 8GiB/s"
        )
    return Link(out, back)


# ------------------------------------------------------------------------------------------------ files


def load_trace(path: str) -> Trace:
    """A trace or another tool's recording, with at least one step; what a cut file has lost is said on stderr."""
    with failing_well():
        trace = Trace.open(path)
    if trace.lost is not None:
        click.echo(f"Warning: {trace.lost}", err=True)
    if not len(trace):
        raise Failure(f"{path}: the trace holds no step: record at least one whole step", ExitCode.BAD_FILE)
    return trace


def load_policy(path: str) -> Policy:
    """A policy file."""
    with failing_well():
        return Policy.load(path)


def step_of(trace: Trace, index: int | None) -> StepTrace:
    """The step of a number, or the newest: then stderr names a step that keeps more alive, if there is one."""
    if index is None:
        newest, largest = trace.last, max(reversed(list(trace)), key=lambda step: step.live_peak_bytes)
        if (1.0 - ALIKE) * largest.live_peak_bytes > newest.live_peak_bytes:
            click.echo(
                f"Note: step {largest.index} keeps more alive ({format_bytes(largest.live_peak_bytes)}) than the "
                f"newest step, {newest.index} ({format_bytes(newest.live_peak_bytes)}), which is used here: choose it "
                f"with --step {largest.index}",
                err=True,
            )
        return newest
    for step in trace:
        if step.index == index:
            return step
    known = [step.index for step in trace]
    raise click.UsageError(f"--step {index}: the trace holds the steps {known[0]} to {known[-1]}")


# ------------------------------------------------------------------------------------------------ output


def with_examples(examples: str, exit_codes: str = "") -> str:
    """The end of a command's help, in lines that are not wrapped."""
    text = f"\b\nExamples:\n{textwrap.indent(textwrap.dedent(examples).strip(), '  ')}"
    if exit_codes:
        text += f"\n\n\b\nExit codes:\n{textwrap.indent(textwrap.dedent(exit_codes).strip(), '  ')}"
    return text


@contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner on stderr while something may take long; nothing where no person looks."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(what), hidden():
        yield


def print_json(value: Any) -> None:
    """Print plain values for other programs."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(
    rows: Iterable[Sequence[str]], heads: Sequence[str] = (), numbers: Iterable[int] = ()
) -> None:
    """Print a table; the columns ``numbers`` are flush right. Where no terminal is, its lines are never folded."""
    rows, right = list(rows), set(numbers)
    table = Table(box=None, header_style="bold", pad_edge=False, show_header=bool(heads))
    for column in range(len(heads or rows[0])):
        table.add_column(
            heads[column] if heads else "",
            justify="right" if column in right else "left",
            no_wrap=column in right,
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else 240, highlight=False)
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))
