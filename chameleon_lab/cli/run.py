"""``chameleon run``: an unmodified training script in a session."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from ..errors import BelowFloorError, PolicyError, SessionError
from ..merged_report import PATIENCE_S
from ..planner import floor
from ..policy import Link
from ..ranks.file_names import of_rank
from ..ranks.identity import Identity, identity
from ..ranks.policies import find_policies
from ..run_files import RunFiles
from ..unfinished_trace import UnfinishedTrace
from .common import (
    CAPACITY,
    LINK,
    MARGIN,
    MIN_SWAP,
    ExitCode,
    Failure,
    failing_well,
    inference_steps_option,
    link_margin_option,
    with_examples,
)
from .launchers import Launch, launch
from .output import spoken, tell
from .script import Script, own_traceback, raise_as_own

if TYPE_CHECKING:
    from ..session import Session
    from ..trace import StepTrace

_PATIENCE_OF_A_FAILED_S = 2.0
"""Others may have died, and a launcher kills whoever takes long to end."""

_SESSION_OF_ITS_OWN = (
    "chameleon run has opened the session of this process: a script that opens one itself runs with plain python; "
    "chameleon_lab.current_session() is the one that is open"
)


@dataclass(frozen=True)
class Run:
    """A script, the session that it will run in, and the files to leave behind."""

    script: Script
    session: Session
    files: RunFiles
    quiet: bool
    most_steps: int | None = None
    is_trial: bool = False
    """Somebody else looks at the files, and says what there is to say."""
    largest: list[StepTrace] = field(default_factory=list)
    """Of a trial, the steps so far that keep most alive and have the highest floor: the session holds the newest ones
    alone."""

    def execute(self) -> None:
        """Run the script, then write the files and the report. Ends as the script does, by exception or SystemExit."""
        process = os.getpid()
        self.session.after_step = lambda: self._step_ended(process)
        failure: BaseException | None = None
        if self._unfinished is not None:
            self._unfinished.begin()
        try:
            self.session.start()
        except SessionError as error:
            tell(f"{self._name}: {error}")
            sys.exit(ExitCode.USAGE)
        with _ending_at_sigterm() as signals:
            try:
                self.script.run()
            except BaseException as error:
                failure = self._end(error)
            else:
                self.session.stop()
            signals.hold_back()
            # The child of a script that forks comes here too.
            failed = failure is not None and not (isinstance(failure, SystemExit) and not failure.code)
            complete = self._leave(failed=failed) if os.getpid() == process else True
        if isinstance(failure, _Terminated) and os.getpid() == process:
            _flush()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(process, signal.SIGTERM)
        if failure is None or (isinstance(failure, SystemExit) and failure.code in (None, 0)):
            sys.exit(ExitCode.OK if complete else ExitCode.BAD_FILE)
        if isinstance(failure, BelowFloorError):
            own = own_traceback(failure)
            sys.excepthook(type(failure), failure.with_traceback(own), own)
            sys.exit(ExitCode.DOES_NOT_FIT)
        if isinstance(failure, SessionError):
            failure.add_note(_SESSION_OF_ITS_OWN)
        raise_as_own(failure)

    def _end(self, error: BaseException) -> BaseException:
        """End the session with the script's exception, which the session may know a better name for."""
        try:
            self.session.close(error)
        except BelowFloorError as below:
            return below
        return error

    def _step_ended(self, process: int) -> None:
        """Save what a kill would lose. After enough steps, end: nothing of the script may take it for trained."""
        if os.getpid() != process:
            return
        if self.is_trial:
            self._keep_largest()
        if self.most_steps is None or self.session.step_count < self.most_steps:
            if self._unfinished is not None:
                self._unfinished.step_ended(self.session)
            return
        self.session.stop()
        complete = self._leave()
        _flush()
        os._exit(ExitCode.OK if complete else ExitCode.BAD_FILE)

    def _keep_largest(self) -> None:
        steps = [*self.largest, self.session.recorded_step(self.session.history[-1].index)]
        repeated = [step for step in steps if step.index > 0] or steps
        highest = max(
            (step for step in steps if len(step.ops)), key=lambda step: floor(step).bytes, default=None
        )
        kept = {
            step.index: step
            for step in (highest, max(repeated, key=lambda step: step.live_peak_bytes))
            if step
        }
        self.largest[:] = [kept[index] for index in sorted(kept)]

    def _leave(self, *, failed: bool = False) -> bool:
        """Write the files, and the report to stderr: stdout is the script's. Was everything written?

        Of several ranks the first one speaks; another one only where something went wrong.
        """
        complete, speaks = True, not self.quiet and self.session.rank.rank == 0
        patience_s = _PATIENCE_OF_A_FAILED_S if failed else PATIENCE_S
        for written, text in self.files.write(self.session, patience_s, self.largest):
            if self.is_trial:
                continue
            complete &= written
            if speaks or not written:
                complete &= tell(f"{self._name}: {text}")
        if self._unfinished is not None and complete:
            self._unfinished.end()
        if speaks:
            complete &= tell(str(self.session.report()))
        return complete

    @property
    def _name(self) -> str:
        """Who speaks on stderr."""
        return f"chameleon run{spoken(self.session.rank)}"

    @cached_property
    def _unfinished(self) -> UnfinishedTrace | None:
        if self.files.trace is None or self.is_trial:
            return None
        return UnfinishedTrace(of_rank(self.files.trace, self.session.rank))


