"""Storages that a plan retains after their death: their bytes, their moves, and their end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from training import adamw, of_the_gate, raw, reference, train

import chameleon_lab as cl
from chameleon_lab.planner.program import DROP, FREE, RELEASE, REPLAY, SWAP_IN, SWAP_OUT
from chameleon_lab.planner.retention import retained_by
from chameleon_lab.policy import Policy
from chameleon_lab.runtime import core
from chameleon_lab.testing import modeled_time

pytestmark = [
    pytest.mark.bits,
    pytest.mark.skipif(not core.SEES_RAW_ACCESS, reason="nothing is replayed before torch 2.13"),
]

ROWS, COLUMNS = 64, 256  # 64 KiB in float32
BYTES = 4 * ROWS * COLUMNS


# ------------------------------------------------------------------------------------------------ the core


@pytest.fixture
def weight() -> Iterator[torch.Tensor]:
    """A tensor of a session that keeps producers."""
    with cl.Session("64MiB", min_swap="1KiB"):
        core.of().keep_producers(True)
        yield torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)).mul_(1.0)


Steps = list[Callable[[torch.Tensor], Any]]
SAME: Steps = [torch.neg, torch.neg, torch.neg, torch.neg]
OTHER: Steps = [torch.neg, torch.abs, torch.abs, torch.abs]


def run(weight: torch.Tensor, ops: Steps, look: Callable[[int, torch.Tensor], None] | None = None) -> Any:
    """A step: op 0 makes ``base``, op 1 makes ``out`` from it, ``base`` dies, and some more ops follow."""
    core.of().end_step()
    base = weight * 1.5
    out = F.gelu(base)
    del base
    for number, op in enumerate(ops):
        op(weight)
        if look is not None:
            look(number + 2, out)
    return core.of().end_step()


def tokens_of(weight: torch.Tensor, ops: Steps) -> np.ndarray:
    tokens: np.ndarray = run(weight, ops).ops()["token"].copy()
    assert len(tokens) == 2 + len(ops)
    return tokens


def program(tokens: np.ndarray, *actions: tuple[int, int, int]) -> Any:
    """A program of ``base`` (0) and ``out`` (1); actions are op, kind and storage."""
    two = np.zeros(2, np.int32)
    op, kind, storage = np.array(actions, dtype=np.int32).reshape(-1, 3).T
    return core.make_program(
        tokens, two - 1, np.array([0, 1], np.int32), two, two + BYTES, two, two, [0, 2, 4],
        np.array([0, 1, 1, 5], np.int32), two, two - 1, two, op.copy(), kind.copy(), storage.copy(),
    )  # fmt: skip


def follow(*programs: Any) -> None:
    for number, one in enumerate(programs, 1):
        core.of().add_program(number, one)
    core.of().use_program(1)


def ghosts() -> int:
    return int(core.of().counters()["ghosts"])


def test_it_is_there_until_its_op_whether_anything_is_made_from_it_or_not(weight: torch.Tensor) -> None:
    follow(program(tokens_of(weight, SAME), (4, RELEASE, 0)))
    seen: list[int] = []
    run(weight, SAME, lambda op, out: seen.append(ghosts()))
    assert seen == [1, 1, 0, 0]


def test_it_outlives_its_op_while_something_dropped_is_made_from_it(weight: torch.Tensor) -> None:
    follow(program(tokens_of(weight, SAME), (2, DROP, 1), (4, RELEASE, 0)))
    expected, seen = raw(F.gelu(weight * 1.5)), []

    def look(op: int, out: torch.Tensor) -> None:
        seen.append((ghosts(), core.residency(out)))
        if op == 5:
            assert raw(out) == expected

    run(weight, SAME, look)
    assert seen[0] == (1, "dropped") and seen[-1] == (1, "dropped")
    assert ghosts() == 0


def test_it_ends_with_the_step_at_the_latest(weight: torch.Tensor) -> None:
    follow(program(tokens_of(weight, SAME), (5, RELEASE, 0)))
    core.of().end_step()
    base = weight * 1.5
    F.gelu(base)
    del base
    assert ghosts() == 1
    core.of().end_step()
    assert ghosts() == 0


@pytest.mark.parametrize("how", ["drop", "another"])
def test_it_ends_with_its_program(weight: torch.Tensor, how: str) -> None:
    tokens = tokens_of(weight, SAME)
    follow(program(tokens, (5, RELEASE, 0)), program(tokens))
    core.of().end_step()
    base = weight * 1.5
    F.gelu(base)
    del base
    assert ghosts() == 1
    if how == "drop":
        core.of().drop_program(1)
    else:
        core.of().end_step()
        core.of().use_program(2)
    assert ghosts() == 0
    run(weight, SAME)


def test_it_leaves_and_comes_back_for_a_replay(weight: torch.Tensor) -> None:
    tokens = tokens_of(weight, SAME)
    moves = ((2, SWAP_OUT, 0), (3, FREE, 0), (4, SWAP_IN, 0))
    follow(program(tokens, *moves, (2, DROP, 1), (5, REPLAY, 1), (5, RELEASE, 0)))
    expected, seen = raw(F.gelu(weight * 1.5)), []

    def look(op: int, out: torch.Tensor) -> None:
        seen.append((core.residency(out), ghosts()))
        if op == 5:
            assert raw(out) == expected

    log = run(weight, SAME, look)
    assert [residency for residency, _ in seen] == ["dropped"] * 3 + ["resident"] and seen[-1][1] == 0
    assert len(log.transfers()["bytes"]) == 2 and log.replay_count == 1


def test_it_is_dropped_and_made_again_for_a_replay(weight: torch.Tensor) -> None:
    tokens = tokens_of(weight, SAME)
    drops = ((1, DROP, 0), (2, DROP, 1), (4, REPLAY, 0), (5, REPLAY, 1), (5, RELEASE, 0))
    follow(program(tokens, *drops))
    expected, seen = raw(F.gelu(weight * 1.5)), []

    def look(op: int, out: torch.Tensor) -> None:
        seen.append((core.residency(out), ghosts()))
        if op == 5:
            assert raw(out) == expected

    log = run(weight, SAME, look)
    assert [residency for residency, _ in seen] == ["dropped"] * 3 + ["resident"] and seen[-1][1] == 0
    assert log.replay_count == 2 and core.of().counters()["dropped"] == 0


def test_one_that_is_dropped_and_never_read_ends_with_its_op(weight: torch.Tensor) -> None:
    follow(program(tokens_of(weight, SAME), (1, DROP, 0), (4, RELEASE, 0)))
    seen: list[tuple[int, int]] = []
    run(weight, SAME, lambda op, out: seen.append((ghosts(), core.of().counters()["dropped"])))
    assert seen == [(1, 1), (1, 1), (0, 0), (0, 0)]


@pytest.mark.parametrize("retains", [True, False])
def test_another_program_takes_it_over_or_lets_go_of_it(weight: torch.Tensor, retains: bool) -> None:
    """Its record is not used after its end: another storage may have it then."""
    first, second = tokens_of(weight, SAME), tokens_of(weight, OTHER)
    actions = ((4, SWAP_OUT, 0), (5, RELEASE, 0)) if retains else ((4, SWAP_OUT, 0),)
    follow(program(first, (5, RELEASE, 0)), program(second, *actions))
    seen: list[int] = []
    core.of().end_step()
    base = weight * 1.5
    out = F.gelu(base)
    del base
    for op in OTHER:
        op(weight)
        seen.append(ghosts())
    log = core.of().end_step()
    assert log.program == 2
    assert seen == ([1, 1, 1, 0] if retains else [1, 0, 0, 0])
    assert len(log.transfers()["bytes"]) == int(retains)
    others = [weight * float(number) for number in range(4)]
    core.of().drop_program(2)
    assert [raw(other) for other in others] == [raw(weight * float(number)) for number in range(4)]
    assert raw(out) == raw(F.gelu(weight * 1.5)) and ghosts() == 0


def test_what_dies_after_its_op_is_not_retained(weight: torch.Tensor) -> None:
    follow(program(tokens_of(weight, SAME), (0, RELEASE, 0)))
    seen: list[int] = []
    run(weight, SAME, lambda op, out: seen.append(ghosts()))
    assert seen == [0, 0, 0, 0]


# ------------------------------------------------------------------------------------------------ sessions


class Block(nn.Module):
    """A block whose norm works on a float32 copy of the bfloat16 stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.up = nn.Linear(width, width, bias=False)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        wide = stream.to(torch.float32)
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        out: torch.Tensor = stream + self.up(wide.to(stream.dtype) * self.scale)
        return out


