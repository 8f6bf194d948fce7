"""Promise 2, restore before use: every way around the dispatcher finds the right bytes, or says what is wrong."""

from __future__ import annotations

import ctypes

import pytest
import torch
from reads import CPP_POINTER, PRELUDE, every_read
from torch import nn
from training import MiB, child, pressure

import chameleon_lab as cl
from chameleon_lab.runtime import core

pytestmark = pytest.mark.full


@pytest.mark.gate
def test_every_read_finds_an_away_tensor() -> None:
    every_read('assert session.evict(x) and session.where(x) == "away", name', pressure_mib=20)


@pytest.mark.gate
@pytest.mark.skipif(not hasattr(torch.cuda.memory, "_annotate_tensor"), reason="torch 2.14 or newer")
def test_a_note_in_memory_snapshots_is_on_the_block_of_now_and_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[int, str]] = []
    with cl.Session("64MiB", device="cpu") as session:
        x = torch.arange(MiB, dtype=torch.float32)
        assert session.evict(x)
        with monkeypatch.context() as pretended:
            pretended.setattr(torch.Tensor, "is_cuda", True)
            pretended.setattr(
                torch._C, "_cuda_annotateMemory", lambda *said: told.append(said), raising=False
            )
            torch.cuda.memory._annotate_tensor(x[7:], "saved for backward")
        ((address, text),) = told
        assert (ctypes.c_float * 9).from_address(address)[8] == 8 and text == "saved for backward"
        assert session.where(x) == "resident" and session.evict(x)
        assert session.report().escaped_bytes == 0
        with pytest.raises(ValueError, match="expected a CUDA tensor"):
            torch.cuda.memory._annotate_tensor(x, "")
        assert session.evict(x)


@pytest.mark.gate
@pytest.mark.skipif(
    not core.SEES_RAW_ACCESS, reason="before torch 2.13 only Python's ways to a pointer are seen"
)
@pytest.mark.parametrize(
    "made",
    [
        "torch.load(file)",
        "torch.empty(0).set_(torch.ones(N).untyped_storage())",
        "torch.empty(0).set_(torch.ones(N))",
        "torch.empty(0).set_(torch.ones(2 * N).untyped_storage(), N, (N,), (1,))",
    ],
)
def test_a_pointer_to_what_no_op_but_set__has_used_is_seen(made: str) -> None:
    child(f"""
    import io
    {CPP_POINTER}
    N = MiB // 4
    file = io.BytesIO()
    torch.save(torch.ones(N), file)
    file.seek(0)
    with cl.Session("64MiB", device="cpu") as session:
        x = {made}
        shown = (ctypes.c_float * N).from_address(address_in_cpp(x))
        assert not session.evict(x)
        shown[7] = 5
        assert x[7] == 5 and shown[8] == 1
    """)


# A raw pointer, and what x[8] reads through it; a write through it is always view[7] (x[7]).
POINTERS = {
    "x.numpy()": "view[8]",
    "np.from_dlpack(x)": "view[8]",
    "torch.from_dlpack(x)": "view[8].item()",
    "(ctypes.c_float * N).from_address(x.data_ptr())": "view[8]",
    "(ctypes.c_float * N).from_address(x.untyped_storage().data_ptr())": "view[8]",
}


TRACED = [(take, look) for take, look in POINTERS.items() if "ctypes" not in take]
ORIGINS = [
    "x = torch.zeros(N); assert session.evict(x)",
    "x = torch.zeros(N)",
    "x = torch.empty(N)",
    "x = torch.empty_like(old); x.copy_(old)",
    "x = torch.tensor([0.0] * N)",
    "x = old; session.adopt(x)",
    "x = nn.Linear(512, 512, bias=False).weight.detach().flatten()",
]


@pytest.mark.parametrize("take", [pytest.param("x.numpy()", marks=pytest.mark.gate), *list(POINTERS)[1:]])
def test_a_pointer_that_escaped_stays_good(take: str) -> None:
    """Both ways: a write through the pointer is seen by torch, and torch's through the pointer; it never moves."""
    child(
        f"""
        N = MiB // 4
        for make in {ORIGINS!r}:
            print(make, flush=True)
            old = torch.zeros(N)
            with cl.Session("4MiB") as session:
                exec(make)
                view = {take}
                address = x.data_ptr()
                for round in range(2):
                    x.zero_()
                    view[7] = 70
                    pressure(session, 8)
                    assert not session.evict(x) and session.where(x) == "resident"
                    assert x[7].item() == 70, x[:9]
                    x[8] = 80 + round
                    pressure(session, 8)
                    assert {POINTERS[take]} == 80 + round
                    assert x.data_ptr() == address
            view[7] = 71
            x[8] = 82
            assert x[7].item() == 71 and {POINTERS[take]} == 82
        """
    )


