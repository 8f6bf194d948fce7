"""A scene: the steps that the panel draws side by side, as flat columns on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...planner import Floor, floor
from ...trace import Category, Direction, Stage, StepTrace, Trace, Transfers
from ...trace.labels import holder
from ...trace.occupancy import resident_by_category
from ...trace.overlap import exposed_share, hidden_share
from ...trace.stall_parts import PARTS, StallParts, explained, parts_of_step
from .blocks import DROPPED, ON_DEVICE, ON_HOST, Rectangles, stack_rows
from .lod import Intervals

AXES = ("time", "op")

_LEAST_RISE = 0.05
"""Share of the highest level by which it has to fall between two peaks."""

# What an op's bar looks like: matmuls and attention, the rest of arithmetic, and what only moves or makes bytes.
HEAVY, LIGHT, MOVING = 0, 1, 2
_HEAVY_WORDS = ("mm", "matmul", "linear", "conv", "attention", "bmm", "einsum")
_MOVING_WORDS = (
    "copy",
    "view",
    "empty",
    "zero",
    "fill",
    "clone",
    "cat",
    "index",
    "to",
    "detach",
    "contiguous",
)


@dataclass(frozen=True)
class Spans:
    """Stretches of consecutive ops that have a label in common, on both axes.

    ``label`` indexes ``labels``; ``first_op`` and ``end_op`` are positions on the op axis.
    """

    labels: tuple[str, ...]
    label: np.ndarray
    first_op: np.ndarray
    end_op: np.ndarray


class Scene:
    """Steps one after the other. Rows of the tables count through all of them; a storage keeps its ``uid``.

    The axis is either ``"time"``, seconds since the first step began, or ``"op"``, ops since then.

    Args:
        steps: steps in order, at least one.
        meta: what the trace says of itself; see :class:`~chameleon_lab.trace.Trace`.

    Raises:
        ValueError: no step has an op.
    """

    def __init__(self, steps: Sequence[StepTrace], meta: dict[str, Any]) -> None:
        self.steps = tuple(steps)
        self.meta = meta
        counts = [len(step.ops) for step in self.steps]
        self.op_count = sum(counts)
        if not self.op_count:
            raise ValueError("the steps have no ops")
        self.first_op = np.concatenate([[0], np.cumsum(counts)])
        self.first_storage = np.concatenate([[0], np.cumsum([len(step.storages) for step in self.steps])])
        # One behind the other: what lies between steps, as within them, is a pause and no part of the axis.
        ends = np.cumsum([step.duration_s for step in self.steps])
        self.begin_s = np.concatenate([[0.0], ends[:-1]])
        self.duration_s = float(ends[-1])
        self.op_step = np.repeat(np.arange(len(self.steps)), counts)

    # ------------------------------------------------------------------------------------------------ tables

    def _joined(self, table: str, column: str, shift: str | None = None) -> np.ndarray:
        parts = []
        for i, step in enumerate(self.steps):
            values = getattr(getattr(step, table), column)
            if shift == "time":
                values = values + self.begin_s[i]
            elif shift is not None:
                first = getattr(self, f"first_{shift}")[i]
                values = np.where(values >= 0, values + first, -1).astype(np.int64)
            parts.append(values)
        return np.concatenate(parts)

    def _worded(self, table: str, column: str, words: str) -> tuple[tuple[str, ...], np.ndarray]:
        """A column of indices into each step's own dictionary, as indices into one for all of them."""
        index: dict[str, int] = {}
        parts = []
        for step in self.steps:
            here = np.array([index.setdefault(word, len(index)) for word in getattr(step, words)] + [-1])
            parts.append(here[getattr(getattr(step, table), column)])
        return tuple(index), np.concatenate(parts).astype(np.int32)

    @cached_property
    def op_names(self) -> tuple[tuple[str, ...], np.ndarray]:
        """Op names, and of each op the index of its own."""
        return self._worded("ops", "name", "names")

    @cached_property
    def op_modules(self) -> tuple[tuple[str, ...], np.ndarray]:
        """Module paths, and of each op the index of its own; -1 outside any."""
        return self._worded("ops", "module", "modules")

    @cached_property
    def op_stage(self) -> np.ndarray:
        """uint8 (ops,): Stage of each op."""
        return self._joined("ops", "stage")

    @cached_property
    def op_start_s(self) -> np.ndarray:
        """float64 (ops,): when each op began."""
        return self._joined("ops", "start_s", "time")

    @cached_property
    def op_end_s(self) -> np.ndarray:
        """float64 (ops,): when each op ended."""
        end_s: np.ndarray = self.op_start_s + self._joined("ops", "duration_s")
        return end_s

    @cached_property
    def op_stall_s(self) -> np.ndarray:
        """float64 (ops,): what each op waited."""
        return self._joined("ops", "stall_s")

    @cached_property
    def op_replay_s(self) -> np.ndarray:
        """float64 (ops,): what the replays for each op took."""
        rows = self.replay_column
        return np.bincount(rows["op"], weights=rows["end_s"] - rows["start_s"], minlength=self.op_count)

    @cached_property
    def op_kind(self) -> np.ndarray:
        """uint8 (ops,): HEAVY, LIGHT or MOVING."""
        names, name = self.op_names
        kinds = np.array([_kind(text) for text in names], dtype=np.uint8)
        kind: np.ndarray = kinds[name]
        return kind

    @cached_property
    def storage_uid(self) -> np.ndarray:
        """int64 (storages,): the uid of each."""
        return self._joined("storages", "uid")

    @cached_property
    def storage_bytes(self) -> np.ndarray:
        """int64 (storages,): the block of each."""
        return self._joined("storages", "block_bytes")

    @cached_property
    def storage_category(self) -> np.ndarray:
        """uint8 (storages,): the Category of each."""
        return self._joined("storages", "category")

    @cached_property
    def storage_life(self) -> tuple[np.ndarray, np.ndarray]:
        """int64 (storages,) twice: first op position of each in its step, and the one after its last."""
        births, deaths = [], []
        for i, step in enumerate(self.steps):
            n = len(step.ops)
            births.append(np.maximum(step.storages.birth_op, 0) + self.first_op[i])
            deaths.append(np.minimum(step.storages.death_op.astype(np.int64) + 1, n) + self.first_op[i])
        return np.concatenate(births), np.concatenate(deaths)

    def life_x(self, axis: str) -> tuple[np.ndarray, np.ndarray]:
        """float64 (storages,) twice: where each begins and ends on an axis. A step lasts longer than its ops."""
        birth, death = self.storage_life
        if axis == "op":
            return birth.astype(np.float64), death.astype(np.float64)
        starts, ends = self._clock[birth], self._clock[death]
        for i, step in enumerate(self.steps):
            rows = slice(self.first_storage[i], self.first_storage[i + 1])
            end_s = self.begin_s[i] + step.duration_s
            starts[rows] = np.where(step.storages.birth_op < 0, self.begin_s[i], starts[rows])
            ends[rows] = np.where(step.storages.death_op >= len(step.ops), end_s, ends[rows])
        return starts, ends

    @cached_property
    def storage_keys(self) -> tuple[str, ...]:
        """The stable name of each storage."""
        return tuple(key for step in self.steps for key in step.storage_keys)

    @cached_property
    def storage_modules(self) -> tuple[tuple[str, ...], np.ndarray]:
        """Module paths, and of each storage the index of the module that made it; -1 where none did.

        A parameter, its gradient and its optimizer states belong to the module that their label names.
        """
        index: dict[str, int] = {}
        parts = []
        for step in self.steps:
            known = [index.setdefault(path, len(index)) for path in step.modules]
            made = np.array([*known, -1])[step.storages.module]
            owners = [holder(text) for text in step.labels]
            owner = np.array([index.setdefault(path, len(index)) if path else -1 for path in owners] + [-1])
            labeled = owner[step.storages.name]
            parts.append(np.where(labeled >= 0, labeled, made))
        return tuple(index), np.concatenate(parts).astype(np.int32)

    @cached_property
    def uses(self) -> tuple[np.ndarray, np.ndarray]:
        """int64 (uses,) twice: op and storage of each use, ascending by op."""
        return self._joined("uses", "op", "op"), self._joined("uses", "storage", "storage")

    @cached_property
    def transfers(self) -> Transfers:
        """All transfers, with the rows and times of the scene. One that has not ended lasts to the end of its step."""
        ends = [
            np.where(np.isnan(step.transfers.end_s), step.duration_s, step.transfers.end_s) + self.begin_s[i]
            for i, step in enumerate(self.steps)
        ]
        issue = self._joined("transfers", "issue_s", "time")
        start = self._joined("transfers", "start_s", "time")
        start = np.where(np.isnan(start), issue, start)
        return Transfers(
            storage=self._joined("transfers", "storage", "storage"),
            direction=self._joined("transfers", "direction"),
            cause=self._joined("transfers", "cause"),
            bytes=self._joined("transfers", "bytes"),
            issue_op=self._joined("transfers", "issue_op", "op"),
            issue_s=issue,
            start_s=start,
            end_s=np.maximum(np.concatenate(ends), start),
        )

    @cached_property
    def is_final(self) -> bool:
        """Have all its transfers ended? Until they have, a scene is worth making anew."""
        return not any(np.isnan(step.transfers.end_s).any() for step in self.steps)

    @cached_property
    def stall_column(self) -> dict[str, np.ndarray]:
        """The stalls: ``op``, ``storage``, ``direction``, ``cause``, ``start_s`` and ``end_s``."""
        start = self._joined("stalls", "start_s", "time")
        return {
            "op": self._joined("stalls", "op", "op"),
            "storage": self._joined("stalls", "storage", "storage"),
            "direction": self._joined("stalls", "direction"),
            "cause": self._joined("stalls", "cause"),
            "start_s": start,
            "end_s": start + self._joined("stalls", "duration_s"),
        }

    @cached_property
    def pause_column(self) -> dict[str, np.ndarray]:
        """Where no op ran outside of the loop: ``op`` that came next, ``kind``, ``at_s``, ``duration_s``."""
        first = np.repeat(self.first_op[:-1], [len(step.pauses) for step in self.steps])
        return {
            "op": self._joined("pauses", "op") + first,
            "kind": self._joined("pauses", "kind"),
            "at_s": self._joined("pauses", "at_s", "time"),
            "duration_s": self._joined("pauses", "duration_s"),
        }

    def why_stalled(self, row: int) -> str:
        """Why a stall was, in words: see :mod:`chameleon_lab.trace.stall_parts`."""
        counts = np.cumsum([0, *(len(step.stalls) for step in self.steps)])
        position = int(np.searchsorted(counts, row, side="right")) - 1
        return explained(self.steps[position], row - int(counts[position]), self._stall_parts[position])

    @cached_property
    def _stall_parts(self) -> tuple[StallParts, ...]:
        return tuple(parts_of_step(step) for step in self.steps)

    @cached_property
    def stall_part_column(self) -> dict[str, np.ndarray]:
        """Seconds of each part of each stall, by the part's name."""
        return {
            name: np.concatenate([getattr(parts, f"{name}_s") for parts in self._stall_parts])
            for name in PARTS
        }

    @cached_property
    def replay_column(self) -> dict[str, np.ndarray]:
        """The replays: ``op``, ``storage``, ``name`` (as in ``op_names``), ``cause``, ``bytes``, times."""
        start = self._joined("replays", "start_s", "time")
        return {
            "op": self._joined("replays", "op", "op"),
            "storage": self._joined("replays", "storage", "storage"),
            "name": self._worded("replays", "name", "names")[1],
            "cause": self._joined("replays", "cause"),
            "bytes": self._joined("replays", "bytes"),
            "start_s": start,
            "end_s": start + self._joined("replays", "duration_s"),
        }

    @cached_property
    def declined(self) -> dict[str, np.ndarray]:
        """The planned drops that the runtime declined: ``op``, ``storage``, ``name`` (an op's), ``reason``."""
        return {
            "op": self._joined("declined", "op", "op"),
            "storage": self._joined("declined", "storage", "storage"),
            "name": self._worded("declined", "name", "names")[1],
            "reason": self.decline_reasons[1],
        }

    @cached_property
    def decline_reasons(self) -> tuple[tuple[str, ...], np.ndarray]:
        """Why drops were declined, and of each declined one the index of its own."""
        return self._worded("declined", "refusal", "reasons")

    @cached_property
    def transfer_exposed(self) -> np.ndarray:
        """float64 (transfers,): share of each transfer's time in which compute waited for its direction."""
        rows, stalls = self.transfers, self.stall_column
        waits = (stalls["direction"], stalls["start_s"], stalls["end_s"])
        return exposed_share(rows.direction, rows.start_s, rows.end_s, *waits)

    @cached_property
    def overlap(self) -> float | None:
        """See :mod:`chameleon_lab.trace.overlap`; None where nothing was copied."""
        return hidden_share(self.transfer_exposed, self.transfers.end_s - self.transfers.start_s)

    # ------------------------------------------------------------------------------------------------ the axis

    @cached_property
    def _clock(self) -> np.ndarray:
        """float64 (ops + 1,): ascending start of each op, then the end."""
        return np.maximum.accumulate(
            np.append(self.op_start_s, max(self.duration_s, float(self.op_start_s[-1])))
        )

    def length(self, axis: str) -> float:
        """Where the axis ends; it begins at 0."""
        return self.duration_s if axis == "time" else float(self.op_count)

    def x_of_time(self, axis: str, seconds: np.ndarray) -> np.ndarray:
        """Seconds of the scene as positions on an axis."""
        if axis == "time":
            return np.asarray(seconds, dtype=np.float64)
        ops: np.ndarray = np.interp(seconds, self._clock, np.arange(self.op_count + 1, dtype=np.float64))
        return ops

    def x_of_op(self, axis: str, op: np.ndarray | int) -> np.ndarray:
        """Where ops begin on an axis; the number of ops is the end."""
        op = np.asarray(op)
        return op.astype(np.float64) if axis == "op" else self._clock[op]

    def seconds_at(self, axis: str, x: float) -> float:
        """Where a position of an axis is in seconds of the scene."""
        return x if axis == "time" else float(np.interp(x, np.arange(self.op_count + 1), self._clock))

    def op_at(self, axis: str, x: float) -> int:
        """The newest op that has begun at a position."""
        if axis == "op":
            return min(max(int(x), 0), self.op_count - 1)
        return min(max(int(np.searchsorted(self._clock, x, side="right")) - 1, 0), self.op_count - 1)

    @cached_property
    def op_intervals(self) -> dict[str, Intervals]:
        """The ops on each axis."""
        ops = np.arange(self.op_count)
        return {
            "time": Intervals(self.op_start_s, self.op_end_s),
            "op": Intervals(ops.astype(np.float64), ops + 1.0),
        }

    @cached_property
    def transfer_intervals(self) -> dict[tuple[str, int], tuple[np.ndarray, Intervals]]:
        """By axis and direction: rows of ``transfers``, and their intervals."""
        rows = self.transfers
        found = {}
        for direction in Direction:
            chosen = np.flatnonzero(rows.direction == direction)
            for axis in AXES:
                ends = (self.x_of_time(axis, times[chosen]) for times in (rows.start_s, rows.end_s))
                found[axis, int(direction)] = (chosen, Intervals(*ends))
        return found

    def _intervals(self, rows: dict[str, np.ndarray]) -> dict[str, Intervals]:
        """A table's rows on each axis, each from its start to its end."""
        return {
            axis: Intervals(self.x_of_time(axis, rows["start_s"]), self.x_of_time(axis, rows["end_s"]))
            for axis in AXES
        }

    @cached_property
    def stall_intervals(self) -> dict[str, Intervals]:
        """The stalls on each axis."""
        return self._intervals(self.stall_column)

    @cached_property
    def replay_intervals(self) -> dict[str, Intervals]:
        """The replays on each axis."""
        return self._intervals(self.replay_column)

    @cached_property
    def mark_names(self) -> tuple[str, ...]:
        """What the user's own code calls its stretches."""
        return self._worded("marks", "name", "mark_names")[0]

    @cached_property
    def marks(self) -> dict[str, np.ndarray]:
        """The stretches that the user has named: ``name``, ``from_op``, ``to_op``, times, ``depth`` in one another."""
        first = np.repeat(self.first_op[:-1], [len(step.marks) for step in self.steps])
        start = self._joined("marks", "start_s", "time")
        end = start + self._joined("marks", "duration_s")
        thread = self._joined("marks", "thread")
        depth = np.zeros(len(start), dtype=np.uint8)
        open_until: dict[int, list[float]] = {}
        for row in np.lexsort((-end, start)).tolist():
            around = open_until.setdefault(int(thread[row]), [])
            while around and around[-1] <= start[row]:
                around.pop()
            depth[row] = min(len(around), 255)
            around.append(float(end[row]))
        return {
            "name": self._worded("marks", "name", "mark_names")[1],
            "from_op": self._joined("marks", "from_op") + first,
            "to_op": self._joined("marks", "to_op") + first,
            "start_s": start,
            "end_s": end,
            "depth": depth,
        }

    @cached_property
    def mark_intervals(self) -> dict[str, Intervals]:
        """The marks on each axis."""
        rows = self.marks
        return {
            "time": Intervals(rows["start_s"], rows["end_s"]),
            "op": Intervals(rows["from_op"].astype(np.float64), rows["to_op"].astype(np.float64)),
        }

    # ------------------------------------------------------------------------------------------------ levels

    @cached_property
    def resident(self) -> tuple[np.ndarray, np.ndarray]:
        """Seconds (T,), and the bytes on the device of every Category from then on, (T, categories)."""
        times, levels = zip(*(resident_by_category(step) for step in self.steps), strict=True)
        return np.concatenate([t + b for t, b in zip(times, self.begin_s, strict=True)]), np.concatenate(
            levels
        )

    @cached_property
    def live_bytes(self) -> np.ndarray:
        """int64 (ops,): bytes alive from each op on: what a run without swapping would hold."""
        return self._joined("ops", "live_peak_bytes")

    @cached_property
    def peak_op(self) -> int:
        """The op with the most bytes on the device."""
        return int(self._joined("ops", "resident_peak_bytes").argmax())

    @cached_property
    def peaks(self) -> np.ndarray:
        """int64 (peaks,), ascending: ops where bytes on the device are high; see :func:`high_points`."""
        levels = self._joined("ops", "resident_peak_bytes")
        return high_points(levels, _LEAST_RISE * int(levels.max()))

    @cached_property
    def residencies(self) -> dict[str, np.ndarray]:
        """Stretches on the device: ``storage``, ``from_op``, ``to_op``, ``from_s``, ``to_s``."""
        return {
            "storage": self._joined("residencies", "storage", "storage"),
            "from_op": self._joined("residencies", "from_op", "op"),
            "to_op": self._joined("residencies", "to_op", "op"),
            "from_s": self._joined("residencies", "from_s", "time"),
            "to_s": self._joined("residencies", "to_s", "time"),
        }

    @cached_property
    def away(self) -> dict[str, np.ndarray]:
        """Stretches off the device, by the same columns: the parts of a storage's life that no residency covers.

        ``dropped``, bool: the bytes are nowhere, until a replay makes them again; of the others the host has them.
        """
        rows = self.residencies
        order = np.lexsort((rows["from_s"], rows["storage"]))
        storage = rows["storage"][order]
        birth, death = self.storage_life
        count = len(birth)
        first = np.searchsorted(storage, np.arange(count))
        last = np.searchsorted(storage, np.arange(count), side="right") - 1
        has = last >= first
        # Between two residencies of the same storage; before the first; after the last; or all of its life.
        inner = np.flatnonzero(storage[1:] == storage[:-1])
        before = np.flatnonzero(has)
        whole = np.flatnonzero(~has)
        a, b = order[inner], order[inner + 1]
        head, tail = order[first[before]], order[last[before]]
        birth_s, death_s = self.life_x("time")
        owner = np.concatenate([storage[inner], before, before, whole])
        from_op = np.concatenate([rows["to_op"][a], birth[before], rows["to_op"][tail], birth[whole]])
        to_op = np.concatenate([rows["from_op"][b], rows["from_op"][head], death[before], death[whole]])
        from_s = np.concatenate([rows["to_s"][a], birth_s[before], rows["to_s"][tail], birth_s[whole]])
        to_s = np.concatenate([rows["from_s"][b], rows["from_s"][head], death_s[before], death_s[whole]])
        real = (to_op > from_op) & (to_s > from_s)
        found = {
            "storage": owner[real],
            "from_op": from_op[real],
            "to_op": to_op[real],
            "from_s": from_s[real],
            "to_s": to_s[real],
        }
        return found | {"dropped": self._dropped(found["storage"], found["to_op"])}

    def _dropped(self, storage: np.ndarray, to_op: np.ndarray) -> np.ndarray:
        """Of stretches off the device, by where they end: are the bytes nowhere? bool (stretches,).

        They are where a replay ends the stretch; and where nothing brings the storage back, if it was never copied out
        since it was born in its step.
        """
        replays, span = self.replay_column, self.op_count + 1
        ends = replays["storage"] * span + replays["op"]
        replayed = np.isin(storage * span + to_op, ends[replays["storage"] >= 0])
        born = np.concatenate([step.storages.birth_op >= 0 for step in self.steps])
        copied = np.zeros(len(born), dtype=bool)
        moved = self.transfers
        copied[moved.storage[moved.storage >= 0]] = True
        stays = to_op >= self.storage_life[1][storage]
        without_copy: np.ndarray = replayed | (stays & born[storage] & ~copied[storage])
        return without_copy

    @cached_property
    def away_bytes(self) -> tuple[np.ndarray, np.ndarray]:
        """Seconds (T,), and the bytes on the host from then on (T,)."""
        rows = {name: column[~self.away["dropped"]] for name, column in self.away.items()}
        sizes = self.storage_bytes[rows["storage"]]
        times = np.concatenate([[0.0], rows["from_s"], rows["to_s"]])
        changes = np.concatenate([[0], sizes, -sizes])
        order = np.argsort(times, kind="stable")
        times, levels = times[order], np.cumsum(changes[order])
        last = np.append(np.diff(times) > 0, True)
        return times[last], levels[last]

    @cached_property
    def floor(self) -> Floor:
        """The smallest capacity that a policy can run the newest step in, and the op that sets it."""
        return floor(Trace([self.steps[-1]], self.meta))

    # ------------------------------------------------------------------------------------------------ spans

    @cached_property
    def stages(self) -> Spans:
        """Forward, backward and optimizer. Ops outside autograd come amid every stage, and are none of their own."""
        ops = np.flatnonzero(self.op_stage != Stage.NO_GRAD)
        labels = tuple(stage.name.lower() for stage in Stage)
        if not len(ops):
            ops = np.arange(self.op_count)
        return self._spans(labels, self.op_stage[ops].astype(np.int32), ops)

    @cached_property
    def layers(self) -> Spans:
        """The numbered part of the module path, such as ``h.7``; its first name where no part has a number."""
        return self._module_spans(layer_of)

    @cached_property
    def submodules(self) -> Spans:
        """What of the module path comes after the layer, such as ``attn.c_attn``."""
        return self._module_spans(below_layer)

    @cached_property
    def span_intervals(self) -> dict[tuple[str, str], Intervals]:
        """By the name of the spans and the axis: their intervals."""
        named = {"stages": self.stages, "layers": self.layers, "modules": self.submodules}
        return {
            (name, axis): Intervals(self.x_of_op(axis, spans.first_op), self.x_of_op(axis, spans.end_op))
            for name, spans in named.items()
            for axis in AXES
        }

    def _module_spans(self, part: Any) -> Spans:
        paths, module = self.op_modules
        index: dict[str, int] = {}
        label_of = np.array([index.setdefault(part(path), len(index)) for path in paths] + [-1])
        # Runs are of whole paths, so that two layers side by side do not become one.
        layers: dict[str, int] = {}
        run = np.array(
            [layers.setdefault(layer_of(path) + "/" + part(path), len(layers)) for path in paths] + [-1]
        )
        ops = np.arange(self.op_count)
        spans = self._spans(tuple(index), run[module], ops)
        labels = label_of[module[spans.first_op]] if len(spans.first_op) else spans.label
        shown = np.array([bool(text) for text in index] + [False])[labels]
        return Spans(spans.labels, labels[shown], spans.first_op[shown], spans.end_op[shown])

    def _spans(self, labels: tuple[str, ...], run: np.ndarray, ops: np.ndarray) -> Spans:
        step = self.op_step[ops]
        begins = np.concatenate([[0], np.flatnonzero((np.diff(run) != 0) | (np.diff(step) != 0)) + 1])
        first = ops[begins]
        end = np.append(first[1:], self.op_count)
        first = np.where(first == ops[0], 0, first)
        return Spans(labels, run[begins], first, end)

    # ------------------------------------------------------------------------------------------------ block map

    @cached_property
    def storage_rank(self) -> np.ndarray:
        """int64 (storages,): the same number for a storage's rows in all the steps."""
        return np.unique(self.storage_uid, return_inverse=True)[1]

    @cached_property
    def rows_by_storage(self) -> tuple[np.ndarray, int]:
        """Each storage keeps its rows of bytes for all of its life, resident or away; in bands by category.

        Returns:
            int64 (storages,): its lowest byte; and the bytes of the map.
        """
        rank = self.storage_rank
        count = int(rank.max(initial=-1)) + 1
        birth, death = self.storage_life
        first = np.full(count, self.op_count, dtype=np.int64)
        end = np.zeros(count, dtype=np.int64)
        np.minimum.at(first, rank, birth)
        np.maximum.at(end, rank, death)
        newest = np.zeros(count, dtype=np.int64)
        newest[rank] = np.arange(len(rank))  # what a storage is for may turn out late
        category = self.storage_category[newest]
        size = self.storage_bytes[newest]
        offset = np.zeros(count, dtype=np.int64)
        top = 0
        for band in BANDS:
            chosen = np.flatnonzero(np.isin(category, [int(c) for c in band]))
            rows, height = stack_rows(first[chosen].astype(float), end[chosen].astype(float), size[chosen])
            offset[chosen] = top + rows
            top += height
        return offset[rank], top

    def block_map(self, axis: str, rows: str) -> tuple[Rectangles, int]:
        """The rectangles of the block map, and the bytes of its rows.

        Args:
            axis: ``"time"`` or ``"op"``.
            rows: ``"storage"``: rows as :attr:`rows_by_storage` says, with the times away; ``"packed"``: what is
                on the device, packed from below.
        """
        key = (axis, rows)
        if key not in self._block_maps:
            self._block_maps[key] = self._make_block_map(axis, rows)
        return self._block_maps[key]

    @cached_property
    def _block_maps(self) -> dict[tuple[str, str], tuple[Rectangles, int]]:
        return {}  # filled by block_map

    def _make_block_map(self, axis: str, rows: str) -> tuple[Rectangles, int]:
        tables = [self.residencies] if rows == "packed" else [self.residencies, self.away]
        table = {name: np.concatenate([t[name] for t in tables]) for name in self.residencies}
        place = np.full(len(table["storage"]), ON_DEVICE, dtype=np.uint8)
        if rows != "packed":
            place[len(self.residencies["storage"]) :] = np.where(self.away["dropped"], DROPPED, ON_HOST)
        storage = table["storage"]
        size = self.storage_bytes[storage]
        if rows == "packed":
            y0, height = stack_rows(table["from_op"].astype(float), table["to_op"].astype(float), size)
        else:
            offset, height = self.rows_by_storage
            y0 = offset[storage]
        ends = ("from_op", "to_op") if axis == "op" else ("from_s", "to_s")
        rectangles = Rectangles(
            x0=table[ends[0]].astype(np.float64),
            x1=table[ends[1]].astype(np.float64),
            y0=y0.astype(np.float32),
            y1=(y0 + size).astype(np.float32),
            category=self.storage_category[storage],
            place=place,
            storage=storage.astype(np.int32),
            fill=np.ones(len(storage), dtype=np.float32),
        )
        return rectangles, max(height, 1)


