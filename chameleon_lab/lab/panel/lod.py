"""Level of detail: the intervals or points worth sending for a viewport of so many pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Bars:
    """Intervals to draw, ascending by ``x0``. A merged bar stands for the short ones that begin in one pixel.

    Attributes:
        x0, x1: float64 (B,): ends on the axis.
        row: int32 (B,): row of the interval; of a merged bar, of the longest one in it.
        count: int32 (B,): intervals that the bar stands for.
        fill: float32 (B,): share of the bar's width that they cover, 0 to 1; 1 for a single one.
    """

    x0: np.ndarray
    x1: np.ndarray
    row: np.ndarray
    count: np.ndarray
    fill: np.ndarray


class Intervals:
    """Intervals in an order that finds those in a viewport by binary search.

    Args:
        x0, x1: float64 (N,): their ends, in any order.
    """

    def __init__(self, x0: np.ndarray, x1: np.ndarray) -> None:
        self.order = np.argsort(x0, kind="stable").astype(np.int32)
        self.x0 = np.asarray(x0, dtype=np.float64)[self.order]
        self.x1 = np.asarray(x1, dtype=np.float64)[self.order]
        self._reach = np.maximum.accumulate(self.x1) if len(self.x1) else self.x1

    def between(self, start: float, end: float) -> np.ndarray:
        """Positions in ``order`` of the intervals that touch [start, end], ascending by ``x0``."""
        low = int(np.searchsorted(self._reach, start, side="left"))
        high = int(np.searchsorted(self.x0, end, side="right"))
        here = np.arange(low, max(low, high))
        return here[self.x1[here] >= start]

    def bars(self, start: float, end: float, pixels: int, most: int) -> Bars:
        """What to draw of [start, end]: every interval where at most ``most`` are in it, else those of a pixel's
        width and more one by one, and the shorter ones merged by the pixel they begin in."""
        here = self.between(start, end)
        x0, x1, rows = self.x0[here], self.x1[here], self.order[here]
        if len(here) <= most:
            one = np.ones(len(here))
            return Bars(x0, x1, rows, one.astype(np.int32), one.astype(np.float32))
        pixel = (end - start) / pixels
        width = x1 - x0
        wide = width >= pixel
        narrow = np.flatnonzero(~wide)
        at = np.clip(((x0[narrow] - start) / pixel).astype(np.int64), 0, pixels - 1)
        counts = np.bincount(at, minlength=pixels)
        busy = np.bincount(at, weights=width[narrow], minlength=pixels)
        longest = np.zeros(pixels, dtype=np.int32)
        by_width = np.argsort(width[narrow], kind="stable")
        longest[at[by_width]] = rows[narrow[by_width]]  # the last one written is the longest
        used = np.flatnonzero(counts)
        left = start + used * pixel
        bars = Bars(
            np.concatenate([x0[wide], left]),
            np.concatenate([x1[wide], left + pixel]),
            np.concatenate([rows[wide], longest[used]]).astype(np.int32),
            np.concatenate([np.ones(int(wide.sum())), counts[used]]).astype(np.int32),
            np.concatenate([np.ones(int(wide.sum())), np.minimum(busy[used] / pixel, 1.0)]).astype(
                np.float32
            ),
        )
        order = np.argsort(bars.x0, kind="stable")
        return Bars(bars.x0[order], bars.x1[order], bars.row[order], bars.count[order], bars.fill[order])


def steps_between(x: np.ndarray, values: np.ndarray, start: float, end: float, pixels: int) -> np.ndarray:
    """Which points of a step function to draw of [start, end]: the highest, the lowest and the last of each pixel.

    Args:
        x: float64 (T,): ascending; the value holds from there to the next.
        values: (T,): what must keep its extremes.
        start: where the drawn stretch of the axis begins.
        end: where it ends.
        pixels: its width.

    Returns:
        int64 indices, ascending; the first is the value that holds at ``start``.
    """
    low = max(0, int(np.searchsorted(x, start, side="right")) - 1)
    high = int(np.searchsorted(x, end, side="right"))
    if high - low <= 3 * pixels:
        return np.arange(low, high)
    edges = np.searchsorted(x[low:high], np.linspace(start, end, pixels + 1)[1:-1]) + low
    bounds = np.unique(np.concatenate([[low], edges, [high]]))
    bounds = bounds[bounds < high]
    sizes = np.diff(np.append(bounds, high))
    piece = np.repeat(np.arange(len(bounds)), sizes)
    rising = np.lexsort((values[low:high], piece)) + low  # within each piece from the lowest to the highest
    lowest, last = rising[bounds - low], np.append(bounds[1:], high) - 1
    highest = rising[last - low]
    return np.unique(np.concatenate([[low], lowest, highest, last]))
