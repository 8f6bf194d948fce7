"""Data of the panel's flame graph and growth table, small enough to send and to draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...trace import Category, StepTrace
from ...trace.alive import Alive
from ...trace.flame import Node, flame
from ...trace.growth import growth
from .scene import Scene

_LEAST_SHARE = 1 / 1500
"""Of all bytes; what is smaller is summed up beside its like."""
_MOST_NODES = 4000
_MOST_ROWS = 200


def icicle(scene: Scene, axis: str, at: float, by: str) -> dict[str, Any]:
    """What is alive at a position as a tree, flat: each node behind its parent, ``depth`` deeper, the largest first.

    ``start_bytes`` is where a node begins in the row of its depth; ``uid`` names its storage where it is one alone,
    else it is -1; ``category`` is that of most of its bytes.
    """
    op = scene.op_at(axis, at)
    position = int(scene.op_step[op])
    step, local = scene.steps[position], op - int(scene.first_op[position])
    alive = Alive.at(step, local)
    top = flame(step, alive.rows, by)
    nodes: list[dict[str, Any]] = []
    _flatten(step, top, 0, 0, top.bytes * _LEAST_SHARE, nodes)
    return {
        "by": by,
        "step": step.index,
        "op": local,
        "op_name": step.op_name(local),
        "bytes": top.bytes,
        "count": len(alive),
        "has_stacks": bool(step.stacks),
        "nodes": nodes,
    }


def _flatten(
    step: StepTrace, node: Node, depth: int, start: int, least: float, nodes: list[dict[str, Any]]
) -> None:
    storages = step.storages
    by_category: dict[int, int] = {}
    for row in node.rows:
        category = int(storages.category[row])
        by_category[category] = by_category.get(category, 0) + int(storages.block_bytes[row])
    alone = len(node.rows) == 1
    nodes.append(
        {
            "name": node.name,
            "depth": depth,
            "start_bytes": start,
            "bytes": node.bytes,
            "count": len(node.rows),
            "category": max(by_category, key=lambda each: by_category[each], default=int(Category.OTHER)),
            "uid": int(storages.uid[node.rows[0]]) if alone else -1,
        }
    )
    small: list[Node] = []
    for child in node.sorted():
        if child.bytes < least or len(nodes) >= _MOST_NODES:
            small.append(child)
            continue
        _flatten(step, child, depth + 1, start, least, nodes)
        start += child.bytes
    if small:
        rest = Node(f"{len(small)} smaller", sum(each.bytes for each in small))
        rest.rows = [row for each in small for row in each.rows]
        _flatten(step, rest, depth + 1, start, least, nodes)


def grown(steps: Sequence[StepTrace]) -> dict[str, Any]:
    """What grows over steps, by origin, the fastest first."""
    found = growth(steps)
    return {
        "steps": list(found.steps),
        "bytes": list(found.bytes),
        "count": len(found.rows),
        "rows": [
            {
                "origin": row.origin,
                "module": row.module,
                "category": row.category,
                "bytes": list(row.bytes),
                "counts": list(row.counts),
                "bytes_per_step": row.bytes_per_step,
                "stack": list(row.stack),
                "uid": row.uid,
            }
            for row in found.rows[:_MOST_ROWS]
        ],
    }
