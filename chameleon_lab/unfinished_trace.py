"""The trace of a run that goes on, in a file of its own: what a rank leaves that is killed."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from .trace import Trace
from .util.files import is_no_file

if TYPE_CHECKING:
    from .session import Session

UNFINISHED, KILLED = ".unfinished", ".killed"
"""Before the ending of a trace's name: of a run that goes on, or was killed just now; of one killed before the last."""

_NEWEST_STEPS = 4
_LEAST_APART = 100
"""A write takes at most one part in so many of the run's time."""


class UnfinishedTrace:
    """Writes the newest steps while a run goes on, as whole trace files, each in the place of the one before.

    Args:
        path: of the trace that is written in the end. Where it is no file, nothing is written before.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        stem, ending = os.path.splitext(os.fspath(path))
        self.path = Path(f"{stem}{UNFINISHED}{ending}")
        self.killed_path = Path(f"{stem}{KILLED}{ending}")
        self._is_file = not is_no_file(path)
        self._not_before_s = 0.0

    def begin(self) -> None:
        """Keep what a killed run has left, under another name. Loads what writing needs: no step waits for it."""
        if not self._is_file:
            return
        with suppress(FileNotFoundError):
            os.replace(self.path, self.killed_path)
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:  # as the end of the run says
            self._is_file = False

    def step_ended(self, session: Session) -> None:
        """Write, unless that was done just before. Called in the loop's own thread; raises nothing."""
        began_s = time.monotonic()
        if not self._is_file or began_s < self._not_before_s:
            return
        try:
            steps = [session.recorded_step(index) for index in session.recorded_steps()[-_NEWEST_STEPS:]]
            Trace(steps, session.trace_meta()).save(self.path)
        except Exception:  # noqa: BLE001 - a full disk must not end a training; the end of the run says so
            self._is_file = False
        ended_s = time.monotonic()
        self._not_before_s = ended_s + _LEAST_APART * (ended_s - began_s)

    def end(self) -> None:
        """The whole trace is saved: this one has had its time."""
        if self._is_file:
            self.path.unlink(missing_ok=True)
