"""Progress bars for long work in view of a user, shown after one second.

tqdm draws them, as text in a terminal and as a widget in a notebook. Where it is not installed there are none.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

DELAY_S = 1.0
"""Work that takes no longer shows no bar."""


class _Bar:
    """A bar that is drawn from its first tick after the delay on; a hidden one never is."""

    def __init__(self, what: str, total: int | None, unit: str, hidden: bool) -> None:
        self._options = {"desc": what, "total": total, "unit": unit, "leave": False}
        self._hidden = hidden
        self._begin_s = time.monotonic()
        self._ticks = 0
        self._drawn: Any = None

    def tick(self) -> None:
        self._ticks += 1
        if self._hidden:
            return
        if self._drawn is not None:
            self._drawn.update()
        elif time.monotonic() - self._begin_s >= DELAY_S:
            self._draw()

    def _draw(self) -> None:
        try:
            from tqdm.auto import tqdm
        except ImportError:
            self._hidden = True
            return
        self._drawn = tqdm(**self._options)
        self._drawn.update(self._ticks)

    def close(self) -> None:
        if self._drawn is not None:
            self._drawn.close()


_innermost: ContextVar[_Bar | None] = ContextVar("bar", default=None)


@contextmanager
def bar(what: str, total: int | None = None, unit: str = "part") -> Iterator[None]:
    """Shows a bar while its body runs; each :func:`tick` inside moves it on. A bar inside another is not shown.

    Args:
        what: what is being done, such as ``"Reading t.parquet"``.
        total: how many ticks there will be. None: nobody knows, and the bar counts.
        unit: what a tick is.
    """
    shown = _Bar(what, total, unit, hidden=_innermost.get() is not None or not _somebody_looks())
    token = _innermost.set(shown)
    try:
        yield
    finally:
        _innermost.reset(token)
        shown.close()


def tick() -> None:
    """A part of the work of the innermost :func:`bar` is done."""
    innermost = _innermost.get()
    if innermost is not None:
        innermost.tick()


@contextmanager
def hidden() -> Iterator[None]:
    """No bar is shown inside: the caller tells in its own way that work goes on."""
    token = _innermost.set(_Bar("", None, "", hidden=True))
    try:
        yield
    finally:
        _innermost.reset(token)


def _somebody_looks() -> bool:
    """Is this the main thread of a notebook, or of a program in a terminal?"""
    if threading.current_thread() is not threading.main_thread():
        return False
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None or sys.stderr.isatty()
