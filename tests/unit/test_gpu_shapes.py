"""What needs a GPU fits the capacities that it is given there: floors from traces without one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import chameleon_lab as cl

TESTS = Path(__file__).parents[1]
MiB = 1 << 20

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
def of_the_gpu_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("integration", "cuda"):
        monkeypatch.syspath_prepend(str(TESTS / folder))
    for name in ("training", "gpu_training"):
        monkeypatch.delitem(sys.modules, name, raising=False)


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
    from benchmarks.gpu import SHAPES, Decoder
    from benchmarks.gpu_overlap import BATCHES

    peak, floor = need(lambda: Decoder(SHAPES[name]), lambda _: BATCHES[name], True, 1 << 30)
    assert floor + LIBRARIES_BYTES < 0.7 * peak / 8
