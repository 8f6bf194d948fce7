"""Answers about a scene: tracks of a viewport as Arrow, and details of single items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...planner import Floor
from ...trace import Category, Cause, Direction, Pause, Stage
from ...trace.overlap import hidden_share
from ...util import arrow
from .blocks import rasterise
from .lod import Bars, steps_between
from .protocol import ProtocolError
from .query import Query, fits_text, parse_query
from .scene import BANDS, Scene

if TYPE_CHECKING:
    import pyarrow

# Bars of one track in one view that are sent one by one; see lod.Intervals.bars.
_MOST_SPANS, _MOST_OPS, _MOST_BARS, _MOST_BLOCKS = 1500, 3000, 1500, 6000
_RASTER = (384, 48)
_MOST_ROWS = 200
_MOST_USES = 400
_MOST_TOUCHED = 24
_MOST_MARKS = 2000
_MOST_PAUSES = 100

VIEW_BYTES = 10**6
"""The most that the tables of one view take together."""

Buffers = list[bytes]


def describe(scene: Scene) -> dict[str, Any]:
    """What holds for all of a scene: its axes, dictionaries and figures."""
    rows, stalls, replays = scene.transfers, scene.stall_column, scene.replay_column
    stall_s = float((stalls["end_s"] - stalls["start_s"]).sum())
    by_way = [rows.direction == way for way in Direction]
    return {
        "steps": [
            {
                "index": step.index,
                "stage": step.session_stage,
                "duration_s": step.duration_s,
                "begin": {"time": float(scene.begin_s[i]), "op": int(scene.first_op[i])},
            }
            for i, step in enumerate(scene.steps)
        ],
        "length": {"time": scene.length("time"), "op": scene.length("op")},
        "names": list(scene.op_names[0]),
        "stages": list(scene.stages.labels),
        "layers": list(scene.layers.labels),
        "modules": list(scene.submodules.labels),
        "mark_names": list(scene.mark_names),
        "marks": len(scene.marks["name"]),
        "storages": int(scene.storage_rank.max(initial=-1)) + 1,
        "ops": scene.op_count,
        "moved_bytes": [int(rows.bytes[way].sum()) for way in by_way],
        "hidden": [_hidden(scene, np.flatnonzero(way)) for way in by_way],
        "stalls": len(stalls["op"]),
        "stall_s": stall_s,
        "replays": len(replays["op"]),
        "replay_s": float((replays["end_s"] - replays["start_s"]).sum()),
        "dropped_bytes": int(scene.storage_bytes[scene.away["storage"][scene.away["dropped"]]].sum()),
        "declined": len(scene.declined["op"]),
        "pauses": _pauses(scene),
        "overlap": scene.overlap,
        "match_rate": _match_rate(scene),
        "capacity_bytes": scene.meta.get("capacity_bytes"),
        "peak_bytes": max(step.peak_bytes for step in scene.steps),
        "live_peak_bytes": max(step.live_peak_bytes for step in scene.steps),
        "away_peak_bytes": int(scene.away_bytes[1].max(initial=0)),
        "peak": {axis: float(scene.x_of_op(axis, scene.peak_op)) for axis in ("time", "op")},
        "floor": floor_facts(scene.floor),
    }


def view(
    scene: Scene, axis: str, start: float, end: float, width: int, height: int, rows: str
) -> tuple[dict[str, Any], Buffers]:
    """The tracks of a viewport, thinned to its pixels. The parameters are those of :class:`protocol.View`.

    Returns:
        What is in the buffers, and one Arrow stream a table: at most VIEW_BYTES together.
    """
    pa = require_pyarrow()
    detail = 1.0
    while True:
        tables = _tables(scene, axis, start, end, width, height, rows, detail)
        buffers = [arrow_stream(pa, columns) for columns in tables.values()]
        size = sum(len(buffer) for buffer in buffers)
        if size <= VIEW_BYTES:
            break
        detail *= min(0.95, VIEW_BYTES / size)
    result = {
        "axis": axis,
        "start": start,
        "end": end,
        "rows": rows,
        "map_bytes": scene.block_map(axis, rows)[1],
        "tables": list(tables),
    }
    return result, buffers


def _tables(
    scene: Scene, axis: str, start: float, end: float, width: int, height: int, rows: str, detail: float
) -> dict[str, dict[str, np.ndarray]]:
    pixels = max(16, int(min(width, 4096) * min(1.0, detail)))

    def most(limit: int) -> int:
        return max(16, int(limit * detail))

    tables = {}
    for name, spans in (("stages", scene.stages), ("layers", scene.layers), ("modules", scene.submodules)):
        bars = scene.span_intervals[name, axis].bars(start, end, pixels, most(_MOST_SPANS))
        tables[name] = {**bar_columns(bars), "label": _narrow(spans.label[bars.row])}
    bars = scene.mark_intervals[axis].bars(start, end, pixels, most(_MOST_SPANS))
    tables["marks"] = {
        **bar_columns(bars),
        "label": _narrow(scene.marks["name"][bars.row]),
        "depth": scene.marks["depth"][bars.row],
    }
    bars = scene.op_intervals[axis].bars(start, end, pixels, most(_MOST_OPS))
    tables["ops"] = {
        **bar_columns(bars),
        "kind": scene.op_kind[bars.row],
        "name": _narrow(scene.op_names[1][bars.row]),
    }
    for direction in Direction:
        chosen, intervals = scene.transfer_intervals[axis, int(direction)]
        bars = intervals.bars(start, end, pixels, most(_MOST_BARS))
        row = chosen[bars.row]
        tables[direction.name.lower()] = {
            **bar_columns(bars),
            "row": row.astype(np.int32),
            "category": _categories(scene, scene.transfers.storage[row]),
            "exposed": scene.transfer_exposed[row].astype(np.float32),
        }
    bars = scene.stall_intervals[axis].bars(start, end, pixels, most(_MOST_BARS))
    tables["stalls"] = {
        **bar_columns(bars),
        "direction": scene.stall_column["direction"][bars.row],
        "cause": scene.stall_column["cause"][bars.row],
    }
    replays = scene.replay_column
    bars = scene.replay_intervals[axis].bars(start, end, pixels, most(_MOST_BARS))
    tables["replays"] = {
        **bar_columns(bars),
        "category": _categories(scene, replays["storage"][bars.row]),
        "name": _narrow(replays["name"][bars.row]),
        "cause": replays["cause"][bars.row],
    }
    times, levels = scene.resident
    x = scene.x_of_time(axis, times)
    kept = steps_between(x, levels.sum(axis=1), start, end, pixels)
    tables["resident"] = {
        "x": x[kept],
        # Drawn, and read to three digits: 32 bits are enough, and halve one of the largest tables.
        **{
            f"band{i}": levels[kept][:, [int(c) for c in band]].sum(axis=1).astype(np.float32)
            for i, band in enumerate(BANDS)
        },
    }
    x = scene.x_of_op(axis, np.arange(scene.op_count))
    kept = steps_between(x, scene.live_bytes, start, end, pixels)
    tables["live"] = {"x": x[kept], "bytes": scene.live_bytes[kept]}
    times, away = scene.away_bytes
    x = scene.x_of_time(axis, times)
    kept = steps_between(x, away, start, end, pixels)
    tables["away"] = {"x": x[kept], "bytes": away[kept]}
    tables["blocks"] = _block_columns(scene, axis, start, end, width, height, rows, detail)
    return tables


def _categories(scene: Scene, storage: np.ndarray) -> np.ndarray:
    """uint8: the category of storages, OTHER for -1."""
    known = np.append(scene.storage_category, np.uint8(Category.OTHER))  # its last stands for -1
    found: np.ndarray = known[storage].astype(np.uint8)
    return found


def bar_columns(bars: Bars) -> dict[str, np.ndarray]:
    """Bars as the columns of a table."""
    return {"x0": bars.x0, "x1": bars.x1, "row": bars.row, "count": _narrow(bars.count), "fill": bars.fill}


def _narrow(values: np.ndarray) -> np.ndarray:
    """Counts and indices in 16 bits, where they fit."""
    fit = not len(values) or (values.min() >= 0 and values.max() < 1 << 16)
    return values.astype(np.uint16 if fit else np.int32)


def _block_columns(
    scene: Scene, axis: str, start: float, end: float, width: int, height: int, rows: str, detail: float
) -> dict[str, np.ndarray]:
    rectangles, map_bytes = scene.block_map(axis, rows)
    here = np.flatnonzero((rectangles.x1 >= start) & (rectangles.x0 <= end))
    shown = type(rectangles)(**{name: column[here] for name, column in vars(rectangles).items()})
    columns = max(16, int(min(width // 2, _RASTER[0]) * min(1.0, detail)))
    lines = max(8, min(height // 2, _RASTER[1]))
    shown = rasterise(shown, start, end, map_bytes, columns, lines, max(16, int(_MOST_BLOCKS * detail)))
    uid = np.append(scene.storage_uid, -1)[shown.storage]
    return {
        # 32 bits are enough from the view's start on, and halve the largest table.
        "x0": (shown.x0 - start).astype(np.float32),
        "x1": (shown.x1 - start).astype(np.float32),
        "y0": shown.y0,
        "y1": shown.y1,
        "category": shown.category,
        "place": shown.place,
        "uid": uid.astype(np.int32 if uid.max(initial=0) < 1 << 31 else np.float64),
        "fill": shown.fill,
    }


# ---------------------------------------------------------------------------------------------------- pointing


def floor_facts(lowest: Floor) -> dict[str, Any]:
    """A floor, the op that sets it, and what it was measured on."""
    return {
        "bytes": lowest.bytes,
        "op": lowest.op_name,
        "module": lowest.module,
        "measured_on": lowest.measured_on,
    }


def point(scene: Scene, axis: str, track: str, row: int) -> dict[str, Any]:
    """What one row of a track is. Raises ProtocolError where there is no such row."""
    if track == "ops":
        _require(0 <= row < scene.op_count, f"there is no op {row} in these steps")
        return {"op": op_facts(scene, axis, row) | {"touches": _touched(scene, row)}}
    if track in ("out", "in"):
        _require(0 <= row < len(scene.transfers), f"there is no transfer {row} in these steps")
        return {"transfer": transfer_facts(scene, axis, row)}
    if track == "replays":
        _require(0 <= row < len(scene.replay_column["op"]), f"there is no replay {row} in these steps")
        return {"replay": replay_facts(scene, axis, row)}
    if track == "stalls":
        _require(0 <= row < len(scene.stall_column["op"]), f"there is no stall {row} in these steps")
        return {"stall": stall_facts(scene, axis, row)}
    rows = np.flatnonzero(scene.storage_uid == row)
    _require(len(rows) > 0, f"there is no storage #{row} in these steps")
    return {"storage": storage_facts(scene, int(rows[-1]))}


def op_facts(scene: Scene, axis: str, op: int) -> dict[str, Any]:
    """One op in words and figures."""
    names, name = scene.op_names
    paths, module = scene.op_modules
    step_row = int(scene.op_step[op])
    step = scene.steps[step_row]
    stack = int(step.ops.stack[op - scene.first_op[step_row]])
    ends = (op, op + 1)
    return {
        "row": op,
        "name": names[name[op]],
        "module": paths[module[op]] if module[op] >= 0 else "",
        "stage": Stage(int(scene.op_stage[op])).name.lower(),
        "step": step.index,
        "op": int(op - scene.first_op[step_row]),
        "duration_s": float(scene.op_end_s[op] - scene.op_start_s[op]),
        "stall_s": float(scene.op_stall_s[op]),
        "replay_s": float(scene.op_replay_s[op]),
        "stack": step.stacks[stack].splitlines() if 0 <= stack < len(step.stacks) else [],
        "x0": float(ends[0] if axis == "op" else scene.op_start_s[op]),
        "x1": float(ends[1] if axis == "op" else scene.op_end_s[op]),
    }


def storage_facts(scene: Scene, row: int) -> dict[str, Any]:
    """One storage in words and figures."""
    paths, module = scene.storage_modules
    step_row = int(np.searchsorted(scene.first_storage, row, side="right")) - 1
    table, local = scene.steps[step_row].storages, row - int(scene.first_storage[step_row])
    return {
        "uid": int(scene.storage_uid[row]),
        "key": scene.storage_keys[row],
        "bytes": int(scene.storage_bytes[row]),
        "category": int(scene.storage_category[row]),
        "module": paths[module[row]] if module[row] >= 0 else "",
        "movable": bool(table.movable[local]),
        "form": scene.steps[step_row].form(local),
    }


def transfer_facts(scene: Scene, axis: str, row: int) -> dict[str, Any]:
    """One transfer in words and figures."""
    rows = scene.transfers
    storage = int(rows.storage[row])
    x = scene.x_of_time(axis, np.array([rows.start_s[row], rows.end_s[row]]))
    return {
        "row": row,
        "direction": Direction(int(rows.direction[row])).name.lower(),
        "cause": Cause(int(rows.cause[row])).name.lower(),
        "bytes": int(rows.bytes[row]),
        "duration_s": float(rows.end_s[row] - rows.start_s[row]),
        "waited_s": float(rows.start_s[row] - rows.issue_s[row]),
        "hidden": 1.0 - float(scene.transfer_exposed[row]),
        "storage": storage_facts(scene, storage) if storage >= 0 else None,
        "x0": float(x[0]),
        "x1": float(x[1]),
    }


def stall_facts(scene: Scene, axis: str, row: int) -> dict[str, Any]:
    """One stall in words and figures."""
    rows = scene.stall_column
    return {
        **_event_facts(scene, axis, rows, row),
        "direction": Direction(int(rows["direction"][row])).name.lower(),
        "why": scene.why_stalled(row),
    }


def replay_facts(scene: Scene, axis: str, row: int) -> dict[str, Any]:
    """One replay in words and figures: the op that ran again, for whom, and what that took."""
    rows = scene.replay_column
    return {
        **_event_facts(scene, axis, rows, row),
        "name": scene.op_names[0][rows["name"][row]],
        "bytes": int(rows["bytes"][row]),
    }


def _event_facts(scene: Scene, axis: str, rows: dict[str, np.ndarray], row: int) -> dict[str, Any]:
    """What stalls and replays have in common: a cause, an op that waits for a storage, and a stretch of the axis."""
    storage, op = int(rows["storage"][row]), int(rows["op"][row])
    x = scene.x_of_time(axis, np.array([rows["start_s"][row], rows["end_s"][row]]))
    return {
        "row": row,
        "cause": Cause(int(rows["cause"][row])).name.lower(),
        "duration_s": float(rows["end_s"][row] - rows["start_s"][row]),
        "op": op_facts(scene, axis, op) if 0 <= op < scene.op_count else None,
        "storage": storage_facts(scene, storage) if storage >= 0 else None,
        "x0": float(x[0]),
        "x1": float(x[1]),
    }


def declined_facts(scene: Scene, axis: str, row: int) -> dict[str, Any]:
    """One planned drop that the runtime declined, and why."""
    rows = scene.declined
    storage, name, op = (int(rows[column][row]) for column in ("storage", "name", "op"))
    return {
        "name": scene.op_names[0][name] if name >= 0 else "",
        "why": scene.decline_reasons[0][rows["reason"][row]],
        "op": op_facts(scene, axis, op),
        "storage": storage_facts(scene, storage) if storage >= 0 else None,
        "x0": float(scene.x_of_op(axis, op)),
    }


def _touched(scene: Scene, op: int) -> dict[str, Any]:
    ops, storages = scene.uses
    rows = storages[np.searchsorted(ops, op) : np.searchsorted(ops, op, side="right")]
    rows = rows[np.argsort(-scene.storage_bytes[rows], kind="stable")]
    return {
        "count": len(rows),
        "bytes": int(scene.storage_bytes[rows].sum()),
        "storages": [storage_facts(scene, int(row)) for row in rows[:_MOST_TOUCHED]],
    }


def storage(scene: Scene, axis: str, uid: int) -> dict[str, Any]:
    """All that touches a storage in the drawn steps. Raises ProtocolError where no step knows it."""
    rows = np.flatnonzero(scene.storage_uid == uid)
    _require(len(rows) > 0, f"there is no storage #{uid} in these steps")
    facts = storage_facts(scene, int(rows[-1]))
    begins, ends_at = scene.life_x(axis)
    ops, used = scene.uses
    here = ops[np.isin(used, rows)]
    moved = np.flatnonzero(np.isin(scene.transfers.storage, rows))
    waits = np.flatnonzero(np.isin(scene.stall_column["storage"], rows))
    replayed = np.flatnonzero(np.isin(scene.replay_column["storage"], rows))
    declined = np.flatnonzero(np.isin(scene.declined["storage"], rows))
    step_row = int(np.searchsorted(scene.first_storage, int(rows[0]), side="right")) - 1
    born = int(scene.steps[step_row].storages.birth_op[rows[0] - scene.first_storage[step_row]])
    stretches = {}
    off = scene.away
    for name, table, kind in (
        ("resident", scene.residencies, True),
        ("away", off, ~off["dropped"]),
        ("dropped", off, off["dropped"]),
    ):
        chosen = np.isin(table["storage"], rows) & kind
        ends = ("from_op", "to_op") if axis == "op" else ("from_s", "to_s")
        order = np.argsort(table[ends[0]][chosen], kind="stable")
        stretches[name] = np.column_stack([table[end][chosen][order] for end in ends]).astype(float).tolist()
    return facts | {
        "born": op_facts(scene, axis, born + int(scene.first_op[step_row])) if born >= 0 else None,
        "x0": float(begins[rows[0]]),
        "x1": float(ends_at[rows[-1]]),
        "uses": [op_facts(scene, axis, int(op)) for op in here[:_MOST_USES]],
        "use_count": len(here),
        "transfers": [transfer_facts(scene, axis, int(row)) for row in moved[:_MOST_USES]],
        "stalls": [stall_facts(scene, axis, int(row)) for row in waits[:_MOST_USES]],
        "replays": [replay_facts(scene, axis, int(row)) for row in replayed[:_MOST_USES]],
        "declined": [declined_facts(scene, axis, int(row)) for row in declined[:_MOST_USES]],
        **stretches,
    }


# ---------------------------------------------------------------------------------------------------- questions


def alive(scene: Scene, axis: str, at: float) -> dict[str, Any]:
    """The storages alive at a position: where their bytes are, by category and module, and which could leave.

    A storage could leave where it is on the device, may move, and the op there does not use it: ``idle_s`` and
    ``idle_ops`` are the time and the ops between its uses before and after.
    """
    op = scene.op_at(axis, at)
    birth, death = scene.storage_life
    here = np.flatnonzero((birth <= op) & (op < death))
    resident = np.zeros(len(birth), dtype=bool)
    table = scene.residencies
    inside = (
        (table["from_s"] <= at) & (at < table["to_s"])
        if axis == "time"
        else (table["from_op"] <= op) & (op < table["to_op"])
    )
    resident[table["storage"][inside]] = True
    off = scene.away
    gone = (
        (off["from_s"] <= at) & (at < off["to_s"])
        if axis == "time"
        else (off["from_op"] <= op) & (op < off["to_op"])
    )
    dropped = np.zeros(len(birth), dtype=bool)
    dropped[off["storage"][gone & off["dropped"]]] = True
    before, after, in_use = _neighbor_uses(scene, op)
    sizes = scene.storage_bytes
    movable = np.concatenate([step.storages.movable for step in scene.steps])
    can_leave = resident & movable & ~in_use & (sizes >= 16 * 1024)
    order = here[np.lexsort((-sizes[here], ~resident[here]))]
    clock = scene.x_of_op("time", np.arange(scene.op_count + 1))
    paths, module = scene.storage_modules
    category = scene.storage_category

    rows = []
    for row in order[:_MOST_ROWS].tolist():
        gap = (max(int(before[row]), 0), min(int(after[row]), scene.op_count))
        rows.append(
            storage_facts(scene, row)
            | {
                "resident": bool(resident[row]),
                "dropped": bool(dropped[row]),
                "can_leave": bool(can_leave[row]),
                "in_use": bool(in_use[row]),
                "idle_ops": 0 if in_use[row] else gap[1] - gap[0],
                "idle_s": 0.0 if in_use[row] else float(clock[gap[1]] - clock[gap[0]]),
            }
        )
    return {
        "at": at,
        "op": op_facts(scene, axis, op),
        "count": len(here),
        "resident_bytes": int(sizes[here[resident[here]]].sum()),
        "away_bytes": int(sizes[here[~resident[here] & ~dropped[here]]].sum()),
        "dropped_bytes": int(sizes[here[dropped[here]]].sum()),
        "can_leave_bytes": int(sizes[here[can_leave[here]]].sum()),
        "categories": totals(category[here], [c.name.lower() for c in Category], sizes[here], resident[here]),
        "modules": totals(module[here], paths, sizes[here], resident[here]),
        "storages": rows,
    }


def totals(
    label: np.ndarray, words: Sequence[str], sizes: np.ndarray, resident: np.ndarray
) -> list[dict[str, Any]]:
    """Bytes on the device and away by label, most bytes first; the label -1 is the empty word.

    Args:
        label: integer (N,): index into ``words`` of each storage.
        words: what the labels say.
        sizes: int64 (N,).
        resident: bool (N,).
    """
    label = label.astype(np.int64) + 1
    on, off = (
        np.bincount(label[side], weights=sizes[side], minlength=len(words) + 1)
        for side in (resident, ~resident)
    )
    found = np.flatnonzero(on + off)
    found = found[np.argsort(-(on + off)[found], kind="stable")][:_MOST_ROWS]
    return [
        {"label": words[i - 1] if i else "", "resident_bytes": int(on[i]), "away_bytes": int(off[i])}
        for i in found.tolist()
    ]


def _neighbor_uses(scene: Scene, op: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each storage: the last op before ``op`` that uses it (-1), the first after it (ops), and whether it does."""
    ops, storages = scene.uses
    known = storages >= 0
    ops, storages = ops[known], storages[known]
    count = len(scene.storage_uid)
    before = np.full(count, -1, dtype=np.int64)
    after = np.full(count, scene.op_count, dtype=np.int64)
    earlier, later = ops < op, ops > op
    np.maximum.at(before, storages[earlier], ops[earlier])
    np.minimum.at(after, storages[later], ops[later])
    in_use = np.zeros(count, dtype=bool)
    in_use[storages[ops == op]] = True
    return before, after, in_use


