"""What torch has once for all sessions: the first that is open installs it, and the last one takes it back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .patch import Patches


class Part(Protocol):
    """Both calls may be repeated, and cut short by Ctrl-C at any point."""

    def install(self) -> None:
        """Begin."""

    def remove(self) -> None:
        """Put everything back."""


class _Installed:
    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self.users: list[Shared] = []


_installed: dict[str, _Installed] = {}


class Shared:
    """One session's share in it, by its name. Both calls may be repeated, and cut short by Ctrl-C at any point.

    Args:
        name: the same in all sessions.
        make: the parts, in the order in which they are installed; only the first session's are.
    """

    def __init__(self, name: str, make: Callable[[], Sequence[Part]]) -> None:
        self._name = name
        self._make = make

    def places(self) -> list[tuple[Any, str]]:
        """Owners and names of what :meth:`install` replaces, where a part says so."""
        return [place for part in self._make() if isinstance(part, Patches) for place in part.places()]

    def install(self) -> None:
        """Install the parts, unless another session has."""
        found = _installed.get(self._name)
        if found is None:
            found = _installed[self._name] = _Installed(self._make())
        if self in found.users:
            return
        found.users.append(self)  # first: remove() takes back what Ctrl-C leaves half done
        if len(found.users) == 1:
            for part in found.parts:
                part.install()

    def remove(self) -> None:
        """Put everything back, unless another session needs it."""
        found = _installed.get(self._name)
        if found is None or self not in found.users:
            return
        if len(found.users) == 1:
            for part in reversed(found.parts):
                part.remove()
            del _installed[self._name]
        found.users.remove(self)