def test_a_pointer_taken_between_two_sessions_stays_good() -> None:
    child(
        f"""
        N = MiB // 4
        for take in {list(POINTERS)!r}:
            print(take, flush=True)
            with cl.Session("8MiB"):
                x = torch.zeros(N)
            view = eval(take)
            with cl.Session("8MiB") as session:
                x.add_(1)
                pressure(session, 20)
                view[7] = 70
                assert x[7].item() == 70
        """
    )


def test_a_pointer_taken_before_adoption_stays_good() -> None:
    """Of what leaves a trace: a bare data_ptr() taken before the session does not. (session.adopt() is a promise of the
    user's that there is none; a model's first forward is not.)"""
    child(
        f"""
        N = MiB // 4
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("x", torch.zeros(N))
            def forward(self):
                return self.x.sum()
        for origin in ("net.x", "net.x.detach()", "net.x[:]"):
            for take, look in {TRACED!r}:
                print(origin, take, flush=True)
                net = Net()
                x = eval(origin)
                view = eval(take)
                if origin == "net.x":
                    x = net.x
                with cl.Session("8MiB") as session:
                    net()
                    view[7] = 70
                    net.x[8] = 80
                    pressure(session, 20)
                    assert net.x[7].item() == 70 and eval(look) == 80
        """
    )


@pytest.mark.parametrize("take", ["x.numpy()", "np.asarray(x[5:])"])
def test_adopt_leaves_what_numpy_is_known_to_view(take: str) -> None:
    """session.adopt() is told that nobody keeps an address, but here torch itself knows better."""
    child(
        f"""
        N = MiB // 4
        x = torch.zeros(N)
        view = {take}
        with cl.Session("8MiB") as session:
            session.adopt(x)
            view[:] = 7
            pressure(session, 20)
            view[9] = 8
            assert x[7].item() == 7 and 8 in x[8:20]
        """
    )


def test_aliases_of_a_model_keep_it_in_place_until_it_is_adopted() -> None:
    """A state dict shares the model's storages, and could be anything's raw memory: found, not moved, and reported."""
    model = nn.Linear(512, 512, bias=False)
    alias = model.state_dict()
    with cl.Session("8MiB") as session:
        model(torch.ones(4, 512))
        assert session.where(model.weight) is None and "weight" in session.report().refused
        session.adopt(model)
        assert session.where(model.weight) == "resident" and not session.report().refused
        pressure(session, 20)
        assert session.where(alias["weight"]) == "away"
        with torch.no_grad():
            model.weight.fill_(3.0)
        assert alias["weight"].sum().item() == 3 * 512 * 512


