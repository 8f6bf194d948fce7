"""Functions of torch that a session replaces while it is open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

_INHERITED = object()

Replacement = tuple[Any, str, Callable[[Any], Any]]
"""(owner, name, make): ``make(original)`` takes the place of ``owner.name``."""


class Patches:
    """Attributes replaced for a while. Both calls may be repeated, and cut short by Ctrl-C at any point."""

    def __init__(self, replacements: Sequence[Replacement]) -> None:
        self._replacements = replacements
        self._originals: dict[tuple[Any, str], Any] = {}

    def places(self) -> list[tuple[Any, str]]:
        """Owners and names of what :meth:`install` replaces."""
        return [(owner, name) for owner, name, _ in self._replacements]

    def install(self) -> None:
        """Replace them."""
        for owner, name, make in self._replacements:
            self._originals.setdefault((owner, name), vars(owner).get(name, _INHERITED))
            setattr(owner, name, make(getattr(owner, name)))

    def remove(self) -> None:
        """Put the originals back. Harmless where nothing is installed."""
        for (owner, name), original in self._originals.items():
            if original is not _INHERITED:
                setattr(owner, name, original)
            elif name in vars(owner):
                delattr(owner, name)
        self._originals.clear()
