"""The storages alive at one op of a step: by module, by category, storage by storage."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..util.units import format_bytes, format_percent
from .columns import Category, StepColumns
from .labels import holder

_SHOWN_ROWS = 8


@dataclass(frozen=True, repr=False)
class Alive:
    """The storages of a step that are alive at an op, on the device or away. Made by ``trace.alive()``.

    Attributes:
        step: the step.
        op: the op.
        rows: int64 (alive,): rows of ``step.storages``, the largest block first.
    """

    step: StepColumns
    op: int
    rows: np.ndarray

    @classmethod
    def at(cls, step: StepColumns, op: int | None = None) -> Alive:
        """What is alive at an op, by default the one at which most bytes are.

        Raises TypeError if ``op`` is no number, IndexError if the step has no such op.
        """
        if not len(step.ops):
            raise IndexError(f"step {step.index} has no op: train inside the session, or choose another step")
        if op is None:
            op = int(step.ops.live_peak_bytes.argmax())
        if isinstance(op, bool) or not isinstance(op, int | np.integer):
            raise TypeError(f"op is {op!r}: give the number of an op, from 0 to {len(step.ops) - 1}")
        if not 0 <= op < len(step.ops):
            raise IndexError(f"step {step.index} has no op {op}: give one from 0 to {len(step.ops) - 1}")
        storages = step.storages
        found = np.flatnonzero((storages.birth_op <= op) & (op <= storages.death_op))
        order = np.argsort(-storages.block_bytes[found], kind="stable")
        return cls(step, int(op), found[order])

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def bytes(self) -> int:
        """Of their blocks, all together."""
        return int(self.step.storages.block_bytes[self.rows].sum())

    @cached_property
    def in_use(self) -> Alive:
        """Those of them that the op itself reads or writes."""
        used = self.step.uses.storage[self.step.uses.op == self.op]
        return Alive(self.step, self.op, self.rows[np.isin(self.rows, used)])

    def of(self, category: Category | str) -> Alive:
        """Those of one category, such as ``"activation"``. Raises ValueError if there is no such category."""
        if isinstance(category, str):
            named = {each.name.lower(): each for each in Category}
            if category not in named:
                raise ValueError(f"there is no category {category!r}: give one of {', '.join(named)}")
            category = named[category]
        return Alive(self.step, self.op, self.rows[self.step.storages.category[self.rows] == int(category)])

    def by_category(self) -> dict[str, int]:
        """Bytes of each category that is there, the largest first."""
        names = {int(each): each.name.lower() for each in Category}
        return self._summed(lambda row: names[int(self.step.storages.category[row])])

    def by_module(self, depth: int | None = None) -> dict[str, int]:
        """Bytes by the module that made them, or that their name says; the largest first, ``""`` outside any.

        Args:
            depth: how many parts of a module's path count: ``layers.2.up`` is ``layers.2`` with 2. None: all of them.
        """
        if depth is not None and (not isinstance(depth, int) or depth < 1):
            raise ValueError(
                f"depth is {depth!r}: give a number of parts of a module's path, from 1 up, or None"
            )
        step = self.step

        def module(row: int) -> str:
            label = int(step.storages.name[row])
            path = holder(step.labels[label]) if label >= 0 else ""
            path = path or step.module_path(int(step.storages.module[row]))
            return ".".join(path.split(".")[:depth])

        return self._summed(module)

    def by_storage(self) -> dict[str, int]:
        """Bytes by the storage's key, the largest first."""
        keys = self.step.storage_keys
        return self._summed(lambda row: keys[row])

    def _summed(self, name: Callable[[int], str]) -> dict[str, int]:
        sums: dict[str, int] = {}
        sizes = self.step.storages.block_bytes[self.rows].tolist()
        for row, size in zip(self.rows.tolist(), sizes, strict=True):
            key = name(row)
            sums[key] = sums.get(key, 0) + size
        return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))

    # ------------------------------------------------------------------------------------------------ showing

    def _headline(self) -> str:
        where = self.step.module_path(int(self.step.ops.module[self.op]))
        return (
            f"{format_bytes(self.bytes)} in {len(self)} storages alive at op {self.op} of {len(self.step.ops)}, "
            f"{self.step.op_name(self.op)}{f' in {where}' if where else ''}"
        )

    def _cells(self) -> list[tuple[str, str, str, str]]:
        rows = [("category", name, size) for name, size in self.by_category().items()]
        modules = list(self.by_module().items())
        rows += [("module", name or "outside modules", size) for name, size in modules[:_SHOWN_ROWS]]
        cells = [
            (
                kind,
                name.replace("_", " ") if kind == "category" else name,
                format_bytes(size),
                self._share(size),
            )
            for kind, name, size in rows
        ]
        if len(modules) > _SHOWN_ROWS:
            rest = sum(size for _, size in modules[_SHOWN_ROWS:])
            count = len(modules) - _SHOWN_ROWS
            cells.append(("module", f"{count} more", format_bytes(rest), self._share(rest)))
        return cells

    def _share(self, size: int) -> str:
        return format_percent(size / self.bytes) if self.bytes else ""

    def __str__(self) -> str:
        cells = self._cells()
        wide = max((len(name) for _, name, _, _ in cells), default=0)
        lines = [self._headline()]
        lines += [f"  {kind:<8}  {name:<{wide}}  {size:>9}  {share:>7}" for kind, name, size, share in cells]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td style='text-align:left'>{kind}</td><td style='text-align:left'>{html.escape(name)}</td>"
            f"<td>{size}</td><td>{share}</td></tr>"
            for kind, name, size, share in self._cells()
        )
        return f"<table><caption>{html.escape(self._headline())}</caption>{rows}</table>"
