"""Bytes, fractions, bandwidths and durations as people write them, both ways."""

from __future__ import annotations

import math
import re
from numbers import Integral, Real
from typing import Any

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

_NUMBER = re.compile(r"\s*((?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z%]*)\s*")

_FEWEST_BYTES = 1024
"""A number that is not whole, or a float, is bytes from here up: below, it may be a fraction that went wrong."""


def parse_bytes(value: int | float | str, what: str = "size", *, none: bool = False) -> int:
    """A number of bytes from a number, or from text such as ``"512MiB"``, ``"1.5 GiB"``, ``"64k"`` or ``"2GB"``.

    Args:
        value: the size; ``kb``, ``MB``, ``GB`` count in thousands, ``KiB``, ``k``, ``M``, ``G`` in 1024s. A whole
            number is bytes. A float, or text with a point and no unit, is bytes from 1024 up, and an error below.
        what: how to call it in errors.
        none: whether 0 is a size, too.

    Raises:
        ValueError: the text is no size, or the size is not positive.
        TypeError: it is neither a number of bytes nor a string.
    """
    if none and _is_none(value):
        return 0
    if isinstance(value, str):
        return _bytes_of_text(value, what)
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f'{what} must be a number of bytes or text such as "512MiB", not {value!r}')
    if not isinstance(value, Integral):
        if not math.isfinite(value) or value <= 0:
            raise ValueError(f'{what} must be positive, got {value}: write it like "512MiB"')
        if value < _FEWEST_BYTES:
            raise TypeError(
                f'{what} must be a number of bytes or text such as "512MiB", not {value}, which may be a fraction'
            )
    return _checked_bytes(float(min(value, 2**64)), value, what)


def _is_none(value: Any) -> bool:
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value)
        return match is not None and match[2] != "%" and match[1].isdigit() and int(match[1]) == 0
    return isinstance(value, Integral) and not isinstance(value, bool) and value == 0


def _bytes_of_text(text: str, what: str) -> int:
    match = _NUMBER.fullmatch(text)
    if match and match[2] == "%":
        raise ValueError(f'{what} {text!r} is a fraction: it takes a size, written like "512MiB"')
    if not match or match[2].lower() not in _UNITS:
        raise ValueError(f'{what} {text!r} is not a size: write it like "512MiB", "1.5GiB" or 536870912')
    size = float(match[1]) * _UNITS[match[2].lower()]
    if not match[2] and not match[1].isdigit() and 0 < size < _FEWEST_BYTES:
        raise ValueError(f'{what} {text!r} has no unit: write it like "512MiB", "1.5GiB" or 536870912')
    return _checked_bytes(size, text, what)


def _checked_bytes(size: float, value: Any, what: str) -> int:
    if not math.isfinite(size) or size < 1:
        raise ValueError(f'{what} must be positive, got {value!r}: write it like "512MiB"')
    if size >= 2**63:
        raise ValueError(f'{what} {value!r} is more than any memory: write it like "512MiB"')
    return int(size)


def parse_fraction(value: float | str, what: str = "fraction", *, most: float = 1.0) -> float:
    """A fraction from 0 to 1, from a number or from text: ``0.6``, ``"0.6"`` and ``"60%"`` are the same.

    Args:
        value: the fraction.
        what: how to call it in errors.
        most: the largest one; infinite where it may be any number of times the whole.

    Raises:
        ValueError: the text is no number, or it is not from 0 to ``most``.
        TypeError: it is neither a number nor a string.
    """
    if isinstance(value, bool) or not isinstance(value, Real | str):
        raise TypeError(f'{what} must be a fraction, such as 0.6 or "60%", not {value!r}')
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value)
        if not match or match[2] not in ("", "%"):
            raise ValueError(f'{what} {value!r} is no fraction: write it like 0.6 or "60%"')
        fraction = float(match[1]) / (100 if match[2] else 1)
    else:
        fraction = float(value)
    if not 0 <= fraction <= most:
        up_to = "up" if math.isinf(most) else f"to {most:g}"
        raise ValueError(f'{what} {value!r} is no fraction from 0 {up_to}: write it like 0.6 or "60%"')
    return fraction


