"""Python entry points that read a storage without an op, and without the hook on mutable access to see it.

``torch.UntypedStorage.resize_`` copies the old bytes through a const pointer, and ``torch.Tensor.tolist`` reads through
one after its last op has ended, when another thread may already evict: the storage is brought in first, and held.

``torch.save`` asks every storage for its address (to tell them apart) before it writes the first one. For the escape
detector that looks like raw pointers that somebody keeps: every parameter and state would have to stay on the device
from then on. It keeps none of them, so the detector looks away for that one call, and each storage is brought in and
held only while its bytes are written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.serialization

from ..errors import BelowFloorError
from ..units import format_bytes
from . import core, older_torch
from .patches import Patches


def _hold(storage_address: int, size_bytes: int, what: str) -> None:
    if not core.hold(storage_address):
        core.take_failure()
        raise BelowFloorError(
            f"{what} needs {format_bytes(size_bytes)} on the device at once, and the capacity has no room for "
            "it: give a larger capacity"
        )


class _HoldingWriter:
    """torch's zip writer, which holds a storage on the device while it writes it."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def write_record(self, name: str, data: Any, *size: int) -> None:
        if not torch.is_storage(data) or core.storage_residency(data) is None:
            self._writer.write_record(name, data, *size)
            return
        _hold(data._cdata, data.nbytes(), f"saving {name}")
        try:
            self._writer.write_record(name, data, *size)
        finally:
            core.let_go(data._cdata)


def _resident_resize(resize: Callable[..., Any]) -> Callable[..., Any]:
    def resident_resize(storage: torch.UntypedStorage, size: int) -> Any:
        if core.storage_residency(storage) is None:
            return resize(storage, size)
        _hold(storage._cdata, storage.nbytes(), "resizing a storage")
        try:
            return resize(storage, size)
        finally:
            core.let_go(storage._cdata)

    return resident_resize


def _resident_list(tolist: Callable[..., Any]) -> Callable[..., Any]:
    def resident_list(tensor: torch.Tensor) -> Any:
        address = core.storage_address(tensor) if tensor.device.type == "cpu" else 0
        if not address:
            return tolist(tensor)
        _hold(address, tensor.nbytes, "tolist()")
        try:
            return tolist(tensor)
        finally:
            core.let_go(address)

    return resident_list


_thread = threading.local()


def _holding_save(save: Callable[..., Any]) -> Callable[..., Any]:
    def holding_save(obj: Any, zip_file: Any, *args: Any, **kwargs: Any) -> Any:
        outer = getattr(_thread, "saving", False)
        _thread.saving = True
        try:
            return save(obj, _HoldingWriter(zip_file), *args, **kwargs)
        finally:
            _thread.saving = outer

    return holding_save


def _identity_while_saving(data_ptr: Callable[..., int]) -> Callable[..., int]:
    # Only this call looks away: what an object's own __getstate__ takes while it is saved is kept by somebody.
    def identity_while_saving(storage: torch.UntypedStorage) -> int:
        if not getattr(_thread, "saving", False):
            return data_ptr(storage)
        core.set_saving(True)
        try:
            return data_ptr(storage)
        finally:
            core.set_saving(False)

    return identity_while_saving


def guards() -> list[Patches]:
    """While installed, ``torch.save`` works under any capacity that training does, and storages can be resized and
    tensors listed."""
    always = Patches(
        [
            (torch.serialization, "_save", _holding_save),
            (torch.UntypedStorage, "data_ptr", _identity_while_saving),
            (torch.UntypedStorage, "resize_", _resident_resize),
            (torch.Tensor, "tolist", _resident_list),
        ]
    )
    return [always] if core.SEES_RAW_ACCESS else [always, older_torch.guards()]
