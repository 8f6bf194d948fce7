"""Raw access under torch 2.11 and 2.12, which have no hook on it.

There an access to a storage that is away raises, and nothing shows that somebody keeps a raw pointer. The ways by
which Python gets one are replaced while a session is open: each brings the storage in first and lets it stay, as the
hook does under torch 2.13. What remains is C++ code outside of ops that takes a pointer of a tensor which is away: it
gets the error.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.dlpack

from . import core
from .patches import Patches, Replacement

_TENSOR = ("data_ptr", "numpy", "__array__", "__dlpack__", "_lazy_clone")
_STORAGE = (
    *("_share_fd_cpu_", "_share_filename_cpu_", "_share_cuda_", "_write_file", "_set_from_file"),
    *("__getitem__", "__setitem__", "copy_", "fill_", "clone", "byteswap"),
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


def _exposed_unless_told_apart(data_ptr: Callable[..., int]) -> Callable[..., int]:
    def exposed_unless_told_apart(storage: torch.UntypedStorage) -> int:
        caller = sys._getframe(1)
        if caller.f_globals.get("__name__") == "torch.storage" and caller.f_back:
            caller = caller.f_back
        if caller.f_globals.get("__name__") == "torch.serialization":
            return storage._cdata  # saving and loading only tell storages apart by it
        core.expose_storage(storage)
        return data_ptr(storage)

    return exposed_unless_told_apart


def _never_shared_while_away(is_shared: Callable[..., bool]) -> Callable[..., bool]:
    # torch's own looks at the pointer in a function that must not raise: the process would end.
    def resident_and_shared(storage: torch.UntypedStorage) -> bool:
        return core.storage_residency(storage) in (None, "resident") and is_shared(storage)

    return resident_and_shared


def guards() -> Patches:
    """While installed, Python's raw accesses find the bytes."""
    replacements: list[Replacement] = [
        (torch.UntypedStorage, "is_shared", _never_shared_while_away),
        (torch.UntypedStorage, "data_ptr", _exposed_unless_told_apart),
    ]
    for owner, names in ((torch.Tensor, _TENSOR), (torch.UntypedStorage, _STORAGE)):
        replacements += [(owner, name, _exposed_first) for name in names if hasattr(owner, name)]
    for owner in (torch._C, torch, torch.utils.dlpack):
        names = ("_to_dlpack", "_to_dlpack_versioned", "to_dlpack", "_lazy_clone")
        replacements += [(owner, name, _exposed_first) for name in names if hasattr(owner, name)]
    return Patches(replacements)