def summarize(scene: Scene, axis: str, start: float, end: float) -> dict[str, Any]:
    """The figures of a stretch of the axis: ops, bytes each way, overlap, stalls; top storages and modules.

    Bytes of a transfer count by the share of its time that lies inside.
    """
    inside = scene.op_intervals[axis]
    positions = inside.between(start, end)
    positions = positions[inside.x0[positions] < end]
    ops = inside.order[positions]
    rows = scene.transfers
    x0, x1 = scene.x_of_time(axis, rows.start_s), scene.x_of_time(axis, rows.end_s)
    part = _share_inside(x0, x1, start, end)
    time_s = (rows.end_s - rows.start_s) * part
    moved = rows.bytes * part
    stalls = scene.stall_column
    stall_part = _share_inside(
        scene.x_of_time(axis, stalls["start_s"]), scene.x_of_time(axis, stalls["end_s"]), start, end
    )
    stall_s = (stalls["end_s"] - stalls["start_s"]) * stall_part
    replays = scene.replay_column
    replay_part = _share_inside(
        scene.x_of_time(axis, replays["start_s"]), scene.x_of_time(axis, replays["end_s"]), start, end
    )
    weights = np.zeros(len(scene.storage_uid))
    known = rows.storage >= 0
    np.add.at(weights, rows.storage[known], moved[known])
    waited = np.zeros(len(scene.storage_uid))
    known = stalls["storage"] >= 0
    np.add.at(waited, stalls["storage"][known], stall_s[known])
    top = np.argsort(-(weights + 1e-9 * scene.storage_bytes * (weights > 0)), kind="stable")[:10]
    paths, module = scene.op_modules
    busy = np.bincount(
        module[ops] + 1, weights=(scene.op_end_s - scene.op_start_s)[ops], minlength=len(paths) + 1
    )
    modules = np.argsort(-busy, kind="stable")[:10]
    times, levels = scene.resident
    total = levels.sum(axis=1)
    x = scene.x_of_time(axis, times)
    low = max(0, int(np.searchsorted(x, start, side="right")) - 1)
    high = max(low + 1, int(np.searchsorted(x, end, side="right")))
    seconds = scene.seconds_at(axis, end) - scene.seconds_at(axis, start)
    return {
        "start": start,
        "end": end,
        "duration_s": seconds,
        "ops": len(ops),
        "transfers": [int(((part > 0) & (rows.direction == way)).sum()) for way in Direction],
        "out_bytes": int(moved[rows.direction == Direction.OUT].sum()),
        "in_bytes": int(moved[rows.direction == Direction.IN].sum()),
        "overlap": hidden_share(scene.transfer_exposed, time_s),
        "stalls": int((stall_part > 0).sum()),
        "stall_s": float(stall_s.sum()),
        "stall_causes": {
            cause.name.lower(): float(stall_s[stalls["cause"] == cause].sum())
            for cause in Cause
            if stall_s[stalls["cause"] == cause].sum() > 0
        },
        "stall_parts": {
            name: float((seconds * stall_part).sum())
            for name, seconds in scene.stall_part_column.items()
            if (seconds * stall_part).sum() > 0
        },
        "replays": int((replay_part > 0).sum()),
        "replay_s": float(((replays["end_s"] - replays["start_s"]) * replay_part).sum()),
        "replayed_bytes": int((replays["bytes"] * replay_part).sum()),
        "peak_bytes": int(total[low:high].max()),
        "storages": [
            storage_facts(scene, row) | {"moved_bytes": int(weights[row]), "stall_s": float(waited[row])}
            for row in top.tolist()
            if weights[row] > 0
        ],
        "op_names": _by_name(scene, ops),
        "modules": [
            {"module": paths[i - 1] if i else "", "busy_s": float(busy[i])}
            for i in modules.tolist()
            if busy[i] > 0
        ],
    }


