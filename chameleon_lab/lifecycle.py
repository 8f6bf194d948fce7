"""The stages of a session, and the open session: usable without torch."""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class SessionStage(StrEnum):
    """Where a session stands."""

    WARMUP = "WarmUp"  # no policy yet; eviction keeps the run alive
    PROFILE = "Profile"  # the step that the policy is made from is being recorded
    STABLE = "Stable"  # a policy is in force


_open: Any = None


def open_session() -> Any:
    """The :class:`~chameleon_lab.session.Session` that is open in this process, or None."""
    return _open


def set_open_session(session: Any) -> None:
    """A session has been opened, or (None) the one that was open ends."""
    global _open
    _open = session
