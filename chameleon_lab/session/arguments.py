"""The arguments of a session: a device, a capacity and a link, as users write them."""

from __future__ import annotations

import os
from typing import Any

import torch

from ..errors import SessionError
from ..policy import Link
from ..policy import link as links
from ..runtime import core
from ..util import units
from ..util.units import format_bytes

UNLIMITED = "unlimited"
"""The capacity of a session that only records, on any device."""

RESERVE_BYTES = 512 << 20
"""Of a GPU's memory, what a session that was given no capacity leaves free: for what is not torch's (the code of
kernels, libraries' own memory, other processes)."""


def default_device() -> str:
    """The current GPU, or the embedded device where torch finds none, or this build has no device for it."""
    if not torch.cuda.is_available():
        return "cpu"
    name = f"cuda:{torch.cuda.current_device()}"
    return "cpu" if core.missing_device(name) else name


def parse_device(device: Any) -> str:
    """The device's full name. Raises SessionError where there is none."""
    name = default_device() if device is None else str(device)
    if name == "cpu":
        return name
    if name == "cuda":
        name = f"cuda:{torch.cuda.current_device() if torch.cuda.is_available() else 0}"
    try:
        if torch.device(name).type == "cpu":
            return "cpu"
    except RuntimeError:
        raise SessionError(
            f"there is no device {name!r}: use 'cuda', or 'cpu', the embedded device"
        ) from None
    if missing := core.missing_device(name):
        raise SessionError(missing)
    if core.tensor_device(name).type == "cuda":
        torch.cuda.init()
    return name


def parse_capacity(capacity: int | float | str | None, device: str) -> int | None:
    """Bytes, from a size or a fraction of the device (see :func:`.units.parse_capacity`); None for no capacity.

    Without one (None) it is what a GPU has: see :func:`available_bytes`. The embedded device then has none.
    Raises ValueError, TypeError; SessionError where a GPU has no memory left.
    """
    if capacity == UNLIMITED or (capacity is None and core.device_traits(device)["emulated"]):
        return None
    if capacity is None:
        return available_bytes(device)
    whole_bytes = memory_bytes() if core.device_traits(device)["emulated"] else core.total_bytes(device)
    return units.parse_capacity(capacity, whole_bytes)


def parse_host_capacity(capacity: int | float | str | None) -> int | None:
    """Bytes, from a size or a fraction of this machine's memory; None for no limit. Raises ValueError, TypeError."""
    return None if capacity is None else units.parse_capacity(capacity, memory_bytes(), "host_capacity")


def memory_bytes() -> int:
    """This machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def available_bytes(device: str) -> int:
    """What torch may have of a GPU in all: what it has taken already and what is free, less :data:`RESERVE_BYTES`.

    What other processes have is not counted, and neither is what the user's share
    (``torch.cuda.set_per_process_memory_fraction``) does not allow. Raises SessionError where nothing is left.
    """
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    reserved_bytes = torch.cuda.memory_reserved(device)
    share_bytes = int(torch.cuda.get_per_process_memory_fraction(device) * total_bytes)
    found = min(reserved_bytes + free_bytes - RESERVE_BYTES, share_bytes)
    if found <= 0:
        raise SessionError(
            f"{device!r} has {format_bytes(free_bytes)} of {format_bytes(total_bytes)} free, and a session leaves "
            f"{format_bytes(RESERVE_BYTES)} to others: end what else runs there, or give a capacity"
        )
    return found


def parse_link(link: Any) -> Link:
    """The link that is written, as :func:`.policy.link.parse_link` reads it; None for what is measured."""
    return Link(None, None) if link is None else links.parse_link(link)


def parse_rematerialize(value: Any) -> bool | str:
    """False or True for what ``"no"`` and ``"all"`` mean; ``"cheap"`` and ``"trusting"`` stay. Raises ValueError."""
    if isinstance(value, bool):
        return value
    if value in ("no", "all"):
        return bool(value == "all")
    if value not in ("cheap", "trusting"):
        raise ValueError(
            f'rematerialize must be True, False, "cheap" or "trusting", got {value!r}; '
            '"no" and "all" are False and True'
        )
    return str(value)
