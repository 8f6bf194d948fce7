"""The steps of a page as columns: what ``labextension/src/page`` reads and answers the panel's questions from.

A header in JSON, with where each column lies, and the columns behind it. The page's code and its data are written
together, so there is one version of this, and no older one to be read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...trace import StepTrace
from ..panel.icicle import grown
from ..panel.scene import Scene
from ..panel.views import describe

VERSION = 1

_ALIGNMENT = 8


def packed(steps: Sequence[StepTrace], meta: dict[str, Any], name: str, lost: str | None = None) -> bytes:
    """Steps that have ops as the bytes of a page. ``name``: of the file; ``lost``: what is missing of it."""
    source = f"file:{name}"
    writer = _Writer()
    parts = [writer.step(Scene([step], meta)) for step in steps]
    entries = [
        {"index": step.index, "stage": step.session_stage, "duration_s": step.duration_s} for step in steps
    ]
    status = {
        "session": None,
        "files": [{"source": source, "path": name, "steps": entries, "lost": lost}],
        "policies": [],
    }
    header = {"version": VERSION, "status": status, "growth": grown(steps), "steps": parts}
    text = json.dumps(header, allow_nan=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(_ALIGNMENT, "little") + text + bytes(writer.bytes)


class _Writer:
    """Puts columns behind one another."""

    def __init__(self) -> None:
        self.bytes = bytearray()

    def step(self, scene: Scene) -> dict[str, Any]:
        """A step's part of the header; its columns are written."""
        step = scene.steps[0]
        columns = {name: self._column(values) for name, values in _columns(scene).items()}
        rows = len(scene.stall_column["op"])
        return {
            "index": step.index,
            "scene": describe(scene),
            "map_bytes": {kind: scene.block_map("op", kind)[1] for kind in ("storage", "packed")},
            "columns": columns,
            "strings": {
                "op_names": list(scene.op_names[0]),
                "op_modules": list(scene.op_modules[0]),
                "storage_modules": list(scene.storage_modules[0]),
                "keys": list(scene.storage_keys),
                "forms": list(step.forms),
                "stacks": list(step.stacks),
                "reasons": list(scene.decline_reasons[0]),
                "why": [scene.why_stalled(row) for row in range(rows)],
            },
        }

    def _column(self, values: np.ndarray) -> list[Any]:
        """Its dtype, where it begins and how many values it has."""
        self.bytes += bytes(-len(self.bytes) % _ALIGNMENT)
        begin = len(self.bytes)
        self.bytes += values.tobytes()
        return [values.dtype.name, begin, len(values)]


def _columns(scene: Scene) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for prefix, columns in (
        ("op", _op_columns(scene)),
        ("storage", _storage_columns(scene)),
        ("transfer", _transfer_columns(scene)),
        ("stall", dict(scene.stall_column) | scene.stall_part_column),
        ("replay", scene.replay_column),
        ("declined", scene.declined),
        ("resident", scene.residencies | {"packed": scene.block_map("op", "packed")[0].y0}),
        ("away", scene.away),
        ("mark", _mark_columns(scene)),
    ):
        for name, values in columns.items():
            found[f"{prefix}_{name.removesuffix('_s') if prefix in _WITHOUT_UNIT else name}"] = values
    for name, spans in (("stages", scene.stages), ("layers", scene.layers), ("modules", scene.submodules)):
        found[f"{name}_label"] = spans.label
        found[f"{name}_from_op"], found[f"{name}_to_op"] = spans.first_op, spans.end_op
    found["use_op"], found["use_storage"] = scene.uses
    found["clock"] = scene.x_of_op("time", np.arange(scene.op_count + 1))
    times, levels = scene.resident
    found["level_time"] = times
    found |= {
        f"level_{category}": levels[:, category].astype(np.float64) for category in range(levels.shape[1])
    }
    found["host_time"], host = scene.away_bytes
    found["host_bytes"] = host.astype(np.float64)
    found["peaks"] = scene.peaks
    return {name: _narrowed(name, values) for name, values in found.items()}


_WITHOUT_UNIT = ("stall", "replay", "transfer", "op", "mark")
"""Tables whose times are all in seconds, and have no columns of ops by the same name."""

_SMALL = ("kind", "category", "stage", "movable", "dropped", "direction", "cause", "depth")
_LARGE = ("bytes", "uid", "row", "packed", "made", "live", "resident")


def _narrowed(name: str, values: np.ndarray) -> np.ndarray:
    """Numbers as JavaScript has them: 64 bits for seconds and bytes alone."""
    last = name.rpartition("_")[2]
    if last in _SMALL:
        return values.astype(np.uint8)
    if values.dtype.kind == "f" or last in _LARGE:
        return values.astype(np.float64)
    return values.astype(np.int32)


def _op_columns(scene: Scene) -> dict[str, np.ndarray]:
    step = scene.steps[0]
    made = np.zeros(scene.op_count)
    births = step.storages.birth_op
    np.add.at(made, births[births >= 0], scene.storage_bytes[births >= 0])
    return {
        "name": scene.op_names[1],
        "module": scene.op_modules[1],
        "stage": scene.op_stage,
        "kind": scene.op_kind,
        "stack": step.ops.stack,
        "start": scene.op_start_s,
        "end": scene.op_end_s,
        "stall": scene.op_stall_s,
        "replay": scene.op_replay_s,
        "made": made,
        "live": scene.live_bytes,
        "resident": step.ops.resident_peak_bytes,
    }


def _storage_columns(scene: Scene) -> dict[str, np.ndarray]:
    table = scene.steps[0].storages
    birth, death = scene.storage_life
    from_s, to_s = scene.life_x("time")
    return {
        "uid": scene.storage_uid,
        "bytes": scene.storage_bytes,
        "category": scene.storage_category,
        "module": scene.storage_modules[1],
        "movable": table.movable,
        "form": table.form,
        "birth": birth,
        "death": death,
        "from_s": from_s,
        "to_s": to_s,
        "born": table.birth_op,
        "row": scene.rows_by_storage[0],
    }


def _transfer_columns(scene: Scene) -> dict[str, np.ndarray]:
    rows = scene.transfers
    return {
        "storage": rows.storage,
        "direction": rows.direction,
        "cause": rows.cause,
        "bytes": rows.bytes,
        "issue": rows.issue_s,
        "start": rows.start_s,
        "end": rows.end_s,
        "exposed": scene.transfer_exposed,
    }


def _mark_columns(scene: Scene) -> dict[str, np.ndarray]:
    rows = dict(scene.marks)
    return {
        "label": rows["name"],
        "from_op": rows["from_op"],
        "to_op": rows["to_op"],
        "start": rows["start_s"],
        "end": rows["end_s"],
        "depth": rows["depth"],
    }