@pytest.mark.gate
@pytest.mark.bits
def test_writes_that_no_schema_tells_of_reach_the_host_copy() -> None:
    """A host copy is kept while the tensor is only read; any write must make it stale."""
    writes = {
        "add_": "x.add_(1)",
        "lazy clone": "y = torch._lazy_clone(x); del y; x.add_(1)",
        "lazy clone kept": "y = torch._lazy_clone(x); x.add_(1); assert y[0] == 0",
        "lazy clone written": "y = torch._lazy_clone(x); y.add_(1); assert x[0] == 0; x = y",
        "numpy": "x.numpy()[:] += 1",
        "ctypes": "np.ctypeslib.as_array((ctypes.c_float * N).from_address(x.data_ptr()))[:] += 1",
        "storage": "s = x.untyped_storage(); s[3] = 63; s[2] = 128; x[1:] += 1",
        "storage fill": "x.untyped_storage().fill_(0); x += 1",
        "storage copy_": "x.untyped_storage().copy_(torch.ones(N).untyped_storage())",
        "out": "torch.add(x, 1, out=x)",
        "out list": "torch.stack([torch.ones(N)], out=x.view(1, N))",
        "foreach": "torch._foreach_add_([x], 1)",
        "view": "x.view(2, -1)[1].add_(1); x[: N // 2] += 1",
        "index_put": "x[torch.arange(N)] = 1.0",
        "masked": "x.masked_fill_(x == 0, 1)",
        "data": "x.data.add_(1)",
        "detach": "x.detach().add_(1)",
        "set_": "x.set_(torch.ones(N))",
        "data assignment": "x.data = torch.ones(N)",
        "batch norm": "F.batch_norm(torch.ones(2, N), x, torch.ones(N), training=True, momentum=1.0)",
        "native batch norm": "torch.native_batch_norm(torch.ones(2, N), None, None, x, torch.ones(N), True, 1.0, 1e-5)",
        "custom op": "torch.ops.chameleon_test.add_one(x)",
        "copy_": "x.copy_(torch.ones(N))",
        "random": "x.uniform_(1, 1)",
        "requires_grad": "x.requires_grad_(); exec('with torch.no_grad(): x += 1'); x = x.detach()",
        "swap_tensors": "y = torch.ones(N); torch.utils.swap_tensors(x, y)",
        "resize": "x.resize_(0).resize_(N).fill_(1)",
        "storage resize": "x.untyped_storage().resize_(0); x.untyped_storage().resize_(4 * N); x.fill_(1)",
        "dlpack": "torch.from_dlpack(x).add_(1)",
        "vmap": "torch.vmap(lambda row: row.add_(1))(x.view(64, -1))",
        "functionalize": "torch.func.functionalize(lambda t: t.add_(1))(x)",
        "embedding renorm": "F.embedding(torch.arange(N // 4), x.view(-1, 4).fill_(2), max_norm=2.0)",
        "inference": "exec('with torch.inference_mode(): x.add_(1)')",
    }
    cases = "\n".join(f"    cases[{name!r}] = {code!r}" for name, code in writes.items())
    child(
        f"""
    @torch.library.custom_op("chameleon_test::add_one", mutates_args=("x",))
    def add_one(x: torch.Tensor) -> None:
        x.numpy()[:] += 1
    N = MiB // 4
    cases = {{}}
{cases}
    wrong = []
    for name, code in cases.items():
        with cl.Session("16MiB") as session:
            print(name, flush=True)
            scope = None  # else the new one holds the old one, and its tensors
            scope = dict(globals(), x=torch.zeros(N))
            for again in range(2):
                x = scope.pop("x")
                assert again or session.evict(x), name
                x.sum()  # back, by a read: the host copy stays good
                scope["x"] = x
                del x
                try:
                    exec(code, scope)
                    x = scope["x"]
                    for round in range(2):
                        session.evict(x)
                        pressure(session, 20)
                        if not torch.equal(x, torch.ones(N)):
                            wrong.append((name, again, round, x[:4].tolist(), int((x != 1).sum())))
                    x.zero_()
                    del x
                except Exception as error:
                    wrong.append((name, f"{{type(error).__name__}}: {{error}}"[:300]))
                    break
    assert not wrong, wrong
    """
    )


COO = "x = torch.eye(800).to_sparse(); parts = [x._values(), x._indices()]"
TWICE = (
    "i = torch.arange(8000) % 800; x = torch.sparse_coo_tensor(i[None], torch.ones(8000, 8), (800, 8)); "
    "parts = [x._values(), x._indices()]"
)
CSR = "x = torch.ones(400, 400).to_sparse_csr(); parts = [x.values(), x.col_indices(), x.crow_indices()]"
QUANTIZED = (
    "x = torch.quantize_per_channel(d, torch.ones(800).double() / 9, torch.zeros(800), 0, torch.qint8); "
    "parts = [x, x.q_per_channel_scales(), x.q_per_channel_zero_points()]"
)
NESTED = "x = torch.nested.nested_tensor([torch.ones(300, 64), torch.ones(200, 64)]); parts = [x]"
PARTS = [
    (COO, "torch.sparse.mm(x, d)"),
    (COO, "torch.zeros(800, 800).add_(x)"),
    (COO, "x.coalesce().to_dense()"),
    (COO, "torch.sparse.sum(x, 0).to_dense()"),
    (COO, "x.t().coalesce().values()"),
    (COO, "save_and_load(x).to_dense()"),
    (TWICE, "x.coalesce().to_dense()"),
    (TWICE, "x.to_dense()"),
    (CSR, "x @ d[:400]"),
    (CSR, "x.to_dense()"),
    (CSR, "(x + x).to_dense()"),
    (QUANTIZED, "x.dequantize()"),
    (NESTED, "x.to_padded_tensor(0.0)"),
    (NESTED, "torch.nn.functional.softmax(x, -1).to_padded_tensor(0.0)"),
    ("x = torch.complex(d, d).conj(); parts = [x]", "x * 2"),
    ("x = d.to_mkldnn(); parts = [d]", "x.to_dense()"),
]


