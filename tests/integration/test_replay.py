"""Dropped storages come back to the bit, whatever happens to what they are made from."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from reads import every_read
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from training import HANGS_AFTER_S, OP_THREADS, KiB, MiB, child, pressure, raw

import chameleon_lab as cl
from chameleon_lab.planner.program import SWAP_OUT
from chameleon_lab.runtime import core

pytestmark = pytest.mark.skipif(not core.SEES_RAW_ACCESS, reason="nothing is replayed before torch 2.13")

ROWS, COLUMNS = 64, 256  # 64 KiB in float32


@pytest.fixture
def session() -> Iterator[cl.Session]:
    """A session that keeps producers although no program drops anything."""
    with cl.Session("64MiB", min_swap="1KiB") as session:
        core.of().keep_producers(True)
        yield session


def dropped(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the tensor's bytes, which are given up."""
    copy = tensor.detach().clone()
    why = core.drop(tensor)
    assert why == "" and core.residency(tensor) == "dropped", why
    return copy


def same(tensor: torch.Tensor, expected: torch.Tensor) -> bool:
    """Same bytes, NaN and all."""
    return raw(tensor) == raw(expected)


def made(seed: int = 0) -> torch.Tensor:
    """A resident tensor that an op has used."""
    tensor = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(seed))
    tensor.sum()
    return tensor


# ---------------------------------------------------------------------------------------------------- the way back


def test_views_saved_tensors_and_versions_survive(session: cl.Session) -> None:
    x, weight = made().requires_grad_(), made(1)

    def run(drop: bool) -> tuple[bytes, ...]:
        x.grad = None
        hidden = F.layer_norm(x, (COLUMNS,))
        product = hidden @ weight.t()
        out = F.gelu(product)
        part, versions = out[3:9, ::2], [t._version for t in (hidden, product, out)]
        if drop:
            for tensor in (out, product, hidden):
                dropped(tensor)
        assert [t._version for t in (hidden, product, out)] == versions
        seen = raw(part)
        (out @ weight[:, :ROWS].t()[:, :7].t().t()).square().mean().backward()
        assert x.grad is not None
        return seen, raw(out), raw(x.grad), raw(part)

    assert run(False) == run(True)


@pytest.mark.bits
def test_three_dropped_ones_take_three_replays(session: cl.Session) -> None:
    x, weight = made(), made(1)
    hidden = F.layer_norm(x, (COLUMNS,))
    product = hidden @ weight.t()
    out = F.gelu(product)
    expected = [dropped(t) for t in (out, product, hidden)]
    core.of().end_step()
    assert same(out, expected[0])
    log = core.of().end_step()
    names = [core.op_names()[name] for name in log.replays()["name"]]
    assert names == ["aten::native_layer_norm", "aten::mm", "aten::gelu"]
    assert core.residency(hidden) == core.residency(product) == "resident"
    assert same(product, expected[1]) and same(hidden, expected[2])
    assert core.of().counters()["dropped"] == 0


@pytest.mark.bits
def test_what_is_dead_is_made_again_for_one_that_is_not(session: cl.Session) -> None:
    x, weight = made(), made(1)
    hidden = F.layer_norm(x, (COLUMNS,))
    product = hidden @ weight.t()
    out = F.gelu(product)
    del hidden, product
    before = core.of().counters()["resident_bytes"]
    expected = out.clone()
    assert core.drop(out) == ""
    assert core.of().counters()["resident_bytes"] == before + expected.nbytes - out.nbytes
    assert same(out, expected)
    assert core.of().counters()["resident_bytes"] == before + expected.nbytes
    assert core.of().counters()["ghosts"] == 0


@pytest.mark.bits
@pytest.mark.parametrize("order", [1, -1])
def test_a_line_of_dropped_storages_may_be_as_long_as_the_step(session: cl.Session, order: int) -> None:
    """Dropped in either order, and restored by the last of them: inputs first, each once."""
    line = [made()[:16, :64].clone()]
    for _ in range(1500):
        line.append(line[-1] * 1.001)
    expected = [raw(t) for t in line]
    assert {core.drop(t) for t in line[1:][::order]} == {""}
    core.of().end_step()
    assert raw(line[-1]) == expected[-1]
    assert core.of().end_step().replay_count == len(line) - 1
    assert core.of().counters()["dropped"] == 0
    assert [raw(t) for t in line] == expected


@pytest.mark.bits
def test_a_line_of_dead_values_has_an_end(session: cl.Session) -> None:
    x = made()
    for dead in (core.LONGEST_CHAIN - 1, core.LONGEST_CHAIN):
        out = x * 1.01
        for _ in range(dead):
            out = out * 1.01
        expected, why = out.clone(), core.drop(out)
        assert (why == "") == (dead < core.LONGEST_CHAIN)
        core.of().end_step()
        assert same(out, expected)
        assert core.of().end_step().replay_count == (dead + 1 if why == "" else 0)