def seek(
    scene: Scene, axis: str, at: float, direction: int, what: str = "stall", query: str = ""
) -> dict[str, Any]:
    """The next or previous stall, peak or op that a query fits, from a position, in turn; round at the ends.

    Of ``"stall"``, ``"peak"`` and ``"op"`` those that are not asked for are None, and all are where there is none.
    Raises ProtocolError with the code ``query`` if the query cannot be read.
    """
    if what == "op":
        ops = _ops_found(scene, query)
        middle = (
            (scene.x_of_op(axis, ops) + scene.x_of_op(axis, ops + 1)) / 2
            if axis == "op"
            else ((scene.op_start_s + scene.op_end_s)[ops] / 2)
        )
        order = np.argsort(middle, kind="stable")
        middle = middle[order]
    elif what == "peak":
        middle = scene.x_of_op(axis, scene.peaks)
        order = np.arange(len(middle))
    else:
        intervals = scene.stall_intervals[axis]
        middle = (intervals.x0 + intervals.x1) / 2
        order = np.argsort(middle, kind="stable")
        middle = middle[order]
    count = len(middle)
    if not count:
        return {"stall": None, "peak": None, "op": None, "number": 0, "count": 0}
    # A hair's breadth, so that what one stands on is not found again.
    hair = scene.length(axis) * 1e-9
    if direction > 0:
        position = int(np.searchsorted(middle, at + hair, side="right")) % count
    else:
        position = (int(np.searchsorted(middle, at - hair, side="left")) - 1) % count
    found: dict[str, Any] = {"stall": None, "peak": None, "op": None, "number": position + 1, "count": count}
    if what == "op":
        found["op"] = op_facts(scene, axis, int(ops[order[position]]))
    elif what == "peak":
        op = int(scene.peaks[position])
        resident = scene.steps[int(scene.op_step[op])].ops.resident_peak_bytes
        local = op - int(scene.first_op[scene.op_step[op]])
        found["peak"] = {
            "at": float(middle[position]),
            "bytes": int(resident[local]),
            "op": op_facts(scene, axis, op),
        }
    else:
        found["stall"] = stall_facts(scene, axis, int(intervals.order[order[position]]))
    return found


