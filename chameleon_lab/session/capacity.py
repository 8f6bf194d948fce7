"""The device bytes that a session may use. Only None means no limit."""

from __future__ import annotations

from collections.abc import Callable


class Capacity:
    """What a session was made with, and what is in force: an enabled policy's edits may ask for another one.

    Args:
        own_bytes: what it was made with; None: no limit, nothing ever leaves.
        tell: sets that of the device, between two steps.
    """

    def __init__(self, own_bytes: int | None, tell: Callable[[int], None]) -> None:
        self._own_bytes = own_bytes
        self._bytes = own_bytes
        self._tell = tell
        self._changed_before_step: int | None = None

    @property
    def bytes(self) -> int | None:
        """In force now."""
        return self._bytes

    @property
    def own_bytes(self) -> int | None:
        """That the session was made with."""
        return self._own_bytes

    @property
    def limit_bytes(self) -> int:
        """In force now, for what there is no need of without a limit: plans, and parts of list ops."""
        assert self._bytes is not None
        return self._bytes

    @property
    def changed_before_step(self) -> int | None:
        """The step that the newest change came before; None without one."""
        return self._changed_before_step

    def measured(self, own_bytes: int) -> None:
        """The session takes what there is, and this is what there is when it opens."""
        self._own_bytes = self._bytes = own_bytes

    def change(self, new_bytes: int, before_step: int, *, own: bool = False) -> None:
        """Have another one from this step on. ``own``: it is the session's own from now on, too."""
        if new_bytes != self._bytes:
            self._tell(new_bytes)
            self._changed_before_step = before_step
        self._bytes = new_bytes
        if own:
            self._own_bytes = new_bytes