@pytest.mark.bits
def test_parts_of_tensors_that_no_op_names() -> None:
    """Sparse, quantized and nested tensors keep their bytes in further storages, which kernels read natively."""
    child(
        PRELUDE
        + f"""
    wrong = []
    for make, use in {PARTS!r}:
        print(use, make, flush=True)
        with cl.Session("64MiB", min_swap="512B") as session:
            d = torch.arange(800 * 800).reshape(800, 800).float()
            exec(make)
            want = eval(use)
            moved = [session.evict(part) for part in parts]
            if not all(moved):
                wrong.append((use, make, "some part could not leave", moved))
            if not torch.equal(eval(use), want):
                wrong.append((use, make, "wrong values"))
            pressure(session, 70)
            if not torch.equal(eval(use), want):
                wrong.append((use, make, "wrong values after pressure"))
            if session.report().escaped_storages:
                wrong.append((use, make, "reading it inside an op is no escape"))
            x = parts = want = None
    assert not wrong, wrong
    """
    )


@pytest.mark.bits
def test_a_checkpoint_can_be_saved_under_pressure_and_leaves_the_model_movable() -> None:
    """torch.save takes the raw pointer of every parameter and state, though only for a moment."""
    child(
        """
        model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(16)])  # 4 MiB, 12 with AdamW's states
        with cl.Session("3MiB") as session:
            optimizer = torch.optim.AdamW(model.parameters())
            for number in range(4):
                model(torch.ones(8, 256)).pow(2).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                if number == 1:
                    file = io.BytesIO()
                    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
                    want = state_bytes(model)
            assert session.report().escaped_storages == 0
        file.seek(0)
        loaded = torch.load(file)
        assert {name: raw(value) for name, value in loaded["model"].items()} == want
        """
    )


@pytest.mark.bits
@pytest.mark.skipif(
    not core.SEES_RAW_ACCESS, reason="before 2.13 loaded storages look as if numpy held them, and stay"
)
def test_a_checkpoint_larger_than_the_capacity_can_be_loaded() -> None:
    child(
        """
        tensors = {f"t{k}": torch.full((MiB // 4,), float(k)) for k in range(12)}
        file = io.BytesIO()
        torch.save(tensors, file)
        file.seek(0)
        with cl.Session("4MiB") as session:
            loaded = torch.load(file)
            assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
            assert session.report().peak_bytes <= 4 * MiB
        """
    )