@pytest.mark.bits
def test_a_dead_value_that_several_read_is_made_once(session: cl.Session) -> None:
    x, levels = made(), core.LONGEST_CHAIN // 2 - 1
    before = core.of().counters()["resident_bytes"]
    out = x + 1
    for _ in range(levels):  # each level reads the one before it three times: 3 ** levels lines of ops
        out = (out + out.t().t()) * out
    expected = raw(out)
    assert core.drop(out) == ""
    core.of().end_step()
    assert raw(out) == expected
    assert core.of().end_step().replay_count == 1 + 2 * levels
    assert core.of().counters()["resident_bytes"] == before + x.nbytes


@pytest.mark.bits
@pytest.mark.parametrize("first", ["read", "changed"])
def test_a_dead_value_that_is_read_and_changed_in_place(session: cl.Session, first: str) -> None:
    """The op in place must not change it under the other one that reads it, whichever comes first."""
    x = made()
    hidden = x * 1.5
    read = hidden * 2 + hidden
    hidden.add_(1)
    out = read - hidden if first == "read" else hidden - read
    expected = raw(out)
    del read, hidden
    assert core.drop(out) == ""
    assert raw(out) == expected
    assert core.of().counters()["ghosts"] == 0


# ---------------------------------------------------------------------------------------------------- writes


@pytest.mark.bits
def test_a_write_that_leaves_no_room_for_what_was_made_from_its_storage_is_refused() -> None:
    """What comes back for it is not dropped again to make room for the rest: that went on for ever."""
    with cl.Session("4.5MiB", host_capacity="64KiB"):
        core.of().keep_producers(True)
        base = torch.rand(512, 512) * 1.0
        line, expected = [], []
        for k in range(4):
            line.append(base * (k + 2))
            expected.append(raw(line[-1]))
            assert core.drop(line[-1]) == ""
        with pytest.raises(RuntimeError, match="host_capacity is 64 KiB"):
            base.add_(1)
        del line[3]
        assert [raw(t) for t in line] == expected[:3]


@pytest.mark.bits
def test_what_was_written_is_not_dropped(session: cl.Session) -> None:
    x = made()
    base = x * 1.5
    out = F.gelu(base)
    base.add_(1)
    expected = out.clone()
    assert core.drop(out) == "", "the written input is made again"
    assert same(out, expected)
    torch.add(out, 1, out=out)
    assert "was written after" in core.drop(out)
    out = F.gelu(x).cumsum_(-1)
    assert "not replayed" in core.drop(out)
    leaf = made(2)
    out = F.gelu(leaf)
    leaf.add_(1)
    assert "an input was written" in core.drop(out)


WRITES = {
    "op": "base.mul_(2)",
    "view": "base[3:5].zero_()",
    "out=": "torch.add(base, 1, out=base)",
    "copy_": "base.copy_(torch.ones_like(base))",
    "set item": "base[4] = 7",
    "foreach": "torch._foreach_add_([base], 1)",
    "data": "base.data.zero_()",
    "no_grad": "torch.no_grad()(base.zero_)()",
    "numpy": "base.numpy()[:] = 0",
    "data_ptr": "ctypes.memset(base.data_ptr(), 0, 64)",
    "dlpack": "torch.from_dlpack(base).zero_()",
    "storage": "base.untyped_storage().fill_(0)",
    "storage item": "base.untyped_storage().__setitem__(5, 3)",
    "shared memory": "base.share_memory_().zero_()",
    "swap_tensors": "torch.utils.swap_tensors(base, torch.zeros(1))",
    "data assigned": "base.data = torch.zeros(3)",
    "set_": "base.set_(torch.zeros(3))",
    "resize_": "base.resize_(2 * base.numel()).zero_()",
    "storage resize": "base.untyped_storage().resize_(0)",
    "batch norm": "F.batch_norm(torch.ones(4, base.numel()), base.view(-1), base.clone().view(-1), training=True)",
    "lazy clone": "torch._lazy_clone(base).zero_(); base.zero_()",
    "index_put_": "base.index_put_((torch.tensor([1]),), torch.tensor(5.0))",
}


