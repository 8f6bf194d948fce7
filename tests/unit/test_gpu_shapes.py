"""What needs a GPU fits the capacities that it is given there: floors from traces without one."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import chameleon_lab as cl
from chameleon_lab.planner import plan
from chameleon_lab.policy import Link
from chameleon_lab.trace import Category

pytestmark = pytest.mark.full

TESTS = Path(__file__).parents[1]
MiB = 1 << 20

HOST_BYTES = 128 << 30
LIBRARIES_BYTES = 64 * MiB  # cuBLAS's workspaces: 32 MiB a stream


def need(
    make: Callable[[], nn.Module], shape_of: Callable[[nn.Module], tuple[int, ...]], amp: bool, split_for: int
) -> tuple[int, int]:
    """The live peak of a training step on a GPU, and its floor with list ops split for a capacity."""

    def build() -> Callable[[], None]:
        with torch.device("meta"):
            model = make().train()
        optimizer = torch.optim.AdamW(model.parameters())
        batch = torch.empty(shape_of(model), dtype=torch.int64)

        def step() -> None:
            with torch.autocast("cuda", torch.bfloat16, enabled=amp):
                loss = model(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    step = cl.trace_meta(build, capacity=split_for).steps[-1]
    return step.live_peak_bytes, cl.floor(step).bytes


@pytest.fixture
def of_the_gpu_tests(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for folder in ("integration", "cuda"):
        monkeypatch.syspath_prepend(str(TESTS / folder))
    for name in ("training", "gpu_training"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    torch.use_deterministic_algorithms(False)  # a Llama of these tests sets it


@pytest.mark.usefixtures("of_the_gpu_tests")
@pytest.mark.parametrize(
    ("name", "layers", "part"), [("gpt2", 12, 8), ("llama", 0, 8), ("gpt2", 4, 3), ("gpt2", 1, 0)]
)
def test_models_of_the_gpu_tests_train_in_their_capacities(name: str, layers: int, part: int) -> None:
    import gpu_training

    if name == "llama":
        pytest.importorskip("transformers")
    make = getattr(gpu_training, name)
    peak, floor = need(
        lambda: make(*[layers] if layers else []),
        lambda model: model.batch(torch.Generator()).shape,
        False,
        400 * MiB,
    )
    capacity = peak // part if part else gpu_training.SANITIZED_BYTES
    assert floor + LIBRARIES_BYTES < 0.7 * capacity, (
        "memory in pieces, and what comes ahead of its use, take some too"
    )
    assert capacity < 0.8 * peak, "nothing has to move"


@pytest.mark.parametrize("name", ["gpt2", "llama-1b"])
def test_models_of_the_overlap_benchmark_train_in_an_eighth(name: str) -> None:
    from benchmarks.gpu.common import SHAPES, Decoder
    from benchmarks.gpu.overlap import BATCHES

    peak, floor = need(lambda: Decoder(SHAPES[name]), lambda _: BATCHES[name], True, 1 << 30)
    assert floor + LIBRARIES_BYTES < 0.7 * peak / 8


def test_the_model_of_the_first_minute_trains_in_half() -> None:
    from benchmarks.gpu.common import Decoder
    from benchmarks.gpu.first import BATCHES, SMALL

    peak, floor = need(lambda: Decoder(SMALL), lambda _: BATCHES[True], True, 1 << 28)
    assert floor + LIBRARIES_BYTES < 0.7 * peak / 2


def test_llama_3_8b_has_a_plan_for_the_least_memory_that_it_is_given() -> None:
    """With one batch a step: further ones run the same ops again, and what is alive at once stays the same."""
    pytest.importorskip("transformers")
    from benchmarks.gpu import llama
    from benchmarks.shapes import SHAPES

    assert min(llama.CAPACITIES) == 24
    capacity = 24 << 30
    shape = dataclasses.replace(SHAPES["llama-3-8b"], accumulated=1)
    trace = cl.trace_meta(shape.build, device="H100", capacity=capacity)
    step = trace.last
    parameters = sum(
        size
        for size, category in zip(step.storages.bytes.tolist(), step.storages.category.tolist(), strict=True)
        if category == Category.PARAMETER
    )
    assert 8.0e9 < parameters / 2 < 8.1e9, "bfloat16, as the anchor's"
    assert cl.floor(step).bytes + LIBRARIES_BYTES < 0.7 * capacity
    assert step.live_peak_bytes > 78 << 30, "all of it fits into the most: there is nothing to show"
    assert step.live_peak_bytes < HOST_BYTES, "what is away has to lie somewhere"
    policy = plan(step, capacity, Link(50e9, 50e9), margin=0.02, rematerialize=True)
    predicted = cl.simulate(trace, policy, link=Link(50e9, 50e9))
    assert predicted.peak_bytes <= capacity
    assert predicted.step_s < 3 * step.duration_s