def parse_capacity(value: int | float | str, whole_bytes: int, what: str = "capacity") -> int:
    """Bytes from a size, as :func:`parse_bytes` reads it, or from a fraction of ``whole_bytes``.

    A fraction is above 0 and up to 1: ``0.6``, ``"0.6"`` and ``"60%"`` are the same. ``1`` is one byte, ``1.0`` and
    ``"100%"`` are the whole. What is above 1 and no size, such as ``1.5`` or ``"150%"``, is an error.

    Raises:
        ValueError: it is neither a size nor a fraction, or not positive.
        TypeError: it is neither a number nor a string.
    """
    fraction = _fraction_in(value, what)
    if fraction is None:
        return parse_bytes(value, what)
    return max(int(fraction * whole_bytes), 1)


def _fraction_in(value: Any, what: str) -> float | None:
    """The fraction that is written; None where something else is."""
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value)
        if not match or match[2] not in ("", "%") or (not match[2] and match[1].isdigit()):
            return None
        number, percent = float(match[1]), match[2] == "%"
    elif isinstance(value, Real) and not isinstance(value, Integral):
        number, percent = float(value), False
    else:
        return None
    fraction = number / 100 if percent else number
    if 0 < fraction <= 1:
        return fraction
    if not percent and (number >= _FEWEST_BYTES or number <= 0 or math.isnan(number)):
        return None
    raise ValueError(
        f"{what} {value!r} is neither a fraction, which is above 0 and up to 1, nor a size: write 0.6 or "
        '"60%", or bytes like "512MiB"'
    )


def parse_bandwidth(value: float | Real | str, what: str = "link") -> float:
    """Bytes per second from a number, or from text such as ``"8GiB/s"`` or ``"8589934592"``.

    Raises:
        ValueError: the text is no bandwidth, or it is not positive.
        TypeError: it is neither a number nor a string.
    """
    if isinstance(value, bool) or not isinstance(value, Real | str):
        raise TypeError(f'{what} must be bytes per second or text such as "8GiB/s", not {value!r}')
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value)
        try:
            if match and not match[2] and float(match[1]) >= _FEWEST_BYTES:
                return parse_bandwidth(float(match[1]), what)
            if value.strip().endswith("/s"):
                return float(parse_bytes(value.strip()[:-2]))
        except ValueError:
            pass
        raise ValueError(f'{what} {value!r} is not a bandwidth: write it like "8GiB/s"')
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f'{what} must be positive, got {value!r}: write it like "8GiB/s"')
    return float(value)


_SECONDS = {
    "": 1.0,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "min": 60.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_DURATION = re.compile(r"\s*((?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ]*)\s*")


def parse_seconds(value: float | Real | str, what: str = "duration", *, none: bool = False) -> float:
    """Seconds from a number, or from text such as ``"10min"``, ``"90 s"``, ``"1.5h"``, ``"250ms"`` or ``"600"``.

    Args:
        value: the duration.
        what: how to call it in errors.
        none: whether 0 is a duration, too.

    Raises:
        ValueError: the text is no duration, or it is not positive.
        TypeError: it is neither a number nor a string.
    """
    if isinstance(value, bool) or not isinstance(value, Real | str):
        raise TypeError(f'{what} must be seconds or text such as "10min", not {value!r}')
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        if not match or match[2].lower() not in _SECONDS:
            raise ValueError(f'{what} {value!r} is not a duration: write it like "10min", "90s" or "2h"')
        seconds = float(match[1]) * _SECONDS[match[2].lower()]
    else:
        seconds = float(value)
    if not math.isfinite(seconds) or seconds < 0 or (seconds == 0 and not none):
        raise ValueError(f'{what} must be positive, got {value!r}: write it like "10min"')
    return seconds


def exact_bytes(size: int) -> str:
    """A size as short as it can be typed without losing a byte: ``"512MiB"``, ``"1536KiB"``, ``"536870913"``."""
    for unit, scale in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if size and size % scale == 0:
            return f"{size // scale}{unit}"
    return str(size)


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


def format_percent(share: float | None, digits: int = 1) -> str:
    """A share as a percentage, ``"90.1 %"``; ``"–"`` for None, a share of nothing."""
    return NOTHING if share is None else f"{100 * share:.{digits}f} %"


def _three(value: float) -> str:
    digits = 0 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}"