def search(scene: Scene, axis: str, text: str) -> dict[str, Any]:
    """The storages and ops that a search text fits, largest first, and where they are. An empty text fits all.

    Raises ProtocolError with the code ``query`` if it cannot be read.
    """
    storages = _find_storages(scene, _read_query(text))
    # A storage shows once, with its newest row.
    newest: dict[int, int] = {int(scene.storage_uid[row]): row for row in storages.tolist()}
    rows = np.fromiter(newest.values(), dtype=np.int64, count=len(newest))
    rows = rows[np.argsort(-scene.storage_bytes[rows], kind="stable")]
    ops = _ops_found(scene, text)
    life = _life_summary(scene, axis, rows[:_MOST_ROWS])
    marks = (
        ops[np.linspace(0, len(ops) - 1, min(len(ops), _MOST_MARKS)).astype(np.int64)] if len(ops) else ops
    )
    return {
        "query": text,
        "storage_count": len(rows),
        "storage_bytes": int(scene.storage_bytes[rows].sum()),
        "storages": [
            storage_facts(scene, row) | facts
            for row, facts in zip(rows[:_MOST_ROWS].tolist(), life, strict=True)
        ],
        "op_count": len(ops),
        "ops": [op_facts(scene, axis, int(op)) for op in ops[:_MOST_ROWS]],
        "marks": scene.x_of_op(axis, marks).tolist(),
        **_find_replays(scene, axis, storages),
    }


