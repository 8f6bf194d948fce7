"""Is a step what it says it is? Asked of every step that comes from a file, which anybody may have made."""

from __future__ import annotations

import numpy as np

from .columns import Category, Cause, Direction, Pause, Stage, StepTrace

_MOST_PARTS = 1 << 20
_MOST_BYTES = 1 << 56  # of all that a step could hold: sums of them still fit int64


def check_step(step: StepTrace) -> None:
    """Raises ValueError, naming column and range, where a column points outside of what it points into."""
    n, storages = len(step.ops), len(step.storages)
    modules, labels = len(step.modules), len(step.labels)
    ops = max(n, 1)  # what happens before a step's first op is written down as if in it
    within = (
        ("ops.name", step.ops.name, 0, len(step.names)),
        ("ops.module", step.ops.module, -1, modules),
        ("ops.stage", step.ops.stage, 0, len(Stage)),
        ("ops.stack", step.ops.stack, -1, len(step.stacks)),
        ("ops.live_peak_bytes", step.ops.live_peak_bytes, 0, _MOST_BYTES),
        ("ops.resident_peak_bytes", step.ops.resident_peak_bytes, 0, _MOST_BYTES),
        ("storages.category", step.storages.category, 0, len(Category)),
        ("storages.module", step.storages.module, -1, modules),
        ("storages.name", step.storages.name, -1, labels),
        ("storages.birth_op", step.storages.birth_op, -1, ops),
        ("storages.death_op", step.storages.death_op, -1, ops + 1),
        ("storages.bytes", step.storages.bytes, 0, _MOST_BYTES),
        ("storages.block_bytes", step.storages.block_bytes, 0, _MOST_BYTES),
        ("uses.op", step.uses.op, 0, ops),
        ("uses.storage", step.uses.storage, 0, storages),
        ("uses.part", step.uses.part, -1, _MOST_PARTS),
        ("transfers.storage", step.transfers.storage, -1, storages),
        ("transfers.direction", step.transfers.direction, 0, len(Direction)),
        ("transfers.cause", step.transfers.cause, 0, len(Cause)),
        ("transfers.bytes", step.transfers.bytes, 0, _MOST_BYTES),
        ("transfers.issue_op", step.transfers.issue_op, -1, ops + 1),
        ("stalls.op", step.stalls.op, -1, ops + 1),
        ("stalls.storage", step.stalls.storage, -1, storages),
        ("stalls.direction", step.stalls.direction, 0, len(Direction)),
        ("stalls.cause", step.stalls.cause, 0, len(Cause)),
        ("stalls.room_bytes", step.stalls.room_bytes, 0, _MOST_BYTES),
        ("stalls.room_storage", step.stalls.room_storage, -1, storages),
        ("storages.form", step.storages.form, -1, len(step.forms)),
        ("marks.name", step.marks.name, 0, len(step.mark_names)),
        ("marks.from_op", step.marks.from_op, 0, n + 1),
        ("marks.to_op", step.marks.to_op, 0, n + 1),
        ("pauses.op", step.pauses.op, 0, n + 1),
        ("pauses.kind", step.pauses.kind, 0, len(Pause)),
        ("replays.op", step.replays.op, 0, ops),
        ("replays.storage", step.replays.storage, -1, storages),
        ("replays.name", step.replays.name, 0, len(step.names)),
        ("replays.cause", step.replays.cause, 0, len(Cause)),
        ("replays.bytes", step.replays.bytes, 0, _MOST_BYTES),
        ("declined.op", step.declined.op, 0, ops),
        ("declined.storage", step.declined.storage, 0, storages),
        ("declined.name", step.declined.name, -1, len(step.names)),
        ("makings.making", step.makings.making, 0, max(1, len(step.makings))),
        ("makings.op", step.makings.op, 0, ops),
        ("makings.storage", step.makings.storage, 0, storages),
        ("makings.name", step.makings.name, -1, len(step.names)),
        ("makings.input", step.makings.input, -1, storages),
        ("residencies.storage", step.residencies.storage, 0, storages),
        ("residencies.from_op", step.residencies.from_op, -1, ops + 1),
        ("residencies.to_op", step.residencies.to_op, -1, ops + 2),
    )
    for what, column, low, high in within:
        if len(column) and not (low <= int(column.min()) and int(column.max()) < high):
            raise ValueError(f"{what} is outside {low} to {high - 1}")
    if int(step.storages.block_bytes.astype(np.float64).sum()) >= _MOST_BYTES:
        raise ValueError(f"storages.block_bytes add up to more than {_MOST_BYTES}")
    finite = (
        ("start_s", np.array([step.start_s])),
        ("duration_s", np.array([step.duration_s])),
        ("ops.start_s", step.ops.start_s),
        ("ops.duration_s", step.ops.duration_s),
        ("ops.stall_s", step.ops.stall_s),
        ("stalls.start_s", step.stalls.start_s),
        ("stalls.duration_s", step.stalls.duration_s),
        ("replays.start_s", step.replays.start_s),
        ("replays.duration_s", step.replays.duration_s),
        ("residencies.from_s", step.residencies.from_s),
        ("residencies.to_s", step.residencies.to_s),
        ("transfers.issue_s", step.transfers.issue_s),
        ("pauses.at_s", step.pauses.at_s),
        ("pauses.duration_s", step.pauses.duration_s),
    )
    if np.isinf(step.ops.device_s).any() or (step.ops.device_s < 0).any():
        raise ValueError("ops.device_s holds what is no duration")
    told = (getattr(step.stalls, name) for name in ("due_s", "issue_s", "copy_start_s", "copy_end_s"))
    if any(np.isinf(column).any() for column in (*told, step.transfers.due_s)):
        raise ValueError("stalls or transfers hold what is no time")
    for what, values in finite:
        if not np.isfinite(values).all():
            raise ValueError(f"{what} holds what is no finite number")
