"""The bandwidth between device and host, as plans see it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any, overload

import numpy as np

from ..errors import PolicyError
from ..util.units import format_bytes, parse_bandwidth, parse_fraction

_APART = 1.15
_MOST = 1e18  # bytes a second: more is a mistake, and seconds would not fit their type


@dataclass(frozen=True)
class Link:
    """Bandwidth between device and host, one direction each: bytes per second, or text such as ``"8GiB/s"``. None: no
    copy takes any time.

    Raises PolicyError for what is no bandwidth.
    """

    out_bytes_per_s: float | None
    in_bytes_per_s: float | None

    def __post_init__(self) -> None:
        for name in ("out_bytes_per_s", "in_bytes_per_s"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, str) or (isinstance(value, Real) and not isinstance(value, int | float)):
                try:
                    value = parse_bandwidth(value, name)
                except ValueError as error:
                    raise PolicyError(str(error)) from None
                object.__setattr__(self, name, value)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= _MOST:
                said = f"{value:.3e}" if isinstance(value, float) else repr(value)[:40]
                raise PolicyError(
                    f"{name} is {said}: give a bandwidth above 0 and up to {_MOST:.0e}, or None for no limit"
                )

    @overload
    def out_s(self, size: int) -> float: ...
    @overload
    def out_s(self, size: np.ndarray) -> np.ndarray: ...
    def out_s(self, size: Any) -> Any:
        """Seconds that a copy of ``size`` bytes to the host takes; of an array of sizes, those of each."""
        return 0.0 * size if self.out_bytes_per_s is None else size / self.out_bytes_per_s

    @overload
    def in_s(self, size: int) -> float: ...
    @overload
    def in_s(self, size: np.ndarray) -> np.ndarray: ...
    def in_s(self, size: Any) -> Any:
        """Seconds that a copy of ``size`` bytes to the device takes; of an array of sizes, those of each."""
        return 0.0 * size if self.in_bytes_per_s is None else size / self.in_bytes_per_s

    def reduced(self, share: float | str) -> Link:
        """The link without a share of its bandwidth: 0.25 or ``"25%"``. Raises PolicyError where nothing is left."""
        share = parse_fraction(share, "share")
        speeds = (self.out_bytes_per_s, self.in_bytes_per_s)
        return Link(*(None if speed is None else speed * (1.0 - share) for speed in speeds))

    def differs(self, other: Link) -> bool:
        """Is one of the bandwidths more than 15 % above or below that of another link?"""
        pairs = (
            (self.out_bytes_per_s, other.out_bytes_per_s),
            (self.in_bytes_per_s, other.in_bytes_per_s),
        )
        return any(
            (mine is None) != (theirs is None)
            or (mine is not None and theirs is not None and max(mine, theirs) > _APART * min(mine, theirs))
            for mine, theirs in pairs
        )

    def to_dict(self) -> dict[str, float | None]:
        """The link as plain JSON."""
        return asdict(self)

    def __str__(self) -> str:
        speeds = (self.out_bytes_per_s, self.in_bytes_per_s)
        return " / ".join("no limit" if speed is None else f"{format_bytes(speed)}/s" for speed in speeds)


def parse_link(value: Any, what: str = "link") -> Link:
    """The link that is written: one bandwidth, a pair (out, in), text such as ``"8GiB/s"`` or ``"OUT,IN"``, or a Link.

    Raises ValueError, TypeError for what is no bandwidth; ``what`` is how to call it in errors.
    """
    if isinstance(value, Link):
        return value
    if isinstance(value, str) and "," in value:
        pair: Any = value.split(",")
    elif isinstance(value, tuple | list):
        pair = value
    else:
        both = parse_bandwidth(value, what)
        return Link(both, both)
    if len(pair) != 2:
        raise ValueError(
            f'{what} {value!r} is no bandwidth, nor a pair (out, in): write it like "8GiB/s", or "OUT,IN"'
        )
    return Link(parse_bandwidth(pair[0], f"{what} out"), parse_bandwidth(pair[1], f"{what} in"))
