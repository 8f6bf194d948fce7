"""Raw pointers with a known end: numpy arrays and DLPack capsules.

While one lives, its tensor's storage stays where it is; when the last has gone, the storage may move again, on a GPU
from the step's end on. Views of an array, memoryviews and ``from_dlpack`` hold what they were made from, so they count
as well. A bare address is good for ever instead: ``array.ctypes`` gives one, and so does ``tensor.data_ptr()`` (see
:mod:`.identities`).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.utils.dlpack
from torch.overrides import has_torch_function_unary

from .. import core
from .patch import Replacement


def _while_lent(
    loan: core.Loan, tensor: torch.Tensor, call: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    try:
        return call(tensor, *args, **kwargs)
    except BaseException:
        loan.end()
        raise
    finally:
        core.let_go(core.storage_address(tensor))


def _lent_to_array(numpy: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(numpy)
    def lent_to_array(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        loan = None if has_torch_function_unary(tensor) else core.lend(tensor)
        if loan is None:
            return numpy(tensor, *args, **kwargs)
        array = _while_lent(loan, tensor, numpy, *args, **kwargs)
        weakref.finalize(array, loan.end).atexit = False
        return array

    return lent_to_array


def _lent_to_capsule(to_dlpack: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(to_dlpack)
    def lent_to_capsule(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(tensor, torch.Tensor) or has_torch_function_unary(tensor):
            return to_dlpack(tensor, *args, **kwargs)
        if kwargs.get("copy") and not core.SEES_RAW_ACCESS:  # the capsule would show a copy that is not known
            tensor, kwargs = tensor.clone(), kwargs | {"copy": False}
        loan = core.lend(tensor)
        if loan is None:
            return to_dlpack(tensor, *args, **kwargs)
        capsule = _while_lent(loan, tensor, to_dlpack, *args, **kwargs)
        core.end_loan_with_capsule(loan, capsule)
        return capsule

    return lent_to_capsule


def _exposed_by_ctypes(init: Callable[..., None]) -> Callable[..., None]:
    """``array.ctypes.data`` is a number that holds nothing."""

    @functools.wraps(init)
    def exposed_by_ctypes(self: Any, array: np.ndarray, *args: Any, **kwargs: Any) -> None:
        owner: Any = array
        while isinstance(owner, np.ndarray | memoryview):
            owner = owner.obj if isinstance(owner, memoryview) else owner.base
        if isinstance(owner, torch.Tensor):
            core.expose_tensor(owner)
        init(self, array, *args, **kwargs)

    return exposed_by_ctypes


def replacements() -> list[Replacement]:
    """What :class:`~.patches.Patches` puts in the place of the functions that hand out such pointers."""
    found: list[Replacement] = [
        (torch.Tensor, "numpy", _lent_to_array),
        (type(np.empty(0).ctypes), "__init__", _exposed_by_ctypes),
    ]
    for owner in (torch._C, torch, torch.utils.dlpack):
        for name in ("_to_dlpack", "_to_dlpack_versioned", "to_dlpack"):
            if hasattr(owner, name):
                found.append((owner, name, _lent_to_capsule))
    return found
