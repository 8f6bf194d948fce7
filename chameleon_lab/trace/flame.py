"""The storages alive as a tree of bytes, by module or by Python stack: data of a flame graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .columns import Category, StepColumns
from .labels import holder

WAYS = ("module", "stack")
"""What trees can be made by."""

_LIBRARIES = (
    "/site-packages/",
    "/dist-packages/",
    "/torch/",
    "/chameleon_lab/",
    "<frozen ",
    "/ipykernel/",
    "/IPython/",
)
_NOT_MADE_HERE = "Made before the step"
_NO_STACK = "No Python stack"
_NO_MODULE = "Outside modules"


@dataclass
class Node:
    """Bytes under one name, with what they divide into, the largest first."""

    name: str
    bytes: int = 0
    children: dict[str, Node] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)
    """Rows of ``step.storages``, of this name and of those below."""

    def sorted(self) -> list[Node]:
        """Its children, the largest first."""
        return sorted(self.children.values(), key=lambda node: (-node.bytes, node.name))


def flame(step: StepColumns, rows: np.ndarray, by: str) -> Node:
    """The tree of some storages of a step.

    Args:
        step: the step.
        rows: of ``step.storages``.
        by: ``"module"``: the parts of the module's path, then the storage; ``"stack"``: the lines of the user's own
            code that made the storage, outermost first, then the op. What a step did not make is under its category.

    Raises ValueError if ``by`` is neither.
    """
    if by not in WAYS:
        raise ValueError(f"by is {by!r}: give one of {', '.join(WAYS)}")
    top = Node("All")
    sizes = step.storages.block_bytes[rows].tolist()
    path_of = _ModulePaths(step) if by == "module" else _StackPaths(step)
    for row, size in zip(rows.tolist(), sizes, strict=True):
        node = top
        node.bytes += size
        node.rows.append(row)
        for name in path_of(row):
            node = node.children.setdefault(name, Node(name))
            node.bytes += size
            node.rows.append(row)
    return top


def own_frames(stack: str) -> list[str]:
    """The frames of a stack, outermost first, without those of libraries; all, where nothing else is left."""
    frames = [frame for frame in stack.splitlines() if frame][::-1]
    return [frame for frame in frames if not any(part in frame for part in _LIBRARIES)] or frames


class _ModulePaths:
    def __init__(self, step: StepColumns) -> None:
        self._step = step

    def __call__(self, row: int) -> Sequence[str]:
        step, storages = self._step, self._step.storages
        label = int(storages.name[row])
        path = holder(step.labels[label]) if label >= 0 else ""
        path = path or step.module_path(int(storages.module[row]))
        own = step.storage_keys[row].removeprefix(f"{path}/") if path else step.storage_keys[row]
        return (*(_joined_numbers(path) if path else (_NO_MODULE,)), own)


class _StackPaths:
    def __init__(self, step: StepColumns) -> None:
        self._step = step
        self._frames = [tuple(own_frames(stack)) for stack in step.stacks]

    def __call__(self, row: int) -> Sequence[str]:
        step, storages = self._step, self._step.storages
        birth = int(storages.birth_op[row])
        if birth < 0:
            kind = Category(int(storages.category[row])).name.lower().replace("_", " ")
            return (_NOT_MADE_HERE, kind, step.storage_keys[row])
        stack = int(step.ops.stack[birth])
        frames = self._frames[stack] if 0 <= stack < len(self._frames) else ()
        return (*(frames or (_NO_STACK,)), step.op_name(birth))


def _joined_numbers(path: str) -> list[str]:
    """The parts of a module's path; a number belongs to the name before it: ``h.3.attn`` is ``h.3``, ``attn``."""
    parts: list[str] = []
    for part in path.split("."):
        if part.isdigit() and parts:
            parts[-1] += f".{part}"
        else:
            parts.append(part)
    return parts
