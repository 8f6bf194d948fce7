"""Which tensors a kernel of Triton's writes: what its IR says, and what a session makes of it.

Triton compiles for a GPU that is not there; where one is launched, Python runs in place of the kernel.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
from triton_programs import NEEDS_TRITON, printed

from chameleon_lab.runtime import core

pytestmark = [pytest.mark.full, pytest.mark.bits, NEEDS_TRITON]

KERNELS = """
    import json, sys, warnings
    warnings.simplefilter("ignore")
    import triton, triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.language.extra import libdevice
    from chameleon_lab.runtime.kernel_writes import written_parameters

    KINDS = {"n": "i32", "flag": "i32", "index": "*i32", "address": "*i64", "number": "i64"}
    KINDS |= dict.fromkeys(("B", "TWICE"), "constexpr")
    CASES = []

    def case(*expected, **kinds):
        def add(function):
            CASES.append((triton.jit(function), expected, kinds))
            return CASES[-1][0]
        return add

    @case("y")
    def scale(x, y, n, B: tl.constexpr):
        at = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

    @case()
    def shows(x, n, B: tl.constexpr):
        tl.device_print("x", tl.load(x + tl.arange(0, B)))
        tl.device_assert(n > 0, "n")

    @case("x")
    def in_place(x, B: tl.constexpr):
        at = x + tl.arange(0, B)
        tl.store(at, tl.load(at) + 1)

    @case("y", "out")
    def loops(x, y, out, index, n, B: tl.constexpr):
        at = tl.arange(0, B)
        total = tl.zeros((B,), tl.float32)
        for _ in range(0, n):
            total += tl.load(x + at)
            tl.store(y + at, total)
            x += B
            y += B
        tl.atomic_add(out + tl.load(index + at), total)

    @case("y")
    def loops_while(x, y, n, B: tl.constexpr):
        at = tl.arange(0, B)
        while tl.load(x) < n:
            tl.store(y + at, tl.load(x + at))
            x += B
            y += B

    @case("y", "z")
    def one_of_two(x, y, z, flag, B: tl.constexpr):
        target = y
        if tl.load(x) > flag:
            target = z
        tl.store(target + tl.arange(0, B), 1.0)

    @case("y", "z")
    def one_of_two_branches(x, y, z, index, flag, B: tl.constexpr):
        if tl.load(x) > flag:
            target = z + tl.load(index)
        else:
            target = y
        tl.store(target + tl.arange(0, B), 1.0)

    @case("x", "y")
    def turns(x, y, n, B: tl.constexpr):
        for _ in range(n):
            tl.store(y + tl.arange(0, B), tl.load(x + tl.arange(0, B)))
            x, y = y, x

    @case("x", "y", "z")
    def turns_and_ends(x, y, z, w, n, B: tl.constexpr):
        for _ in range(n):
            x, y, z = y, z, x
        tl.store(x + tl.arange(0, B), tl.load(w + tl.arange(0, B)))

    @case("x", "y", "z")
    def turns_while(x, y, z, n, B: tl.constexpr):
        i = 0
        while i < n:
            tl.store(z + tl.arange(0, B), tl.load(x + tl.arange(0, B)))
            x, y, z = y, z, x
            i += 1

    @case("x", "y")
    def turns_while_and_ends(x, y, z, n, B: tl.constexpr):
        i = 0
        while i < n:
            x, y = y, x
            i += 1
        tl.store(x + tl.arange(0, B), tl.load(z + tl.arange(0, B)))

    @case("y", "z")
    def begins_or_turns(x, y, z, n, B: tl.constexpr):
        for _ in range(n):
            y = z
        tl.store(y, tl.load(x))

    @case("x", "y", "z")
    def nested(x, y, z, w, n, B: tl.constexpr):
        for i in range(n):
            for j in range(i):
                if tl.load(w + j) > 0:
                    x = y
                else:
                    while tl.load(w) > j:
                        x = z
                        j += 1
        tl.store(x, 1.0)

    @case("y")
    def ends_early(x, y, B: tl.constexpr):
        if tl.load(x) == 0:
            return
        tl.store(y + tl.arange(0, B), 1.0)

    @case("y", "z")
    def ends_early_or_turns(x, y, z, n, B: tl.constexpr):
        if n > 3:
            if n > 5:
                return
            y = z
        elif n == 2:
            return
        tl.store(y, tl.load(x))

    @triton.jit
    def chosen(a, b, n):
        if n > 3:
            return a
        return b

    @case("y", "z")
    def asks(x, y, z, n, B: tl.constexpr):
        tl.store(chosen(y, z, n), tl.load(x))

    @case("locks", "y", locks="*i32")
    def locks_first(x, y, locks, B: tl.constexpr):
        while tl.atomic_cas(locks, 0, 1) == 1:
            pass
        tl.store(y + tl.arange(0, B), tl.load(x + tl.arange(0, B)))
        tl.debug_barrier()

    @case(*"abcdefg", **dict.fromkeys("abcdefgh", "*i32"))
    def atomics(a, b, c, d, e, f, g, h, B: tl.constexpr):
        at = tl.arange(0, B)
        tl.atomic_and(a + at, 1)
        tl.atomic_or(b + at, 1)
        tl.atomic_xor(c + at, 1)
        tl.atomic_max(d + at, 1)
        tl.atomic_min(e + at, 1)
        tl.atomic_xchg(f + at, 1)
        tl.atomic_add(g + at, tl.load(h + at))

    if hasattr(tl, "atomic_store"):  # since 3.9
        @case("a", **dict.fromkeys("abc", "*i32"))
        def newer_atomics(a, b, c, B: tl.constexpr):
            tl.atomic_poll(c, 1)
            tl.atomic_store(a + tl.arange(0, B), tl.atomic_load(b + tl.arange(0, B)))

    @triton.jit
    def helper(source, target, B: tl.constexpr):
        tl.store(target + tl.arange(0, B), tl.load(source + tl.arange(0, B)))

    @case("x", "y")
    def calls(x, y, z, B: tl.constexpr):
        helper(z, y, B)
        helper(y, x, B)

    @triton.jit(noinline=True)
    def outside(source, target, B: tl.constexpr):
        tl.store(target + tl.arange(0, B), tl.load(source + tl.arange(0, B)))

    @case(None)
    def calls_outside(x, y, B: tl.constexpr):
        outside(x, y, B)

    @case("x", "y")
    def reads_outside(x, y, B: tl.constexpr):
        tl.store(y, loaded(x))

    @triton.jit(noinline=True)
    def loaded(source):
        return tl.load(source)

    @case(None)
    def at_an_address_from_memory(address, x, B: tl.constexpr):
        target = tl.load(address).to(tl.pointer_type(tl.float32))
        tl.store(target + tl.arange(0, B), tl.load(x + tl.arange(0, B)))

    @case(None)
    def maybe_at_an_address_from_memory(address, x, y, flag, B: tl.constexpr):
        if flag > 3:
            y = tl.load(address).to(tl.pointer_type(tl.float32))
        tl.store(y + tl.arange(0, B), tl.load(x + tl.arange(0, B)))

    @case(None)
    def by_way_of_memory(x, y, address, B: tl.constexpr):
        tl.store(address, x.to(tl.int64))
        tl.debug_barrier()
        tl.store(tl.load(address).to(tl.pointer_type(tl.float32)), 1.0)

    @case(None)
    def at_a_number(number, x, B: tl.constexpr):
        tl.store(number.to(tl.pointer_type(tl.float32)) + tl.arange(0, B), tl.load(x + tl.arange(0, B)))

    @case(None)
    def maybe_at_a_number(number, x, y, flag, B: tl.constexpr):
        if tl.load(x) > flag:
            y = number.to(tl.pointer_type(tl.float32))
        tl.store(y + tl.arange(0, B), 1.0)

    @case(None)
    def at_a_counter(x, y, number, n, B: tl.constexpr):
        for i in range(number, number + 400, 4):
            if n > i:
                y = i.to(tl.pointer_type(tl.float32))
            tl.store(y, 1.0)

    @case("y")
    def by_way_of_integers(x, y, B: tl.constexpr):
        target = (y.to(tl.int64) + 4 * B).to(tl.pointer_type(tl.float32))
        tl.store(target + tl.arange(0, B), tl.load(x + tl.arange(0, B)))

    @case("x", "y")
    def by_the_distance(x, y, B: tl.constexpr):
        target = x + (y.to(tl.int64) - x.to(tl.int64)) // 4
        tl.store(target + tl.arange(0, B), 1.0)

    @case("x", "y")
    def step_by_step(x, y, B: tl.constexpr):
        at, end = x.to(tl.int64), y.to(tl.int64)
        while at != end:
            at += 4
        tl.store(at.to(tl.pointer_type(tl.float32)), 1.0)

    @case("x", "y")
    def tiles_of_pointers(x, y, z, B: tl.constexpr):
        at = tl.arange(0, B)
        first, second = tl.split(tl.reshape(tl.trans(tl.join(x + at, y + at)), (B, 2)))
        tl.store(second, tl.load(z + at))

    @case("x", "y")
    def the_larger(x, y, z, B: tl.constexpr):
        at = tl.arange(0, B)
        tl.store(tl.reduce((x + at).to(tl.int64), 0, larger).to(tl.pointer_type(tl.float32)), tl.load(z))
        tl.store(tl.associative_scan((y + at).to(tl.int64), 0, larger).to(tl.pointer_type(tl.float32)), 1.0)

    @triton.jit
    def larger(a, b):
        return tl.maximum(a, b)

    @case("x")
    def in_other_words(x, y, B: tl.constexpr):
        at = x.to(tl.pointer_type(tl.int8), bitcast=True) + tl.arange(0, B)
        tl.store(at, tl.load(y.to(tl.pointer_type(tl.int8), bitcast=True) + tl.arange(0, B)))

    @triton.jit
    def add(a, b):
        return a + b

    @case("y")
    def reduces(x, y, w, B: tl.constexpr):
        at = tl.arange(0, B)
        tile = tl.load(x + at[:, None] * B + at[None, :])
        total = tl.dot(tile, tl.load(w + at[:, None] * B + at[None, :]))
        total += tl.associative_scan(tile, 0, add) + tl.max(tile, 0)[None, :] + tl.cumsum(tile, 1)
        total = tl.fma(total, tl.fdiv(tile, total + 1), tl.clamp(tile, 0.0, 1.0))
        total += tl.sqrt_rn(tl.div_rn(tile, 3.0)) + tl.interleave(tl.gather(tile, tl.zeros((B, B // 2), tl.int32), 1),
                                                                 tl.zeros((B, B // 2), tl.float32))
        total += tl.umulhi(tl.num_programs(0), 3) + tl.histogram(at, B)[None, :] + tile.to(tl.float8e5).to(tl.float32)
        total = libdevice.tanh(tl.trans(total)) + tl.sort(tile) + tl.reshape(tl.exp(tile), (B, B))
        tl.store(y + at, tl.sum(tl.where(total > 0, total, tl.sigmoid(total)), 1))

    @case("y")
    def pure_assembly(x, y, B: tl.constexpr):
        at = tl.arange(0, B)
        value = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [tl.load(x + at)], dtype=tl.float32,
                                          is_pure=True, pack=1)
        tl.store(y + at, value)

    @case("x", "y")
    def assembly_of_addresses(x, y, B: tl.constexpr):
        at = tl.arange(0, B)
        value = tl.inline_asm_elementwise("st.global.f32 [$1], 0f3F800000; mov.f32 $0, 0f3F800000;", "=f,l", [x + at],
                                          dtype=tl.float32, is_pure=True, pack=1)
        tl.store(y + at, value)

    @case(None)
    def assembly_of_an_address(x, y, B: tl.constexpr):
        at = tl.inline_asm_elementwise("ld.global.u64 $0, [$1];", "=l,l", [x + tl.arange(0, B)], dtype=tl.int64,
                                       is_pure=True, pack=1)
        tl.store(at.to(tl.pointer_type(tl.float32)), tl.load(y))

    @case(None)
    def assembly_makes_an_address(x, y, flag, B: tl.constexpr):
        if flag > 3:
            at = tl.inline_asm_elementwise("mov.u64 $0, 4096;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
            y = at.to(tl.pointer_type(tl.float32))
        tl.store(y, tl.load(x))

    @case("x", "y")
    def assembly(x, y, B: tl.constexpr):
        at = tl.arange(0, B)
        value = tl.inline_asm_elementwise("atom.global.add.f32 $0, [$1], 1.0;", "=f,l", [x + at], dtype=tl.float32,
                                          is_pure=False, pack=1)
        tl.store(y + at, value)

    @case("target", source="tensordesc<fp32[16,64]>", target="tensordesc<fp32[16,64]>")
    def described(source, target):
        target.store([0, 0], 2 * source.load([0, 0]))

    @case("y", "z")
    def describes(x, y, z, n, B: tl.constexpr):
        source = tl.make_tensor_descriptor(x, [n, B], [B, 1], [16, B])
        target = tl.make_tensor_descriptor(y, [n, B], [B, 1], [16, B])
        target.store([0, 0], source.load([0, 0]))
        total = tl.make_tensor_descriptor(z, [n, B], [B, 1], [16, B])
        total.atomic_add([0, 0], source.load([0, 0]))

    @case("x", "y")
    def one_description_or_the_other(x, y, z, n, B: tl.constexpr):
        other = tl.make_tensor_descriptor(x, [n, B], [B, 1], [16, B])
        target = tl.make_tensor_descriptor(y, [n, B], [B, 1], [16, B])
        for i in range(n):
            if tl.load(z) > 0:
                target = other
            target.store([i, 0], tl.zeros((16, B), tl.float32))

    if ARCH >= 100:
        @case("y")
        def scatters(x, y, index, n, B: tl.constexpr):
            source = tl.make_tensor_descriptor(x, [n, B], [B, 1], [1, B])
            target = tl.make_tensor_descriptor(y, [n, B], [B, 1], [1, B])
            rows = tl.load(index + tl.arange(0, 32))
            target.scatter(source.gather(rows, 0), rows, 0)

    @case("pair", pair=("*fp32", "*fp32"))
    def in_a_tuple(x, pair, B: tl.constexpr):
        tl.store(pair[1] + tl.arange(0, B), tl.load(pair[0] + tl.arange(0, B)) + tl.load(x))

    @case("y", TWICE=False)
    def leaves_out(x, y, z, B: tl.constexpr, TWICE: tl.constexpr):
        tl.store(y + tl.arange(0, B), tl.load(x + tl.arange(0, B)))
        if TWICE:
            tl.store(z + tl.arange(0, B), tl.load(x + tl.arange(0, B)))

    @case("y", "z", TWICE=True)
    def does_not_leave_out(x, y, z, B: tl.constexpr, TWICE: tl.constexpr):
        tl.store(y + tl.arange(0, B), tl.load(x + tl.arange(0, B)))
        if TWICE:
            tl.store(z + tl.arange(0, B), tl.load(x + tl.arange(0, B)))
"""


@pytest.mark.parametrize("arch", [80, 90, 100])
def test_what_a_kernel_writes_is_read_from_its_ir(tmp_path: Path, arch: int) -> None:
    """Below 90 Triton makes pointers, shapes and strides of a descriptor."""
    differ = printed(
        tmp_path,
        textwrap.dedent(KERNELS).replace("ARCH", str(arch))
        + textwrap.dedent(
            f"""
            differ = []
            for kernel, expected, kinds in CASES:
                values = {{"B": 64}} | {{name: kind for name, kind in kinds.items() if isinstance(kind, bool)}}
                signature = {{name: KINDS.get(name, "*fp32") for name in kernel.arg_names}}
                signature |= {{name: kind for name, kind in kinds.items() if not isinstance(kind, bool)}}
                constants = {{
                    (i,): values[name] for i, name in enumerate(kernel.arg_names) if signature[name] == "constexpr"
                }}
                source = ASTSource(kernel, signature, constants)
                written = written_parameters(triton.compile(source, target=GPUTarget("cuda", {arch}, 32)))
                if written != (None if expected == (None,) else frozenset(expected)):
                    differ.append([kernel.__name__, expected, None if written is None else sorted(written)])
            assert len(CASES) > 40
            print(json.dumps(differ))
            """
        ),
    )
    assert differ == []


def test_a_switch_gives_what_its_cases_give(tmp_path: Path) -> None:
    """As ``scf.index_switch`` in the IR, which Triton's passes may make of branches."""
    found = printed(
        tmp_path,
        '''
        import json
        from chameleon_lab.runtime.kernel_writes import _written_places

        print(json.dumps(sorted(_written_places("""
            tt.func public @chooses(%x: !tt.ptr<f32>, %y: !tt.ptr<f32>, %z: !tt.ptr<f32>, %w: !tt.ptr<f32>) {
                %id = tt.get_program_id x : i32
                %index = arith.index_cast %id : i32 to index
                %at = scf.index_switch %index -> !tt.ptr<f32>
                case 0 { scf.yield %y : !tt.ptr<f32> }
                default { scf.yield %z : !tt.ptr<f32> }
                %value = tt.load %x : !tt.ptr<f32>
                tt.store %at, %value : !tt.ptr<f32>
                cf.switch %id : i32, [default: ^other, 1: ^end(%y : !tt.ptr<f32>)]
            ^other:
                cf.br ^end(%w : !tt.ptr<f32>)
            ^end(%last: !tt.ptr<f32>):
                tt.store %last, %value : !tt.ptr<f32>
                tt.return
            }
        """, 4))))
        ''',
    )
    assert found == [1, 2, 3]


LAUNCHES = '''
    import ctypes, json, warnings
    warnings.simplefilter("ignore")
    import numpy as np
    import torch
    import triton, triton.language as tl
    from triton_without_gpu import Driver
    import chameleon_lab as cl
    from chameleon_lab.runtime import core

    N = 1 << 18

    @triton.jit
    def scale(x, y, n, factor, BACK: tl.constexpr, TILE: tl.constexpr):
        at = tl.program_id(0) * TILE + tl.arange(0, TILE)
        tl.store(y + at, tl.load(x + at, mask=at < n) * factor, mask=at < n)
        if BACK:
            tl.store(x + at, factor, mask=at < n)

    def at(tensor):
        return np.ctypeslib.as_array((ctypes.c_float * tensor.numel()).from_address(tensor.data_ptr()))

    def scale_in_python(x, y, n, factor, BACK, TILE):
        at(y)[:n] = at(x)[:n] * factor
        if BACK:
            at(x)[:n] = factor

    Driver({"scale": scale_in_python})
    grid = (N // 1024,)

    def used(session):
        """Of each launch since the last call: its name, and for x and y whether it writes them."""
        session.step()
        step = session.trace().last
        uses = list(zip(step.uses.op.tolist(), step.uses.storage.tolist(), step.uses.writes.tolist()))
        return [
            [step.names[name].removeprefix("triton::"), *(writes for at, _, writes in sorted(uses) if at == op)]
            for op, name in enumerate(step.ops.name) if step.names[name].startswith("triton::")
        ]

    session = cl.Session("4MiB", device="cpu", link="8GiB/s").start()
'''


def launched(tmp_path: Path, body: str) -> Any:
    return printed(tmp_path, textwrap.dedent(LAUNCHES) + textwrap.dedent(body))


@pytest.mark.gate
def test_a_launch_writes_what_its_kernel_writes(tmp_path: Path) -> None:
    found = launched(
        tmp_path,
        """
        x, y = torch.arange(float(N)), torch.zeros(N)
        sent, ops, bytes_out = [], [], []
        for factor in (2.0, 3.0, 4.0):
            sent += [session.evict(x), session.evict(y)]
            scale[grid](x, y, N, factor, BACK=False, TILE=1024)
            ops += used(session)
            bytes_out.append(session.history[-1].swapped_out_bytes)
        print(json.dumps([sent, ops, bytes_out, y[997].item(), x[997].item(), session.report().escaped_storages]))
        """,
    )
    sent, ops, bytes_out, y, x, escaped = found
    assert sent == [True] * 6 and (y, x, escaped) == (4 * 997, 997, 0)
    assert ops == [["compile", False, False], *[["scale", False, True]] * 3]
    mib = 1 << 20
    # Before torch 2.13 no copy on the host outlives its storage's stay there.
    again = mib if core.SEES_RAW_ACCESS else 2 * mib
    assert bytes_out == [2 * mib, again, again], "x was not written, so its copy on the host was still good"


def test_each_variant_of_a_kernel_writes_what_it_does(tmp_path: Path) -> None:
    """Constants make kernels of their own."""
    found = launched(
        tmp_path,
        """
        x, y = torch.ones(N), torch.zeros(N)
        ops, values = [], []
        for back in (False, True, False, True):
            for n in (N, N - 16, 1):
                session.evict(x), session.evict(y)
                scale[grid](x, y, n=n, factor=x[0].item() + 1, BACK=back, TILE=1024)
                session.evict(x), session.evict(y)
                values.append([x[0].item(), y[0].item()])
            ops.append([op for op in used(session) if op[0] == "scale"])
        print(json.dumps([ops, values, len(scale.device_caches[0][0]), session.report().escaped_storages]))
        """,
    )
    ops, values, compiled, escaped = found
    assert ops == [[["scale", back, True]] * 3 for back in (False, True, False, True)]
    read, each = 1.0, []
    for back in (False, True, False, True):
        for _ in range(3):
            factor = read + 1
            each.append([factor if back else read, read * factor])
            read = each[-1][0]
    assert values == each and compiled == 4 and escaped == 0


def test_integers_that_are_one_and_options_make_variants(tmp_path: Path) -> None:
    found = launched(
        tmp_path,
        """
        @triton.jit
        def unless_one(x, y, n):
            tl.store(y, 1.0)
            if n != 1:
                tl.store(x, 2.0)

        def unless_one_in_python(x, y, n):
            at(y)[0] += 1
            if n != 1:
                at(x)[0] += 2

        @triton.jit
        def by_warps(x, y, n):
            if tl.extra.cuda.num_warps() == 4:
                tl.store(x, 1.0)
            else:
                tl.store(y, 1.0)

        def by_warps_in_python(x, y, n):
            at(x if n == 4 else y)[0] += 1

        Driver({"unless_one": unless_one_in_python, "by_warps": by_warps_in_python})
        x, y = torch.zeros(N), torch.zeros(N)
        for n in (1, 16, 1, 16):
            session.evict(x), session.evict(y)
            unless_one[(1,)](x, y, n)
        for warps in (4, 8, 4, 8):
            session.evict(x), session.evict(y)
            by_warps[(1,)](x, y, warps, num_warps=warps)
        session.evict(x), session.evict(y)
        ops = [op[1:] for op in used(session) if op[0] != "compile"]
        print(json.dumps([ops, x[0].item(), y[0].item()]))
        """,
    )
    one, many = [False, True], [True, True]
    assert found == [[one, many, one, many, [True, False], one, [True, False], one], 6, 6]


def test_a_tensor_that_is_reinterpreted_and_described_is_followed(tmp_path: Path) -> None:
    found = launched(
        tmp_path,
        """
        from triton.tools.tensor_descriptor import TensorDescriptor

        @triton.jit
        def copy(source, target):
            target.store([0, 0], source.load([0, 0]))

        def copy_in_python(source, target):
            at(target.base.base)[:1024] = at(source.base.base)[:1024]

        Driver({"copy": copy_in_python})
        x, y = torch.arange(float(N)).view(-1, 64), torch.zeros(N // 64, 64)
        described = [TensorDescriptor.from_tensor(triton.reinterpret(t, torch.int32), [16, 64]) for t in (x, y)]
        for _ in range(2):
            session.evict(x), session.evict(y)
            copy[(1,)](*described)
        session.evict(x), session.evict(y)
        print(json.dumps([y[15, 63].item(), used(session)]))
        """,
    )
    assert found == [1023, [["compile", False, False], *[["copy", False, True]] * 2]]


def test_a_constant_that_is_no_number_is_compiled_once(tmp_path: Path) -> None:
    found = launched(
        tmp_path,
        """
        @triton.jit
        def fill(y, value: tl.constexpr):
            tl.store(y, value)

        Driver({"fill": lambda y, value: None})
        y = torch.zeros(N)
        for value in (float("nan"), float("nan"), 0.0, -0.0, 0.0):
            fill[(1,)](y, value)
        print(json.dumps([name for name, *_ in used(session)]))
        """,
    )
    assert found == ["compile", "fill", "fill", "compile", "fill", "compile", "fill", "fill"]


def test_a_kernel_that_the_program_has_let_go_is_let_go(tmp_path: Path) -> None:
    found = launched(
        tmp_path,
        """
        import gc, weakref

        def launch_a_new_one():
            @triton.jit
            def fill(y):
                tl.store(y, 1.0)

            Driver({"fill": lambda y: None})
            return weakref.ref(fill[(1,)](torch.zeros(N)))

        compiled = launch_a_new_one()
        launch_a_new_one()  # Triton holds the newest of a name
        session.step()
        gc.collect()
        print(json.dumps(compiled() is None))
        """,
    )
    assert found is True


def test_what_cannot_be_told_counts_as_written(tmp_path: Path) -> None:
    """A value of an unknown kind; a hook of the kernel's own before its launches, which runs once a launch."""
    found = launched(
        tmp_path,
        """
        class Two(float):
            pass

        x, y = torch.ones(N), torch.zeros(N)
        calls = []
        scale[grid](x, y, N, 2.0, BACK=False, TILE=1024)
        scale[grid](x, y, N, Two(2), BACK=False, TILE=1024)
        scale.add_pre_run_hook(lambda *args, **kwargs: calls.append(1))
        for _ in range(2):
            scale[grid](x, y, N, 2.0, BACK=False, TILE=1024)
        print(json.dumps([used(session), len(calls), y[0].item()]))
        """,
    )
    told = [["compile", False, False], ["scale", False, True]]
    assert found == [told + [["scale", True, True]] * 3, 2, 2.0]


def test_more_arguments_than_parameters_count_as_written(tmp_path: Path) -> None:
    found = launched(
        tmp_path,
        """
        ops, values = [], []
        if int(triton.__version__.split(".")[1]) >= 9:  # older ones take none
            @triton.jit
            def last(x, *rest, n):
                tl.store(rest[1], tl.load(x) + tl.load(rest[0]) + n)

            def last_in_python(x, *rest):  # n's value comes last
                (first, second), n = rest[0], rest[1]
                at(second)[0] = at(x)[0] + at(first)[0] + n

            Driver({"last": last_in_python})
            x, a, b = torch.ones(N // 2), torch.ones(N // 2), torch.zeros(N // 2)
            for n in (5, 6, 7):
                session.evict(a), session.evict(b)
                last[(1,)](x, a, b, n=n)
                session.evict(a), session.evict(b)
                values.append(b[0].item())
        print(json.dumps(values))
        """,
    )
    assert found in ([7, 8, 9], [])


def test_an_error_of_triton_s_compiler_is_raised_as_ever(tmp_path: Path) -> None:
    found = launched(
        tmp_path,
        """
        @triton.jit
        def wrong(x, y):
            tl.store(y, tl.load(x) + "no number")

        x, y = torch.ones(N), torch.zeros(N)
        try:
            wrong[grid](x, y)
            said = ""
        except triton.CompilationError as error:
            said = type(error).__name__
        print(json.dumps([said, core.regions_depth(), session.evict(x), session.evict(y)]))
        """,
    )
    assert found == ["CompilationError", 0, True, True]


def test_a_kernel_that_writes_more_than_before_is_an_error(tmp_path: Path) -> None:
    """As if Triton told variants apart in a way that is not known here."""
    found = launched(
        tmp_path,
        """
        x, y = torch.ones(N), torch.zeros(N)
        kept = scale[grid](x, y, N, 2.0, BACK=False, TILE=1024)
        other = scale.warmup(torch.float32, torch.float32, N, 2.0, BACK=True, TILE=1024, grid=grid)
        scale.device_caches[0][0].clear()
        scale._do_compile = lambda *args, **kwargs: other
        try:
            scale[grid](x, y, N, 2.0, BACK=False, TILE=1024)
            said = ""
        except RuntimeError as error:
            said = str(error)
        print(json.dumps(said))
        """,
    )
    assert found.startswith(
        "Triton's kernel scale has written x, and for arguments of the same kinds it wrote y "
    )