@pytest.mark.bits
@pytest.mark.parametrize("origin", ["x = made(); base = x", "base = made() * 1.5", "base = made().clone()"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_to_an_input_comes_after_its_dependents(session: cl.Session, origin: str, write: str) -> None:
    import ctypes

    scope = globals() | {"ctypes": ctypes}
    exec(origin, scope)
    base = scope["base"]
    base.sum()
    out = F.gelu(base)
    chained = torch.tanh(out)
    expected = dropped(chained), dropped(out)
    exec(write, scope)
    assert same(chained, expected[0]) and same(out, expected[1])
    assert core.of().counters()["dropped"] == 0 and core.of().counters()["ghosts"] == 0


@pytest.mark.bits
def test_a_raw_pointer_taken_before_rules_an_input_out(session: cl.Session) -> None:
    base = made()
    view = base.numpy()
    out = F.gelu(base)
    assert "raw pointer" in core.drop(out)
    view[:] = 0
    assert not same(out, torch.zeros_like(out))


@pytest.mark.bits
def test_a_write_to_a_dropped_tensor_keeps_the_rest(session: cl.Session) -> None:
    base = made()
    out = F.gelu(base)
    expected = dropped(out)
    out[0].zero_()
    expected[0].zero_()
    assert same(out, expected)
    expected = dropped(out)
    assert same(out, expected), "made by gelu and zero_"


# ---------------------------------------------------------------------------------------------------- deaths


@pytest.mark.bits
def test_an_input_that_dies_stays_as_a_ghost(session: cl.Session) -> None:
    base = made()
    out = F.gelu(base)
    again = torch.tanh(base)
    expected = dropped(out), dropped(again)
    before = core.of().counters()["resident_bytes"]
    del base
    counters = core.of().counters()
    assert counters["ghosts"] == 1 and counters["resident_bytes"] == before
    assert same(out, expected[0])
    assert core.of().counters()["ghosts"] == 1
    assert same(again, expected[1])
    assert core.of().counters()["ghosts"] == 0


@pytest.mark.bits
def test_a_ghost_is_no_part_of_a_program_that_comes_after_its_death(session: cl.Session) -> None:
    """Its record goes to another storage once its bytes are no longer needed: that one would leave in its place."""
    runtime, weight, base = core.of(), made(1)[:8].clone(), made()
    rows = runtime.end_step().storages()
    uid = int(rows["uid"][rows["bytes"] == base.nbytes][-1])

    def step() -> core.StepLog:
        for _ in range(4):
            weight.mul_(1.5)
        return runtime.end_step()

    tokens = step().ops()["token"].copy()
    out = F.gelu(base)
    expected = dropped(out)
    runtime.end_step()
    del base
    assert runtime.counters()["ghosts"] == 1
    one = np.zeros(1, np.int32)
    swap_out = core.make_program(
        tokens, one + uid, one - 1, one, one + out.nbytes, one, one, [0, 1], one + 3, one, one - 1, one, one + 1,
        one + SWAP_OUT, one,
    )  # fmt: skip
    runtime.add_program(1, swap_out)
    runtime.use_program(1)
    assert same(out, expected) and runtime.counters()["ghosts"] == 0
    others = [made(seed) for seed in range(4)]
    runtime.end_step()
    step()
    assert {core.residency(other) for other in others} == {"resident"}


@pytest.mark.bits
def test_a_ghost_that_can_be_made_again_gives_its_bytes_up(session: cl.Session) -> None:
    base = made() * 1.5
    out = F.gelu(base)
    del base  # made() died too: nothing can make it
    assert "is gone" in core.drop(out)
    x = made()
    base = x * 1.5
    out = F.gelu(base)
    expected = dropped(out)
    before = core.of().counters()["resident_bytes"]
    del base
    counters = core.of().counters()
    assert counters["ghosts"] == 0 and counters["resident_bytes"] < before
    assert same(out, expected)


@pytest.mark.bits
def test_a_ghost_leaves_under_pressure_and_comes_back() -> None:
    with cl.Session("4MiB") as session:
        core.of().keep_producers(True)
        x = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
        x.sum()
        out = F.gelu(x)
        expected = out.clone()
        assert core.drop(out) == ""
        del x
        assert core.of().counters()["ghosts"] == 1
        pressure(session, 8)
        assert core.of().counters()["host_used_bytes"] >= out.nbytes
        assert same(out, expected)
        assert core.of().counters()["ghosts"] == 0


def test_the_dropped_one_dies_first(session: cl.Session) -> None:
    x = made()
    base = x * 1.5
    out = F.gelu(base)
    resident = core.of().counters()["resident_bytes"]
    dropped(out)
    del out
    gc.collect()
    assert core.of().counters()["dropped"] == 0
    base.add_(1)
    del base
    assert core.of().counters()["resident_bytes"] <= resident
    assert core.of().counters()["ghosts"] == 0


@pytest.mark.bits
def test_an_input_that_was_swapped_out_comes_back_for_the_replay(session: cl.Session) -> None:
    base = made()
    out = F.gelu(base)
    expected = dropped(out)
    assert session.evict(base)
    assert same(out, expected)
    assert session.where(base) == "resident"
    assert session.evict(base) and session.evict(out)
    assert same(out, expected)
    assert core.drop(out) == ""
    assert session.evict(base)
    assert same(out, expected)


def test_records_do_not_pile_up(session: cl.Session) -> None:
    x, weight = made().requires_grad_(), made(1)
    mean = torch.zeros(ROWS, COLUMNS)
    counts = []
    for number in range(40):
        x.grad = None
        hidden = F.layer_norm(x, (COLUMNS,))
        product = hidden @ weight.t()
        out = F.gelu(product)
        loss = out.square().mean()
        dropped(out)
        loss.backward()
        for _ in range(5):
            mean = 0.9 * mean + 0.1 * x.detach()
        del hidden, product, out
        if number % 2:
            core.of().end_step()
        counts.append((core.of().counters()["producers"], core.of().counters()["live_bytes"]))
    assert counts[-1] == counts[9]


def test_a_long_line_of_dead_values_is_let_go_at_the_steps_end(session: cl.Session) -> None:
    line = [made()]
    for _ in range(3000):
        line.append(line[-1] + 1)
    while len(line) > 1:  # the newest first: nothing tells that the older ones are gone
        last = line.pop()
        if len(line) == 2999:
            kept = last
    del last
    line.clear()
    assert core.of().counters()["producers"] > 2000
    core.of().end_step()
    assert core.of().counters()["producers"] <= core.LONGEST_CHAIN
    assert kept[0, 0].item() == kept[0, 0].item()


# ---------------------------------------------------------------------------------------------------- surroundings


@pytest.mark.bits
def test_autocast_then_and_now(session: cl.Session) -> None:
    x, weight = made().requires_grad_(), made(1).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        product = x @ weight.t()
        out = F.gelu(product)
        normed = F.layer_norm(product, (ROWS,))
    assert product.dtype == out.dtype == torch.bfloat16
    expected = [dropped(t) for t in (normed, out, product)]
    assert all(same(t, e) for t, e in zip((normed, out, product), expected, strict=True))
    outside = [x @ weight.t(), F.gelu(x)]
    expected = [dropped(t) for t in outside]
    with torch.autocast("cpu", torch.bfloat16):
        for tensor in outside:
            assert tensor.relu() is not None
    assert all(same(t, e) for t, e in zip(outside, expected, strict=True))
    with torch.autocast("cpu", torch.float16):
        half = x @ weight.t()
    expected = [dropped(half)]
    with torch.autocast("cpu", torch.bfloat16):
        assert half.relu().dtype == torch.float16
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    assert same(half, expected[0])


@pytest.mark.bits
def test_autocasts_weight_copies_are_replayed_by_a_cast(session: cl.Session) -> None:
    model = nn.Linear(COLUMNS, 128)
    x = made().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x)
    copies = [out.grad_fn._saved_mat1, out.grad_fn._saved_mat2]
    cast = next(t for t in copies if t is not None and t.numel() == model.weight.numel())
    assert cast.dtype == torch.bfloat16
    base = cast if cast._base is None else cast._base
    expected = dropped(base)
    core.of().end_step()
    assert same(base, expected)
    log = core.of().end_step()
    assert [core.op_names()[name] for name in log.replays()["name"]] == ["aten::_to_copy"]
    out.sum().backward()


@pytest.mark.bits
def test_settings_are_those_of_the_first_run_and_put_back(session: cl.Session) -> None:
    torch.set_num_threads(2)
    precision = torch.get_float32_matmul_precision()
    session.step()  # what repeats itself to the bit under new settings is looked for at the end of a step
    try:
        weight = made(1)
        x = made()
        product = x @ weight.t()
        ones = torch.full((ROWS, COLUMNS), 1)
        ratio = ones / 3
        expected = dropped(product), dropped(ratio)
        torch.set_num_threads(1)
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True)
        torch.set_flush_denormal(True)
        torch.set_float32_matmul_precision("medium")
        assert same(product, expected[0]) and same(ratio, expected[1])
        assert torch.get_num_threads() == 1 and torch.get_default_dtype() == torch.float64
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(False)
        torch.set_flush_denormal(False)
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(OP_THREADS)


