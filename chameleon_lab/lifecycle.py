"""The stages of a session, and the open sessions: usable without torch."""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class SessionStage(StrEnum):
    """Where a session stands."""

    WARMUP = "WarmUp"  # no policy yet; eviction keeps the run alive
    PROFILE = "Profile"  # the step that the policy is made from is being recorded
    STABLE = "Stable"  # a policy is in force


_open: list[Any] = []


def open_session() -> Any:
    """The :class:`~chameleon_lab.session.Session` that is open in this process, the newest of several, or None."""
    newest = _open[-1:]  # another thread may end it meanwhile
    return newest[0] if newest else None


def open_sessions() -> list[Any]:
    """All that are open, in the order in which they were opened: at most one a device."""
    return list(_open)


def add_open_session(session: Any) -> None:
    """A session has been opened."""
    _open.append(session)


def remove_open_session(session: Any) -> None:
    """It ends. Harmless where it has."""
    if session in _open:
        _open.remove(session)
