"""Raw access under torch 2.11 and 2.12, which have no hook for it.

There an access to a storage that is away raises, and nothing shows that somebody keeps a raw pointer. The ways by
which Python gets one are replaced while a session is open: each brings the storage in first and lets it stay, as the
hook does under torch 2.13. What remains is C++ code outside of ops that takes a pointer of a tensor which is away: it
gets the error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .. import core
from .patch import Patches, Replacement

_STORAGE = (
    *("_share_fd_cpu_", "_share_filename_cpu_", "_share_cuda_", "_set_from_file"),
    *("__getitem__", "__setitem__", "byteswap"),
)


def _exposed_first(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def exposed_first(first: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(first, torch.Tensor):
            core.expose_tensor(first)
        elif isinstance(first, torch.UntypedStorage):
            core.expose_storage(first)
        return call(first, *args, **kwargs)

    return exposed_first


def _never_shared_while_away(is_shared: Callable[..., bool]) -> Callable[..., bool]:
    # torch's own looks at the pointer in a function that must not raise: the process would end.
    def resident_and_shared(storage: torch.UntypedStorage) -> bool:
        return core.storage_residency(storage) in (None, "resident") and is_shared(storage)

    return resident_and_shared


def guards() -> Patches:
    """While installed, Python's raw accesses find the bytes."""
    replacements: list[Replacement] = [(torch.UntypedStorage, "is_shared", _never_shared_while_away)]
    for name in _STORAGE:
        if hasattr(torch.UntypedStorage, name):
            replacements.append((torch.UntypedStorage, name, _exposed_first))
    for owner in (torch._C, torch, torch.Tensor):
        if hasattr(owner, "_lazy_clone"):
            replacements.append((owner, "_lazy_clone", _exposed_first))
    return Patches(replacements)
