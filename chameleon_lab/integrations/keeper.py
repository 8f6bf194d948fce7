"""Shared by all frameworks' callbacks: a session for each training, its files and its figures."""

from __future__ import annotations

import logging
import os
from typing import Any

from ..policy import Policy
from ..report.session_report import Report
from ..run_files import RunFiles
from ..session import Session

_logger = logging.getLogger("chameleon_lab")


class SessionKeeper:
    """Opens a session where a training begins, and ends it, with files written, where the training does.

    Args:
        capacity: as for :class:`~chameleon_lab.Session`.
        policy: a policy, or the path of one, to use instead of a generated one.
        save_policy: where to write the policy when the training ends, by an exception too.
        save_trace: where to write the trace of its newest steps.
        save_report: where to write the report: ``.html`` with figures, or ``.json``.
        log: log the figures of :meth:`metrics` with those of the training.
        session: further arguments of :class:`~chameleon_lab.Session`.

    Raises what Session raises for its arguments, and OSError where a file could not be written.
    """

    def __init__(
        self,
        capacity: int | float | str | None = None,
        *,
        policy: Policy | str | os.PathLike[str] | None = None,
        save_policy: str | os.PathLike[str] | None = None,
        save_trace: str | os.PathLike[str] | None = None,
        save_report: str | os.PathLike[str] | None = None,
        log: bool = False,
        **session: Any,
    ) -> None:
        super().__init__()
        self._arguments: dict[str, Any] = {"capacity": capacity, "policy": policy, **session}
        self._files = RunFiles(save_policy, save_trace, save_report)
        self._session = Session(**self._arguments)
        self._used = False
        self.log_metrics = log

    @property
    def session(self) -> Session:
        """The session of the training that runs, else of the last one, else that of the first one to come."""
        return self._session

    def report(self) -> Report:
        """What the session has done. Raises SessionError before the first training."""
        return self._session.report()

    def metrics(self) -> dict[str, float]:
        """Figures of the newest step: peak and moved bytes, seconds of the step and of its stalls."""
        history = self._session.report().history
        if not history:
            return {}
        step = history[-1]
        names = ("peak_bytes", "swapped_out_bytes", "swapped_in_bytes", "step_s", "stall_s")
        return {f"chameleon_{name}": getattr(step, name) for name in names}

    def close(self, error: BaseException | None = None) -> None:
        """End the session, if it is open, and write the files. Every tensor is back and valid.

        ``error`` is what ended the training; raises BelowFloorError instead where that is what it means.
        """
        if not self._session.is_open:
            return
        try:
            self._session.close(error)
        finally:
            for written, text in self._files.write(self._session):
                _logger.log(logging.INFO if written else logging.WARNING, text)

    def _open(self) -> None:
        self._abandon()
        if self._used:
            self._session = Session(**self._arguments)
        self._used = True
        self._session.start()

    def _abandon(self) -> None:
        """A training that was begun anew (with a smaller batch, say) leaves its session open."""
        if self._session.is_open:
            self._session.stop()
