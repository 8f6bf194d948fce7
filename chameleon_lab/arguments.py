"""What a session is made with: a device, a capacity and a link, as people write them."""

from __future__ import annotations

import os
from typing import Any

import torch

from .errors import SessionError
from .policy import Link
from .runtime import core
from .units import parse_bandwidth, parse_bytes


def parse_device(device: Any) -> str:
    """The device's full name. Raises SessionError where there is none."""
    name = "cpu" if device is None else str(device)
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
    """Bytes, from a share of the device, text or a number; None for no capacity. Raises ValueError."""
    if capacity is None:
        return None
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
