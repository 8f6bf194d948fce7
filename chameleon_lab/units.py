"""Bytes and bandwidths as people write them, both ways."""

from __future__ import annotations

import math
import re

_UNITS = {
    "": 1,
    "b": 1,
    "k": 1024,
    "kb": 1000,
    "kib": 1024,
    "m": 1024**2,
    "mb": 1000**2,
    "mib": 1024**2,
    "g": 1024**3,
    "gb": 1000**3,
    "gib": 1024**3,
    "t": 1024**4,
    "tb": 1000**4,
    "tib": 1024**4,
}
NOTHING = "–"
"""What stands for a figure that nobody has measured, or that has no meaning."""

_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*")


def parse_bytes(value: int | str, what: str = "size") -> int:
    """A number of bytes from an int, or from text such as ``"512MiB"``, ``"1.5 GiB"``, ``"64k"`` or ``"2GB"``.

    Args:
        value: the size; ``kb``, ``MB``, ``GB`` count in thousands, ``KiB``, ``k``, ``M``, ``G`` in 1024s.
        what: how to call it in errors.

    Raises:
        ValueError: the text is no size, or the size is not positive.
        TypeError: it is neither an int nor a string.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f'{what} must be a number of bytes or text such as "512MiB", not {value!r}')
    if isinstance(value, int):
        size = float(min(value, 2**64))
    else:
        match = _NUMBER.fullmatch(value)
        if not match or match[2].lower() not in _UNITS:
            raise ValueError(f'{what} {value!r} is not a size: write it like "512MiB", "1.5GiB" or 536870912')
        size = float(match[1]) * _UNITS[match[2].lower()]
    if not math.isfinite(size) or size < 1:
        raise ValueError(f'{what} must be positive, got {value!r}: write it like "512MiB"')
    if size >= 2**63:
        raise ValueError(f'{what} {value!r} is more than any memory: write it like "512MiB"')
    return int(size)


def share_or_size(text: str | None) -> str | float | None:
    """A capacity as typed: a number between 0 and 1 is a share of the device; the rest is left to the session."""
    try:
        share = float(text or "")
    except ValueError:
        return text
    return share if 0 < share < 1 else text


def parse_bandwidth(value: float | int | str, what: str = "link") -> float:
    """Bytes per second from a number, or from text such as ``"8GiB/s"``.

    Raises:
        ValueError: the text is no bandwidth, or it is not positive.
        TypeError: it is neither a number nor a string.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f'{what} must be bytes per second or text such as "8GiB/s", not {value!r}')
    if isinstance(value, str):
        text = value.strip()
        if not text.endswith("/s"):
            raise ValueError(f'{what} {value!r} is not a bandwidth: write it like "8GiB/s"')
        try:
            return float(parse_bytes(text[:-2], what))
        except ValueError:
            raise ValueError(f'{what} {value!r} is not a bandwidth: write it like "8GiB/s"') from None
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f'{what} must be positive, got {value!r}: write it like "8GiB/s"')
    return float(value)


def format_bytes(size: float) -> str:
    """Bytes with three significant digits: ``"1.22 GiB"``, ``"93.4 MiB"``, ``"512 B"``."""
    magnitude = abs(size)
    for unit, scale in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if magnitude >= scale * 0.9995:
            return f"{_three(size / scale)} {unit}"
    return f"{int(size)} B"


def format_seconds(duration: float) -> str:
    """A duration with three significant digits: ``"1.22 s"``, ``"93.6 ms"``, ``"412 µs"``."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(duration) >= scale or unit == "µs":
            return f"{_three(duration / scale)} {unit}"
    raise AssertionError("unreachable")


def format_percent(share: float, digits: int = 1) -> str:
    """A share as a percentage: ``"90.1 %"``."""
    return f"{100 * share:.{digits}f} %"


def _three(value: float) -> str:
    digits = 0 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}"