@pytest.mark.bits
def test_what_was_checked_under_other_settings_is_not_replayed(session: cl.Session) -> None:
    """Scripts choose kernels when the session is open already: `chameleon run` opens it before they begin."""
    x, weight = made(), made(1)
    with torch.backends.mkldnn.flags(enabled=False):
        product, shifted = x @ weight.t(), x + 1
        assert "has not been seen to repeat itself" in core.drop(product)
        dropped(shifted)  # an op of class 1 repeats itself under all settings
        session.step()
        product = x @ weight.t()
        expected = dropped(product)
    assert same(product, expected), "with the settings of its first run"
    after = x @ weight.t()
    assert "has not been seen to repeat itself" in core.drop(after)
    session.step()
    core.of().keep_producers(True)  # a plan has none of it
    dropped(x @ weight.t())


@pytest.mark.bits
@pytest.mark.parametrize("then", [True, False])
def test_a_convolution_has_the_backend_of_its_first_run(session: cl.Session, then: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    images, kernels = (
        torch.randn(*shape, generator=generator) for shape in [(32, 16, 16, 16), (16, 16, 3, 3)]
    )
    images.sum(), kernels.sum()
    with torch.backends.mkldnn.flags(enabled=False):  # nnpack does it then, or torch's own kernel
        with torch.backends.nnpack.flags(enabled=then):
            session.step()
            out = F.conv2d(images, kernels, padding=1)
        expected = dropped(out)
        with torch.backends.nnpack.flags(enabled=not then):
            assert same(out, expected)
            assert torch._C._get_nnpack_enabled() is not then
            other = F.conv2d(images, kernels, padding=1)
    if raw(other) == raw(expected):
        pytest.skip("nnpack does not support this processor")


@pytest.mark.bits
def test_denormals_are_treated_as_in_the_first_run(session: cl.Session) -> None:
    tiny = torch.full((ROWS, COLUMNS), 1e-39)
    kept = tiny * 0.5
    expected = dropped(kept)
    assert expected[0, 0].item() > 0
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush denormals")
    try:
        kept.untyped_storage().data_ptr()  # restores it
    finally:
        torch.set_flush_denormal(False)
    assert same(kept, expected)


FLUSHING: dict[str, str] = {
    "a thread without workers": "flush(True); read(); count()",
    "a thread without workers, of one": "threads(1); flush(True); read(); threads(2); count()",
    "workers": "flush(True); count(); flush(False); read(); count()",
    "workers that do not": "count(); flush(True); read(); count()",
    "fewer than there are": "threads(3); count(); flush(True); read(); count()",
    "more than there are": "count(); threads(1); flush(True); read(); threads(3); count()",
}


@pytest.mark.bits
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(steps, id=id_, marks=[] if id_ == "workers" else pytest.mark.full)
        for id_, steps in FLUSHING.items()
    ],
)
def test_workers_that_flush_denormals_do_as_in_the_first_run_and_as_before(steps: str) -> None:
    """Workers have the setting of the thread that made them, from then on, and share the op with a thread."""
    program = f"""
        torch.set_num_threads(2)
        seen = []
        with cl.Session("256MiB", min_swap="1KiB"):
            core.of().keep_producers(True)
            tiny = torch.full((3 << 16,), 1e-39)
            (tiny * 1).sum()
            made = tiny * 0.5
            expected = made.clone()
            if DROP:
                assert core.drop(made) == ""

            def other():
                torch.set_num_threads(2)
                flush, threads = torch.set_flush_denormal, torch.set_num_threads
                def count():
                    seen.append(int((tiny * 0.5 == 0).sum()))
                def read():
                    made[:1].clone()
                    assert core.residency(made) == "resident"
                    seen.append(raw(made) == raw(expected))
                {steps}
                flush(False)
                count()

            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        print(seen)
    """
    plain, replayed = (child(program.replace("DROP", drop)).stdout for drop in ("False", "True"))
    assert plain == replayed and "True" in plain and "False" not in plain


