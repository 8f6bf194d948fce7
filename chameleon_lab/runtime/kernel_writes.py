"""Which tensors a kernel of Triton's writes, read from its intermediate representation (TTIR).

Pointers are followed back from each op that writes to the kernel's parameters, through loops and branches. Ops are
those of Triton's dialect (``include/triton/Dialect/Triton/IR/TritonOps.td``) and of MLIR's ``arith``, ``math``, ``scf``
and ``cf``; one that is not known here counts as writing through each pointer that it is given. PyTorch does the same
for kernels in compiled code (``identify_accessed_tensors`` in ``torch/_higher_order_ops/triton_kernel_wrap.py``), but
compiles each kernel once more for it, and renames these functions between minor versions.
"""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

_WRITES = {
    *("tt.store", "tt.atomic_rmw", "tt.atomic_cas", "tt.atomic_store"),
    *("tt.descriptor_store", "tt.descriptor_scatter", "tt.descriptor_reduce"),
}
_LOADS = {
    *("tt.load", "tt.atomic_rmw", "tt.atomic_cas", "tt.atomic_load", "tt.atomic_poll"),
    *("tt.descriptor_load", "tt.descriptor_gather"),
}
"""Of an address among their results nothing is known."""
_MOVES_POINTER = {"tt.addptr", "tt.advance", "tt.make_tensor_ptr", "tt.make_tensor_descriptor"}
"""Their first operand is a pointer, the others say how far or in which form."""
_ENDS_BLOCK = {
    *("scf.yield", "scf.condition", "cf.br", "cf.cond_br", "cf.switch"),
    *("tt.reduce.return", "tt.scan.return", "tt.map_elementwise.return"),
}
_TRITON_PURE = {
    *("tt.approx_divf", "tt.assert", "tt.bitcast", "tt.broadcast", "tt.cat", "tt.clampf", "tt.dot"),
    *("tt.dot_scaled", "tt.expand_dims", "tt.fp_to_fp", "tt.func", "tt.gather", "tt.get_num_programs"),
    *("tt.get_program_id", "tt.histogram", "tt.int_to_ptr", "tt.join", "tt.make_range"),
    *("tt.map_elementwise", "tt.mulhiui", "tt.precise_divf", "tt.precise_sqrt", "tt.print", "tt.reduce"),
    *("tt.reshape", "tt.return", "tt.scan", "tt.split", "tt.splat", "tt.trans", "tt.unsplat"),
}
_PURE_DIALECTS = ("arith.", "math.", "scf.", "ub.")
_POINTERS = ("!tt.ptr", "!tt.tensordesc")
_UNKNOWN = -1
"""In place of a value's number: an address that is none of the kernel's parameters', or may be."""


def written_parameters(compiled: Any) -> frozenset[str] | None:
    """The names of the parameters through which ``compiled`` (Triton's ``CompiledKernel``) writes.

    None if that cannot be told: it may write to an address that it has loaded or was given as an integer, it calls a
    function that was not inlined, or it has no TTIR (Gluon's).
    """
    if compiled is None:
        return None
    if compiled in _analyzed:
        return _analyzed[compiled]
    written = None
    try:
        pointers = list(_pointers_of(compiled.src.signature))
        places = _written_places(compiled.asm["ttir"], len(pointers))
        if places is not None:
            written = frozenset(pointers[place] for place in places)
    except Exception:  # of an inner part of Triton, which may change: then all counts as written
        written = None
    with suppress(TypeError):  # no weak reference to it
        _analyzed[compiled] = written
    return written


_analyzed: WeakKeyDictionary[Any, frozenset[str] | None] = WeakKeyDictionary()


def _pointers_of(signature: dict[str, Any]) -> Iterator[str]:
    """The parameter of each pointer and tensor descriptor among a kernel's arguments, tuples taken apart."""
    for name, kind in signature.items():
        yield from (name for _ in range(_pointers_in(kind)))


def _pointers_in(kind: Any) -> int:
    if isinstance(kind, list | tuple):
        return sum(map(_pointers_in, kind))
    return int(str(kind).startswith(("*", "tensordesc")))


def _written_places(ttir: str, pointers: int) -> set[int] | None:
    """Places among the entry function's pointers, of which there have to be as many."""
    from triton._C.libtriton import ir

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "kernel.ttir")
        with open(path, "w") as file:
            file.write(ttir)
        context = ir.context()
        ir.load_dialects(context)
        module = ir.parse_mlir_module(path, context)
    function = module.get_function(module.get_entry_func_name())
    arguments = [function.args(i) for i in range(function.get_num_args())]
    given = [each.id() for each in arguments if _is_pointer(each)]
    if len(given) != pointers:
        return None
    places = {number: place for place, number in enumerate(given)}
    written: set[int] = set()
    flow = _Flow(_ops_of(module), {each.id() for each in arguments})
    for sink in flow.sinks:
        origins = flow.origins_of(sink)
        if not origins or not origins <= places.keys():
            return None
        written |= {places[number] for number in origins}
    return written


def _is_pointer(value: Any) -> bool:
    kind = str(value.get_type())
    return any(pointer in kind for pointer in _POINTERS)  # a tensor of them, too