def _read_query(text: str) -> Query:
    try:
        return parse_query(text)
    except ValueError as error:
        raise ProtocolError("query", str(error), "Such as: layer.3 attn >4MiB stage:backward") from None


def _ops_found(scene: Scene, text: str) -> np.ndarray:
    """int64, ascending: the ops that a search text fits. None, where it is empty or speaks of storages alone."""
    query = _read_query(text)
    if query.asks_storages_alone or not text.split():
        return np.empty(0, dtype=np.int64)
    return _find_ops(scene, query)


def _find_replays(scene: Scene, axis: str, storages: np.ndarray) -> dict[str, Any]:
    """The replays of the storages found, and declined drops of them: longest and largest first."""
    rows, declined = scene.replay_column, scene.declined
    every = len(storages) == len(scene.storage_uid)
    own = np.flatnonzero(np.isin(rows["storage"], storages) | ((rows["storage"] < 0) & every))
    own = own[np.argsort(-(rows["end_s"] - rows["start_s"])[own], kind="stable")]
    left = np.flatnonzero(np.isin(declined["storage"], storages))
    left = left[np.argsort(-scene.storage_bytes[declined["storage"][left]], kind="stable")]
    return {
        "replay_count": len(own),
        "replays": [replay_facts(scene, axis, int(row)) for row in own[:_MOST_ROWS]],
        "declined_count": len(left),
        "declined": [declined_facts(scene, axis, int(row)) for row in left[:_MOST_ROWS]],
    }


