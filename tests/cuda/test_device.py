"""What only a GPU shows: order of streams, memory that goes back, raw access, Triton, graphs, other allocators."""

from __future__ import annotations

import random

import pytest
import torch
from gpu_training import DEVICE, ON_GPU, MiB, allocated_bytes, backend, child, needs, reserved_bytes

import chameleon_lab as cl
from chameleon_lab.runtime import core


@pytest.mark.bits
def test_random_kernels_evictions_and_reuse_of_memory() -> None:
    """Every tensor keeps its pattern while its memory is given to others, which write over it at once."""
    seed = random.SystemRandom().getrandbits(32)
    draw = random.Random(seed)
    base = torch.arange(8 * MiB // 4, dtype=torch.int32, device=DEVICE)
    wrong = torch.zeros((), dtype=torch.int64, device=DEVICE)
    heavy = torch.randn(*[2048 if ON_GPU else 64] * 2, device=DEVICE)
    sizes = [draw.randrange(MiB // 64, 8 * MiB) // 4 for _ in range(24)]
    with cl.Session(sum(sizes) * 4 // 2 + 64 * MiB, device=DEVICE) as session:
        values = list(range(24))
        tensors = [base[:size] + value for size, value in zip(sizes, values, strict=True)]
        for _ in range(4000 if ON_GPU else 400):
            i = draw.randrange(24)
            action = draw.random()
            if action < 0.3:
                session.evict(tensors[i])
                torch.empty_like(tensors[(i + 1) % 24]).fill_(-1)
            elif action < 0.5:
                values[i] = draw.randrange(1 << 20)
                torch.add(base[: sizes[i]], values[i], out=tensors[i])
            elif action < 0.6:
                heavy @ heavy  # noqa: B018
            else:
                wrong += (tensors[i] != base[: sizes[i]] + values[i]).sum()
        moved = core.of(session.device).counters()["host_peak_bytes"]
        assert moved > 0
    assert int(wrong) == 0, f"seed {seed}"
    for tensor, size, value in zip(tensors, sizes, values, strict=True):
        assert torch.equal(tensor, base[:size] + value), f"seed {seed}"


def test_memory_goes_back_at_the_free_point() -> None:
    # The sum adds the bytes up in a copy of them that is eight times as large.
    with cl.Session(1024 * MiB, device=DEVICE) as session:
        tensor = torch.ones(64 * MiB, device=DEVICE, dtype=torch.uint8)
        before = allocated_bytes()
        assert session.evict(tensor)
        assert before - allocated_bytes() == 64 * MiB
        assert int(tensor.sum()) == 64 * MiB


def test_out_of_memory_in_the_first_step_is_met_by_eviction() -> None:
    before = reserved_bytes()  # libraries keep their workspaces
    with cl.Session(256 * MiB, device=DEVICE) as session:
        held = [torch.full((16 * MiB,), number, dtype=torch.uint8, device=DEVICE) for number in range(48)]
        assert reserved_bytes() - before <= 256 * MiB
        assert [int(t[0]) for t in held] == list(range(48))
        session.step()
        assert session.report().evictions >= 32
    assert [int(t[-1]) for t in held] == list(range(48))


def test_below_the_floor_it_says_so() -> None:
    with (
        pytest.raises((cl.BelowFloorError, torch.OutOfMemoryError), match="floor"),
        cl.Session(64 * MiB, device=DEVICE),
    ):
        torch.empty(128 * MiB, dtype=torch.uint8, device=DEVICE)


@pytest.mark.parametrize(
    "access",
    [
        "t.data_ptr()",
        "t.untyped_storage().data_ptr()",
        "t.__dlpack__()",
        "t.numpy(force=True)",
        "t.cpu()",
        "t.tolist()",
    ],
)
def test_raw_access_to_what_is_away_brings_it_back(access: str) -> None:
    with cl.Session(256 * MiB, device=DEVICE) as session:
        t = torch.arange(MiB, device=DEVICE)
        assert session.evict(t) and session.where(t) == "away"
        eval(access)
        assert session.where(t) == "resident"
        assert int(t[12345]) == 12345


@pytest.mark.bits
@pytest.mark.skipif(not core.SEES_RAW_ACCESS, reason="before torch 2.13 what was exported stays")
def test_what_another_library_was_given_may_leave_from_the_next_step_on() -> None:
    with cl.Session(256 * MiB, device=DEVICE) as session:
        t = torch.arange(MiB, device=DEVICE)
        assert session.evict(t)
        other = torch.from_dlpack(t)
        assert session.where(t) == "resident" and not session.evict(t)
        if ON_GPU:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                other.add_(1)
        else:
            other.add_(1)
        del other
        assert not (ON_GPU and session.evict(t)), "its kernel may still run"
        session.step()
        assert session.evict(t) and session.report().escaped_storages == 0
        assert int(t[12345]) == 12346


def test_saving_and_loading(tmp_path: object) -> None:
    with cl.Session(128 * MiB, device=DEVICE) as session:
        tensors = [torch.full((16 * MiB,), number, dtype=torch.uint8, device=DEVICE) for number in range(12)]
        torch.save(tensors, f"{tmp_path}/t.pt")
        assert session.report().escaped_storages == 0
    assert [int(t[-1]) for t in torch.load(f"{tmp_path}/t.pt", map_location="cpu")] == list(range(12))


@pytest.mark.bits
@needs("Triton's kernels")
def test_a_triton_kernel_reads_what_was_away_and_lets_it_leave() -> None:
    triton = pytest.importorskip("triton")
    import triton.language as tl

    @triton.jit
    def double(x, y, n, block: tl.constexpr):  # noqa: ANN001, ANN202
        i = tl.program_id(0) * block + tl.arange(0, block)
        tl.store(y + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)

    with cl.Session("256MiB", device="cuda") as session:
        x = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
        y = torch.empty_like(x)
        for _ in range(2):  # the second time the host has a copy of y, which goes stale
            assert session.evict(x) and session.evict(y)
            double[(1 << 20) // 1024,](x, y, 1 << 20, block=1024)
            assert session.where(x) == session.where(y) == "resident"
            x += 1
        assert session.evict(x) and session.evict(y)
        assert torch.equal(y, 2 * torch.arange(1, (1 << 20) + 1, device="cuda", dtype=torch.float32))
        session.step()
        step = session.trace().last
        launches = [op for op, name in enumerate(step.ops.name) if step.names[name] == "triton::double"]
        assert [step.uses.writes[step.uses.op == op].tolist() for op in launches] == [[False, True]] * 2
        assert session.report().escaped_storages == 0


@pytest.mark.bits
def test_a_compiled_region_reads_what_was_away() -> None:
    compiler = "inductor" if ON_GPU else "aot_eager"
    compiled = torch.compile(lambda x, w: torch.nn.functional.gelu(x @ w).sum(), backend=compiler)
    size = 1024 if ON_GPU else 64
    x, w = (torch.randn(size, size, device=DEVICE, requires_grad=True) for _ in range(2))
    compiled(x, w).backward()
    expected = w.grad.clone()
    w.grad = None
    with cl.Session(256 * MiB, device=DEVICE) as session:
        session.adopt(x, w)
        assert session.evict(w)
        compiled(x, w).backward()
        assert torch.equal(w.grad, expected)


@needs("CUDA graphs")
def test_graphs_are_refused() -> None:
    graph = torch.cuda.CUDAGraph()
    x = torch.ones(1024, device="cuda")
    with torch.cuda.graph(graph):
        y = x * 2
    with cl.Session("256MiB", device="cuda"):
        with pytest.raises(cl.SessionError, match="keeps the addresses"):
            graph.replay()
        with (
            pytest.raises(cl.SessionError, match="keeps the addresses"),
            torch.cuda.graph(torch.cuda.CUDAGraph()),
        ):
            x + 1  # noqa: B018
        assert int((torch.ones(1024, device="cuda") + 1).sum()) == 2048
    graph.replay()
    assert int(y.sum()) == 2048


@needs("torch's CUDA allocator")
def test_another_allocator_is_refused() -> None:
    said = child(
        """
        try:
            cl.Session("256MiB", device="cuda").start()
        except cl.SessionError as error:
            print(error)
        """,
        PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync",
    )
    assert "caching allocator" in said and "backend" in said


@needs("torch's CUDA allocator")
@pytest.mark.bits
def test_torchs_memory_history_and_observers_of_out_of_memory_go_on_beside_a_session() -> None:
    """Beside a thread that drops tensors under Python's lock: in a child, since an observer stays for good."""
    said = child(
        """
        import threading

        heard = []
        torch._C._cuda_attach_out_of_memory_observer(lambda *told: heard.append(told))
        torch.cuda.memory._record_memory_history(context="all", stacks="all")

        def fill():
            return [torch.full((16 << 20,), number, dtype=torch.uint8, device="cuda") for number in range(24)]

        right = []

        def work():
            for _ in range(10):
                right.append([int(t[0]) for t in fill()] == list(range(24)))

        with cl.Session("256MiB", device="cuda") as session:
            threads = [threading.Thread(target=work) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            silent = len(heard)
            try:
                torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError as error:
                assert "floor" in str(error)
            evictions = session.report().evictions
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(enabled=None)
        events = [event for trace in snapshot["device_traces"] for event in trace if event["action"] == "alloc"]
        lines = [frame["name"] for event in events for frame in event.get("frames", [])]
        ours = [event for event in events if event.get("user_metadata") == "Chameleon Lab"]
        print(all(right), len(right), silent, [told[:2] for told in heard], "fill" in lines, bool(ours), evictions > 0)
        """,
    )
    assert said.split("\n")[-2:] == [f"True 20 0 [(0, {1 << 30})] True True True", ""], said


@needs("torch's CUDA allocator")
@pytest.mark.skipif(not hasattr(torch.cuda.memory, "_annotate_tensor"), reason="torch 2.14 or newer")
def test_a_note_on_a_tensor_is_in_the_snapshot_and_the_tensor_may_leave() -> None:
    torch.cuda.memory._record_memory_history(context=None)
    try:
        with cl.Session("256MiB", device=DEVICE) as session:
            x = torch.ones(MiB, device=DEVICE)
            assert session.evict(x)
            torch.cuda.memory._annotate_tensor(x, "a note")
            events = torch.cuda.memory._snapshot()["device_traces"][x.device.index]
            assert session.evict(x)
        assert [event["user_metadata"] for event in events if event["action"] == "annotate"] == ["a note"]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


@needs("a second GPU")
def test_a_second_gpu_is_left_alone() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("this machine has one GPU")
    with cl.Session("256MiB", device="cuda:1") as session:
        held = [torch.full((16 * MiB,), n, dtype=torch.uint8, device="cuda:1") for n in range(24)]
        other = torch.ones(512 * MiB, dtype=torch.uint8, device="cuda:0")
        assert session.where(other) is None
        assert [int(t[0]) for t in held] == list(range(24))


def test_times_of_copies_and_stalls_come_from_the_gpu() -> None:
    with cl.Session(512 * MiB, device=DEVICE) as session:
        tensor = torch.ones(256 * MiB, dtype=torch.uint8, device=DEVICE)
        session.evict(tensor)
        tensor.add_(1)
        session.step()
        backend.synchronize()
        step = session.trace().steps[-1]
    seconds = step.transfers.end_s - step.transfers.start_s
    assert len(seconds) == 2
    if not ON_GPU:
        pytest.skip("a rehearsal on the embedded device, and its times are not those of CUDA events")
    assert (seconds > 0).all()
    # 256 MiB take over 2 ms on the fastest link there is.
    assert (seconds > 256 * MiB / 200e9).all()
    assert float(step.stalls.duration_s.sum()) > 0
    assert (step.transfers.start_s >= step.transfers.issue_s - 1e-3).all()
