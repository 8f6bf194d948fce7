"""Notes the ranges and marks of NVTX beside those of ``torch.profiler.record_function``.

Two libraries make them: ``torch.cuda.nvtx``, all of whose functions go through one object, and the ``nvtx`` package,
where it is installed. What they do stays what it was, also that the first one raises where PyTorch has no CUDA: a
range is noted all the same, since whoever catches that goes on and ends it.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch.cuda.nvtx

from . import core
from .patches import Patches, Replacement

_DEEPEST = 256
"""Ranges in each other that are noted. Those that raised and are never ended must not add up."""


class _Open(threading.local):
    """What a thread has begun and not ended, the innermost last; -1: not noted."""

    def __init__(self) -> None:
        self.pushed: list[int] = []


class _Noted:
    """The ranges that are open."""

    def __init__(self) -> None:
        self._open = _Open()
        self._started: dict[Any, int] = {}

    def push(self, message: Any) -> None:
        pushed = self._open.pushed
        pushed.append(_begin(message) if len(pushed) < _DEEPEST else -1)

    def push_failed(self, message: Any) -> None:
        if len(self._open.pushed) < _DEEPEST:
            self.push(message)

    def pop(self) -> None:
        if self._open.pushed:  # else it was pushed before the session
            _end(self._open.pushed.pop())

    def start(self, key: Any, message: Any) -> None:
        if len(self._started) < _DEEPEST:
            self._started[key] = _begin(message)

    def end(self, key: Any) -> None:
        _end(self._started.pop(key, -1))


def _begin(message: Any) -> int:
    """Returns what :func:`_end` takes; -1: it is not noted."""
    if not isinstance(message, str):
        return -1
    return core.begin_mark(message if message.isascii() else message.encode(errors="replace").decode())


def _end(mark: int) -> None:
    if mark >= 0:
        core.end_mark(mark)


def _mark(message: Any) -> None:
    _end(_begin(message))


def nvtx_ranges() -> Patches:
    """What a session installs while it is open."""
    noted = _Noted()
    replacements: list[Replacement] = []
    if hasattr(torch.cuda.nvtx, "_nvtx"):
        replacements.append((torch.cuda.nvtx, "_nvtx", functools.partial(_TorchLibrary, noted)))
    if find_spec("nvtx") is not None:
        replacements += _of_package(noted)
    return Patches(replacements)


# ---------------------------------------------------------------------------------------------------- torch.cuda.nvtx


class _TorchLibrary:
    """Stands for ``torch._C._nvtx``, so that functions that a script has imported before are noted too."""

    def __init__(self, noted: _Noted, library: Any) -> None:
        self._noted, self._library = noted, library

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def rangePushA(self, message: Any) -> Any:  # noqa: N802
        try:
            depth = self._library.rangePushA(message)
        except BaseException:
            if not _in_context_manager():
                self._noted.push_failed(message)
            raise
        self._noted.push(message)
        return depth

    def rangePop(self) -> Any:  # noqa: N802
        self._noted.pop()
        return self._library.rangePop()

    def rangeStartA(self, message: Any) -> Any:  # noqa: N802
        number = self._library.rangeStartA(message)
        self._noted.start(number, message)
        return number

    def rangeEnd(self, number: Any) -> Any:  # noqa: N802
        self._noted.end(number)
        return self._library.rangeEnd(number)

    def markA(self, message: Any) -> Any:  # noqa: N802
        _mark(message)
        return self._library.markA(message)


def _in_context_manager() -> bool:
    """Whether ``torch.cuda.nvtx.range`` pushes: where that raises, its body is not run and nothing is popped."""
    manager = getattr(torch.cuda.nvtx.range, "__wrapped__", None)
    frame = sys._getframe(2).f_back
    return frame is not None and manager is not None and frame.f_code is manager.__code__


# ---------------------------------------------------------------------------------------------------- the nvtx package


def _of_package(noted: _Noted) -> list[Replacement]:
    """Its public functions: where no tool listens, they call nothing."""
    try:
        import nvtx
        import nvtx.nvtx as inner
    except ImportError:
        return []

    def pushing(push: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(push)
        def push_range(message: Any = None, *args: Any, **kwargs: Any) -> Any:
            found = push(message, *args, **kwargs)
            noted.push(message)
            return found

        return push_range

    def popping(pop: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(pop)
        def pop_range(*args: Any, **kwargs: Any) -> Any:
            noted.pop()
            return pop(*args, **kwargs)

        return pop_range

    def starting(start: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(start)
        def start_range(message: Any = None, *args: Any, **kwargs: Any) -> Any:
            # Without a tool there is no number to know the range by.
            number = start(message, *args, **kwargs)
            if number is not None:
                noted.start(number, message)
            return number

        return start_range

    def ending(end: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(end)
        def end_range(number: Any) -> Any:
            noted.end(number)
            return end(number)

        return end_range

    def marking(mark: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(mark)
        def mark_at(message: Any = None, *args: Any, **kwargs: Any) -> Any:
            _mark(message)
            return mark(message, *args, **kwargs)

        return mark_at

    def entering(enter: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(enter)
        def noted_enter(annotation: Any) -> Any:
            found = enter(annotation)
            noted.push(next(iter(getattr(annotation, "init_args", ())), None))
            return found

        return noted_enter

    def leaving(leave: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(leave)
        def noted_leave(annotation: Any, *args: Any) -> Any:
            noted.pop()
            return leave(annotation, *args)

        return noted_leave

    makers = {
        "push_range": pushing,
        "pop_range": popping,
        "start_range": starting,
        "end_range": ending,
        "mark": marking,
    }
    found: list[Replacement] = [
        (module, name, maker)
        for module in (nvtx, inner)
        for name, maker in makers.items()
        if hasattr(module, name)
    ]
    return [*found, (nvtx.annotate, "__enter__", entering), (nvtx.annotate, "__exit__", leaving)]