def locate(scene: Scene, key: str) -> dict[str, Any]:
    """The uid of the storage with a key, that of the newest step where several have one; None without any."""
    keys = scene.storage_keys
    row = next((row for row in range(len(keys) - 1, -1, -1) if keys[row] == key), None)
    return {"uid": None if row is None else int(scene.storage_uid[row])}


def _find_storages(scene: Scene, query: Any) -> np.ndarray:
    paths, module = scene.storage_modules
    names = [category.name.lower().replace("_", " ") for category in Category]
    texts = [
        f"{key} {names[category]}"
        for key, category in zip(scene.storage_keys, scene.storage_category.tolist(), strict=True)
    ]
    fits = fits_text(query, paths, module, texts)
    sizes = scene.storage_bytes
    if query.at_least is not None:
        fits &= sizes >= query.at_least
    if query.at_most is not None:
        fits &= sizes <= query.at_most
    if query.category is not None:
        fits &= scene.storage_category == query.category
    if query.stage is not None:
        births = np.concatenate(
            [
                np.where(step.storages.birth_op >= 0, step.storages.birth_op + scene.first_op[i], -1)
                for i, step in enumerate(scene.steps)
            ]
        )
        fits &= (births >= 0) & (scene.op_stage[births] == query.stage)
    return np.flatnonzero(fits)


