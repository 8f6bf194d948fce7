"""The floor is exact: the smallest capacity at which a loop runs, as a search over capacities shows."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_bit_identity import CASES
from torch import nn
from training import Loop, adamw, of_the_gate, raw, reference, train

import chameleon_lab as cl

SHORT = ("gpt-adamw", "gpt-foreach", "gpt-scaler-fused", "gpt-checkpoint-bf16", "conv-bf16")
"""The others are searched where CHAMELEON_SOAK is set."""

SEARCHED = tuple(CASES) if os.environ.get("CHAMELEON_SOAK") else SHORT
NEAR = 0.02
"""Below the floor by this share nothing runs. An op's own work space is counted to within its alignment."""


def floor_of_loop(model: Any, optimizer: Any, loop: Loop) -> cl.policy.Floor:
    """The highest floor of the steps that a run with room enough has recorded."""
    kept: list[cl.Session] = []
    train(
        *(model, optimizer, 4, {"capacity": 1 << 33}),
        loop=loop,
        each_step=lambda number, model, session: kept.append(session),
    )
    floors = [cl.policy.floor(step) for step in kept[0].trace() if len(step.ops)]
    return max(floors, key=lambda lowest: lowest.bytes)


def runs(model: Any, optimizer: Any, loop: Loop, capacity: int) -> bool:
    try:
        train(model, optimizer, 4, {"capacity": capacity}, loop=loop)
    except cl.BelowFloorError:
        return False
    return True


@pytest.mark.parametrize("case", of_the_gate("gpt-foreach", "conv-bf16", all_of=SEARCHED))
def test_the_floor_is_the_smallest_capacity_that_runs(case: str) -> None:
    lowest = floor_of_loop(*CASES[case]).bytes
    assert runs(*CASES[case], int(lowest * (1 + NEAR)))
    assert not runs(*CASES[case], int(lowest * (1 - NEAR)))


class Plain(nn.Module):
    """Linear layers whose gradients are as large as all that is used at once."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(128, 128) for _ in range(8)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).pow(2).mean()


def common_loop(capacity: int | None, steps: int = 5) -> tuple[list[float], cl.Session]:
    """As most loops are written: ``zero_grad`` first, and the loss is read after the step."""
    torch.manual_seed(0)
    model = Plain()
    with cl.Session(capacity, link="4GiB/s") as session:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
        losses = []
        for _ in range(steps):
            x = torch.randn(32, 128)
            optimizer.zero_grad()
            loss = model(x)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, session


@pytest.mark.bits
def test_the_most_common_loop_has_the_floor_of_its_largest_op() -> None:
    bare, session = common_loop(None)
    lowest = cl.policy.floor(session.trace())
    gradients = sum(parameter.numel() * 4 for parameter in Plain().parameters())
    assert lowest.op_name != "aten::item"
    assert lowest.bytes < gradients
    trace = session.trace()
    capacity = int(1.1 * lowest.bytes)
    policy = cl.policy.plan(trace, capacity, cl.policy.Link(4e9, 4e9))
    assert policy.predicted["peak_bytes"] <= capacity
    losses, session = common_loop(2 * lowest.bytes)
    assert losses == bare
    assert session.policy is not None and session.policy.decisions


class Recurrent(nn.Module):
    """Two layers over 96 steps of a batch whose lengths differ."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(32, 64, 2, batch_first=True), nn.Linear(64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.arange(96, 80, -1), batch_first=True)
        return self.head(self.lstm(packed)[0].data.tanh()).pow(2).mean()

    def batch(self, generator: torch.Generator) -> torch.Tensor:
        return torch.randn(16, 96, 32, generator=generator)


@pytest.mark.bits
def test_a_packed_lstm_is_seen_through() -> None:
    """``aten::lstm`` as one op would hold all that its steps make."""
    bare, live_peak = reference(Recurrent, adamw, 3)
    lowest = floor_of_loop(Recurrent, adamw, Loop())
    assert lowest.bytes < live_peak / 3
    run = train(Recurrent, adamw, 3, {"capacity": int(lowest.bytes * (1 + NEAR))})
    assert run.same(bare)


def averaged(capacity: int | None) -> tuple[list[bytes], cl.Session]:
    """An average of all weights, as swa_utils keeps it."""
    torch.manual_seed(0)
    model = Plain()
    with cl.Session(capacity) as session:
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        for _ in range(4):
            model(torch.randn(8, 128)).backward()
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(model)
        names = [session.trace().last.op_name(op) for op in range(len(session.trace().ops))]
        assert "aten::_foreach_lerp_" in names
        with torch.no_grad():
            norms = torch._foreach_norm(list(model.parameters()), 2)
        found = [raw(value) for value in (*average.parameters(), *norms)]
    return found, session


