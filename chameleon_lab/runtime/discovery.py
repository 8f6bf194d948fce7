"""Find models and optimizers at their first use: adopt their tensors, name them, and follow modules and steps."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.weak import WeakIdKeyDictionary

from ..errors import BelowFloorError
from ..trace.columns import Category
from ..trace.labels import part_label
from ..util.units import format_bytes
from . import core
from .parallel_models import own_names, unwrapped
from .parameter_names import ParameterNames
from .patches.shared import Shared
from .step_ends import StepEnds, has_zero
from .tensor_parts import belongings, parts

_REFUSED = {
    "foreign": "torch's allocator did not make its memory, or numpy or another process shares it",
    "shared": "its storage has another owner, who may keep its address (session.adopt(model) promises otherwise)",
}

_STAYS = "it stays where it is and does not count"

_PAGED = (
    "bitsandbytes keeps it in managed memory, which the driver moves (take an optimizer that is not paged)"
)


class Names:
    """A growing dictionary of strings: the position is the id that the core keeps, and ``tell`` tells it the text."""

    def __init__(self, tell: Callable[[int, str], None]) -> None:
        self.texts: list[str] = []
        self._tell = tell
        self._ids: dict[str, int] = {}

    def id(self, text: str) -> int:
        """The position of a text, which is added if it is new."""
        if text not in self._ids:
            self._ids[text] = len(self.texts)
            self.texts.append(text)
            self._tell(self._ids[text], text)
        return self._ids[text]


class _ModuleHooks:
    """Tell the core of modules that are called, for all sessions."""

    def __init__(self) -> None:
        self._handles: list[Any] = []

    def install(self) -> None:
        self._handles.append(register_module_forward_pre_hook(core.enter_module))
        self._handles.append(register_module_forward_hook(core.leave_module, always_call=True))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class Discovery:
    """Global hooks on modules and optimizers, for as long as a session is open."""

    def __init__(
        self,
        runtime: core.Runtime,
        on_step_end: Callable[[], None],
        device: torch.device,
        evicts_last: Callable[[Category, str, torch.Tensor], bool] = lambda category, label, part: False,
        misses: Callable[[str, torch.device], None] = lambda name, where: None,
        others: Callable[[], Collection[torch.device]] = tuple,
    ) -> None:
        self._runtime = runtime
        self._device = device
        self.modules = Names(runtime.name_module)
        self.labels = Names(runtime.name_label)
        self.refused: dict[str, str] = {}
        """Tensors that stay where they are and do not count, and why."""
        self._on_step_end = on_step_end
        self._evicts_last = evicts_last  # should eviction take this storage last?
        self._misses = misses  # told what has tensors, but none of them on the device, and where they are
        self._others = others  # devices of the other sessions that are open
        self._handles: list[Any] = []
        self._follows_modules = Shared("modules", lambda: [_ModuleHooks()])
        self._strangers: set[int] = (
            set()
        )  # by id(): modules that other sessions follow, as they were in this step
        self._lock = threading.RLock()
        self._module_ids: dict[int, int] = {}  # by id(): entries go when the module dies
        self._module_ends: dict[int, weakref.finalize[..., Any]] = {}  # by id()
        self._removed = False
        self._parameters = ParameterNames(self.labels.id)
        self._prefixes = WeakIdKeyDictionary()  # of modules
        self._states_seen: weakref.WeakKeyDictionary[Optimizer, tuple[int, int]] = weakref.WeakKeyDictionary()
        self._ends = StepEnds(runtime.backwards)

    def install(self) -> None:
        """Begin to listen."""
        self._removed = False
        self._runtime.set_module_resolver(self._resolve)
        self._follows_modules.install()
        self._handles.append(register_optimizer_step_pre_hook(self._before_optimizer))
        self._handles.append(register_optimizer_step_post_hook(self._after_optimizer))

    def remove(self) -> None:
        """Stop listening. May be repeated, and cut short by Ctrl-C at any point."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._follows_modules.remove()
        self._runtime.set_module_resolver(None)
        self._removed = True  # first: another thread may be in adopt_module()
        for end in list(self._module_ends.values()):
            end.detach()
        self._module_ends.clear()
        self._runtime.set_optimizer_stage(False)

    def adopt_module(self, module: torch.nn.Module, trusted: bool = False) -> None:
        """Name a model's modules, and let the device own its parameters, buffers and gradients.

        Trusted: nobody keeps raw addresses, so storages that others hold too may move.
        """
        with self._lock:
            if id(module) in self._module_ids and not trusted:
                return
            # The first model's paths stand alone; those of further ones (a GAN's second half) carry their class.
            count = len(self._prefixes)
            inner = unwrapped(module)
            prefix = self._prefixes.setdefault(module, f"{type(inner).__name__}{count}." if count else "")
            own = own_names(module)
            self._parameters.add_module(module, lambda path: f"{prefix}{own(path)}")
            tensors: list[tuple[torch.Tensor, Category, str]] = []
            for path, parameter in module.named_parameters():
                name = f"{prefix}{own(path)}"
                tensors.append((parameter, Category.PARAMETER, name))
                if parameter.grad is not None:
                    tensors.append((parameter.grad, Category.GRADIENT, f"grad of {name}"))
            for path, buffer in module.named_buffers():
                tensors.append((buffer, Category.OTHER, f"{prefix}{own(path)}"))
            tensors += [
                (tensor, Category.PARAMETER, part_label(f"{prefix}{own(path)}", kept))
                for path, parameter in module.named_parameters()
                for kept, tensor in belongings(parameter)
            ]
            self._look_for_ours(f"the model {type(module).__name__}", module.parameters())
            self._adopt(tensors, trusted)
            # Last: another thread's forward must not run ahead while tensors still move.
            for path, child in module.named_modules():
                if id(child) in self._module_ids:
                    continue
                name = own(path)
                self._module_ids[id(child)] = self.modules.id(
                    f"{prefix}{name}" if name else prefix.rstrip(".")
                )
                if self._removed:
                    continue
                self._module_ends[id(child)] = end = weakref.finalize(child, self._forget_module, id(child))
                end.atexit = False

    def adopt_optimizer(self, optimizer: Optimizer, trusted: bool = False) -> None:
        """Let the device own an optimizer's parameters and its states."""
        with self._lock:
            self._look_for_ours(f"what {type(optimizer).__name__} trains", _parameters(optimizer))
            parameters = [
                p
                for p in _parameters(optimizer)
                if trusted or p not in self._parameters or core.residency(p) is None
            ]
            names = [self._parameters.of(p, optimizer) for p in parameters]
            self._adopt(
                [(p, Category.PARAMETER, name) for p, name in zip(parameters, names, strict=True)], trusted
            )
            self._adopt_states(optimizer, trusted)

    def adopt_tensor(self, tensor: torch.Tensor) -> None:
        """Let the device own one tensor, which keeps the category OTHER."""
        self._adopt([(tensor, Category.OTHER, f"tensor{len(self.labels.texts)}")], trusted=True)

    def _resolve(self, module: torch.nn.Module) -> int:
        # Called by the core for a module that it has not seen: the outermost call of a model comes first.
        if id(module) in self._strangers:
            return -1
        if id(module) not in self._module_ids and not self.concerns(module.parameters()):
            self._strangers.update(map(id, module.modules()))
            return -1
        self.adopt_module(module)
        return self._module_ids[id(module)]

    def concerns(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Is it for this session to follow what has these? All is, but for what others have to themselves."""
        rest = iter(parameters)
        first = next(rest, None)
        if first is None or first.device == self._device:
            return True
        if first.is_meta:  # a trace without memory, beside the session
            return False
        others = self._others()
        devices = {first.device, *(parameter.device for parameter in rest)} if others else set()
        return self._device in devices or devices.isdisjoint(others)

    def look_again(self) -> None:
        """At the end of a step: models of other sessions may have been moved here."""
        if self._strangers:
            self._strangers.clear()
            self._runtime.forget_strangers()

    def _forget_module(self, module_id: int) -> None:
        self._module_ids.pop(module_id, None)
        self._module_ends.pop(module_id, None)
        core.forget_module(module_id)

    def _before_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if not self.concerns(_parameters(optimizer)):
            return None
        first = next(iter(_parameters(optimizer)), None)
        new = has_zero() and first is not None and core.residency(first) is None
        if new or optimizer not in self._states_seen:
            self.adopt_optimizer(optimizer)
        self._enter_optimizer(optimizer)
        return self._with_closure(optimizer, args, kwargs)

    def _enter_optimizer(self, optimizer: Optimizer) -> None:
        for parameter in _parameters(optimizer):
            if parameter.grad is not None:
                name, label = self._parameters.of_gradient(parameter, optimizer)
                for _, part in self._parts(parameter.grad):
                    evict_last = self._evicts_last(Category.GRADIENT, name, part)
                    ours = part is parameter.grad or _is_ours(part, parameter.grad, Category.GRADIENT)
                    self._runtime.adopt(
                        part, Category.GRADIENT, label, owners=int(ours), evict_last=evict_last
                    )
        self._runtime.set_optimizer_stage(True)

    def _with_closure(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """The arguments of ``step``; a closure in them, which runs forward and backward, leaves the optimizer stage."""
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            return None

        @functools.wraps(closure)
        def outside_the_optimizer() -> Any:
            self._runtime.set_optimizer_stage(False)
            try:
                return closure()
            finally:
                self._enter_optimizer(optimizer)

        if "closure" in kwargs:
            return args, kwargs | {"closure": outside_the_optimizer}
        return (args[0], outside_the_optimizer, *args[2:]), kwargs

    def _after_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self.concerns(_parameters(optimizer)):
            return
        self._runtime.set_optimizer_stage(False)
        self._adopt_states(optimizer)
        if self._ends.at(optimizer):
            self._on_step_end()

    def _adopt_states(self, optimizer: Optimizer, trusted: bool = False) -> None:
        version = (id(optimizer.state), len(optimizer.state))
        if self._states_seen.get(optimizer) == version and not trusted:
            return
        self._states_seen[optimizer] = version
        self._adopt(
            [
                (value, Category.OPTIMIZER_STATE, f"{key} of {self._parameters.of(parameter, optimizer)}")
                for parameter, state in optimizer.state.items()
                if isinstance(parameter, torch.Tensor) and isinstance(state, dict)
                for key, value in state.items()
                if isinstance(value, torch.Tensor)
            ],
            trusted,
        )

    def _adopt(self, tensors: list[tuple[torch.Tensor, Category, str]], trusted: bool = False) -> None:
        found: list[tuple[torch.Tensor, Category, str]] = []
        # By the address of a storage, then by the id() of a tensor with it: does nothing else hold that tensor?
        owners: dict[int, dict[int, bool]] = {}
        for tensor, category, name in tensors:
            if getattr(tensor, "is_paged", False):  # to torch, a tensor in host memory
                self.refused[name] = f"{_PAGED}: {_STAYS}"
                continue
            for path, part in self._parts(tensor):
                found.append((part, category, part_label(name, path)))
                owners.setdefault(core.storage_address(part), {})[id(part)] = _is_ours(part, tensor, category)
        outcomes: dict[int, str] = {}
        for part, category, name in found:
            address = core.storage_address(part)
            self.refused.pop(name, None)
            if address not in outcomes:  # the first name stays
                outcomes[address] = self._adopt_part(
                    part, category, name, sum(owners[address].values()), trusted
                )
            if outcomes[address] in _REFUSED:
                self.refused[name] = f"{_REFUSED[outcomes[address]]}: {_STAYS}"

    def _adopt_part(
        self, part: torch.Tensor, category: Category, name: str, owners: int, trusted: bool
    ) -> str:
        evict_last = self._evicts_last(category, name, part)
        outcome = self._runtime.adopt(part, category, self.labels.id(name), owners, trusted, evict_last)
        if outcome == "no room":
            failure = self._runtime.take_failure()
            raise BelowFloorError(
                f"{name} ({format_bytes(part.nbytes)}) does not fit into the capacity of "
                f"{format_bytes(failure['capacity_bytes'] if failure else 0)} beside the storages that "
                "cannot leave: give a larger capacity",
                capacity_bytes=failure["capacity_bytes"] if failure else None,
                needed_bytes=failure["needed_bytes"] if failure else None,
            )
        return outcome

    def _look_for_ours(self, name: str, parameters: Iterable[torch.Tensor]) -> None:
        """Tell of what is trained, and has nothing on the device."""
        elsewhere = {p.device for p in parameters if p.requires_grad and p.device.type != "meta"}
        if elsewhere and self._device not in elsewhere:
            self._misses(name, min(elsewhere, key=str))

    def _parts(self, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """The parts of a tensor that are on the device. A sparse tensor has its indices and its values."""
        for path, part in parts(tensor):
            if part.device != self._device:
                continue
            if part.layout == torch.strided:
                yield path, part
            elif part.layout == torch.sparse_coo:
                yield from ((path, part._indices()), (path, part._values()))


def _is_ours(part: torch.Tensor, tensor: torch.Tensor, category: Category) -> bool:
    """Do Python and autograd alone hold a part of a tensor? Autograd holds a gradient, but not what it is made of."""
    return not core.held_elsewhere(part, category if part is tensor else Category.OTHER)


def _parameters(optimizer: Optimizer) -> Iterable[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
