"""What the tries have found, each on its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from training import child

import chameleon_lab as cl
from chameleon_lab.runtime import core
from chameleon_lab.testing import evict_always

pytestmark = pytest.mark.bits


@pytest.mark.parametrize("seed", [None, 1])
def test_in_place_writes_under_torch_func_reach_the_host_copy(seed: int | None) -> None:
    """A boxed call inside of a transform shows the arguments of the calls around it too, in front of its own."""

    def written(t: torch.Tensor) -> torch.Tensor:
        base = torch.zeros(5)
        base.fill_(2)
        base[1].add_(t[0].detach())
        return (base * t).sum()

    with evict_always(seed=seed):
        x = torch.arange(5.0)
        assert torch.func.grad(written)(x).tolist() == [2.0] * 5
        want = torch.diag(6 * x)
        assert torch.equal(torch.func.hessian(lambda t: t.pow(3).sum())(x), want)


def test_fake_modules_in_a_session() -> None:
    """torch.export calls modules whose parameters have no memory: there is nothing to adopt."""
    model, x = nn.Linear(9, 3), torch.ones(2, 9)
    want = model(x)
    with cl.Session("8MiB"):
        program = torch.export.export(nn.Sequential(model), (x,))
        assert torch.equal(program.module()(x), want)


def test_tolist_while_another_thread_evicts() -> None:
    """It reads through a const pointer after its last op has ended."""
    with cl.Session("1MiB", min_swap="2KiB"):
        x = torch.arange(20_000.0)
        stop = threading.Event()

        def press() -> None:
            while not stop.is_set():
                held = [torch.full((20_000,), float(k)) for k in range(16)]
                del held

        thread = threading.Thread(target=press)
        thread.start()
        try:
            assert all(x.tolist()[::777] == list(range(0, 20_000, 777)) for _ in range(25))
        finally:
            stop.set()
            thread.join()
    assert torch.Tensor.tolist is torch._C.TensorBase.tolist


@pytest.mark.parametrize("at", [0, 1, 7, 30])
def test_copies_go_on_when_an_engines_thread_has_died(at: int) -> None:
    """In a child: the engines of this process must live."""
    from training import child

    child(
        f"""
        with cl.Session("1MiB", min_swap="2KiB"):
            core.set_faults(copies={at})
            held = [torch.full((20_000,), float(k)) for k in range(60)]
            for _ in range(3):
                assert all(t[7].item() == t[-1].item() == k for k, t in enumerate(held))
        assert all(t[7].item() == k for k, t in enumerate(held))
        with cl.Session("1MiB", min_swap="2KiB") as session:
            held = [torch.full((20_000,), float(k)) for k in range(60)]
            assert all(t[7].item() == k for k, t in enumerate(held))
            assert core.of().counters()["peak_reserved_bytes"] <= MiB
        """
    )


def test_compiled_graphs_are_the_same_with_a_session_as_without() -> None:
    """Hooks on modules, which follow them, would end a graph at each: other graphs give other bits."""
    child(
        """
        import warnings
        warnings.simplefilter("error", UserWarning)

        class Half(nn.Module):
            def __init__(self):
                super().__init__()
                self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
            def forward(self, x):
                return self.down(self.up(x).relu())

        graphs = []
        def counting(graph, inputs):
            graphs.append(sum(node.op in ("call_function", "call_method") for node in graph.graph.nodes))
            return graph.forward

        def trained(model, x):
            model(x).sum().backward()
            return graphs.copy()

        def made():
            graphs.clear()
            torch._dynamo.reset()
            return torch.compile(nn.Sequential(Half(), Half()), backend=counting)

        torch.manual_seed(0)
        x = torch.randn(4, 8)
        want = trained(made(), x)
        assert len(want) == 1
        with cl.Session("8MiB"):
            assert trained(made(), x) == want
        before = made()
        assert trained(before, x) == want
        with cl.Session("8MiB"):
            before(x)
            assert graphs[-1] == want[0], graphs
        """
    )


def test_a_session_does_not_import_the_tracer_by_itself() -> None:
    child(
        """
        with cl.Session("8MiB"):
            nn.Linear(8, 8)(torch.ones(2, 8))
        assert "torch._dynamo" not in sys.modules
        assert not hasattr(torch.compile, "__wrapped__"), "the session has left its own behind"
        """
    )


@pytest.mark.parametrize("speed", [10**400, float("inf"), float("nan"), 0, -1, True, "fast"])
def test_a_bandwidth_that_is_none_is_named(speed: object) -> None:
    with pytest.raises(cl.PolicyError, match="out_bytes_per_s ('fast' )?is"):
        cl.Link(speed, None)


_HOLDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "numpy": torch.Tensor.numpy,
    "DLPack": torch.utils.dlpack.to_dlpack,
    "address": torch.Tensor.data_ptr,
}


@pytest.mark.parametrize("used_first", [False, True])
@pytest.mark.parametrize("taken", _HOLDS)
def test_a_pointer_taken_where_nothing_was_limited_stays_good_under_a_capacity(
    taken: str, used_first: bool
) -> None:
    """Nothing leaves without a capacity; but one may be given to a session that is open."""
    size, half = 100_000, torch.full((100_000,), 0.5)
    with cl.Session(None, min_swap="2KiB") as session:
        x = half * 2
        if used_first:
            x.sum()
        held = _HOLDS[taken](x)
        core.of().set_capacity(3 * 4 * size + 10_000)
        x + 0
        pressing = [torch.full((size,), float(k)) for k in range(8)]
        assert session.where(x) == "resident"
        assert pressing and (taken != "address" or x.data_ptr() == held)
        if taken == "numpy":
            held[5] = 7
            assert x[5].item() == 7 and held.sum() == size + 6


@pytest.mark.parametrize("used_first", [False, True])
def test_a_pointer_taken_where_nothing_was_limited_outlives_the_session(used_first: bool) -> None:
    half = torch.full((400_000,), 0.5)
    with cl.Session():
        x = half * 2
        if used_first:
            x.sum()
        held = np.from_dlpack(x)
        x.sum()
    x.fill_(3.0)
    assert held[0] == held[-1] == 3.0, "the array shows what the tensor had been, or freed memory"


def test_a_path_that_no_file_can_have_is_named() -> None:
    with pytest.raises(cl.TraceError, match="null character"):
        cl.Trace.load("run\0.parquet")
    with pytest.raises(cl.TraceError, match=r"run\\x00.*null character"):
        cl.Trace([]).save("run\0.parquet")
    with pytest.raises(cl.TraceError, match="surrogate") as found:
        cl.Trace.load("run\ud800.parquet")
    assert str(found.value).isprintable()
    with pytest.raises(cl.PolicyError, match="null character"):
        cl.Policy.load("policy\0.json")
