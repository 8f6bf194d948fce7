"""A trace made without memory against a recording of the same model on the embedded device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from training import Gpt

import chameleon_lab as cl
from benchmarks.models import CASES
from chameleon_lab.planner import floor, plan
from chameleon_lab.planner.program import bind
from chameleon_lab.policy import Link
from chameleon_lab.trace import Category, Stage, StepTrace


class Tied(nn.Module):
    """A checkpointed model with tied weights, trained with two micro-batches a step."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(96, 64)
        # As it is, the head is so sure of the token it is given that the gradient's norm may be 0 in float32.
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
            for _ in range(3)
        )
        self.head = nn.Linear(64, 96, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return self.head(x)


def tied() -> Callable[[], object]:
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.zeros(8, 32, dtype=torch.long)

    def step() -> None:
        for _ in range(2):
            logits = model(tokens)
            nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        assert torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item() > 0
        optimizer.step()
        optimizer.zero_grad()

    return step


def case(name: str) -> Callable[[], Callable[[], object]]:
    def build() -> Callable[[], object]:
        job = CASES[name].build(1, tiny=True)
        batch = job.make_batch(torch.Generator().manual_seed(0))
        return lambda: job.train_step(batch)

    return build


MODELS = {"tied": tied, **{name: case(name) for name in ("char-gpt", "gpt2", "llama", "convnet")}}


def real_and_traced(build: Callable[[], Callable[[], object]]) -> tuple[StepTrace, StepTrace]:
    torch.manual_seed(0)
    with cl.Session() as session:
        step = build()  # inside, as in the trace: the batch is a storage of the session
        for _ in range(3):
            step()
        real = session.trace().last
    return real, cl.trace_meta(build, device="cpu", steps=3, split_optimizer=False).last


def ops_of(step: StepTrace) -> list[tuple[str, str, Stage]]:
    """Name, module and stage of each op, but ``aten::empty``: CPU attention calls it on threads of its own."""
    rows = zip(step.ops.name.tolist(), step.ops.module.tolist(), step.ops.stage.tolist(), strict=True)
    ops = [(step.names[name], step.module_path(module), Stage(stage)) for name, module, stage in rows]
    return [op for op in ops if op[0] != "aten::empty"]


def lasting(step: StepTrace) -> dict[str, tuple[object, ...]]:
    """Key, size, kind and uses of each storage that outlives its op, but the work space of CPU attention."""
    storages, found = step.storages, {}
    uses: dict[int, list[tuple[str, bool]]] = {}
    for op, row, writes in zip(step.uses.op, step.uses.storage, step.uses.writes, strict=True):
        if op != storages.birth_op[row]:
            uses.setdefault(int(row), []).append((step.op_name(int(op)), bool(writes)))
    for row, key in enumerate(step.storage_keys):
        if storages.death_op[row] > storages.birth_op[row] and storages.movable[row]:
            found[key] = (
                int(storages.bytes[row]),
                int(storages.block_bytes[row]),
                Category(int(storages.category[row])).name,
                uses.get(row, []),
            )
    return found


def work_space_bytes(step: StepTrace) -> int:
    """The most that an op has beside the storages that outlive theirs: made and freed within it, or its kernel's."""
    storages, ops = step.storages, np.arange(len(step.ops))[:, None]
    lasts = storages.death_op > storages.birth_op
    alive = (storages.birth_op <= ops) & (ops <= storages.death_op) & lasts
    return int((step.ops.live_peak_bytes - alive @ storages.block_bytes).max())


@pytest.mark.parametrize("name", MODELS)
def test_a_trace_without_memory_is_the_recording(name: str) -> None:
    real, traced = real_and_traced(MODELS[name])
    assert ops_of(traced) == ops_of(real)
    assert lasting(traced) == lasting(real)
    # What kernels take for themselves and give back is the CPU's: convolutions take much, the others little.
    measured, from_shapes = floor(real), floor(traced)
    if name == "convnet":
        assert 0 <= real.live_peak_bytes - traced.live_peak_bytes <= work_space_bytes(real)
        assert 0 <= measured.bytes - from_shapes.bytes <= measured.work_space_bytes
    else:
        assert traced.live_peak_bytes == pytest.approx(real.live_peak_bytes, rel=0.01)
        assert from_shapes.bytes == pytest.approx(measured.bytes, rel=0.02)


def test_a_policy_made_without_memory_binds_to_the_run() -> None:
    real, traced = real_and_traced(MODELS["llama"])
    policy = plan(traced, int(0.6 * traced.live_peak_bytes), Link(1e9, 1e9))
    assert len(policy.swaps) > 10
    _, swaps, _, unmatched = bind(policy, real)
    assert unmatched == [] and len(swaps) == len(policy.swaps)


def test_a_session_after_a_trace_is_as_before() -> None:
    cl.trace_meta(tied, device="cpu")
    torch.manual_seed(0)
    model = Gpt(layers=2)
    optimizer = torch.optim.AdamW(model.parameters())
    generator = torch.Generator().manual_seed(0)
    with cl.Session("3MiB") as session:
        for _ in range(4):
            model(model.batch(generator)).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert session.report().swapped_out_bytes > 0
    assert all(p.isfinite().all() for p in model.parameters())
