"""``data_ptr()`` for savers, which use it only to identify storages.

Savers ask every tensor for its address, to find those that share memory, and keep none. For the escape detector that
looks like raw pointers that somebody keeps: every parameter and state would have to stay on the device from then on.
Those functions, which are known by name, get an address that stands for the storage as long as it lives, and nothing
has to be on the device for it. Everybody else gets the true address, and the storage stays where it is for good.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.overrides import has_torch_function_unary

from .. import core
from .patch import Replacement

_SHARED = frozenset(
    {"storage_ptr", "_end_ptr", "_filter_shared_not_shared", "_is_complete", "_get_unique_id"}
    | {"_find_disjoint", "_find_identical", "id_tensor_storage"}
)
_TELL_APART: dict[str, frozenset[str]] = {
    "torch.serialization": frozenset({"_save", "_legacy_save", "_load", "_legacy_load"}),
    "torch.storage": frozenset({"_to"}),
    "torch._tensor": frozenset({"__deepcopy__", "_reduce_ex_internal"}),
    "torch.autograd.graph": frozenset({"_get_tid", "_get_sid"}),
    "torch.nn.modules.rnn": frozenset({"flatten_parameters"}),
    "torch.distributed.utils": frozenset({"_data_ptr_allocated"}),
    "torch.distributed._state_dict_utils": frozenset({"_create_cpu_state_dict"}),
    "torch.distributed.checkpoint._state_dict_stager": frozenset({"_offload_tensor"}),
    "torch.distributed.fsdp._fully_shard._fsdp_param": frozenset({"reset_sharded_param"}),
    "torch.distributed.fsdp._flat_param": frozenset({"_same_storage"}),
    "torch.export.pt2_archive._package_weights": frozenset(
        {"_end_ptr", "TensorProperties", "get_complete_tensor"}
    ),
    "safetensors.torch": _SHARED,
    "huggingface_hub.serialization._torch": _SHARED,
    "transformers.pytorch_utils": _SHARED,
    "transformers.modeling_utils": _SHARED,
    "accelerate.utils.modeling": _SHARED,
    "triton.tools.tensor_descriptor": frozenset({"__post_init__"}),
    "triton.experimental.gluon.nvidia.hopper": frozenset({"__post_init__"}),
}
"""By module, functions that compare addresses and neither read at one nor keep it."""
_AT_ONCE: dict[str, frozenset[str]] = {"torch.cuda.memory": frozenset({"_annotate_tensor"})}
"""The same, of those that use the true address and are done with it when they return; :mod:`.raw_access` holds the
storage around each."""


def _asker(frame: FrameType) -> tuple[str, tuple[str, ...]]:
    """The module and the nested functions that ask, behind TypedStorage's own ``data_ptr``."""
    while frame.f_globals.get("__name__") == "torch.storage" and frame.f_code.co_name.endswith("data_ptr"):
        if frame.f_back is None:
            break
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")), tuple(frame.f_code.co_qualname.split("."))


def _is_one_of(known: dict[str, frozenset[str]], frame: FrameType) -> bool:
    module, functions = _asker(frame)
    return module in known and not known[module].isdisjoint(functions)


def _of_storage(data_ptr: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(data_ptr)
    def known_data_ptr(storage: torch.UntypedStorage) -> int:
        frame = sys._getframe(1)
        if _is_one_of(_TELL_APART, frame):
            if identity := core.identity(storage._cdata):
                return identity
        elif not _is_one_of(_AT_ONCE, frame):
            core.expose_storage(storage)
        return data_ptr(storage)

    return known_data_ptr


def _of_tensor(data_ptr: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(data_ptr)
    def known_data_ptr(tensor: torch.Tensor) -> int:
        if has_torch_function_unary(tensor):
            return data_ptr(tensor)
        if not _is_one_of(_TELL_APART, sys._getframe(1)):
            core.expose_tensor(tensor)
        elif (address := core.storage_address(tensor)) and (identity := core.identity(address)):
            # Torch says 0 of an empty one.
            return identity + int(tensor.storage_offset()) * tensor.element_size() if tensor.numel() else 0
        return data_ptr(tensor)

    return known_data_ptr


def replacements() -> list[Replacement]:
    """What :class:`~.patches.Patches` puts in the place of ``data_ptr`` of tensors and storages."""
    return [(torch.UntypedStorage, "data_ptr", _of_storage), (torch.Tensor, "data_ptr", _of_tensor)]


def unmanaged(value: Any) -> bool:
    """Is it no tensor of the session, or one whose bytes are not what it shows?"""
    return (
        not isinstance(value, torch.Tensor)
        or has_torch_function_unary(value)
        or value.is_conj()
        or value.is_neg()
        or core.residency(value) is None
    )
