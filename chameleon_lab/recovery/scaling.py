"""A recorded step as it should be with a larger batch, with more micro-batches, or with more layers.

Pure functions on traces: no torch, no device. What they say is calculated; tests hold it against recorded steps of that
shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import TraceError
from ..planner.memory import step_op_times
from ..trace import Category, Stage, StepTrace
from ..trace.alive_bytes import alive_bytes_of
from ..trace.labels import holder, parameter_of
from .expand import Changed, Copies, expanded, nothing_else, order, places

_STATES = (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE)
_GATHERS = ("all_gather", "c10d::", "_c10d_functional::", "fsdp::")
"""In names of ops: their results have the size of parameters, not of the batch."""


# ------------------------------------------------------------------------------------------------ larger


def larger_batch(step: StepTrace, factor: float, *, slower: float | None = None) -> Changed:
    """The step with ``factor`` times the samples in each micro-batch.

    What forward and backward make grows with the batch, unless it has the size of parameters: gradients, and what has
    the shape of one. Their ops take ``slower`` times as long (None: ``factor``), those of the optimizer as long as
    before.
    """
    grows = _grows(step)
    sizes = step.storages.bytes.astype(np.float64)
    wanted = np.where(grows, np.ceil(sizes * factor), sizes).astype(np.int64)
    grain = int(np.gcd.reduce(step.storages.block_bytes)) if len(step.storages) else 1
    spare = np.maximum(step.storages.block_bytes - step.storages.bytes, 0)
    blocks = -(-wanted // max(grain, 1)) * max(grain, 1)
    blocks = np.where(
        grows, np.maximum(blocks, np.where(spare < grain, 0, wanted)), step.storages.block_bytes
    )
    storages = replace(step.storages, bytes=wanted, block_bytes=blocks.astype(np.int64))
    n = len(step.ops)
    live = step.ops.live_peak_bytes + alive_bytes_of(storages, n) - alive_bytes_of(step.storages, n)
    times = step_op_times(step).copy()
    in_model = step.ops.stage <= Stage.BACKWARD
    times[in_model] *= factor if slower is None else slower
    changed = replace(_timed(step, times, live), storages=storages)
    return Changed(changed, np.arange(len(step.storages)))


def larger_shards(step: StepTrace, factor: float) -> Changed:
    """The step with ``factor`` times the parameters, gradients and optimizer states: of a group with fewer ranks."""
    storages = step.storages
    grows = np.isin(storages.category, _STATES)
    sizes = np.where(grows, np.ceil(storages.bytes * factor), storages.bytes).astype(np.int64)
    blocks = np.where(grows, np.ceil(storages.block_bytes * factor), storages.block_bytes).astype(np.int64)
    larger = replace(storages, bytes=sizes, block_bytes=blocks)
    n = len(step.ops)
    live = step.ops.live_peak_bytes + alive_bytes_of(larger, n) - alive_bytes_of(storages, n)
    times = step_op_times(step).copy()
    times[step.ops.stage == Stage.OPTIMIZER] *= factor
    return Changed(replace(_timed(step, times, live), storages=larger), np.arange(len(storages)))


def _grows(step: StepTrace) -> np.ndarray:
    """Which storages have a size that follows the batch's, bool (storages,)."""
    storages = step.storages
    stage = np.where(storages.birth_op >= 0, step.ops.stage[np.maximum(storages.birth_op, 0)], 255)
    born = stage != 255
    grows = born & (stage != Stage.OPTIMIZER) & ~np.isin(storages.category, _STATES)
    # Of the last step's batch some may be left, and the batch itself may be made outside; a data set is not.
    left = ~born & (storages.death_op < len(step.ops)) & ~np.isin(storages.category, _STATES)
    gathers = np.array([any(part in name for part in _GATHERS) for name in step.names], dtype=bool)
    gathered = born & gathers[step.ops.name[np.maximum(storages.birth_op, 0)]]
    follows: np.ndarray = (grows | left) & ~gathered & ~_like_parameters(step)
    return follows


def _like_parameters(step: StepTrace) -> np.ndarray:
    """Which storages of backward have the size of a parameter of their module: summands of its gradient."""
    storages = step.storages
    owned: dict[str, set[int]] = {}
    for row in np.flatnonzero((storages.category == Category.PARAMETER) & (storages.name >= 0)).tolist():
        module = holder(step.labels[int(storages.name[row])])
        owned.setdefault(module, set()).add(int(storages.bytes[row]))
    found = np.zeros(len(storages), dtype=bool)
    for row in np.flatnonzero(storages.birth_op >= 0).tolist():
        op = int(storages.birth_op[row])
        if step.ops.stage[op] == Stage.BACKWARD:
            sizes = owned.get(step.module_path(int(step.ops.module[op])), ())
            found[row] = int(storages.bytes[row]) in sizes and _shape(step, row) in _shapes_of(step)
    return found


