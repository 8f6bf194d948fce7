"""What parameters are called, found by their identity.

Nothing here refers to a tensor, not even weakly: ``torch.utils.swap_tensors``, with which ``Module.to`` changes
parameters that are tensor subclasses, refuses a tensor that has a weak reference (torch/utils/__init__.py). A name is
kept by the parameter's ``id()``, together with the module or optimizer that holds the parameter: as long as that still
does, no other tensor has this ``id()``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.optimizer import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

_Holds = Callable[[Any, torch.Tensor], bool]


@dataclass(slots=True)
class _Known:
    name: str
    owner: weakref.ref[Any]
    holds: _Holds  # does the owner still hold the parameter?
    gradient: tuple[str, int] | None = None


class ParameterNames:
    """Names of parameters, and of their gradients with the labels that ``label`` gives to these."""

    def __init__(self, label: Callable[[str], int]) -> None:
        self._label = label
        self._known: dict[int, _Known] = {}  # by id()
        self._modules = WeakIdKeyDictionary()  # with the functions that name their paths
        self._looked_through = 64  # so many names were left when those of the dead were dropped last
        self._unnamed = 0

    def __contains__(self, parameter: torch.Tensor) -> bool:
        return self._find(parameter) is not None

    def __len__(self) -> int:
        return len(self._known)

    def add_module(self, module: torch.nn.Module, name: Callable[[str], str]) -> None:
        """Name what a module lists: ``name`` makes a name of a path."""
        self._modules[module] = name
        for path, parameter in module.named_parameters():
            self._add_from(module, path, parameter, name)

    def of(self, parameter: torch.Tensor, optimizer: Optimizer) -> str:
        """The name of what an optimizer trains or has states of: its module's, or else a number."""
        return self._of(parameter, optimizer).name

    def of_gradient(self, parameter: torch.Tensor, optimizer: Optimizer) -> tuple[str, int]:
        """The name of a parameter's gradient, and its label. Every step asks this of every parameter."""
        known = self._of(parameter, optimizer)
        if known.gradient is None:
            name = f"grad of {known.name}"
            known.gradient = name, self._label(name)
        return known.gradient

    def _find(self, parameter: torch.Tensor) -> _Known | None:
        known = self._known.get(id(parameter))
        if known is None:
            return None
        owner = known.owner()
        return known if owner is not None and known.holds(owner, parameter) else None

    def _of(self, parameter: torch.Tensor, optimizer: Optimizer) -> _Known:
        known = self._find(parameter) or self._look_for(parameter)
        if known is None:
            holds = _place_in(optimizer, parameter)
            known = self._add(parameter, f"parameter{self._unnamed}", optimizer, holds)
            self._unnamed += 1
        return known

    def _look_for(self, parameter: torch.Tensor) -> _Known | None:
        """In the modules, for what has moved in them: pruning and tying weights anew move parameters."""
        for module, name in list(self._modules.items()):
            for path, one in module.named_parameters():
                if one is parameter:
                    return self._add_from(module, path, parameter, name)
        return None

    def _add_from(
        self, module: torch.nn.Module, path: str, parameter: torch.Tensor, name: Callable[[str], str]
    ) -> _Known:
        *parts, attribute = path.split(".")
        owner: Any = module
        for part in parts:  # get_submodule() knows no scripted modules
            owner = getattr(owner, part, None)
        if getattr(owner, attribute, None) is not parameter:  # a path of the module's own making
            return self._add(parameter, name(path), module, _lists)
        return self._add(
            parameter, name(path), owner, lambda holder, one: getattr(holder, attribute, None) is one
        )

    def _add(self, parameter: torch.Tensor, name: str, owner: Any, holds: _Holds) -> _Known:
        if len(self._known) > 2 * self._looked_through:
            self._known = {
                key: known for key, known in list(self._known.items()) if known.owner() is not None
            }
            self._looked_through = max(len(self._known), 64)
        known = self._known[id(parameter)] = _Known(name, weakref.ref(owner), holds)
        return known


def _lists(module: torch.nn.Module, parameter: torch.Tensor) -> bool:
    return any(one is parameter for one in module.parameters())


def _place_in(optimizer: Optimizer, parameter: torch.Tensor) -> _Holds:
    for number, group in enumerate(optimizer.param_groups):
        for at, one in enumerate(group["params"]):
            if one is parameter:
                return lambda holder, asked: _trained_at(holder, number, at) is asked or asked in holder.state
    return lambda holder, asked: asked in holder.state


def _trained_at(optimizer: Optimizer, group: int, at: int) -> torch.Tensor | None:
    groups = optimizer.param_groups
    parameters = groups[group]["params"] if group < len(groups) else ()
    found: torch.Tensor | None = parameters[at] if at < len(parameters) else None
    return found
