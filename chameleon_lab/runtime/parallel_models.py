"""What models made parallel look like from outside: wrappers around modules, and tensors of which a rank holds a part.

Nothing of torch.distributed is imported for it: what is not imported yet wraps nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

_WRAPPING = frozenset({"_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module"})
"""Names under which wrappers keep the module that they wrap: FSDP's, torch.compile's, checkpoint_wrapper's."""


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """The module inside of wrappers around it."""
    while True:
        inner = next((child for name, child in module.named_children() if _wraps(module, name)), None)
        if inner is None:
            return module
        module = inner


def own_names(module: torch.nn.Module) -> Callable[[str], str]:
    """A function from a path in a module to that path without the wrappers on it."""
    wrapped = {
        f"{path}.{name}" if path else name
        for path, child in module.named_modules()
        for name, _ in child.named_children()
        if _wraps(child, name)
    }

    def own(path: str) -> str:
        parts = path.split(".")
        return ".".join(
            part for number, part in enumerate(parts) if ".".join(parts[: number + 1]) not in wrapped
        )

    return own if wrapped else lambda path: path


def _wraps(module: torch.nn.Module, child: str) -> bool:
    parallel = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    return child in _WRAPPING or (child == "module" and isinstance(module, parallel))


def local_part(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor with the bytes of a tensor: of a DTensor, this rank's part.

    None where it has none yet: the result of a collective that is not waited for.
    """
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return tensor
    dtensor: Any = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    if dtensor is not None and isinstance(tensor, dtensor):
        tensor = tensor._local_tensor
    functional: Any = sys.modules.get("torch.distributed._functional_collectives")
    waiting: Any = getattr(functional, "AsyncCollectiveTensor", None)
    return None if waiting is not None and isinstance(tensor, waiting) else tensor