def _shape(step: StepTrace, row: int) -> tuple[str, ...]:
    """Dtype and sizes of a storage in any order, without ones; empty where nobody has seen them."""
    dtype, _, sizes = step.form(row).partition(" ")
    return (dtype, *sorted(size for size in sizes.strip("[]").split(", ") if size != "1")) if sizes else ()


def _shapes_of(step: StepTrace) -> frozenset[tuple[str, ...]]:
    known: frozenset[tuple[str, ...]] | None = vars(step).get("_parameter_shapes")
    if known is None:
        rows = np.flatnonzero(step.storages.category == Category.PARAMETER).tolist()
        known = frozenset(_shape(step, row) for row in rows)
        vars(step)["_parameter_shapes"] = known
    return known


def _timed(step: StepTrace, times: np.ndarray, live: np.ndarray) -> StepTrace:
    """The step with other times and bytes, and nothing of its own run."""
    n = len(step.ops)
    ops = replace(
        step.ops,
        start_s=np.concatenate([[0.0], np.cumsum(times)])[:n],
        duration_s=times,
        stall_s=np.zeros(n),
        device_s=np.full(n, np.nan),
        live_peak_bytes=live.astype(np.int64),
        resident_peak_bytes=live.astype(np.int64),
    )
    return replace(step, ops=ops, duration_s=float(times.sum()), **nothing_else())


def recorded(step: StepTrace) -> Changed:
    """The step itself, without what only its own run took: stalls, copies, replays."""
    changed = _timed(step, step_op_times(step), step.ops.live_peak_bytes)
    return Changed(changed, np.arange(len(step.storages)))


# ------------------------------------------------------------------------------------------------ more of it


def micro_batches(step: StepTrace) -> int:
    """How often forward is followed by backward in the step; at least 1."""
    return max(len(_runs(step)), 1)


def _runs(step: StepTrace) -> list[tuple[int, int]]:
    """The ops of each micro-batch: from its first op of forward to the end of its backward."""
    found: list[tuple[int, int]] = []
    begin = last = -1
    for op in np.flatnonzero(step.ops.stage <= Stage.BACKWARD).tolist():
        if step.ops.stage[op] == Stage.BACKWARD:
            last = op
        elif last >= 0 and begin >= 0:
            found.append((begin, last + 1))
            begin, last = op, -1
        elif begin < 0:
            begin = op
    if begin >= 0 and last >= 0:
        found.append((begin, last + 1))
    return found


def in_turns(step: StepTrace, count: int) -> Changed:
    """The step with ``count`` micro-batches one after another, at least as many as were recorded.

    The newest recorded one runs again and again on storages of its own. Gradients of the first one are added to.
    """
    runs = _runs(step)
    if not runs:
        raise TraceError(
            f"step {step.index} has no forward that a backward follows: record a whole training step"
        )
    more = count - len(runs)
    if more <= 0:
        return recorded(step)
    n, storages = len(step.ops), step.storages
    begin, end = runs[-1]
    ops = order(n, [(begin, end)], more + 1, first=[True])
    place = places(ops, n, more + 1)
    birth, death = storages.birth_op.astype(np.int64), storages.death_op.astype(np.int64)
    gradient = storages.category == Category.GRADIENT
    born = (birth >= begin) & (birth < end)
    dies = (death >= begin) & (death < end)
    # Left over from the micro-batch before: each has its own. What optimizers left behind is gone after the first.
    left = (birth < begin) & dies & ~gradient & (birth < 0)
    own = born | left
    rows = np.flatnonzero(own)
    first_row = np.arange(len(storages))
    row = np.tile(first_row, (more + 1, 1))
    origin, births, deaths = [first_row], [np.where(birth < 0, -1, place[0][birth])], [place[0][death]]
    extra_op, extra_row = [], []
    for copy in range(1, more + 1):
        row[copy, rows] = len(storages) + (copy - 1) * len(rows) + np.arange(len(rows))
        starts = np.where(left[rows], place[copy][begin], place[copy][np.maximum(birth[rows], 0)])
        ends = np.where(dies[rows], place[copy][death[rows]], place[copy][end - 1])
        added = gradient[rows] & born[rows] & ~dies[rows]
        ends[added] = np.minimum(starts[added] + 1, ops.shape[1] - 1)  # added to the first one's, and freed
        origin.append(rows)
        births.append(starts)
        deaths.append(ends)
        extra_op.append(ends[added])
        extra_row.append(rows[added])
    # What outlives the recorded micro-batch is the last one's, but for gradients.
    outlives = rows[born[rows] & ~dies[rows] & ~gradient[rows]]
    births_all, deaths_all = np.concatenate(births), np.concatenate(deaths)
    deaths_all[row[more, outlives]] = deaths_all[outlives]
    deaths_all[outlives] = place[0][end - 1]
    outside = np.full_like(row, -1)
    outside[0] = first_row
    outside[0, outlives] = -1
    outside[more, outlives] = row[more, outlives]
    copies = Copies(
        origin=np.concatenate(origin),
        birth_op=births_all,
        death_op=deaths_all,
        row=row,
        outside=outside,
        extra_op=np.concatenate(extra_op),
        extra_row=np.concatenate(extra_row),
    )
    return expanded(step, ops, copies, step_op_times(step)[ops[0]])


