"""Replays on a GPU: the bits of the first run, op by op and in training. What was counted is printed at the end."""

from __future__ import annotations

import pytest
import torch
from gpu_training import AMP, DEVICE, ON_GPU, STREAMS, gpt2, train
from replay_cases import CASES, REAL, SMALL, Case, Count, count_replays

import chameleon_lab as cl
from chameleon_lab.runtime import core
from chameleon_lab.session.link_under_load import LinkUnderLoad

KINDS: dict[str, tuple[str, ...]] = {
    "attention": ("attention",),
    "convolutions": ("conv1d", "conv2d", "conv_"),
    "products": ("mm", "addmm", "bmm", "baddbmm", "linear", "norm, linear"),
}
"""Cases by how their names begin; "the rest" is elementwise ops, norms, softmax, casts, copies."""


def cases_of(kind: str) -> tuple[Case, ...]:
    """Of one kind."""
    if kind in KINDS:
        return tuple(case for case in CASES if case.name.startswith(KINDS[kind]))
    return tuple(case for case in CASES if not any(case.name.startswith(start) for start in KINDS.values()))


@pytest.mark.parametrize("kind", ["the rest", *KINDS])
def test_every_op_that_models_use_comes_back_to_the_bit(kind: str, replay_counts: list[Count]) -> None:
    cases = cases_of(kind)
    if not ON_GPU:
        cases = cases[::4]
    count = count_replays(DEVICE, REAL if ON_GPU else SMALL, cases)
    replay_counts.append(count)
    assert count.different == []
    assert count.unseen == []
    assert sum(count.replayed.values()) > 5 * len(cases)
    assert all(name.startswith("attention") for name in count.not_run), count.not_run


@pytest.mark.bits
@pytest.mark.parametrize("amp", AMP)
@pytest.mark.parametrize("streams", STREAMS)
def test_training_with_replays_gives_the_same_bits(
    amp: bool, streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare, again = (train(lambda: gpt2(6), amp=amp, streams=streams) for _ in range(2))
    if not bare.same(again):
        pytest.skip("the run without Chameleon Lab does not repeat its own bits here")
    recorded = train(lambda: gpt2(6), session={"capacity": "unlimited"}, amp=amp, streams=streams)
    assert recorded.report is not None
    capacity = int(0.7 * recorded.report.live_peak_bytes)
    # Plans take the link for so slow that replays are worth their while. The embedded device has a link of its own.
    slow = {} if ON_GPU else {"link": "4MiB/s"}
    monkeypatch.setattr(core.Runtime, "measure_link", lambda runtime: (2.0**30, 2.0**30))
    monkeypatch.setattr(LinkUnderLoad, "typical", lambda _, before, log=None: (before, 0.0))
    run = train(
        lambda: gpt2(6),
        session={"capacity": capacity, "rematerialize": "trusting", **slow},
        amp=amp,
        streams=streams,
    )
    assert run.report is not None
    replays = sum(step.replays for step in run.report.history)
    # Whether a replay is cheaper than a copy is measured: on a CPU that others keep busy it may not be.
    assert replays > 0 or not ON_GPU, run.report
    assert run.same(bare)
    assert run.reserved_within(capacity)


@pytest.mark.bits
def test_a_dropped_tensor_is_read_by_a_copy_to_the_host() -> None:
    """A copy that does not wait is still behind the replay."""
    side = 4096 if ON_GPU else 128
    with cl.Session("1GiB", device=DEVICE, rematerialize="trusting") as session:
        core.of(session.device).keep_producers(True)
        x = torch.randn(side, side, device=DEVICE)
        out = torch.nn.functional.gelu(x)
        expected = out.cpu()
        host = torch.empty_like(expected, pin_memory=ON_GPU)
        for _ in range(20):
            assert core.drop(out) == "" and session.where(out) == "dropped"
            torch.full((side, side), -1.0, device=DEVICE)
            host.copy_(out, non_blocking=True)
            if ON_GPU:
                torch.cuda.current_stream().synchronize()
            assert torch.equal(host, expected)
