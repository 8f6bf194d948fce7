"""Steps of inference: without an optimizer, repeated outermost calls of a model."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer

_CALLS = 3
"""Calls of one model in a row, without gradients, that are taken for the start of many more."""


class InferenceSteps:
    """Ends a step where the next call of a model begins, until an optimizer steps.

    Before a training a model may be called as well: Lightning validates two batches, an agent acts before it learns.
    So few calls do not count, and none do while an optimizer waits for its first step. One thread's calls are looked
    at, that of the first call.

    Args:
        on_step_end: called where a step ends.
        concerns: are these parameters the session's to follow?
        always: take every call behind the first few for a step, whether there are optimizers or not.
    """

    def __init__(
        self,
        on_step_end: Callable[[], None],
        concerns: Callable[[Iterable[torch.Tensor]], bool] = lambda _: True,
        always: bool = False,
    ) -> None:
        self._on_step_end = on_step_end
        self._concerns = concerns
        self._always = always
        self._handles: list[Any] = []
        self._thread = 0
        self._depth = 0
        self._thread_of_others = False  # is the model that the thread is in another session's?
        self._root: weakref.ref[torch.nn.Module] | None = None
        self._calls = 0
        self._called_with_gradients = False  # has that model been, in this session?
        self._earlier: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # made before the session
        self._awaited: weakref.ref[Optimizer] | None = None

    @property
    def awaited(self) -> str:
        """The class of the optimizer that is waited for; empty where none is."""
        optimizer = self._awaited() if self._awaited is not None else None
        return "" if optimizer is None else type(optimizer).__name__

    def install(self) -> None:
        """Begin to look."""
        for optimizer in _optimizers():
            self._earlier.add(optimizer)
        self._handles.append(register_module_forward_pre_hook(self._entered))
        self._handles.append(register_module_forward_hook(self._left, always_call=True))

    def remove(self) -> None:
        """Stop: an optimizer has stepped, somebody calls ``session.step()``, or the session ends. May be repeated."""
        self._awaited = None
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
        if not self._concerns(module.parameters()):
            self._thread_of_others = True
            return
        known = self._root() if self._root is not None else None
        if torch.is_grad_enabled():
            self._calls = 0
            if known is not module:
                self._root, self._awaited = weakref.ref(module), None
            self._called_with_gradients = True
            return
        if known is not module:
            if known is not None and self._calls > _CALLS and self._awaited is None:
                return  # a second model that runs beside the one whose calls are the steps
            self._root, self._calls = weakref.ref(module), 0
            self._called_with_gradients, self._awaited = False, None
        self._calls += 1
        if self._calls > _CALLS and not self._waits_for_training(module):
            self._on_step_end()

    def _waits_for_training(self, module: torch.nn.Module) -> bool:
        if self._always:
            return False
        if self._awaited is not None and self._awaited() is not None:
            return True
        # Looking for optimizers takes long in a large process, and one that was made since may be found later.
        if self._calls & (self._calls - 1) and self._awaited is None:
            return False
        self._awaited = self._find_awaited(module)
        if self._awaited is not None:  # an optimizer is in a cycle: one that is gone may still be there
            gc.collect()
            self._awaited = self._find_awaited(module)
        return self._awaited is not None

    def _find_awaited(self, module: torch.nn.Module) -> weakref.ref[Optimizer] | None:
        found = (weakref.ref(one) for one in _optimizers() if self._is_going_to_step(one, module))
        return next(found, None)

    def _is_going_to_step(self, optimizer: Optimizer, module: torch.nn.Module) -> bool:
        """No optimizer has stepped in the session: one would have ended the search.

        One that is older may have trained its model already, as in a notebook.
        """
        try:
            trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            if optimizer not in self._earlier:
                return self._concerns(trained)
            stepped = bool(optimizer.state) or any(parameter.grad is not None for parameter in trained)
        except Exception:  # noqa: BLE001 - half made, or a wrapper that cannot be asked yet: the model's call goes on
            return False
        if stepped and not self._called_with_gradients:
            return False
        parameters = {id(parameter) for parameter in module.parameters()}
        return any(id(parameter) in parameters for parameter in trained)

    def _left(self, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if threading.get_ident() == self._thread and self._depth > 0:
            self._depth -= 1
            if self._depth == 0 and self._thread_of_others:
                self._thread, self._thread_of_others = 0, False


def _optimizers() -> Iterator[Optimizer]:
    """All that there are in the process."""
    # torch marks the class of each optimizer that is made (Optimizer._patch_step_function): mostly there is none.
    if any(getattr(one.step, "hooked", False) for one in _classes(Optimizer)):
        yield from (one for one in gc.get_objects() if issubclass(type(one), Optimizer))


def _classes(base: type[Optimizer]) -> Iterator[type[Optimizer]]:
    for one in base.__subclasses__():
        yield one
        yield from _classes(one)
