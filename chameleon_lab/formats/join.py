"""Two recordings of one run as one trace: an execution trace has the storages, a profile the times.

Both know an op by its record function id, and the profiler writes both when it is given an observer. Of an op that the
profile does not have, nobody knows the time: it lies where the op before it ends, and takes none.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ..errors import TraceError
from ..trace import StepTrace, Trace
from .chrome_trace import Profile
from .device_work import (
    NO_DIRECTION,
    Copies,
    Work,
    device_seconds,
    kernel_table,
    stall_table,
    transfer_table,
)
from .execution_trace import Execution, Times, execution_step

FORMAT = "PyTorch execution trace and Chrome trace of torch.profiler"
_LEAST_SHARE = 0.5


def joined(execution: Execution, profile: Profile, paths: str) -> Trace:
    """The execution trace's steps with the profile's times, work and lives.

    Raises TraceError, naming ``paths``, if the two are not of one run.
    """
    n = len(execution.name)
    row_of = _matches(execution, profile)
    share = float((row_of >= 0).mean()) if n else 0.0
    if share < _LEAST_SHARE:
        raise TraceError(
            f"{paths}: {100 * share:.0f} % of the execution trace's ops are in the Chrome trace: they are not of one "
            "run; record both at once, profile(execution_trace_observer=...)"
        )
    start_s, end_s = _clock(execution, profile, row_of)
    op_of = np.full(len(profile.ops.name) + 1, -1, dtype=np.int64)
    known = np.flatnonzero(row_of >= 0)
    op_of[row_of[known]] = known
    death_op = _deaths(execution, profile, start_s, op_of)
    steps = [
        _step(execution, profile, row_of, op_of, start_s, end_s, death_op, *border)
        for border in execution.borders
    ]
    lost = "; ".join(each for each in (execution.lost, profile.lost) if each) or None
    return Trace(steps, profile.meta | {"format": FORMAT, "device": execution.device}, lost)


def _matches(execution: Execution, profile: Profile) -> np.ndarray:
    """The profile's row of each op; -1 where there is none, or it has another name."""
    found = np.full(len(execution.name), -1, dtype=np.int64)
    record = profile.ops.record
    order = np.argsort(record, kind="stable")
    if not len(order):
        return found
    place = np.minimum(np.searchsorted(record[order], execution.record), len(order) - 1)
    rows = order[place]
    texts = np.array([*profile.names.texts(), ""], dtype=object)
    own = np.array([*execution.names, ""], dtype=object)
    same = (record[rows] == execution.record) & (execution.record >= 0)
    same &= texts[profile.ops.name[rows]] == own[execution.name]
    found[same] = rows[same]
    return found


def _clock(execution: Execution, profile: Profile, row_of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of each op, seconds of the profile, in the execution trace's order."""
    there = row_of >= 0
    start = np.where(there, profile.ops.start_s[row_of], -np.inf)
    end = np.where(there, profile.ops.end_s[row_of], -np.inf)
    first = float(start[there].min())
    # Ops of several threads overlap; one without a time begins when the latest before it has ended.
    reach = np.maximum.accumulate(np.maximum(end, first))
    before = np.concatenate([[first], reach[:-1]])
    start = np.maximum.accumulate(np.where(there, start, before))
    return start, np.maximum(np.where(there, end, start), start)


def _deaths(execution: Execution, profile: Profile, start_s: np.ndarray, op_of: np.ndarray) -> np.ndarray:
    """Of each life of a storage the op in which it was freed; -1 where nobody knows.

    The memory events of an op are its allocations in order; a life goes with the first of its size that is left.
    """
    memory, count = profile.memory, len(execution.bytes)
    death_op = np.full(count, -1, dtype=np.int64)
    address, size, at = memory["address"], memory["bytes"], memory["start"]
    if not len(at):
        return death_op
    order = np.argsort(address, kind="stable")
    same = (address[order][1:] == address[order][:-1]) & (size[order][:-1] > 0)
    freed_s = np.full(len(order), np.inf)
    freed_s[order[:-1][same]] = at[order[1:][same]]
    made = np.flatnonzero(size > 0)
    op = np.searchsorted(start_s, at[made], side="right") - 1
    left: dict[tuple[int, int], list[float]] = defaultdict(list)
    for here, wanted, when in zip(op.tolist(), size[made].tolist(), freed_s[made].tolist(), strict=True):
        left[here, wanted].append(when)
    found = {key: iter(times) for key, times in left.items()}
    births = np.lexsort((execution.birth_ordinal, execution.birth_op))
    for life in births[execution.birth_op[births] >= 0].tolist():
        times = found.get((int(execution.birth_op[life]), int(execution.bytes[life])))
        when = next(times, None) if times is not None else None
        if when is None:
            continue
        dies = len(start_s) if when == np.inf else int(np.searchsorted(start_s, when, side="right")) - 1
        death_op[life] = max(dies, int(execution.birth_op[life]))
    return death_op


def _step(
    execution: Execution,
    profile: Profile,
    row_of: np.ndarray,
    op_of: np.ndarray,
    start_s: np.ndarray,
    end_s: np.ndarray,
    death_op: np.ndarray,
    number: int,
    first: int,
    end: int,
) -> StepTrace:
    begin = float(start_s[first])
    latest = float(start_s[end]) if end < len(start_s) else float(end_s[first:end].max())
    work = _within(profile.work, op_of, first, end, begin, len(execution.names))
    copies = _within(profile.copies, op_of, first, end, begin, len(execution.names))
    assert isinstance(copies, Copies)
    duration_s = max(
        [
            float(end_s[first:end].max()) - begin,
            latest - begin,
            float(work.end_s.max(initial=0.0)),
            float(copies.end_s.max(initial=0.0)),
        ]
    )
    times = Times(
        start_s[first:end] - begin, end_s[first:end] - start_s[first:end], duration_s, profile.start_s + begin
    )
    rows = row_of[first:end]
    there = rows >= 0
    return execution_step(
        execution,
        number,
        first,
        end,
        times,
        death_op,
        device_s=device_seconds(work, end - first),
        module=np.where(there, profile.ops.module[rows], -1),
        stack=np.where(there, profile.ops.stack[rows], -1),
        more_names=profile.names.texts(),
        modules=profile.modules.texts(),
        stacks=profile.stacks.texts(),
        kernels=kernel_table(work),
        transfers=transfer_table(copies, end - first),
        stalls=stall_table(copies, work),
    )


def _within(work: Work, op_of: np.ndarray, first: int, end: int, begin: float, names: int) -> Work:
    """What the ops of a step launched, in seconds of the step and with the numbers of its names."""
    op = op_of[work.op]  # the last place stands for -1
    mine = (op >= first) & (op < end)
    if isinstance(work, Copies):
        mine &= work.direction != NO_DIRECTION
    columns = {name: column[mine] for name, column in vars(work).items()}
    columns["op"] = op[mine] - first
    columns["name"] = columns["name"] + names
    for name in ("start_s", "end_s", "issue_s"):
        if name in columns:
            columns[name] = np.maximum(columns[name] - begin, 0.0)
    return type(work)(**columns)