class _Terminated(SystemExit):
    """SIGTERM has come: the script ends as at sys.exit(), and what there is to save is saved."""


class _EndingAtSigterm:
    """SIGTERM raises an exception in the script, unless that has a handler of its own."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._came = False

    def hold_back(self) -> None:
        """From here on it changes nothing: the files are being written."""
        self._came = True

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Called by Python in the main thread."""
        if os.getpid() != self._process:  # a DataLoader's worker, forked, which is ended so
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif not self._came:
            self._came = True
            raise _Terminated(128 + number)


@contextmanager
def _ending_at_sigterm() -> Iterator[_EndingAtSigterm]:
    handling = _EndingAtSigterm()
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield handling
        return
    signal.signal(signal.SIGTERM, handling.handle)
    try:
        yield handling
    finally:
        if signal.getsignal(signal.SIGTERM) == handling.handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError, ValueError):
                stream.flush()


def _device_of(who: Identity) -> str | None:
    """The GPU of a local rank; None where there is none such, and the session finds its device itself."""
    import torch

    from ..runtime import core

    if who.is_alone or who.local_rank is None or not torch.cuda.is_available():
        return None
    name = f"cuda:{who.local_rank}"
    return name if who.local_rank < torch.cuda.device_count() and not core.missing_device(name) else None


