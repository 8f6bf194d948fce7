"""What a session is made with: a device, a capacity and a link, as people write them."""

from __future__ import annotations

import os
from typing import Any

import torch

from .errors import SessionError
from .policy import Link
from .runtime import core
from .units import format_bytes, parse_bandwidth, parse_bytes

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
    """Bytes, from a share of the device, text or a number; None for no capacity.

    Without one (None) it is what a GPU has: see :func:`available_bytes`. The embedded device then has none.
    Raises ValueError; SessionError where a GPU has no memory left.
    """
    if capacity == UNLIMITED or (capacity is None and device == "cpu"):
        return None
    if capacity is None:
        return available_bytes(device)
    if isinstance(capacity, float):
        if not 0 < capacity < 1:
            raise ValueError(
                f"capacity {capacity!r} is no fraction of the device between 0 and 1: for bytes give a whole number "
                'or text such as "512MiB"'
            )
        if device == "cpu":
            return int(capacity * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        return int(capacity * core.total_bytes(device))
    return parse_bytes(capacity, "capacity")


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
    """From one bandwidth or a pair of them, out and in; None for what is measured. Raises ValueError."""
    if link is None:
        return Link(None, None)
    if isinstance(link, tuple | list):
        if len(link) != 2:
            raise ValueError(f"link must be one bandwidth or a pair (out, in), got {link!r}")
        return Link(parse_bandwidth(link[0], "link out"), parse_bandwidth(link[1], "link in"))
    both = parse_bandwidth(link)
    return Link(both, both)
