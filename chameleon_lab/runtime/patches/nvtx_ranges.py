"""Notes the ranges and marks of NVTX beside those of ``torch.profiler.record_function``.

Two libraries make them: ``torch.cuda.nvtx``, all of whose functions go through one object, and the ``nvtx`` package,
where it is installed. What they do stays what it was, also that the first one raises where PyTorch has no CUDA: a
range is noted all the same, since whoever catches that goes on and ends it.

Where no tool listens, the package forgets at once what was decorated, and the messages of event attributes. Most
scripts make both before a session is open: so these two are kept from the import of this package on.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch.cuda.nvtx

from .. import core
from .patch import Patches, Replacement

_DEEPEST = 256
"""Ranges in each other that are noted. Those that raised and are never ended must not add up."""

_Marks = list[tuple[int, int]]
"""Of one range, in each open session."""

_DEFAULT: Any = None
"""The domain of what names none, and of ``torch.cuda.nvtx``."""


class _Open(threading.local):
    """What a thread has begun and not ended in each domain, the innermost last; empty: not noted."""

    def __init__(self) -> None:
        self.pushed: defaultdict[Any, list[_Marks]] = defaultdict(list)


class _Noted:
    """The ranges that are open."""

    def __init__(self) -> None:
        self._open = _Open()
        self._started: dict[Any, _Marks] = {}

    def push(self, message: Any, domain: Any = _DEFAULT) -> None:
        pushed = self._open.pushed[domain]
        pushed.append(_begin(message) if len(pushed) < _DEEPEST else [])

    def push_failed(self, message: Any) -> None:
        if len(self._open.pushed[_DEFAULT]) < _DEEPEST:
            self.push(message)

    def pop(self, domain: Any = _DEFAULT) -> None:
        if pushed := self._open.pushed[domain]:  # else it was pushed before the session
            _end(pushed.pop())

    def start(self, key: Any, message: Any) -> None:
        if len(self._started) < _DEEPEST:
            self._started[key] = _begin(message)

    def end(self, key: Any) -> None:
        _end(self._started.pop(key, []))


def _begin(message: Any) -> _Marks:
    """Returns what :func:`_end` takes; empty: it is not noted."""
    if not isinstance(message, str):
        return []
    return core.begin_mark(message if message.isascii() else message.encode(errors="replace").decode())


def _end(marks: _Marks) -> None:
    if marks:
        core.end_mark(marks)


def _mark(message: Any) -> None:
    _end(_begin(message))


_listening: list[_Noted] = []
"""Of the sessions that are open, the newest last."""


class _Ranges(Patches):
    def __init__(self, noted: _Noted, replacements: Sequence[Replacement]) -> None:
        super().__init__(replacements)
        self._noted = noted

    def install(self) -> None:
        super().install()
        if self._noted not in _listening:
            _listening.append(self._noted)

    def remove(self) -> None:
        if self._noted in _listening:
            _listening.remove(self._noted)
        super().remove()


def nvtx_ranges() -> Patches:
    """What a session installs while it is open."""
    noted = _Noted()
    replacements: list[Replacement] = []
    if hasattr(torch.cuda.nvtx, "_nvtx"):
        replacements.append((torch.cuda.nvtx, "_nvtx", functools.partial(_TorchLibrary, noted)))
    if find_spec("nvtx") is not None:
        replacements += _of_package(noted)
    return _Ranges(noted, replacements)


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
            noted.push(message, kwargs.get("domain", args[1] if len(args) > 1 else _DEFAULT))
            return found

        return push_range

    def popping(pop: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(pop)
        def pop_range(*args: Any, **kwargs: Any) -> Any:
            noted.pop(args[0] if args else kwargs.get("domain", _DEFAULT))
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
            noted.push(*_message_and_domain(annotation))
            return found

        return noted_enter

    def leaving(leave: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(leave)
        def noted_leave(annotation: Any, *args: Any) -> Any:
            noted.pop(_message_and_domain(annotation)[1])
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
    return [
        *found,
        (nvtx.annotate, "__enter__", entering),
        (nvtx.annotate, "__exit__", leaving),
        *_of_domains(noted, inner),
    ]


def _message_and_domain(annotation: Any) -> tuple[Any, Any]:
    """Message and domain of an ``annotate``."""
    given: tuple[Any, ...] = getattr(annotation, "init_args", ())
    message, _, domain, *_ = (*given, None, None, None)
    return message, domain


# ---------------------------------------------------------------------------------------------------- its domains


def _of_domains(noted: _Noted, inner: Any) -> list[Replacement]:
    """The methods of domains. Where no tool listens, all domains are one object: its ranges are one stack."""

    def message_of(attributes: Any, kwargs: dict[str, Any]) -> Any:
        registered = kwargs.get("message", getattr(attributes, "message", None))
        text = getattr(attributes, "text", None) if registered is None else registered
        return getattr(text, "string", text)

    def name_of(domain: Any) -> Any:
        return getattr(domain, "name", inner.DummyDomain)

    def pushing(push: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(push)
        def push_range(domain: Any, attributes: Any = None, **kwargs: Any) -> Any:
            found = push(domain, attributes, **kwargs)
            noted.push(message_of(attributes, kwargs), name_of(domain))
            return found

        return push_range

    def popping(pop: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(pop)
        def pop_range(domain: Any) -> Any:
            noted.pop(name_of(domain))
            return pop(domain)

        return pop_range

    def starting(start: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(start)
        def start_range(domain: Any, attributes: Any = None, **kwargs: Any) -> Any:
            number = start(domain, attributes, **kwargs)
            if not isinstance(domain, inner.DummyDomain):  # whose numbers are all 0
                noted.start((name_of(domain), number), message_of(attributes, kwargs))
            return number

        return start_range

    def ending(end: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(end)
        def end_range(domain: Any, number: Any) -> Any:
            noted.end((name_of(domain), number))
            return end(domain, number)

        return end_range

    def marking(mark: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(mark)
        def mark_at(domain: Any, attributes: Any = None, **kwargs: Any) -> Any:
            _mark(message_of(attributes, kwargs))
            return mark(domain, attributes, **kwargs)

        return mark_at

    makers = {
        "push_range": pushing,
        "pop_range": popping,
        "start_range": starting,
        "end_range": ending,
        "mark": marking,
    }
    kinds = [getattr(inner, kind, None) for kind in ("Domain", "DummyDomain")]
    if not all(map(_may_change, kinds)):
        return []
    return [(kind, name, maker) for kind in kinds for name, maker in makers.items() if hasattr(kind, name)]


def _may_change(kind: Any) -> bool:
    """Is it a class whose methods can be replaced? In some releases of the package it is not."""
    return isinstance(kind, type) and bool(kind.__flags__ & 1 << 9)  # Py_TPFLAGS_HEAPTYPE


# ---------------------------------------------------------------------------------------------------- kept for good


def _keep(inner: ModuleType) -> None:
    """Keep what is decorated and what event attributes say, from now on."""
    if not hasattr(inner, "annotate") or hasattr(inner.annotate.__call__, "__wrapped__"):
        return
    inner.annotate.__call__ = _decorating(inner.annotate.__call__)
    dummy: Any = getattr(inner, "DummyDomain", None)
    attributes = _event_attributes(inner)
    if _may_change(dummy) and attributes is not None:
        dummy.get_event_attributes = attributes


def _decorating(decorate: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(decorate)
    def noted_decorate(annotation: Any, function: Callable[..., Any]) -> Any:
        message, domain = _message_and_domain(annotation)
        decorated = decorate(annotation, function)
        if not hasattr(annotation, "init_args"):  # the package is switched off
            return decorated
        name = getattr(function, "__name__", None) if message is None else message

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not _listening:
                return decorated(*args, **kwargs)
            noted = _listening[-1]
            noted.push(name, domain)
            try:
                return decorated(*args, **kwargs)
            finally:
                noted.pop(domain)

        return call

    return noted_decorate


def _event_attributes(inner: ModuleType) -> Callable[..., Any] | None:
    """What ``get_event_attributes`` of a domain to which no tool listens does; None where it cannot be made."""
    try:
        from nvtx._lib.lib import EventAttributes

        class Kept(EventAttributes):  # type: ignore[misc]  # nvtx has no types
            """Attributes that no tool has asked for: their message."""

            text: Any = None

        Kept(inner.dummy_domain)
    except (ImportError, TypeError, AttributeError):
        return None

    def get_event_attributes(
        domain: Any, message: Any = None, color: Any = None, category: Any = None, payload: Any = None
    ) -> Any:
        kept = Kept(domain)
        kept.text = message
        return kept

    return get_event_attributes


class _Import:
    """A finder that keeps these as soon as the package is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "nvtx.nvtx":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            _keep(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this loader alone
        return spec


def watch() -> None:
    """Keep them from now on, or from when the package is imported."""
    inner = sys.modules.get("nvtx.nvtx")
    if inner is not None:
        _keep(inner)
    elif find_spec("nvtx") is not None:
        sys.meta_path.insert(0, _Import())


watch()