@pytest.mark.bits
def test_what_was_made_while_a_thread_with_workers_flushes_is_not_dropped() -> None:
    child("""
        torch.set_num_threads(2)
        with cl.Session("256MiB", min_swap="1KiB"):
            core.of().keep_producers(True)
            tiny = torch.full((1 << 18,), 1e-39)
            (tiny * 1).sum()
            if torch.set_flush_denormal(True):
                made = tiny * 0.5
                torch.set_flush_denormal(False)
                later = tiny * 0.5
                assert "denormals" in core.drop(made) and "denormals" in core.drop(later)
                torch.set_num_threads(1)
                alone = tiny * 0.5
                expected = alone.clone()
                assert core.drop(alone) == "" and raw(alone) == raw(expected)
    """)


def precisions() -> tuple[str, ...]:
    """What float32 matrix products and convolutions are computed with; of the entries, and of those above them."""
    pairs = [(backend, op) for backend in ("cuda", "mkldnn") for op in ("all", "conv", "rnn", "matmul")]
    return tuple(torch._C._get_fp32_precision_getter(*pair) for pair in [("generic", "all"), *pairs])


@pytest.mark.bits
@pytest.mark.parametrize("parent", ["generic", "mkldnn"])
@pytest.mark.parametrize(
    ("then", "now"), [("bf16", "ieee"), ("bf16", "none"), ("none", "bf16"), ("ieee", "tf32")]
)
def test_a_replay_leaves_float32_precisions_inherited(parent: str, then: str, now: str) -> None:
    """What inherited before a replay inherits after it: it follows what the user says next."""

    def run(drop: bool) -> list[tuple[str, ...] | torch.Tensor]:
        seen: list[tuple[str, ...] | torch.Tensor] = []
        with cl.Session("64MiB", min_swap="1KiB") as session:
            core.of().keep_producers(True)
            x = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
            x.sum()
            try:
                torch._C._set_fp32_precision_setter(parent, "all", then)
                session.step()
                product = x @ x
                torch._C._set_fp32_precision_setter(parent, "all", now)
                if drop:
                    dropped(product)
                seen += [product.clone(), precisions()]
                for later in ("ieee", "bf16", "tf32", "none"):
                    torch._C._set_fp32_precision_setter(parent, "all", later)
                    seen += [precisions(), x @ x]
            finally:
                torch._C._set_fp32_precision_setter(parent, "all", "none")
            return seen

    for plain, replayed in zip(run(False), run(True), strict=True):
        if isinstance(plain, torch.Tensor):
            assert isinstance(replayed, torch.Tensor) and same(plain, replayed)
        else:
            assert plain == replayed


