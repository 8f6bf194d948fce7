"""The storages in a rectangle of the block map."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...trace import Category
from .blocks import ON_DEVICE
from .scene import Scene
from .views import storage_facts, totals

_MOST_ROWS = 200


def inside(
    scene: Scene, axis: str, start: float, end: float, low: float, high: float, rows: str
) -> dict[str, Any]:
    """The storages whose rectangles touch this one, largest first, and their bytes by category and module.

    The parameters are those of :class:`protocol.Box`. A storage counts once, with its newest row; it is ``away`` where
    only its time off the device lies inside, be it on the host or dropped.
    """
    rectangles, map_bytes = scene.block_map(axis, rows)
    hit = (rectangles.x1 >= start) & (rectangles.x0 <= end) & (rectangles.y1 > low) & (rectangles.y0 < high)
    count = int(scene.storage_rank.max(initial=-1)) + 1
    rank = scene.storage_rank[rectangles.storage[hit]]
    on_device = np.zeros(count, dtype=bool)
    on_device[rank[rectangles.place[hit] == ON_DEVICE]] = True
    newest = np.zeros(count, dtype=np.int64)
    newest[scene.storage_rank] = np.arange(len(scene.storage_rank))
    ranks = np.unique(rank)
    storages = newest[ranks]
    sizes, resident = scene.storage_bytes[storages], on_device[ranks]
    order = np.argsort(-sizes, kind="stable")[:_MOST_ROWS]
    paths, module = scene.storage_modules
    categories = [category.name.lower() for category in Category]
    return {
        "start": start,
        "end": end,
        "low": low,
        "high": min(high, float(map_bytes)),
        "rows": rows,
        "count": len(storages),
        "bytes": int(sizes.sum()),
        "away_bytes": int(sizes[~resident].sum()),
        "categories": totals(scene.storage_category[storages], categories, sizes, resident),
        "modules": totals(module[storages], paths, sizes, resident),
        "storages": [
            storage_facts(scene, row) | {"resident": on}
            for row, on in zip(storages[order].tolist(), resident[order].tolist(), strict=True)
        ],
    }