class _RunCommand(click.Command):
    """Keeps its own words as they were written: they are handed on to the ranks that a launcher starts."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_WORDS] = list(args)
        return super().parse_args(ctx, args)


_WORDS = "chameleon_lab.cli.run.words"


def _own_words(arguments: tuple[str, ...]) -> list[str]:
    """The options before the script, but for ``-m``, which says what the script is."""
    words: list[str] = click.get_current_context().meta[_WORDS]
    own = words[: len(words) - len(arguments) - 1]
    if own[-1:] == ["--"]:
        own.pop()
    for flag, without in (("-m", []), ("-qm", ["-q"]), ("-mq", ["-q"])):
        if flag in own:
            at = len(own) - 1 - own[::-1].index(flag)
            return [*own[:at], *without, *own[at + 1 :]]
    return own


@click.command(
    "run",
    cls=_RunCommand,
    short_help="Run a training script in a session.",
    context_settings={"allow_interspersed_args": False},
    epilog=with_examples(
        """
        chameleon run train.py --epochs 3
        chameleon run --capacity 512MiB train.py --epochs 3
        chameleon run --device cpu --capacity 0.25 --link 8GiB/s -m my_package.train
        chameleon run --capacity 512MiB --save-policy policy.json --save-trace t.parquet train.py
        chameleon run --device cpu --capacity 4GiB --disk /scratch:200GiB train.py
        chameleon run --policy policy.json --report run.html train.py
        chameleon run --capacity 60% --save-trace t.parquet torchrun --nproc-per-node 4 train.py
        """
    ),
)
@click.option(
    "--capacity",
    metavar="SIZE",
    help="Device bytes the run may use, such as 512MiB; 0.25 or 25% is a quarter of the device. Left out: that of "
    "--policy; without one, all that the GPU has. unlimited, or the cpu device without one: the run is only recorded, "
    "and nothing leaves the device.",
)
@click.option(
    "--policy",
    "policy_file",
    metavar="FILE",
    help="Use this policy instead of a generated one. Of a folder, or a name with * or {rank}: the one that was made "
    "for the script.",
)
@click.option("--save-policy", metavar="FILE", help="Write the policy of the run, as JSON.")
@click.option("--save-trace", metavar="FILE", help="Write the trace of the newest steps, as Parquet.")
@click.option("--report", metavar="FILE", help="Write the report: .html with figures, or .json.")
@click.option(
    "--link",
    type=LINK,
    metavar="BANDWIDTH",
    help="Between device and host, such as 8GiB/s, or OUT,IN; only the cpu device's can be set.",
)
@click.option(
    "--device",
    metavar="NAME",
    help="cuda or cuda:1 is a GPU, cpu the embedded device: host memory under a budget. Left out: the current GPU, or "
    "cpu where there is none.",
)
@click.option(
    "--host-capacity",
    type=CAPACITY,
    metavar="SIZE",
    help="The most host bytes for copies, such as 8GiB, or 50% of the machine's memory.",
)
@click.option(
    "--disk",
    metavar="DIR[:SIZE]",
    help="A folder on a disk that takes what is away instead of the host's memory, such as /scratch:200GiB; of the cpu "
    "device only.",
)
@click.option("--verify", is_flag=True, help="Compare a checksum of whatever comes back from the disk.")
@click.option("--min-swap", type=MIN_SWAP, metavar="SIZE", help="Storages smaller than this leave last.")
@click.option(
    "--margin",
    type=MARGIN,
    metavar="FRACTION",
    help="Fraction of the capacity to leave free, such as 5%.",
)
@link_margin_option
@click.option(
    "--rematerialize",
    type=click.Choice(["no", "cheap", "all", "trusting"]),
    help="Replay ops instead of copying their results, if cheaper: none, those that cost little "
    "(element-wise, norms, casts, copies), or all that repeat themselves to the bit. trusting: with torch before 2.13 "
    "too; you promise that nothing outside of ops writes to tensors. Left out: all.",
)
@click.option("--warmup-steps", type=int, metavar="N", help="Steps before the profiled one.")
@click.option(
    "--stop-after",
    "most_steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="Write the files after N steps and end there, as if killed: nothing more of the script runs, so that it saves "
    "no half-trained model.",
)
@inference_steps_option
@click.option("--trial", "is_trial", is_flag=True, hidden=True)
@click.option(
    "--no-planning", is_flag=True, help="No policy: eviction alone keeps the run within the capacity."
)
@click.option("--stacks", is_flag=True, help="Record the Python stack of every op (slow).")
@click.option("-q", "--quiet", is_flag=True, help="No report on stderr at the end.")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module, as for python -m.")
@click.argument("script")
@click.argument("arguments", metavar="[ARGUMENTS]...", nargs=-1, type=click.UNPROCESSED)
def run(
    capacity: str | None,
    policy_file: str | None,
    save_policy: str | None,
    save_trace: str | None,
    report: str | None,
    link: Link | None,
    most_steps: int | None,
    is_trial: bool,
    no_planning: bool,
    quiet: bool,
    is_module: bool,
    script: str,
    arguments: tuple[str, ...],
    **session_options: Any,
) -> Run | Launch:
    """Run the training SCRIPT, unmodified, in a session.

    Options of chameleon come before SCRIPT, and those of the script after it. The report goes to stderr at the end,
    and the files are written then, after an exception, Ctrl-C or SIGTERM too.

    In place of SCRIPT, torchrun or accelerate launch with all that follows starts several ranks, each in a session of
    its own. Names of files take {rank}, or get it by themselves.
    """
    launched = launch(script, arguments, is_module, _own_words(arguments))
    if launched is not None:
        with failing_well():
            RunFiles(save_policy, save_trace, report)
            if policy_file is not None:
                find_policies(policy_file, identity())
        return launched
    if not is_module and not Path(script).exists():
        raise click.UsageError(f"{script}: there is no such script: check the path, or give a module with -m")
    with failing_well():
        files = RunFiles(save_policy, save_trace, report)
        from ..session import Session  # needs torch, which the other commands do without
    session_options["device"] = session_options["device"] or _device_of(identity())
    given = {name: value for name, value in session_options.items() if value is not None}
    with failing_well():
        try:
            session = Session(
                capacity,
                link=link,
                policy=policy_file,
                planning=not no_planning,
                **given,
            )
        except PolicyError:
            raise
        except (ValueError, SessionError) as error:
            raise Failure(str(error), ExitCode.USAGE) from error
    return Run(Script(script, arguments, is_module), session, files, quiet, most_steps, is_trial)
