"""Tells the core when the loop pauses: a DataLoader is asked for a batch, or no cell of the notebook runs.

A loader is known by ``torch.utils.data.DataLoader.__iter__``: what that gives has its ``__next__`` timed, whatever its
type. So is what a subclass gives that calls it. An iterator from before the session, or of a loader that is none of
torch's, is a pause without a name where it takes long.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from ...trace.columns import Pause
from .. import core


class LoopPauses:
    """What :class:`~chameleon_lab.Session` installs while it is open. Both calls may be repeated."""

    def __init__(self) -> None:
        self._originals: list[tuple[type, Callable[..., Any]]] = []
        self._iter: Callable[..., Any] | None = None
        self._shell: Any = None
        self._thread = 0
        self._depth = 0
        self._between_cells = False

    def install(self) -> None:
        """Begin to tell. The thread that calls it is the one whose waits count: others load ahead of it."""
        if self._iter is not None:
            return
        self._thread = threading.get_ident()
        self._iter = DataLoader.__iter__
        DataLoader.__iter__ = self._timed(self._iter, watch=True)  # type: ignore[method-assign]  # for a while
        shell = _shell()
        if shell is not None:
            self._shell = shell
            shell.events.register("post_run_cell", self._cell_ended)
            shell.events.register("pre_run_cell", self._cell_begins)

    def remove(self) -> None:
        """Put everything back. Harmless where nothing is installed."""
        if self._iter is not None:
            DataLoader.__iter__ = self._iter  # type: ignore[method-assign]  # put back
            self._iter = None
        while self._originals:
            owner, original = self._originals.pop()
            owner.__next__ = original  # type: ignore[attr-defined]  # put back
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.events.unregister("post_run_cell", self._cell_ended)
            shell.events.unregister("pre_run_cell", self._cell_begins)

    # ------------------------------------------------------------------------------------------------ loaders

    def _timed(self, call: Callable[..., Any], watch: bool = False) -> Callable[..., Any]:
        @functools.wraps(call)
        def load(loader: Any, *args: Any) -> Any:
            if threading.get_ident() != self._thread:
                return call(loader, *args)
            self._depth += 1
            if self._depth == 1:
                core.begin_pause(Pause.LOADING)
            try:
                found = call(loader, *args)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    core.end_pause()
            if watch:
                self._watch(found)
            return found

        return load

    def _watch(self, iterator: Iterator[Any]) -> None:
        """Time what the iterator's type calls ``__next__``, once for each type."""
        owner = next((kind for kind in type(iterator).__mro__ if "__next__" in vars(kind)), None)
        if owner is None or any(owner is kind for kind, _ in self._originals):
            return
        original = vars(owner)["__next__"]
        try:
            owner.__next__ = self._timed(original)  # type: ignore[attr-defined]  # an iterator's type has it
        except TypeError:  # a generator's, say: its type cannot be changed
            return
        self._originals.append((owner, original))

    # ------------------------------------------------------------------------------------------------ cells

    def _cell_ended(self, *_: Any) -> None:
        if threading.get_ident() == self._thread and not self._between_cells:
            self._between_cells = True
            core.begin_pause(Pause.CELLS)

    def _cell_begins(self, *_: Any) -> None:
        if self._between_cells:
            self._between_cells = False
            core.end_pause()


def _shell() -> Any:
    """The running IPython, or None. Nothing is imported for it: where there is one, it is."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()
