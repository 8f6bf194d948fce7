"""Checks of the public functions' arguments: a capacity, a link, a fraction."""

from __future__ import annotations

from typing import Any

from ..policy.link import Link, parse_link
from ..trace import StepTrace
from ..util.units import parse_bytes, parse_capacity, parse_fraction


def checked_capacity(value: Any, step: StepTrace, what: str = "capacity_bytes") -> int:
    """A capacity in bytes: a size, or a fraction of what the step keeps alive; see :func:`~..units.parse_capacity`.

    Raises ValueError, TypeError.
    """
    return parse_capacity(value, step.live_peak_bytes, what)


def checked_host_capacity(value: Any, step: StepTrace) -> int | None:
    """Host bytes that copies may take, as :func:`checked_capacity` reads them; None: no limit."""
    return None if value is None else checked_capacity(value, step, "host_capacity_bytes")


def checked_min_swap(value: Any) -> int:
    """The size below which storages stay; 0 is none. Raises ValueError, TypeError."""
    return parse_bytes(value, "min_swap_bytes", none=True)


def checked_margin(value: Any, what: str = "margin") -> float:
    """A fraction of the capacity, or of the link, to leave free, from 0 to below 1. Raises ValueError, TypeError."""
    margin = parse_fraction(value, what)
    if margin == 1.0:
        raise ValueError(f"{what} is {value!r}: give a fraction from 0 to below 1")
    return margin


def checked_link(value: Any) -> Link:
    """The link, however it is written. Raises ValueError, TypeError."""
    if value is None:
        raise TypeError(
            'link is None: give one, such as "8GiB/s" or Link(out_bytes_per_s, in_bytes_per_s); None in a Link is no '
            "limit"
        )
    return parse_link(value)
