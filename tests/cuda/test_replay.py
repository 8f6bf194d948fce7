"""Replays on a GPU: the bits of the first run, op by op and in training. What was counted is printed at the end."""

from __future__ import annotations

import pytest
import torch
from gpu_training import gpt2, train
from replay_cases import CASES, REAL, Case, Count, count_replays

import chameleon_lab as cl
from chameleon_lab.policy import Link
from chameleon_lab.runtime import core

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
    count = count_replays("cuda", REAL, cases)
    replay_counts.append(count)
    assert count.different == []
    assert count.unseen == []
    assert sum(count.replayed.values()) > 5 * len(cases)
    assert all(name.startswith("attention") for name in count.not_run), count.not_run


@pytest.mark.parametrize("amp", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("streams", [False, True], ids=["one stream", "two streams"])
def test_training_with_replays_gives_the_same_bits(
    amp: bool, streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare, again = (train(lambda: gpt2(6), amp=amp, streams=streams) for _ in range(2))
    if not bare.same(again):
        pytest.skip("the run without Chameleon Lab does not repeat its own bits here")
    recorded = train(lambda: gpt2(6), session={"capacity": "unlimited"}, amp=amp, streams=streams)
    assert recorded.report is not None
    capacity = int(0.7 * recorded.report.live_peak_bytes)
    # Plans take the link for so slow that replays are worth their while.
    monkeypatch.setattr(core, "measure_link", lambda: (2.0**30, 2.0**30))
    monkeypatch.setattr(Link, "under_load", lambda link, step: link)
    run = train(
        lambda: gpt2(6),
        session={"capacity": capacity, "rematerialise": "trusting"},
        amp=amp,
        streams=streams,
    )
    assert run.report is not None
    assert sum(step.replays for step in run.report.history) > 0, run.report
    assert run.same(bare)
    assert run.reserved_bytes <= capacity


def test_a_dropped_tensor_is_read_by_a_copy_to_the_host() -> None:
    """A copy that does not wait is still behind the replay."""
    with cl.Session("1GiB", device="cuda", rematerialise="trusting") as session:
        core.keep_producers(True)
        x = torch.randn(4096, 4096, device="cuda")
        out = torch.nn.functional.gelu(x)
        expected = out.cpu()
        host = torch.empty_like(expected, pin_memory=True)
        for _ in range(20):
            assert core.drop(out) == "" and session.where(out) == "dropped"
            torch.full((4096, 4096), -1.0, device="cuda")
            host.copy_(out, non_blocking=True)
            torch.cuda.current_stream().synchronize()
            assert torch.equal(host, expected)
