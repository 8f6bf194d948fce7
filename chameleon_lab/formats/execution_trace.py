"""Execution traces of PyTorch (``torch.profiler.ExecutionTraceObserver``, the Chakra schema): they can be planned.

A node is an op with the storages of its inputs and outputs. The outermost dispatcher ops become ops, and what their
inner ops touch counts as theirs. The file tells no times, and not when a storage is freed: each op takes as long as
another, unless a profile of the run is opened beside it, and a storage is taken to die with its last use, so the bytes
alive are a lower bound. A storage's number is used again after it was freed: an op that gives out a storage that it was
not given has made a new one.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import TraceError
from ..trace import Marks, Ops, Stage, StepTrace, Storages, Trace, Uses
from ..trace.alive_bytes import alive_bytes
from ..util.progress import tick
from .build import (
    Names,
    clean,
    constant,
    filled,
    limited,
    made_step,
    ordinals,
    whole_number,
)
from .categories import categories
from .device_work import Records
from .json_stream import JsonStream
from .source import Source

FORMAT = "PyTorch execution trace"
_LISTS = ("nodes",)
_ROOT = "[pytorch|profiler|execution_trace|"
_OP_S = 1e-3
"""What an op takes where nobody has measured it."""
_MOST_NESTED = 8
_MOST_DIMENSIONS = 64
_CUDA_BLOCK_BYTES = 512
_STEP = re.compile(r"ProfilerStep\s*#(\d{1,9})")
_READ, _WRITE, _MADE = 1, 2, 4


class _Nodes:
    """The file's nodes as columns, and what they touch, in the order of the file: an inner op before its outer one."""

    def __init__(self) -> None:
        self.names, self.devices = Names(), Names()
        self.nodes = Records(id="q", parent="q", name="i", flags="b", record="q", sequence="q", thread="q")
        self.touched = Records(node="i", storage="q", end="q", device="h", how="b")

    def take(self, node: Any) -> None:
        """A node of the file; what is none is left out."""
        if type(node) is not dict:
            return
        number = whole_number(node.get("id"), 0, other=-1)
        if number < 0:
            return
        attributes = node.get("attrs")
        values: dict[str, Any] = {}
        for each in attributes if type(attributes) is list else ():
            if type(each) is dict and type(each.get("name")) is str:
                values[each["name"]] = each.get("value")
        schema = values.get("op_schema")
        schema = schema if type(schema) is str else ""
        name = node.get("name")
        name = name if type(name) is str else ""
        is_op = bool(schema) and "::" in name
        row = len(self.nodes)
        self.nodes.add(
            number,
            whole_number(node.get("ctrl_deps", node.get("parent")), 0, other=-1),
            self.names.number(name),
            is_op,
            whole_number(values.get("rf_id"), 0, other=-1),
            whole_number(values.get("seq_id"), 0, other=-1),
            whole_number(values.get("tid"), 0, other=0),
        )
        if not is_op:
            return
        written = _written(schema)
        for side, makes in (("inputs", False), ("outputs", True)):
            found = node.get(side)
            if type(found) is not dict:
                continue
            lists = [found.get(key) for key in ("values", "types", "shapes", "strides")]
            given, kinds, shapes, strides = (each if type(each) is list else [] for each in lists)
            for place, value in enumerate(given[:4096]):
                kind = kinds[place] if place < len(kinds) else None
                if type(kind) is not str or "Tensor" not in kind:
                    continue
                how = _MADE if makes else _READ | (_WRITE if place in written else 0)
                shape = shapes[place] if place < len(shapes) else None
                stride = strides[place] if place < len(strides) else None
                self._tensors(row, value, shape, stride, how, _MOST_NESTED)

    def _tensors(self, row: int, value: Any, shape: Any, stride: Any, how: int, depth: int) -> None:
        if type(value) is not list or not depth:
            return
        if len(value) == 6 and type(value[5]) is str and type(value[1]) is int:
            storage = whole_number(value[1], 1, other=-1)
            if storage < 0:
                return
            item = whole_number(value[4], 0, 64)
            end = whole_number(value[2], 0, 1 << 48) + _extent(
                shape, stride, whole_number(value[3], 0, 1 << 48)
            )
            size = min(end * item, 1 << 50)
            device = self.devices.number(value[5])
            if device < 1 << 14:
                self.touched.add(row, storage, size, device, how)
            return
        shapes = shape if type(shape) is list else []
        strides = stride if type(stride) is list else []
        for place, inner in enumerate(value[:65536]):
            self._tensors(
                row,
                inner,
                shapes[place] if place < len(shapes) else None,
                strides[place] if place < len(strides) else None,
                how,
                depth - 1,
            )


