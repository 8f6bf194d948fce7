"""Python entry points that read storages without an op: each is on the device while its bytes are read, and not longer.

``torch.UntypedStorage.resize_`` copies the old bytes through a const pointer, and ``torch.Tensor.tolist`` reads through
one after its last op has ended, when another thread may already evict: the storage is brought in first, and held.
``torch.save`` and pickle hold each storage while they write it. safetensors takes the addresses of all tensors of a
file and then writes them in one go, and ``torch.export.save`` reads at bare addresses: both get copies on the host. So
a file may be larger than the capacity.

Who asks for an address only is served by :mod:`.identities` and :mod:`.loans`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.serialization

from ...errors import BelowFloorError
from ...util.units import format_bytes
from .. import core
from . import identities, loans, older_torch
from .identities import unmanaged
from .late import LatePatches, LateReplacement
from .patch import Patches, Replacement


def _hold(storage_address: int, size_bytes: int, what: str) -> None:
    if not core.hold(storage_address):
        raise BelowFloorError(
            f"{what} needs {format_bytes(size_bytes)} on the device at once, and the capacity has no room for "
            "it: give a larger capacity",
            needed_bytes=size_bytes,
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


def _resident_storages(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Holds the storages among a call's arguments on the device until it returns."""

    def held(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def with_storages_resident(*args: Any, **kwargs: Any) -> Any:
            holding = []
            try:
                for storage in args:
                    if (
                        isinstance(storage, torch.UntypedStorage)
                        and core.storage_residency(storage) is not None
                    ):
                        _hold(storage._cdata, storage.nbytes(), what)
                        holding.append(storage._cdata)
                return call(*args, **kwargs)
            finally:
                for address in holding:
                    core.let_go(address)

        return with_storages_resident

    return held


def _resident_resize(resize: Callable[..., Any]) -> Callable[..., Any]:
    held = _resident_storages("resizing a storage")(resize)

    @functools.wraps(resize)
    def resize_resident(storage: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
        # Of what is away and ends nothing has to be there: FSDP frees its gathered parameters so. Before torch 2.13 any
        # access to what is away raises, this one too.
        ends = core.SEES_RAW_ACCESS and size == 0 and core.storage_residency(storage) in ("away", "dropped")
        return (resize if ends else held)(storage, size, *args, **kwargs)

    return resize_resident


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


def _resident_annotation(annotate: Callable[..., Any]) -> Callable[..., Any]:
    """Memory snapshots show the note with the block that the tensor has then."""

    @functools.wraps(annotate)
    def annotate_resident(tensor: Any, metadata: str) -> Any:
        if unmanaged(tensor):
            return annotate(tensor, metadata)
        address = core.storage_address(tensor)
        _hold(address, tensor.untyped_storage().nbytes(), "annotating a tensor")
        try:
            return annotate(tensor, metadata)
        finally:
            core.let_go(address)

    return annotate_resident


def _holding_save(save: Callable[..., Any]) -> Callable[..., Any]:
    def holding_save(obj: Any, zip_file: Any, *args: Any, **kwargs: Any) -> Any:
        return save(obj, _HoldingWriter(zip_file), *args, **kwargs)

    return holding_save


def _of_host_copy(read: Callable[..., Any]) -> Callable[..., Any]:
    """Reads a contiguous tensor's bytes from a copy in numpy's memory, which is none of the session's."""

    @functools.wraps(read)
    def read_of_host_copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if unmanaged(tensor) or not tensor.is_contiguous():
            return read(tensor, *args, **kwargs)
        with torch.no_grad():
            copy = torch.from_numpy(np.empty(tensor.nbytes, dtype=np.uint8)).view(tensor.dtype)
            copy = copy.view(tensor.shape).copy_(tensor)
        return read(copy, *args, **kwargs)

    return read_of_host_copy


def _of_storage_copy(read: Callable[..., Any]) -> Callable[..., Any]:
    """Reads all bytes of a tensor's storage, whatever part of it the tensor shows, from such a copy."""

    @functools.wraps(read)
    def read_of_storage_copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(tensor, torch.Tensor) or core.residency(tensor) is None:
            return read(tensor, *args, **kwargs)
        if tensor.device.type != "cpu":  # what is read there is the tensor alone, brought to the host
            return read(tensor.detach().cpu(), *args, **kwargs)
        with torch.no_grad():
            data = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
            copy = torch.from_numpy(np.empty(data.nbytes, dtype=np.uint8)).copy_(data)
        return read(copy, *args, **kwargs)

    return read_of_storage_copy


_READERS: tuple[LateReplacement, ...] = (
    ("safetensors.torch", "_to_ndarray", _of_host_copy),
    ("safetensors.torch", "_tobytes", _of_host_copy),
    ("torch.export.pt2_archive._package", "_get_raw_tensor_bytes", _of_storage_copy),
)
"""Functions that read a tensor through its address; the first came with safetensors 0.7."""


_ANNOTATIONS: list[Replacement] = []
if hasattr(torch.cuda.memory, "_annotate_tensor"):  # from torch 2.14 on
    _ANNOTATIONS.append((torch.cuda.memory, "_annotate_tensor", _resident_annotation))


def guards() -> list[Patches]:
    """While installed, saving works under any capacity that training does and leaves all as movable as before, storages
    can be resized, and tensors listed."""
    readers = LatePatches(_READERS)
    always = Patches(
        [
            (torch.serialization, "_save", _holding_save),
            (torch.UntypedStorage, "_write_file", _resident_storages("writing a storage to a file")),
            (torch.UntypedStorage, "resize_", _resident_resize),
            (torch.Tensor, "tolist", _resident_list),
            *_ANNOTATIONS,
            *loans.replacements(),
            *identities.replacements(),
        ]
    )
    if core.SEES_RAW_ACCESS:
        return [readers, always]
    copies = Patches(
        [
            (torch.UntypedStorage, "copy_", _resident_storages("copying a storage")),
            (torch.UntypedStorage, "fill_", _resident_storages("filling a storage")),
        ]
    )
    return [readers, always, copies, older_torch.guards()]