class Residual(nn.Module):
    """A bfloat16 model with a residual stream."""

    def __init__(self, blocks: int = 10, width: int = 128) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.to(torch.bfloat16)

    def batch(self, generator: torch.Generator) -> torch.Tensor:
        return torch.randn(256, 128, generator=generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        stream = x.to(torch.bfloat16)
        for block in self.blocks:
            stream = block(stream)
        return stream.float().square().mean()


@pytest.fixture
def steady() -> Iterator[None]:
    """Ops that take the same time whatever else the machine does: plans depend on it."""
    with modeled_time():
        yield


def trained(share: float, link: str = "64MiB/s") -> tuple[Any, Any, Policy, cl.Trace, list[int]]:
    bare, live_peak = reference(Residual, adamw, 7)
    seen: dict[str, Any] = {}
    left: list[int] = []

    def look(number: int, model: Any, session: cl.Session) -> None:
        if session is not None:
            left.append(ghosts())
            seen.update(policy=session.policy, trace=session.trace())

    settings = {"capacity": int(share * live_peak), "link": link, "min_swap": "4KiB"}
    run = train(Residual, adamw, 7, settings, each_step=look)
    assert run.report is not None and run.report.peak_bytes <= int(share * live_peak)
    return bare, run, seen["policy"], seen["trace"], left


OVER_HALF = (0.6, "64MiB/s")


@pytest.mark.usefixtures("steady")
@pytest.mark.parametrize(
    "tried", of_the_gate(OVER_HALF, all_of=[OVER_HALF, (0.35, "64MiB/s"), (0.35, "256MiB/s")])
)
def test_training_with_retention_is_bit_identical_and_leaves_no_ghost(tried: tuple[float, str]) -> None:
    bare, run, policy, trace, left = trained(*tried)
    assert run.same(bare)
    assert retained_by(policy, trace.last) and any(drop.retains for drop in policy.drops)
    assert len(trace.last.replays) > 0 and set(left) == {0}


@pytest.mark.usefixtures("steady")
def test_a_drop_that_is_declined_strands_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    allow = core.Runtime.allow_replays
    without = lambda self, dtypes: allow(self, {n: d for n, d in dtypes.items() if "to" not in n})  # noqa: E731
    monkeypatch.setattr(core.Runtime, "allow_replays", without)
    monkeypatch.setattr(core.Runtime, "keep_producers", lambda self, on: None)  # the first plan does not know
    bare, run, _, _, left = trained(0.5)
    assert run.same(bare) and set(left) == {0}
    assert max(step.declined_drops for step in run.report.history) > 0