def test_an_average_of_all_weights_is_split_as_optimizers_are() -> None:
    bare, session = averaged(None)
    lowest = cl.policy.floor(session.trace())
    weights = sum(parameter.numel() * 4 for parameter in Plain().parameters())
    assert lowest.bytes < weights
    found, session = averaged(int(1.1 * lowest.bytes))
    assert found == bare
    assert session.report().evictions > 0


def test_a_list_op_takes_a_sparse_tensor_beside_others() -> None:
    with cl.Session("4MiB", device="cpu"):
        gradients = [torch.ones(1 << 18), torch.eye(5).to_sparse(), torch.ones(1 << 18)]
        torch._foreach_zero_(gradients)
        assert not any(gradient.to_dense().any() for gradient in gradients)


def test_a_note_on_the_floor_says_what_it_was_measured_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """An op's inner order can be luckier than the sum of what it touches: then it runs, and no plan is made."""
    monkeypatch.setattr(cl.planner.memory, "floor_of", over(cl.planner.memory.floor_of, more_bytes=1 << 30))
    torch.manual_seed(0)
    model = Plain()
    with cl.Session("32MiB", device="cpu") as session:
        for _ in range(3):
            model(torch.randn(8, 128)).backward()
            session.step()
    (note,) = [note for note in session.report().notes if "no room to plan" in note]
    kernels = session.trace_meta()["kernels"]
    assert kernels and f"measured on {kernels}; " in note and note.endswith("eviction only")


def over(floor_of: Any, more_bytes: int) -> Any:
    """A floor above every capacity."""

    def higher(*args: Any, **kwargs: Any) -> Any:
        found = floor_of(*args, **kwargs)
        return replace(found, bytes=found.bytes + more_bytes)

    return higher


COMPOSED: dict[str, tuple[Any, float]] = {
    "attention": (lambda a, b: F.scaled_dot_product_attention(*heads(a, b), dropout_p=0.1), 3.2),
    "einsum": (lambda a, b: torch.einsum("ij,jk,kl->il", a, b, a + b), 3.2),
    "similarity": (lambda a, b: F.cosine_similarity(a, b + a), 3.2),
    "L1 loss": (lambda a, b: F.l1_loss(a, b), 3.2),  # as one op: 4.0
    "hinge loss": (lambda a, b: F.hinge_embedding_loss(a, b.detach().sign()), 3.5),  # 8.5
    "ranking loss": (lambda a, b: F.margin_ranking_loss(a, b, a.detach().sign(), margin=0.1), 3.2),  # 7.0
    "Poisson loss": (
        lambda a, b: F.poisson_nll_loss(a.abs(), b.detach().abs(), log_input=False, full=True),
        3.2,
    ),  # 11
    "matrix power": (lambda a, b: torch.linalg.matrix_power(a * 0.01, 7), 3.2),  # 5.0
    "correlation": (lambda a, b: torch.corrcoef(a), 3.2),  # 5.0
    "gradient": (lambda a, b: torch.gradient(a)[0], 2.2),  # 4.0
}
"""Of matrices a and b: what is made of other ops, and how many of its largest tensor its floor is at most."""

SIDE = 256


def heads(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    """Query, key and value whose scores are as large as the matrix."""
    return [x[:128].view(2, 2, 128, 64) for x in (a, b, a + b)]


@pytest.mark.parametrize("name", COMPOSED)
def test_ops_made_of_others_do_not_hold_what_those_make(name: str) -> None:
    """As one op, each would need all of that at once."""
    made, most = COMPOSED[name]

    def run(capacity: int | None) -> tuple[list[bytes], cl.Session]:
        torch.manual_seed(0)
        with cl.Session(capacity, device="cpu") as session:
            weights = [torch.randn(SIDE, SIDE, requires_grad=True) for _ in range(2)]
            optimizer = torch.optim.SGD(weights, lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                made(*weights).sum().backward()
                optimizer.step()
        return [raw(weight) for weight in weights], session

    bare, session = run(None)
    lowest = cl.policy.floor(session.trace()).bytes
    assert lowest < most * SIDE * SIDE * 4
    found, _ = run(int(lowest * (1 + NEAR)))
    assert found == bare


@pytest.mark.bits
def test_nor_do_they_in_inference() -> None:
    """14.3 as one op."""
    window = torch.hann_window(64)

    def call(x: torch.Tensor) -> torch.Tensor:
        frames = torch.stft(x.view(16, -1), 64, hop_length=16, window=window, return_complex=True)
        return torch.istft(frames, 64, hop_length=16, window=window)

    x = torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    bare = raw(call(x))
    with cl.Session(device="cpu") as session, torch.inference_mode():
        call(x * 1)
        session.step()
    lowest = cl.policy.floor(session.trace()).bytes
    assert lowest < 9 * SIDE * SIDE * 4
    with cl.Session(int(lowest * (1 + NEAR)), device="cpu"), torch.inference_mode():
        assert raw(call(x * 1)) == bare