def _extent(shape: Any, stride: Any, elements: int) -> int:
    """How many elements of its storage a tensor reaches over: an expanded one fewer than it has."""
    if type(shape) is not list or type(stride) is not list or len(shape) != len(stride):
        return elements
    reach = 1
    for size, step in zip(shape[:_MOST_DIMENSIONS], stride[:_MOST_DIMENSIONS], strict=False):
        size = whole_number(size, 0, 1 << 48, -1)
        if size < 0:
            return elements
        if size == 0:
            return 0
        reach += (size - 1) * whole_number(step, 0, 1 << 48)
    return min(reach, 1 << 48)


@lru_cache(maxsize=4096)
def _written(schema: str) -> frozenset[int]:
    """The places of the arguments that an op writes, by its schema: ``Tensor(a!) self``."""
    begin = schema.find("(")
    depth, place, found, keywords = 0, 0, set(), 0
    for at in range(begin, min(len(schema), 20_000)):
        letter = schema[at]
        if letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
            if depth == 0:
                break
        elif letter == "," and depth == 1:
            place += 1
        elif letter == "*" and depth == 1:
            keywords = 1  # a lone star separates, and is no argument
        elif letter == "!":
            found.add(place - keywords)
    return frozenset(found)


@dataclass(frozen=True)
class _Use:
    """Columns of what the outermost ops touch: one row an op and storage, in the order of the ops."""

    op: np.ndarray
    storage: np.ndarray
    """Row of a life of a storage: its numbers are told apart."""
    reads: np.ndarray
    writes: np.ndarray


@dataclass(frozen=True)
class Execution:
    """A whole execution trace, its outermost ops in order, before it is made into steps."""

    names: tuple[str, ...]
    name: np.ndarray
    stage: np.ndarray
    thread: np.ndarray
    sequence: np.ndarray
    record: np.ndarray
    """The record function ids, by which profiles know the ops."""
    use: _Use
    bytes: np.ndarray
    """Of each life of a storage; so are the next two."""
    birth_op: np.ndarray
    birth_ordinal: np.ndarray
    uid: np.ndarray
    borders: tuple[tuple[int, int, int], ...]
    """Number, first op and op past the last of each step."""
    ranges: tuple[tuple[str, int, int], ...]
    """What the user's code has named: name, first op, and op past the last."""
    device: str
    lost: str | None


def read_execution_trace(source: Source) -> Trace:
    """The steps of the file. Raises TraceError if it is damaged, or has no op."""
    execution = read_execution(source)
    steps = [execution_step(execution, *border) for border in execution.borders]
    return Trace(steps, {"format": FORMAT, "device": execution.device}, execution.lost)


def read_execution(source: Source) -> Execution:
    """What the file holds, still to be made into steps."""
    stream, nodes = JsonStream(source, _LISTS), _Nodes()
    for number, node in enumerate(stream.items()):
        nodes.take(node)
        if number % 16384 == 0:
            tick()
    if not len(nodes.nodes) or not nodes.nodes.columns()["flags"].any():
        raise TraceError(
            f"{source.path}: no node in it is an op: give what torch.profiler.ExecutionTraceObserver wrote"
        )
    lost = None
    if stream.cut:
        lost = (
            f"{source.path}: cut, as where its observer was not stopped; what stands before its end is read"
        )
    return _execution(nodes, lost)