def _find_ops(scene: Scene, query: Any) -> np.ndarray:
    names, name = scene.op_names
    paths, module = scene.op_modules
    # Few pairs of name and module occur: match those, not every op.
    pairs, of_op = np.unique(name.astype(np.int64) * (len(paths) + 1) + module + 1, return_inverse=True)
    pair_module = (pairs % (len(paths) + 1) - 1).astype(np.int32)
    fits = fits_text(query, paths, pair_module, [names[i] for i in (pairs // (len(paths) + 1)).tolist()])[
        of_op
    ]
    if query.stage is not None:
        fits &= scene.op_stage == query.stage
    return np.flatnonzero(fits)


def _life_summary(scene: Scene, axis: str, rows: np.ndarray) -> list[dict[str, Any]]:
    """Of each storage: where it lives on the axis, its longest time away, its transfers and what was lost on it."""
    begins, ends = scene.life_x(axis)
    rank = scene.storage_rank
    count = int(rank.max(initial=-1)) + 1
    known = scene.transfers.storage >= 0
    transfers = np.bincount(rank[scene.transfers.storage[known]], minlength=count)
    known = scene.stall_column["storage"] >= 0
    lost = np.bincount(
        rank[scene.stall_column["storage"][known]],
        weights=(scene.stall_column["end_s"] - scene.stall_column["start_s"])[known],
        minlength=count,
    )
    off = scene.away
    away, dropped = (
        np.bincount(rank[off["storage"][kind]], weights=(off["to_s"] - off["from_s"])[kind], minlength=count)
        for kind in (~off["dropped"], off["dropped"])
    )
    known = scene.replay_column["storage"] >= 0
    replays = np.bincount(rank[scene.replay_column["storage"][known]], minlength=count)
    return [
        {
            "x0": float(begins[row]),
            "x1": float(ends[row]),
            "away_s": float(away[rank[row]]),
            "dropped_s": float(dropped[rank[row]]),
            "replays": int(replays[rank[row]]),
            "transfers": int(transfers[rank[row]]),
            "stall_s": float(lost[rank[row]]),
        }
        for row in rows.tolist()
    ]


# ---------------------------------------------------------------------------------------------------- helpers


def _hidden(scene: Scene, rows: np.ndarray) -> float | None:
    """Share of these transfers' time that was hidden; None without any."""
    table = scene.transfers
    time_s = (table.end_s - table.start_s)[rows]
    return hidden_share(scene.transfer_exposed[rows], time_s)


def _pauses(scene: Scene) -> list[dict[str, Any]]:
    """The longest pauses, where they lie on each axis, in their order."""
    rows = scene.pause_column
    longest = np.sort(np.argsort(-rows["duration_s"], kind="stable")[:_MOST_PAUSES])
    return [
        {
            "kind": Pause(int(rows["kind"][row])).name.lower(),
            "duration_s": float(rows["duration_s"][row]),
            "at": {"time": float(rows["at_s"][row]), "op": int(rows["op"][row])},
        }
        for row in longest.tolist()
    ]


def _match_rate(scene: Scene) -> float | None:
    """Share of the ops that were found in the plan that was followed; None where none was."""
    matched = np.concatenate([step.ops.plan_op >= 0 for step in scene.steps])
    return float(matched.mean()) if matched.any() else None


def _by_name(scene: Scene, ops: np.ndarray) -> list[dict[str, Any]]:
    """These ops summed up by their name, those that took longest first: time, stall and replays, and bytes made."""
    names, name = scene.op_names
    made = np.zeros(scene.op_count)
    births = np.concatenate(
        [
            np.where(step.storages.birth_op >= 0, step.storages.birth_op + scene.first_op[i], -1)
            for i, step in enumerate(scene.steps)
        ]
    )
    born = births >= 0
    np.add.at(made, births[born].astype(np.int64), scene.storage_bytes[born])
    sums = [
        np.bincount(name[ops], weights=values[ops], minlength=len(names))
        for values in (
            np.ones(scene.op_count),
            scene.op_end_s - scene.op_start_s,
            scene.op_stall_s,
            scene.op_replay_s,
            made,
        )
    ]
    order = np.argsort(-sums[1], kind="stable")
    return [
        {
            "name": names[i],
            "count": int(sums[0][i]),
            "busy_s": float(sums[1][i]),
            "stall_s": float(sums[2][i]),
            "replay_s": float(sums[3][i]),
            "made_bytes": int(sums[4][i]),
        }
        for i in order[:_MOST_ROWS].tolist()
        if sums[0][i]
    ]


def _share_inside(x0: np.ndarray, x1: np.ndarray, start: float, end: float) -> np.ndarray:
    """Share of each interval that lies in [start, end]; of an interval without length, whether it does."""
    length = x1 - x0
    inside = np.clip(np.minimum(x1, end) - np.maximum(x0, start), 0, None)
    touches = ((x0 >= start) & (x0 <= end)).astype(np.float64)
    np.divide(inside, length, out=touches, where=length > 0)
    return touches


def _require(found: bool, message: str) -> None:
    if not found:
        raise ProtocolError("not_found", message)


def arrow_stream(pa: Any, columns: dict[str, np.ndarray]) -> bytes:
    """Columns as an Arrow stream of one record batch."""
    batch = pa.record_batch({name: arrow.numbers(pa, column) for name, column in columns.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


def require_pyarrow() -> pyarrow:
    """pyarrow, which is imported at its first use. Raises ProtocolError where it is not installed."""
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        raise ProtocolError(
            "missing_package", "the panel's drawing needs pyarrow in the kernel", "%pip install pyarrow"
        ) from error
    return pyarrow