@dataclass
class _Op:
    """An op of the module, its operands and results as numbers of values."""

    name: str
    operands: list[int]
    pointers: list[int]
    """Those of the operands that are pointers."""
    results: list[int]
    regions: list[int]
    region: int | None
    """In which it is; None for the module itself."""
    block: int
    arguments: list[int]
    """Those of its block."""
    said_pure: bool
    """Inline assembly, or a function of a library, that has no other effect than its results."""


def _ops_of(module: Any) -> list[_Op]:
    ops: list[_Op] = []

    def add(op: Any) -> None:
        block = op.get_block()
        parent = block.get_parent() if block is not None else None
        operands = [op.get_operand(i) for i in range(op.get_num_operands())]
        said_pure = op.get_name() in ("tt.elementwise_inline_asm", "tt.extern_elementwise")
        ops.append(
            _Op(
                op.get_name(),
                [value.id() for value in operands],
                [value.id() for value in operands if _is_pointer(value)],
                [op.get_result(i).id() for i in range(op.get_num_results())],
                [op.get_region(i).id() for i in range(op.get_num_regions())],
                parent.id() if parent is not None else None,
                block.id() if block is not None else 0,
                [block.get_argument(i).id() for i in range(block.get_num_arguments())]
                if block is not None
                else [],
                said_pure and bool(op.get_bool_attr("pure")),
            )
        )

    module.walk(add)
    return ops


@dataclass
class _Flow:
    """From which values each value of a module may have its address."""

    ops: Sequence[_Op]
    roots: set[int]
    """The entry function's arguments."""
    sinks: list[int] = field(default_factory=list)
    """Values at which an op may write."""
    _sources: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self._blocks: defaultdict[int, dict[int, list[int]]] = defaultdict(dict)
        self._owners: dict[int, _Op] = {}
        for op in self.ops:
            if op.region is not None:
                self._blocks[op.region][op.block] = op.arguments
            self._owners |= dict.fromkeys(op.regions, op)
        for op in self.ops:
            self._add(op)
        for region in self._blocks:
            for value in set(self._arguments(region)) - self._sources.keys() - self.roots:
                self._sources[value].append(_UNKNOWN)  # such as a loop's counter

    def origins_of(self, sink: int) -> set[int]:
        """The parameters from which an address at ``sink`` may come, and ``_UNKNOWN``."""
        reached, left, origins = {sink}, [sink], set()
        while left:
            value = left.pop()
            if value in self.roots or value == _UNKNOWN:
                origins.add(value)
                continue
            for source in self._sources.get(value, ()):
                if source not in reached:
                    reached.add(source)
                    left.append(source)
        return origins

    def _add(self, op: _Op) -> None:
        if op.name in _WRITES:
            self.sinks += op.pointers
        if op.name in _LOADS:
            self._from([_UNKNOWN], op.results)
        elif op.name in _MOVES_POINTER:
            self._from(op.operands[:1], op.results)
        elif op.name == "tt.ptr_to_int":  # its way through sums, distances and conditions is not followed
            self.sinks += op.operands
            self._from(op.operands, op.results)
        elif op.name in _ENDS_BLOCK:
            self._end_block(op)
        elif op.name == "arith.select":
            self._from(op.operands[1:], op.results)
        elif op.name == "scf.if":  # its results are those of its blocks
            pass
        elif op.name == "scf.for":
            self._pairwise(op.operands[3:], op.results, self._arguments(op.regions[0])[1:])
        elif op.name == "scf.while":
            self._pairwise(op.operands, self._arguments(op.regions[0]))
        elif self._pure(op):
            self._from(op.operands, op.results)
            for region in op.regions if op.name != "tt.func" else ():
                self._from(op.operands, self._arguments(region))
        elif op.name != "builtin.module":
            self.sinks += op.operands
            self._from([*op.operands, _UNKNOWN], op.results)

    @staticmethod
    def _pure(op: _Op) -> bool:
        if op.said_pure:  # but what it does with an address is not known
            return not op.pointers
        return op.name in _WRITES | _TRITON_PURE or op.name.startswith(_PURE_DIALECTS)

    def _end_block(self, op: _Op) -> None:
        owner = self._owners.get(-1 if op.region is None else op.region)
        if owner is None or op.region is None:
            return
        if op.name.startswith("cf."):  # to which of the region's blocks is not asked
            self._from(op.operands[op.name != "cf.br" :], self._arguments(op.region))
        elif op.name == "scf.condition":
            self._pairwise(op.operands[1:], owner.results, self._arguments(owner.regions[1]))
        elif owner.name == "scf.for":
            self._pairwise(op.operands, owner.results, self._arguments(op.region)[1:])
        elif owner.name == "scf.while":
            self._pairwise(op.operands, self._arguments(owner.regions[0]))
        elif owner.name == "scf.if":
            self._pairwise(op.operands, owner.results)
        else:
            self._from(op.operands, owner.results)

    def _arguments(self, region: int) -> list[int]:
        return [value for arguments in self._blocks[region].values() for value in arguments]

    def _from(self, sources: Iterable[int], values: Iterable[int]) -> None:
        sources = list(sources)
        for value in values:
            self._sources[value] += sources

    def _pairwise(self, sources: Sequence[int], *targets: Sequence[int]) -> None:
        for values in targets:
            if len(values) != len(sources):
                self._from([*sources, _UNKNOWN], values)
            for source, value in zip(sources, values, strict=False):
                self._sources[value].append(source)