def _execution(nodes: _Nodes, lost: str | None) -> Execution:
    columns = nodes.nodes.columns()
    ids, parents, is_op = columns["id"], columns["parent"], columns["flags"] > 0
    order = np.argsort(ids, kind="stable")
    place = np.searchsorted(ids[order], parents)
    place = np.minimum(place, len(order) - 1)
    parent = np.where(ids[order][place] == parents, order[place], -1)
    parent[parent == np.arange(len(parent))] = -1
    outer, stage_of, ranges_of = _ancestry(parent, is_op, nodes.names.texts(), columns["name"], ids)
    # An outer op has the least number of all that is in it: numbers are given as ops begin.
    tops = np.flatnonzero(outer == np.arange(len(outer)))
    tops = tops[np.argsort(ids[tops], kind="stable")]
    op_of = np.full(len(ids) + 1, -1, dtype=np.int64)
    op_of[tops] = np.arange(len(tops))
    touched = nodes.touched.columns()
    device, kept = _main_device(touched, nodes.devices.texts())
    touched = {name: column[kept] for name, column in touched.items()}
    op = op_of[outer[touched["node"]]]
    # In each op what inner ops touch comes in their order; their numbers tell which began first, and the order of
    # the file which ended first. Births matter: they are told by ends, and the outermost op ends last.
    by_op = np.argsort(op, kind="stable")
    touched = {name: column[by_op] for name, column in touched.items()}
    own = touched["node"] == tops[op[by_op]]
    use, lives = _lives(op[by_op], own, touched)
    threads = columns["thread"][tops]
    names = nodes.names.texts()
    ranges, borders = _ranges(ranges_of, names, columns["name"], ids, ids[tops], stage_of[tops])
    return Execution(
        names=names,
        name=columns["name"][tops],
        stage=stage_of[tops],
        thread=np.unique(threads, return_inverse=True)[1].astype(np.int32),
        sequence=columns["sequence"][tops],
        record=columns["record"][tops],
        use=use,
        bytes=limited(
            lives[0] if "cuda" not in device else -(-lives[0] // _CUDA_BLOCK_BYTES) * _CUDA_BLOCK_BYTES
        ),
        birth_op=lives[1],
        birth_ordinal=ordinals(lives[1]),
        uid=np.arange(len(lives[0])),
        borders=borders,
        ranges=ranges,
        device=device,
        lost=lost,
    )


def _ancestry(
    parent: np.ndarray, is_op: np.ndarray, names: tuple[str, ...], name: np.ndarray, ids: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list[tuple[int, int]]]:
    """Of each node the row of the outermost op that it lies in (-1: none) and its stage; and the named ranges, as a
    row and the greatest number of a node that lies in it.
    """
    backward = np.array([each.startswith("autograd::engine::evaluate_function") for each in names] or [False])
    optimizer = np.array(
        [each.startswith(("Optimizer.step#", "Optimizer.zero_grad#")) for each in names] or [False]
    )
    count = len(parent)
    outer = np.full(count + 1, -1, dtype=np.int64)
    stage = np.full(count + 1, int(Stage.FORWARD), dtype=np.uint8)
    last = ids.copy()
    parents, ops = parent.tolist(), is_op.tolist()
    named = name.tolist()
    # A parent's number is smaller than its children's; a file that says otherwise has circles, and is read as flat.
    order = np.argsort(ids, kind="stable").tolist()
    numbers = ids.tolist()
    for row in order:
        above = parents[row]
        if above >= 0 and numbers[above] >= numbers[row]:
            above = -1
        found = outer[above] if above >= 0 else -1
        outer[row] = found if found >= 0 else row if ops[row] else -1
        stage[row] = stage[above] if above >= 0 else Stage.FORWARD
        if backward[named[row]]:
            stage[row] = Stage.BACKWARD
        elif optimizer[named[row]]:
            stage[row] = Stage.OPTIMIZER
    for row in reversed(order):
        above = parents[row]
        if above >= 0 and numbers[above] < numbers[row]:
            last[above] = max(last[above], last[row])
    ranges = [
        (row, int(last[row]))
        for row in order
        if not ops[row]
        and outer[row] < 0
        and names[named[row]]
        and not names[named[row]].startswith(_ROOT)
        and "::" not in names[named[row]]
        and not re.search(r"Backward\d*$", names[named[row]])
    ]
    return outer[:count], stage[:count], ranges


def _main_device(touched: dict[str, np.ndarray], devices: tuple[str, ...]) -> tuple[str, np.ndarray]:
    """The GPU with the most uses, or else the CPU; and which uses are on it."""
    counts = np.bincount(touched["device"], minlength=len(devices))
    gpus = [number for number, text in enumerate(devices) if text.startswith("cuda")]
    if gpus:
        chosen = max(gpus, key=lambda number: int(counts[number]))
    elif len(devices):
        chosen = int(counts.argmax())
    else:
        return "cpu", np.zeros(0, dtype=bool)
    return clean(devices[chosen], 40), touched["device"] == chosen


def _lives(
    op: np.ndarray, own: np.ndarray, touched: dict[str, np.ndarray]
) -> tuple[_Use, tuple[np.ndarray, np.ndarray]]:
    """The uses by outermost op, and of each life of a storage its bytes and the op that made it (-1: before)."""
    current: dict[int, int] = {}
    size, birth = array("q"), array("q")
    rows: dict[int, int] = {}
    use_op, use_storage, use_how = array("i"), array("i"), array("b")
    begin, end = 0, len(op)
    ops, storages = op.tolist(), touched["storage"].tolist()
    ends, hows, owns = touched["end"].tolist(), touched["how"].tolist(), own.tolist()
    while begin < end:
        here = ops[begin]
        after = begin
        while after < end and ops[after] == here:
            after += 1
        # What the op was given has been there before; all else that it or an inner op touches was made in it. Inner
        # ops may read a result that its kernel has allocated, which no node tells.
        given = {storages[i] for i in range(begin, after) if owns[i] and hows[i] & _READ}
        rows.clear()
        new: set[int] = set()
        for i in range(begin, after):
            storage, how = storages[i], hows[i]
            made = storage not in given and storage not in new
            if made:
                new.add(storage)
            life = current.get(storage, -1)
            if made or life < 0:
                life = current[storage] = len(size)
                size.append(0)
                birth.append(here if made else -1)
            size[life] = max(size[life], ends[i])
            row = rows.get(life)
            if row is None:
                row = rows[life] = len(use_op)
                use_op.append(here)
                use_storage.append(life)
                use_how.append(0)
            if made:
                use_how[row] |= _WRITE
            elif how & _READ:
                use_how[row] |= how
        begin = after
    how_ = np.array(use_how, dtype=np.int8)
    use = _Use(
        np.array(use_op, dtype=np.int32),
        np.array(use_storage, dtype=np.int32),
        (how_ & _READ) > 0,
        (how_ & _WRITE) > 0,
    )
    return use, (np.array(size, dtype=np.int64), np.array(birth, dtype=np.int64))


def _ranges(
    ranges: list[tuple[int, int]],
    names: tuple[str, ...],
    name: np.ndarray,
    ids: np.ndarray,
    op_ids: np.ndarray,
    stage: np.ndarray,
) -> tuple[tuple[tuple[str, int, int], ...], tuple[tuple[int, int, int], ...]]:
    """The named ranges as ranges of ops, and the steps: the profiler's, or else each ends with its optimizer."""
    found = []
    for row, last in ranges:
        first = int(np.searchsorted(op_ids, ids[row]))
        found.append((names[name[row]], first, int(np.searchsorted(op_ids, last, side="right"))))
    steps: list[tuple[int, int, int]] = []
    for text, first, end in found:
        match = _STEP.fullmatch(text)
        if match and end > first and (not steps or (first >= steps[-1][2] and int(match[1]) > steps[-1][0])):
            steps.append((int(match[1]), first, end))
    rest = tuple(each for each in found if not _STEP.fullmatch(each[0]))
    if steps:
        return rest, tuple(steps)
    n, borders = len(op_ids), [0]
    optimizers = [end for text, first, end in rest if text.startswith("Optimizer.step") and end > first]
    for end in optimizers:
        if (
            end < n
            and (stage[borders[-1] : end] == Stage.BACKWARD).any()
            and (stage[end:] == Stage.BACKWARD).any()
        ):
            borders.append(end)
    return rest, tuple(
        (number, first, last)
        for number, (first, last) in enumerate(zip(borders, [*borders[1:], n], strict=True))
    )


@dataclass(frozen=True)
class Times:
    """When a step's ops ran, from a profile beside the execution trace."""

    start_s: np.ndarray
    duration_s: np.ndarray
    step_s: float
    begin_s: float


def execution_step(
    execution: Execution,
    number: int,
    first: int,
    end: int,
    times: Times | None = None,
    death_op: np.ndarray | None = None,
    more_names: tuple[str, ...] = (),
    **fields: Any,
) -> StepTrace:
    """One step: the ops from ``first`` to before ``end``.

    Args:
        execution: the whole trace.
        number: the step's.
        first: its first op.
        end: the op past its last.
        times: of its ops; None: nobody has measured them.
        death_op: of each life of a storage the op (of the whole trace) in which it was freed; -1 nobody knows. None:
            nobody knows of any.
        more_names: those that other tables of the step refer to, behind the execution trace's own.
        fields: other columns of the step's ops (``device_s``), and tables of the step.
    """
    n = end - first
    use = execution.use
    chosen = (use.op >= first) & (use.op < end)
    count = len(execution.bytes)
    last_use = np.full(count, -1, dtype=np.int64)
    np.maximum.at(last_use, use.storage, use.op)
    death = (
        last_use if death_op is None else np.where(death_op >= 0, np.maximum(death_op, last_use), last_use)
    )
    # What was there before the file began is freed after it, as far as anybody knows.
    death = np.where(execution.birth_op < 0, len(execution.name), death)
    alive = (execution.birth_op < end) & (death >= first)
    rows = np.flatnonzero(alive)
    row_of = np.full(count, -1, dtype=np.int64)
    row_of[rows] = np.arange(len(rows))
    birth = np.where(execution.birth_op[rows] >= first, execution.birth_op[rows] - first, -1)
    dies = np.where(death[rows] < end, death[rows] - first, n)
    size = execution.bytes[rows]
    live = alive_bytes(n, birth, dies, size)
    use_op, use_storage = use.op[chosen] - first, row_of[use.storage[chosen]]
    stage = execution.stage[first:end]
    start_s = np.arange(n) * _OP_S if times is None else times.start_s
    duration_s = np.full(n, _OP_S) if times is None else times.duration_s
    step_s = n * _OP_S if times is None else times.step_s
    device_s = fields.pop("device_s", np.full(n, np.nan))
    module = fields.pop("module", constant(-1, n, "int32"))
    stack = fields.pop("stack", constant(-1, n, "int32"))
    ops = filled(
        Ops,
        n,
        name=execution.name[first:end],
        module=module,
        stack=stack,
        stage=stage,
        sequence_nr=execution.sequence[first:end],
        thread=execution.thread[first:end],
        start_s=start_s,
        duration_s=duration_s,
        device_s=device_s,
        live_peak_bytes=live,
        resident_peak_bytes=live,
    )
    born = birth >= 0
    storages = filled(
        Storages,
        len(rows),
        uid=execution.uid[rows],
        bytes=size,
        block_bytes=size,
        category=categories(birth, stage, use_op, use_storage, use.writes[chosen]),
        module=np.where(born, module[np.maximum(birth, 0)], -1) if n else constant(-1, len(rows), "int32"),
        name=constant(-1, len(rows), "int32"),
        birth_op=birth,
        birth_ordinal=np.where(born, execution.birth_ordinal[rows], -1),
        death_op=dies,
        movable=constant(True, len(rows), "bool"),
    )
    uses = filled(
        Uses,
        len(use_op),
        op=use_op,
        storage=use_storage,
        reads=use.reads[chosen],
        writes=use.writes[chosen],
    )
    marks, mark_names = _marks(execution, first, end, start_s, start_s + duration_s)
    return made_step(
        number,
        0.0 if times is None else times.begin_s,
        step_s,
        ops,
        storages,
        names=(*execution.names, *more_names),
        uses=uses,
        **({"marks": marks, "mark_names": mark_names} | fields),
    )


def _marks(
    execution: Execution, first: int, end: int, start_s: np.ndarray, end_s: np.ndarray
) -> tuple[Marks, tuple[str, ...]]:
    words = Names()
    rows = [
        (words.number(text), max(low, first) - first, min(high, end) - first)
        for text, low, high in execution.ranges
        if low < end and high > first and high > low
    ]
    rows.sort(key=lambda row: row[2])
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    begin, stop = start_s[table[:, 1]], end_s[table[:, 2] - 1]
    marks = filled(
        Marks,
        len(rows),
        name=table[:, 0],
        from_op=table[:, 1],
        to_op=table[:, 2],
        start_s=begin,
        duration_s=np.maximum(stop - begin, 0.0),
    )
    return marks, words.texts()
