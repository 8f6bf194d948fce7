"""Steps of inference: without an optimizer, repeated outermost calls of a model."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

_CALLS = 3
"""Calls of one model in a row, without gradients, that are taken for the start of many more."""


class InferenceSteps:
    """Ends a step where the next call of a model begins, until an optimizer steps.

    The calls before a training (Lightning's two batches of validation, say) are too few to count. One thread's are
    looked at, that of the first call.
    """

    def __init__(
        self, on_step_end: Callable[[], None], concerns: Callable[[torch.nn.Module], bool] = lambda _: True
    ) -> None:
        self._on_step_end = on_step_end
        self._concerns = concerns  # is the model this session's to follow?
        self._handles: list[Any] = []
        self._thread = 0
        self._depth = 0
        self._thread_of_others = False  # is the model that the thread is in another session's?
        self._root: weakref.ref[torch.nn.Module] | None = None
        self._calls = 0

    def install(self) -> None:
        """Begin to look."""
        self._handles.append(register_module_forward_pre_hook(self._entered))
        self._handles.append(register_module_forward_hook(self._left, always_call=True))

    def remove(self) -> None:
        """Stop: an optimizer has stepped, somebody calls ``session.step()``, or the session ends. May be repeated."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _entered(self, module: torch.nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling():  # the tracer takes what is after this for part of the graph
            return
        self._thread = self._thread or threading.get_ident()
        if threading.get_ident() != self._thread:
            return
        self._depth += 1
        if self._depth > 1:
            return
        if not self._concerns(module):
            self._thread_of_others = True
            return
        if torch.is_grad_enabled():
            self._calls = 0
            return
        known = self._root() if self._root is not None else None
        if known is not module:
            if known is not None and self._calls > _CALLS:
                return  # a second model that runs beside the one whose calls are the steps
            self._root, self._calls = weakref.ref(module), 0
        self._calls += 1
        if self._calls > _CALLS:
            self._on_step_end()

    def _left(self, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if threading.get_ident() == self._thread and self._depth > 0:
            self._depth -= 1
            if self._depth == 0 and self._thread_of_others:
                self._thread, self._thread_of_others = 0, False