def test_access_without_room_raises_and_does_no_harm() -> None:
    with cl.Session("4MiB") as session:
        x = torch.arange(3 * MiB // 8)
        assert session.evict(x)
        held = torch.zeros(3 * MiB // 4)
        pointer = held.data_ptr()  # it can't leave any more
        kept = "cannot leave, such as the input, of 3 MiB, to which a raw pointer was taken"
        with pytest.raises(cl.BelowFloorError, match=f"capacity of 4 MiB.*{kept}"):
            x.data_ptr()
        with pytest.raises(cl.BelowFloorError, match="do not fit"):
            session.restore(x)
        with pytest.raises(RuntimeError, match="below the floor"):
            x.sum()
        assert held.data_ptr() == pointer
        assert session.where(x) == "away"
        del held
        assert int(x[-1]) == 3 * MiB // 8 - 1
    assert int(x[1]) == 1


def test_an_error_names_what_an_array_shows() -> None:
    with cl.Session("4MiB"):
        array = torch.zeros(3 * MiB // 4).numpy()
        with pytest.raises(
            cl.BelowFloorError, match=r"3 MiB, which a numpy array or another library shows\)"
        ):
            torch.ones(MiB // 2)
        del array


def test_evict_and_restore_say_what_they_did() -> None:
    with cl.Session("8MiB") as session:
        x, small = torch.zeros(MiB // 4), torch.zeros(10)
        assert session.where(small) is None and not session.evict(small)
        assert session.where(x) == "resident"
        assert session.evict(x) and session.evict(x)
        assert session.where(x) == session.where(x[3:]) == "away"
        session.restore(x)
        assert session.where(x) == "resident"
        session.evict(x)
        pressure(session, 6)
        assert session.where(x) == "away"
        x.add_(1)
        assert session.where(x) == "resident" and x.sum().item() == MiB // 4
    assert x.sum().item() == MiB // 4


@pytest.mark.bits
def test_what_an_object_takes_of_itself_while_it_is_saved_is_no_secret() -> None:
    """torch.save looks away for its own look at addresses only: not for a pickle, nor a numpy view, made on the way."""
    child(
        """
        import pickle
        N = MiB // 4
        class Pickles:
            def __init__(self, x): self.x = x
            def __getstate__(self): return {"x": pickle.dumps(self.x)}
        class Views:
            def __init__(self, x): self.x = x
            def __getstate__(self):
                self.view = self.x.numpy()
                return {"n": 1}
        with cl.Session("4MiB") as session:
            x = torch.arange(float(N))
            assert session.evict(x)
            file = io.BytesIO()
            torch.save({"first": x, "second": Pickles(x)}, file)
            file.seek(0)
            loaded = torch.load(file, weights_only=False)
            assert torch.equal(loaded["first"], x) and torch.equal(pickle.loads(loaded["second"].x), x)
            y = torch.arange(float(N))
            y.add_(0)
            assert session.evict(y)
            views = Views(y)
            torch.save(views, io.BytesIO())
            views.view[5] = 55
            pressure(session, 12)
            assert y[5].item() == 55 and session.where(y) == "resident"
        """
    )


SLOW_OP = """
    started, goes_on = threading.Event(), threading.Event()

    def kernel(x):
        started.set()
        assert goes_on.wait(60)
        return x.sum()

    library = torch.library.Library("chameleon_test", "FRAGMENT")
    library.define("slow_sum(Tensor x) -> Tensor")
    library.impl("slow_sum", kernel, "CPU")

    def while_another_thread_s_op_uses(x, act):
        started.clear(), goes_on.clear()
        thread = threading.Thread(target=torch.ops.chameleon_test.slow_sum, args=(x,))
        thread.start()
        assert started.wait(60)
        try:
            return act()
        finally:
            goes_on.set()
            thread.join()
"""


@pytest.mark.skipif(not core.SEES_RAW_ACCESS, reason="before 2.13 nothing shows that C++ takes an address")
@pytest.mark.parametrize("begins", ["resident", "away"])
def test_an_address_taken_in_cpp_while_another_thread_s_op_uses_the_tensor_stays_good(begins: str) -> None:
    """An op of one's own that asks for it is done with it at its end; another thread's is not known to be."""
    child(
        f"""
    {CPP_POINTER}
    {SLOW_OP}
    N = MiB // 4
    with cl.Session("4MiB") as session:
        x = torch.zeros(N) + 1
        if {begins!r} == "away":
            assert session.evict(x)
        address = while_another_thread_s_op_uses(x, lambda: address_in_cpp(x))
        view = np.ctypeslib.as_array((ctypes.c_float * N).from_address(address))
        pressure(session, 8)
        assert not session.evict(x) and session.where(x) == "resident"
        view[7] = 70
        assert x[7].item() == 70 and x.data_ptr() == address
    assert x[7].item() == 70
        """
    )


def test_ops_that_ask_for_addresses_of_their_own_inputs_leave_them_free_to_move() -> None:
    """In kernels of several threads too, and beside another thread's op on the same tensor."""
    child(
        f"""
    {SLOW_OP}
    N = 1 << 20
    torch.set_num_threads(4)
    with cl.Session("64MiB") as session:
        x, y = torch.zeros(N) + 1, torch.zeros(64, 64) + 1

        def ops():
            x.add_(1).mul_(2).clamp_(0, 9)
            x.view(4, -1).cumsum_(0)
            torch.sort(x)
            y @ y
            torch.nn.functional.conv2d(y.view(1, 1, 64, 64), y.view(-1)[:9].view(1, 1, 3, 3))
            torch.nn.functional.embedding(torch.arange(64), y)

        ops()
        while_another_thread_s_op_uses(x, ops)
        assert session.evict(x) and session.evict(y)
        assert core.of().counters()["escaped"] == 0, core.of().counters()
        """
    )


def test_what_lists_and_saves_tensors_is_guarded_until_the_core_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Storages move at a session's end, too: another thread may be in the middle of `tolist()` or `torch.save()`."""
    plain = torch.Tensor.tolist
    guarded = []
    for name in ("open", "close"):

        def call(runtime: core.Runtime, *args: object, call: object = getattr(core.Runtime, name)) -> None:
            guarded.append(torch.Tensor.tolist is not plain)
            call(runtime, *args)  # type: ignore[operator]  # the core's own

        monkeypatch.setattr(core.Runtime, name, call)
    with cl.Session("8MiB"):
        torch.ones(8).sum()
    assert guarded and all(guarded) and torch.Tensor.tolist is plain
