"""``chameleon run``: an unmodified training script in a session."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import BelowFloorError, SessionError
from ..policy import Link
from ..run_files import RunFiles
from .common import (
    CAPACITY,
    LINK,
    MARGIN,
    MIN_SWAP,
    ExitCode,
    Failure,
    failing_well,
    load_policy,
    rematerialize_option,
    with_examples,
)
from .output import tell
from .script import Script, own_traceback, raise_as_own

if TYPE_CHECKING:
    from ..session import Session

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

    def execute(self) -> None:
        """Run the script, then write the files and the report. Ends as the script does, by exception or SystemExit."""
        process = os.getpid()
        if self.most_steps is not None:
            self.session.after_step = lambda: self._stop_after_steps(process)
        failure: BaseException | None = None
        try:
            self.session.start()
        except SessionError as error:
            tell(f"chameleon run: {error}")
            sys.exit(ExitCode.USAGE)
        try:
            self.script.run()
        except BaseException as error:
            failure = self._end(error)
        else:
            self.session.stop()
        # The child of a script that forks comes here too.
        complete = self._leave() if os.getpid() == process else True
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

    def _stop_after_steps(self, process: int) -> None:
        """End the process once there are enough steps: nothing of the script may take it for trained."""
        if self.session.step_count < (self.most_steps or 0) or os.getpid() != process:
            return
        self.session.stop()
        complete = self._leave()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                with suppress(OSError, ValueError):
                    stream.flush()
        os._exit(ExitCode.OK if complete else ExitCode.BAD_FILE)

    def _leave(self) -> bool:
        """Write the files, and the report to stderr: stdout is the script's. Was everything written?"""
        complete = True
        for written, text in self.files.write(self.session):
            if self.is_trial:
                continue
            complete &= written
            if not self.quiet or not written:
                complete &= tell(f"chameleon run: {text}")
        if not self.quiet:
            complete &= tell(str(self.session.report()))
        return complete


@click.command(
    "run",
    short_help="Run a training script in a session.",
    context_settings={"allow_interspersed_args": False},
    epilog=with_examples(
        """
        chameleon run train.py --epochs 3
        chameleon run --capacity 512MiB train.py --epochs 3
        chameleon run --device cpu --capacity 0.25 --link 8GiB/s -m my_package.train
        chameleon run --capacity 512MiB --save-policy policy.json --save-trace t.parquet train.py
        chameleon run --policy policy.json --report run.html train.py
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
@click.option("--policy", "policy_file", metavar="FILE", help="Use this policy instead of a generated one.")
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
@click.option("--min-swap", type=MIN_SWAP, metavar="SIZE", help="Storages smaller than this leave last.")
@click.option(
    "--margin",
    type=MARGIN,
    metavar="FRACTION",
    help="Fraction of the capacity to leave free, such as 5%.",
)
@rematerialize_option(
    ["no", "cheap", "all", "trusting"],
    "Replay ops instead of copying their results, if cheaper: none, those that cost little "
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
) -> Run:
    """Run the training SCRIPT, unmodified, in a session.

    Options of chameleon come before SCRIPT, and those of the script after it. The report goes to stderr at the end,
    and the files are written then, after an exception or Ctrl-C too.
    """
    if not is_module and not Path(script).exists():
        raise click.UsageError(f"{script}: there is no such script: check the path, or give a module with -m")
    policy = None if policy_file is None else load_policy(policy_file)
    with failing_well():
        files = RunFiles(save_policy, save_trace, report)
        from ..session import Session  # needs torch, which the other commands do without
    given = {name: value for name, value in session_options.items() if value is not None}
    try:
        session = Session(
            capacity,
            link=link,
            policy=policy,
            planning=not no_planning,
            **given,
        )
    except (ValueError, SessionError) as error:
        raise Failure(str(error), ExitCode.USAGE) from error
    return Run(Script(script, arguments, is_module), session, files, quiet, most_steps, is_trial)