# ------------------------------------------------------------------------------------------------ layers


@dataclass(frozen=True)
class _Layer:
    path: str
    ranges: tuple[tuple[int, int], ...]
    """Ops without those of another layer in between, of one stage: a pair (begin, end) each."""
    forward: tuple[bool, ...]
    """Is each of them forward?"""


def layers_of(step: StepTrace) -> tuple[str, ...]:
    """Paths of the model's layers: the modules of one pattern, such as ``h.*``, with the most bytes of parameters."""
    return tuple(layer.path for layer in _layers(step))


def _layers(step: StepTrace) -> list[_Layer]:
    bytes_of: dict[str, int] = {}
    parameters = (step.storages.category == Category.PARAMETER) & (step.storages.name >= 0)
    for row in np.flatnonzero(parameters).tolist():
        parts = parameter_of(step.labels[int(step.storages.name[row])]).split(".")
        for depth, part in enumerate(parts, 1):
            if part.isdigit():
                path = ".".join(parts[:depth])
                bytes_of[path] = bytes_of.get(path, 0) + int(step.storages.block_bytes[row])
    groups: dict[str, list[str]] = {}
    for path in bytes_of:
        pattern = ".".join("*" if part.isdigit() else part for part in path.split("."))
        groups.setdefault(pattern, []).append(path)
    by_size = sorted(groups, key=lambda p: (-sum(bytes_of[path] for path in groups[p]), p.count("*")))
    for pattern in by_size:
        ranges = _ranges(step, groups[pattern])
        found = [
            _Layer(path, *map(tuple, zip(*ranges[path], strict=True)))
            for path in groups[pattern]
            if ranges[path]
        ]
        if all(any(one.forward) and not all(one.forward) for one in found) and found:
            return found
    return []


def _ranges(step: StepTrace, paths: Sequence[str]) -> dict[str, list[tuple[tuple[int, int], bool]]]:
    """The ops of each of some modules that do not contain each other, in pieces."""
    owner = np.array([_owner(module, paths) for module in step.modules] + [-1])
    of = owner[step.ops.module]
    of[step.ops.stage > Stage.BACKWARD] = -1
    ops = np.flatnonzero(of >= 0)
    found: dict[str, list[tuple[tuple[int, int], bool]]] = {path: [] for path in paths}
    kind = of[ops] * 2 + (step.ops.stage[ops] == Stage.BACKWARD)
    cuts = np.flatnonzero(np.diff(kind)) + 1
    for piece in np.split(ops, cuts) if len(ops) else ():
        first, last = int(piece[0]), int(piece[-1])
        found[paths[of[first]]].append(((first, last + 1), bool(step.ops.stage[first] == Stage.FORWARD)))
    return found


def _owner(module: str, paths: Sequence[str]) -> int:
    return next((k for k, path in enumerate(paths) if module == path or module.startswith(f"{path}.")), -1)


