"""The block map's layout: the byte rows of each storage, and a raster for too many storages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


def stack_rows(start: np.ndarray, end: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, int]:
    """Give intervals rows of bytes, so that no two overlap while both last.

    A row that has become free is taken again by the next interval of the same size: training asks for few sizes.

    Args:
        start: float64 (N,): when the intervals begin.
        end: float64 (N,): when they end.
        sizes: int64 (N,): their bytes.

    Returns:
        int64 (N,): the lowest byte of each; and the bytes of all rows together.
    """
    offsets = np.zeros(len(sizes), dtype=np.int64)
    free: dict[int, list[int]] = {}
    top = 0
    # Ends come before the beginnings of the same instant, but no interval ends before it begins.
    times = np.concatenate([start, np.maximum(end, np.nextafter(start, np.inf))])
    events = np.lexsort((np.repeat([1, 0], len(start)), times))
    n = len(start)
    size_list = sizes.tolist()
    for e in events.tolist():
        if e < n:
            size = size_list[e]
            rows = free.get(size)
            if rows:
                offsets[e] = rows.pop()
            else:
                offsets[e] = top
                top += size
        else:
            free.setdefault(size_list[e - n], []).append(int(offsets[e - n]))
    return offsets, top


ON_DEVICE, ON_HOST, DROPPED = 0, 1, 2
"""Where a storage's bytes are: of a dropped one nowhere, until a replay makes them again."""


@dataclass(frozen=True)
class Rectangles:
    """What of the block map is drawn.

    Attributes:
        x0, x1: float64 (R,): on the axis.
        y0, y1: float32 (R,): in bytes of the map's rows.
        category: uint8 (R,).
        place: uint8 (R,): ON_DEVICE, ON_HOST or DROPPED.
        storage: int32 (R,): row of the storage; -1 for a cell of the raster.
        fill: float32 (R,): share of the rectangle that is covered.
    """

    x0: np.ndarray
    x1: np.ndarray
    y0: np.ndarray
    y1: np.ndarray
    category: np.ndarray
    place: np.ndarray
    storage: np.ndarray
    fill: np.ndarray


def rasterise(
    rects: Rectangles, start: float, end: float, height_bytes: float, columns: int, lines: int, most: int
) -> Rectangles:
    """Thin the rectangles of [start, end]: the ``most`` largest stay, the others become cells of a raster.

    A cell has the category, and the place, that covers most of it; cells alike in a line are joined.
    """
    if len(rects.x0) <= most:
        return rects
    cell_x, cell_y = (end - start) / columns, height_bytes / lines
    left, right = np.maximum(rects.x0, start), np.minimum(rects.x1, end)
    area = np.maximum(right - left, 0) / cell_x * (rects.y1 - rects.y0) / cell_y
    order = np.argsort(-area, kind="stable")
    keep, rest = np.sort(order[:most]), order[most:]
    low = np.clip(((left[rest] - start) / cell_x).astype(np.int64), 0, columns - 1)
    high = np.clip(((right[rest] - start) / cell_x).astype(np.int64), low, columns - 1)
    middle = (rects.y0[rest].astype(np.float64) + rects.y1[rest]) / 2
    line = np.clip((middle / cell_y).astype(np.int64), 0, lines - 1)
    kind = rects.category[rest].astype(np.int64) * 3 + rects.place[rest]
    kinds = int(kind.max(initial=0)) + 1
    # Cover of each column by a difference array: the ends are partial, what is between is whole.
    tall = (rects.y1[rest] - rects.y0[rest]).astype(np.float64) / cell_y
    cover = np.zeros((kinds, lines, columns + 1))
    np.add.at(cover, (kind, line, low), tall)
    np.subtract.at(cover, (kind, line, high + 1), tall)
    cover = np.cumsum(cover, axis=2)[:, :, :columns]
    np.subtract.at(cover, (kind, line, low), tall * ((left[rest] - start) / cell_x - low))
    np.subtract.at(cover, (kind, line, high), tall * np.clip(high + 1 - (right[rest] - start) / cell_x, 0, 1))
    total = cover.sum(axis=0)
    best = cover.argmax(axis=0)
    level = np.ceil(np.clip(total, 0, 1) * 4).astype(np.int64)  # quarters, so that neighbors join
    code = np.where(total > 1e-3, best * 8 + level, -1)
    change = np.ones((lines, columns), dtype=bool)
    change[:, 1:] = code[:, 1:] != code[:, :-1]
    y, x = np.nonzero(change)
    ends = np.where(np.append(y[1:] == y[:-1], False), np.append(x[1:], columns), columns)
    shown = code[y, x] >= 0
    y, x, ends, codes = y[shown], x[shown], ends[shown], code[y, x][shown]

    def joined(kept: np.ndarray, cells: np.ndarray) -> np.ndarray:
        return np.concatenate([cells.astype(kept.dtype), kept[keep]])

    return Rectangles(
        joined(rects.x0, start + x * cell_x),
        joined(rects.x1, start + ends * cell_x),
        joined(rects.y0, y * cell_y),
        joined(rects.y1, (y + 1) * cell_y),
        joined(rects.category, codes // 8 // 3),
        joined(rects.place, codes // 8 % 3),
        joined(rects.storage, np.full(len(x), -1)),
        joined(rects.fill, codes % 8 / 4),
    )