BANDS = (
    (Category.PARAMETER,),
    (Category.OPTIMIZER_STATE,),
    (Category.GRADIENT,),
    (Category.ACTIVATION,),
    (Category.INPUT, Category.OTHER),
)
"""The categories as they are stacked and colored, bottom first."""


def layer_of(path: str) -> str:
    """The module path up to its first number, from the name before it: ``transformer.h.7.attn`` gives ``h.7``."""
    parts = path.split(".")
    for i, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[max(0, i - 1) : i + 1])
    return parts[0]


def below_layer(path: str) -> str:
    """What of a module path comes after :func:`layer_of`; empty where nothing does."""
    parts = path.split(".")
    for i, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[i + 1 :])
    return ".".join(parts[1:])


def high_points(values: np.ndarray, rise: float) -> np.ndarray:
    """Where values are highest between two falls of at least ``rise``: int64, ascending; the first of equal ones."""
    turns = np.flatnonzero(np.append(True, np.diff(values) != 0))  # a plateau counts once
    found: list[int] = []
    rising, best = True, 0
    for position, value in zip(turns.tolist(), values[turns].tolist(), strict=True):
        reached = values[best]
        if rising:
            if value > reached:
                best = position
            elif value < reached - rise:
                found.append(best)
                rising, best = False, position
        elif value < reached:
            best = position
        elif value > reached + rise:
            rising, best = True, position
    return np.array([*found, best] if rising else found, dtype=np.int64)


def _kind(name: str) -> int:
    base = name.rpartition("::")[2].strip("_")
    if any(word in base for word in _HEAVY_WORDS):
        return HEAVY
    return MOVING if any(base == word or base.startswith(word + "_") for word in _MOVING_WORDS) else LIGHT