@pytest.mark.bits
def test_grad_and_inference_modes(session: cl.Session) -> None:
    x = made()
    with torch.inference_mode():
        out = F.gelu(x)
        expected = dropped(out)
        assert same(out, expected)
    dropped(out)
    assert same(out, expected)
    out = F.gelu(x)
    expected = dropped(out)
    with torch.inference_mode():
        assert same(out, expected)
    assert not out.is_inference()
    (out.requires_grad_() * 2).sum().backward()


@pytest.mark.bits
def test_modes_and_transforms_do_not_see_replays(session: cl.Session) -> None:
    class Counting(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
            Counting.seen += 1
            return func(*args, **(kwargs or {}))

    x = made()
    out = F.gelu(x)
    expected = dropped(out)
    with Counting():
        total = out + 0
    assert same(total, expected) and Counting.seen == 1
    dropped(out)
    assert same(torch.vmap(lambda row: row * 2)(out), expected * 2)
    with Counting():
        unseen = F.gelu(x)
    assert core.drop(unseen) != "", "what a mode makes is up to Python"
    dropped(out)
    checked = torch.func.grad(lambda t: (t * out).sum())(x)
    assert same(checked, expected)


@pytest.mark.bits
def test_random_numbers(session: cl.Session) -> None:
    x = made().sigmoid()
    generator = torch.Generator().manual_seed(3)
    drawn = torch.bernoulli(x, generator=generator)
    expected = dropped(drawn)
    states = generator.get_state(), torch.get_rng_state()
    assert same(drawn, expected)
    assert torch.equal(states[0], generator.get_state()) and torch.equal(states[1], torch.get_rng_state())
    for refused in (
        torch.native_dropout(x, 0.3, True)[0],
        torch.rand_like(x),
        torch.randn(ROWS, COLUMNS),
    ):
        assert core.drop(refused) != ""
    for dropout_p in (0.0, 0.1):  # which draws a mask on the way
        attention = F.scaled_dot_product_attention(*[x.view(1, 2, 32, 256)] * 3, dropout_p=dropout_p)
        expected = dropped(attention)
        assert same(attention, expected)


def _rolled_by_a_list_that_changes(x: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    shifts = [3, 5]
    rolled = torch.roll(x, shifts, [0, 1])
    shifts[0] = 7
    return rolled, shifts


def _filled_by_a_list_that_changes(x: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    sizes = [x.size(0), x.size(1)]
    filled = torch.full(sizes, 2.0)
    sizes[0] = 3
    return filled, sizes


def _padded_by_a_list_that_changes(x: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    padding = [0, 0, 1, 1]
    padded = torch.constant_pad_nd(x, padding, 0.0)
    padding[2] = 2
    padding[3] = 0
    return padded, padding


@pytest.mark.bits
@pytest.mark.parametrize(
    "program",
    [_rolled_by_a_list_that_changes, _filled_by_a_list_that_changes, _padded_by_a_list_that_changes],
)
def test_lists_of_numbers_are_those_of_the_first_run(
    session: cl.Session, program: Callable[[torch.Tensor], tuple[torch.Tensor, list[int]]]
) -> None:
    scripted, x = torch.jit.script(program), made()
    for _ in range(3):  # TorchScript profiles twice, and specializes then
        out = scripted(x)[0]
        expected = dropped(out)
        assert same(out, expected)


def _list_in_a_loop(x: torch.Tensor, times: int) -> list[torch.Tensor]:
    made = [x]
    for _ in range(times):
        x = torch.tanh(x * x)
        made.append(x * 2)
    return made[1:]


def _in_place_in_a_loop(x: torch.Tensor, times: int) -> list[torch.Tensor]:
    made = [x * 2]
    for _ in range(times):
        y = torch.tanh(made[-1])
        y.mul_(1.5)
        made.append(y)
    return made[1:]


def _list_of_results(x: torch.Tensor, times: int) -> list[torch.Tensor]:
    return [x * times, torch.sin(x), x.exp()]


@pytest.mark.bits
@pytest.mark.parametrize("program", [_list_in_a_loop, _in_place_in_a_loop, _list_of_results])
@pytest.mark.parametrize("grad", [False, True])
def test_torchscript_leaves_values_below_a_result(
    session: cl.Session, program: Callable[[torch.Tensor, int], list[torch.Tensor]], grad: bool
) -> None:
    """What an op of TorchScript has made are the last values of its stack, not the first ones."""
    scripted, x = torch.jit.script(program), made().requires_grad_(grad)
    for _ in range(4):  # TorchScript profiles twice, and specializes then
        outs = scripted(x, 3)
        expected = [out.detach().clone() for out in outs]
        assert "" in [core.drop(out) for out in outs]  # some have been made of too many that are gone
        assert all(same(out.detach(), before) for out, before in zip(outs, expected, strict=True))


def test_hidden_writes_are_refused(session: cl.Session) -> None:
    images = torch.randn(2, 16, 12, 12, generator=torch.Generator().manual_seed(0))
    images.sum()
    norm = nn.BatchNorm2d(16)
    assert "not replayed" in core.drop(norm(images).detach())
    norm.eval()
    assert "not replayed" in core.drop(norm(images).detach())
    lstm, _ = nn.LSTM(16, 16)(images.view(-1, 12, 16))
    assert core.drop(lstm) != ""
    assert "not replayed" in core.drop(images.cumsum(-1))


@pytest.mark.bits
def test_what_a_kernel_writes_after_an_op_inside_it_is_its_own(session: cl.Session) -> None:
    """embedding_dense_backward fills the result of aten::zeros by itself: zeros alone must not stand for it."""
    index = torch.randint(0, 50, (4, 64), generator=torch.Generator().manual_seed(0))
    grad = torch.randn(4, 64, 32, generator=torch.Generator().manual_seed(1))
    out = torch.ops.aten.embedding_dense_backward(grad, index, 50, -1, False)
    expected = out.clone()
    why = core.drop(out)
    assert same(out, expected), why
    zeros = torch.zeros(ROWS, COLUMNS)
    dropped(zeros)
    assert not zeros.any()


# ---------------------------------------------------------------------------------------------------- raw access


def test_every_read_finds_a_dropped_tensor() -> None:
    slow = "pickle typed storage"  # a quarter of a million ops in Python
    away = 'assert core.drop(x) == "" and session.where(x) == "dropped", name'
    every_read(away, pressure_mib=14, skip=[slow])


@pytest.mark.bits
def test_the_end_of_a_session_restores_everything() -> None:
    with cl.Session("16MiB", min_swap="1KiB"):
        core.of().keep_producers(True)
        x, weight = made(), made(1)
        hidden = F.layer_norm(x, (COLUMNS,))
        product = hidden @ weight.t()
        out = F.gelu(product)
        expected = [dropped(t) for t in (out, product, hidden)]
        del x
    for tensor, before in zip((out, product, hidden), expected, strict=True):
        assert same(tensor, before)
    assert core.of().counters()["producers"] == 0 and core.of().counters()["ghosts"] == 0


def test_a_fork_leaves_nothing_to_be_replayed() -> None:
    child(
        """
        import os
        import torch.nn.functional as F
        with cl.Session("16MiB", min_swap="1KiB") as session:
            core.of().keep_producers(True)
            x = torch.randn(512, 512)
            x.sum()
            out = F.gelu(x)
            expected = out.clone()
            assert core.drop(out) == ""
            pid = os.fork()
            if pid == 0:
                assert session.where(out) == "resident"
                os._exit(0 if bool((out == expected).all()) else 1)
            assert os.waitpid(pid, 0)[1] == 0
            assert bool((out == expected).all())
        """
    )


def test_a_replay_without_room_says_so() -> None:
    with cl.Session("3MiB", min_swap="1KiB") as session:
        core.of().keep_producers(True)
        x = torch.zeros(MiB // 4)
        x.sum()
        out = F.gelu(x)
        assert core.drop(out) == ""
        views = [torch.zeros(MiB // 8).numpy() for _ in range(4)]  # numpy's memory stays
        with pytest.raises((RuntimeError, torch.OutOfMemoryError), match="below the floor|capacity"):
            out + 1
        assert core.residency(out) == "dropped"
        del views
        gc.collect()
        assert not (out + 0).any()
        assert session.where(out) == "resident"
        core.of().take_failure()


def test_two_threads_ask_for_the_same_bytes(session: cl.Session) -> None:
    x, weight = made(), made(1)
    wrong = []
    for _ in range(30):
        hidden = F.layer_norm(x, (COLUMNS,))
        product = hidden @ weight.t()
        out = F.gelu(product)
        tensors = [out, product, hidden]
        expected = [dropped(t) for t in tensors]
        start = threading.Barrier(3)

        def read(number: int) -> None:
            start.wait()  # noqa: B023
            for k in (number, (number + 1) % 3):
                if not torch.equal(tensors[k], expected[k]):  # noqa: B023
                    wrong.append(k)

        threads = [threading.Thread(target=read, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANGS_AFTER_S)
            assert not thread.is_alive()
    assert not wrong


@pytest.mark.full
@pytest.mark.parametrize("in_place", [False, True])
def test_a_write_that_waits_for_another_thread_ends_the_value_all_the_same(in_place: bool) -> None:
    """While it waits, ops inside the other thread's begin and end."""
    entered, written = threading.Event(), threading.Event()

    @torch.library.custom_op("chameleon_test::busy" + "_in_place" * in_place, mutates_args=())
    def busy(big: torch.Tensor) -> torch.Tensor:
        entered.set()
        for _ in range(400):  # until after the write has begun to wait, and still for a while
            big[0].abs()
            time.sleep(0.001)  # noqa: TID251 - of the full run
        assert not written.is_set(), "it found room beside the other's inputs"
        return big[:1].clone()

    with cl.Session("1MiB", min_swap="1KiB") as session:
        core.of().keep_producers(True)
        big, factor = torch.ones(768 * KiB // 4), torch.full((64 * KiB,), 3.0)
        base = torch.ones(64 * KiB)
        x = base * 2  # 256 KiB
        assert session.evict(factor) and session.where(x) == "resident"
        other = threading.Thread(target=busy, args=(big,))
        other.start()
        assert entered.wait(HANGS_AFTER_S)
        if in_place:
            x.mul_(factor)
        else:
            torch.mul(x, factor, out=x)
        written.set()
        other.join(HANGS_AFTER_S)
        assert not other.is_alive()
        assert core.drop(x) == ("" if in_place else "it was written after it was made")
        assert (x == 6).all()


def test_nothing_is_kept_unless_asked_for() -> None:
    with cl.Session("16MiB", min_swap="1KiB", planning=False):
        out = F.gelu(made())
        assert "nobody saw" in core.drop(out)
        assert core.of().counters()["producers"] == 0


def test_rematerialize_false_replays_nothing() -> None:
    with cl.Session("16MiB", min_swap="1KiB", rematerialize=False) as session:
        core.of().keep_producers(True)
        out = F.gelu(made())
        assert "not replayed" in core.drop(out)
        assert session.trace_meta()["replay_class"] == 0


def test_rematerialize_cheap_replays_what_costs_little() -> None:
    with cl.Session("16MiB", min_swap="1KiB", rematerialize="cheap") as session:
        core.of().keep_producers(True)
        x = made()
        assert core.drop(F.gelu(x)) == ""
        product = x @ x.T
        assert "not replayed" in core.drop(product)
        meta = session.trace_meta()
        assert (meta["replay_class"], meta["not_replayed"]) == (1, {})


@pytest.mark.bits
def test_small_arguments_are_copied_and_foreign_memory_is_refused(session: cl.Session) -> None:
    x = made()
    scale = torch.tensor([0.3])
    out = x * scale
    expected = dropped(out)
    scale.zero_()
    assert same(out, expected)
    outside = torch.from_numpy(__import__("numpy").ones((ROWS, COLUMNS), dtype="float32"))
    assert "does not own" in core.drop(outside * 2)
    assert KiB < out.nbytes


@pytest.mark.bits
def test_a_const_pointer_that_meets_a_dropped_storage_reads_the_right_bytes() -> None:
    """C++ that has taken the address without asking faults on the mark: the op runs again on another thread."""
    child("""
        ADDRESS = ctypes.c_void_p * 16

        def words(tensor):
            return list(ADDRESS.from_address(tensor.untyped_storage()._cdata))

        seen = torch.ones(MiB)
        place = words(seen).index(seen.data_ptr())
        def run():
            x = torch.arange(MiB, dtype=torch.float32)
            y = x * 2
            y.sum()
            assert core.drop(y) == "" and session.where(y) == "dropped"
            mark = words(y)[place]
            read = np.ctypeslib.as_array((ctypes.c_float * MiB).from_address(mark))
            assert np.array_equal(read, np.arange(MiB, dtype=np.float32) * 2)
            assert session.where(y) == "resident" and session.report().escaped_storages == 0
            assert core.drop(y) == "" and torch.equal(y, x + x)
        with cl.Session("64MiB") as session:
            core.of().keep_producers(True)
            run()  # on Python's signal stack, which is small
            threads = [threading.Thread(target=run) for _ in range(4)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
    """)


def test_a_value_that_no_memory_was_left_for_says_so_each_time() -> None:
    """At the end of the session its op could not run again: reading it raises, in later sessions too."""
    child("""
        import pytest
        lost = dict(match="no memory left for that when the session ended")
        with cl.Session("16MiB") as session:
            core.of().keep_producers(True)
            x = torch.arange(MiB // 4, dtype=torch.float32)
            y = x * 2
            y.sum()
            assert core.drop(y) == ""
            core.set_faults(refused_blocks=1 << 30)
        core.set_faults()
        with cl.Session("16MiB") as session:
            for _ in range(3):
                with pytest.raises(RuntimeError, **lost):
                    y.sum()
                with pytest.raises((torch.OutOfMemoryError, RuntimeError, cl.SessionError)):
                    session.restore(y)
            assert x.sum().item() > 0
        del y
    """)


@pytest.mark.full
def test_what_a_replay_reads_is_not_written_before_it_ends_although_its_result_has_died() -> None:
    child(
        """
        session = cl.Session("256MiB", min_swap="1KiB").start()
        core.of().keep_producers(True)
        square = torch.randn(1500, 1500)
        square.sum()
        begin_s = time.monotonic()
        products = [square @ square]
        took_s = time.monotonic() - begin_s
        assert core.drop(products[0]) == ""
        errors = []
        def other():
            time.sleep(took_s / 3)  # the end of the session makes the product again now
            products.clear()
            try:
                square.mul_(2)
            except Exception as error:
                errors.append(error)
        thread = threading.Thread(target=other)
        thread.start()
        session.stop()
        thread.join()
        assert not errors, errors
        """
    )
