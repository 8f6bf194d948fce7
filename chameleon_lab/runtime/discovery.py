"""Find models and optimizers at their first use: adopt their tensors, name them, and follow modules and steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ..errors import BelowFloorError
from ..trace.columns import Category
from ..units import format_bytes
from . import core


class Names:
    """A growing dictionary of strings: the position is the id that the core keeps."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._ids: dict[str, int] = {}

    def id(self, text: str) -> int:
        """The position of a text, which is added if it is new."""
        if text not in self._ids:
            self._ids[text] = len(self.texts)
            self.texts.append(text)
        return self._ids[text]


class Discovery:
    """Global hooks on modules and optimizers, for as long as a session is open."""

    def __init__(self, on_step_end: Callable[[], None]) -> None:
        self.modules = Names()
        self.labels = Names()
        self.refused: dict[str, str] = {}
        """Tensors that could not be adopted, and why."""
        self._on_step_end = on_step_end
        self._handles: list[Any] = []
        self._module_ids: dict[int, int] = {}  # by id(): entries go when the module dies
        self._parameter_names: dict[int, str] = {}
        self._roots = 0
        self._states_seen: dict[int, tuple[int, int]] = {}
        self._anchor: weakref.ref[Optimizer] | None = None

    def start(self) -> None:
        """Begin to listen."""
        core.set_module_resolver(self._resolve)
        self._handles = [
            register_module_forward_pre_hook(core.enter_module),
            register_module_forward_hook(core.leave_module, always_call=True),
            register_optimizer_step_pre_hook(self._before_optimizer),
            register_optimizer_step_post_hook(self._after_optimizer),
        ]

    def stop(self) -> None:
        """Stop listening."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        core.set_module_resolver(None)
        core.set_optimizer_stage(False)

    def adopt_module(self, module: torch.nn.Module) -> None:
        """Name a model's modules, and let the device own its parameters, buffers and gradients."""
        if id(module) in self._module_ids:
            return
        # The first model's paths stand alone; those of further ones (a GAN's second half) carry their class.
        prefix = "" if self._roots == 0 else f"{type(module).__name__}{self._roots}."
        self._roots += 1
        for path, child in module.named_modules():
            if id(child) in self._module_ids:
                continue
            self._module_ids[id(child)] = self.modules.id(f"{prefix}{path}" if path else prefix.rstrip("."))
            weakref.finalize(child, self._forget_module, id(child)).atexit = False
        for name, parameter in module.named_parameters():
            self._adopt(parameter, Category.PARAMETER, f"{prefix}{name}")
            self._parameter_names[id(parameter)] = f"{prefix}{name}"
            if parameter.grad is not None:
                self._adopt(parameter.grad, Category.GRADIENT, f"grad of {prefix}{name}")
        for name, buffer in module.named_buffers():
            self._adopt(buffer, Category.OTHER, f"{prefix}{name}")

    def adopt_optimizer(self, optimizer: Optimizer) -> None:
        """Let the device own an optimizer's parameters, their gradients and its states."""
        for parameter in _parameters(optimizer):
            if id(parameter) not in self._parameter_names:
                name = f"parameter{len(self._parameter_names)}"
                self._parameter_names[id(parameter)] = name
                self._adopt(parameter, Category.PARAMETER, name)
        self._adopt_states(optimizer)

    def adopt_tensor(self, tensor: torch.Tensor) -> None:
        """Let the device own one tensor, which keeps the category OTHER."""
        self._adopt(tensor, Category.OTHER, f"tensor{len(self.labels.texts)}")

    def _resolve(self, module: torch.nn.Module) -> int:
        # Called by the core for a module that it has not seen: the outermost call of a model comes first.
        self.adopt_module(module)
        return self._module_ids[id(module)]

    def _forget_module(self, module_id: int) -> None:
        self._module_ids.pop(module_id, None)
        core.forget_module(module_id)

    def _before_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if id(optimizer) not in self._states_seen:
            self.adopt_optimizer(optimizer)
        for parameter in _parameters(optimizer):
            gradient = parameter.grad
            if gradient is not None:
                core.adopt(gradient, Category.GRADIENT, self._gradient_label(parameter))
        core.set_optimizer_stage(True)

    def _after_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        core.set_optimizer_stage(False)
        self._adopt_states(optimizer)
        # Several optimizers may step in one training step: the first one seen marks where it ends.
        if self._anchor is None or self._anchor() is None:
            self._anchor = weakref.ref(optimizer)
        if self._anchor() is optimizer:
            self._on_step_end()

    def _gradient_label(self, parameter: torch.Tensor) -> int:
        return self.labels.id(f"grad of {self._parameter_names[id(parameter)]}")

    def _adopt_states(self, optimizer: Optimizer) -> None:
        version = (id(optimizer.state), len(optimizer.state))
        if self._states_seen.get(id(optimizer)) == version:
            return
        self._states_seen[id(optimizer)] = version
        for parameter, state in optimizer.state.items():
            if not isinstance(state, dict):
                continue
            of = self._parameter_names.get(id(parameter), "?")
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    self._adopt(value, Category.OPTIMIZER_STATE, f"{key} of {of}")

    def _adopt(self, tensor: torch.Tensor, category: Category, name: str) -> None:
        outcome = core.adopt(tensor, category, self.labels.id(name))
        if outcome == "no room":
            failure = core.take_failure()
            capacity = failure["capacity_bytes"] if failure else 0
            raise BelowFloorError(
                f"{name} ({format_bytes(tensor.untyped_storage().nbytes())}) does not fit into the capacity of "
                f"{format_bytes(capacity)} beside what cannot leave it: give a larger capacity"
            )
        if outcome == "foreign" and tensor.untyped_storage().nbytes() >= 1024:
            self.refused[name] = (
                "its memory was not made by torch's allocator, or numpy or another process shares it: it stays "
                "where it is and does not count"
            )


def _parameters(optimizer: Optimizer) -> Iterable[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