def more_layers(step: StepTrace, count: int) -> Changed:
    """The step of a model with ``count`` layers, at least as many as it has: some of its layers twice or more.

    Raises TraceError if the step's modules do not show the model's layers.
    """
    layers = _layers(step)
    if not layers:
        raise TraceError(
            f"step {step.index} shows no layers of a model: record a whole step of a model whose layers are in a list "
            "(nn.ModuleList, nn.Sequential), inside the session"
        )
    extra = count - len(layers)
    if extra <= 0:
        return recorded(step)
    changed = recorded(step)
    each, rest = divmod(extra, len(layers))
    for number, layer in enumerate(layers):
        more = each + (number < rest)
        if more:
            now = {one.path: one for one in _layers(changed.step)}[layer.path]
            again = _layer_again(changed.step, now, more)
            changed = Changed(again.step, changed.origin[again.origin])
    return changed


def _layer_again(step: StepTrace, layer: _Layer, more: int) -> Changed:
    n, storages = len(step.ops), step.storages
    birth, death = storages.birth_op.astype(np.int64), storages.death_op.astype(np.int64)
    named = np.array([_belongs(label, layer.path) for label in step.labels] + [False], dtype=bool)

    def born_in(ranges: Sequence[tuple[int, int]]) -> np.ndarray:
        inside = np.zeros(n + 1, dtype=bool)
        for begin, end in ranges:
            inside[begin:end] = True
        return (birth >= 0) & inside[birth]

    updates = _own_updates(step, named[storages.name] | born_in(layer.ranges))
    ranges = [*layer.ranges, *updates]
    ops = order(n, ranges, more + 1, first=[*layer.forward, *(True for _ in updates)])
    place = places(ops, n, more + 1)
    own = named[storages.name] | born_in(ranges)
    rows = np.flatnonzero(own)
    first_row = np.arange(len(storages))
    row = np.tile(first_row, (more + 1, 1))
    outside = np.full_like(row, -1)
    outside[0] = first_row
    origin, births, deaths = [first_row], [np.where(birth < 0, -1, place[0][birth])], [place[0][death]]
    names = [""] * len(storages)
    for copy in range(1, more + 1):
        row[copy, rows] = len(storages) + (copy - 1) * len(rows) + np.arange(len(rows))
        outside[copy, rows] = row[copy, rows]
        origin.append(rows)
        births.append(np.where(birth[rows] < 0, -1, place[copy][np.maximum(birth[rows], 0)]))
        deaths.append(place[copy][death[rows]])
        names += [
            f"{step.labels[int(storages.name[one])]} ({copy + 1})" if storages.name[one] >= 0 else ""
            for one in rows
        ]
    copies = Copies(
        origin=np.concatenate(origin),
        birth_op=np.concatenate(births),
        death_op=np.concatenate(deaths),
        row=row,
        outside=outside,
        extra_op=np.empty(0, dtype=np.int64),
        extra_row=np.empty(0, dtype=np.int64),
    )
    times = step_op_times(step).copy()
    # List ops of the optimizer take longer for the layers that it has more, others by what they use of them.
    used = np.bincount(step.uses.op, minlength=n)
    of_layer = np.bincount(step.uses.op[own[step.uses.storage]], minlength=n)
    share = np.divide(of_layer, used, out=np.zeros(n), where=used > 0)
    several = np.bincount(ops[0], minlength=n) > 1
    times *= np.where(several | (step.ops.stage != Stage.OPTIMIZER), 1.0, 1.0 + more * share)
    return expanded(step, ops, copies, times[ops[0]], names)


def _own_updates(step: StepTrace, own: np.ndarray) -> list[tuple[int, int]]:
    """Ranges of the optimizer's ops that use a layer's storages alone, and no lists of them."""
    own = own.copy()
    born: dict[int, list[int]] = {}
    for row in np.flatnonzero(step.storages.birth_op >= 0).tolist():
        born.setdefault(int(step.storages.birth_op[row]), []).append(row)
    begin = np.searchsorted(step.uses.op, np.arange(len(step.ops) + 1))
    found: list[tuple[int, int]] = []
    for op in np.flatnonzero(step.ops.stage == Stage.OPTIMIZER).tolist():
        rows = slice(begin[op], begin[op + 1])
        here = born.get(op, [])
        used = np.setdiff1d(step.uses.storage[rows], here)
        if not len(used) or not own[used].all() or (step.uses.part[rows] >= 0).any():
            continue
        own[here] = True
        if found and found[-1][1] == op:
            found[-1] = (found[-1][0], op + 1)
        else:
            found.append((op, op + 1))
    return found


def _belongs(label: str, path: str) -> bool:
    """Is a name such as ``grad of h.0.mlp.weight`` one of a layer?"""
    return parameter_of(label).startswith(f"{path}.")


def whole(count: float) -> int:
    """The next whole number, past what rounding in floats makes of one."""
    return math.ceil(count - 1e-9)
