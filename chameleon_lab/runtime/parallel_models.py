"""What models made parallel look like from outside: wrappers around modules."""

from __future__ import annotations

from collections.abc import Callable

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
    engine = type(module).__module__.startswith("deepspeed.")
    return child in _WRAPPING or (child == "module" and (engine or isinstance(module, parallel)))
