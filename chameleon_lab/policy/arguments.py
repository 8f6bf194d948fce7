"""What the public functions are given, checked: a capacity, a link."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..units import parse_bytes
from .link import Link


def checked_capacity(value: Any, what: str = "capacity_bytes") -> int:
    """A capacity in bytes: a number of any kind, or text such as ``"512MiB"``.

    Raises ValueError if it is not finite and positive, TypeError if it is neither a number nor text.
    """
    if isinstance(value, float | np.floating | np.integer):
        if not np.isfinite(value):
            raise ValueError(f'{what} is {value}: give a number of bytes, or text such as "512MiB"')
        value = int(value)
    return parse_bytes(value, what)


def checked_host_capacity(value: Any) -> int | None:
    """Host bytes that copies may take, as :func:`checked_capacity` reads them; None: no limit."""
    return None if value is None else checked_capacity(value, "host_capacity_bytes")


def checked_link(value: Any) -> Link:
    """The link. Raises TypeError if it is none."""
    if not isinstance(value, Link):
        raise TypeError(
            f"link is {value!r}: give a Link(out_bytes_per_s, in_bytes_per_s), such as Link(25e9, 25e9); "
            "None in it is no limit"
        )
    return value
