"""Promise 1 on a GPU: bit-identical training within a capacity, by the allocator's statistics and by the driver's."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from gpu_training import GpuRun, MiB, gpt2, llama, train
from torch import nn

MODELS: dict[str, Callable[[], nn.Module]] = {"gpt2": gpt2, "llama": llama}
DRIVER_SLACK = 64 * MiB  # what libraries take for themselves when they first run


@cache
def reference(model: str, amp: bool) -> tuple[GpuRun, int]:
    """The run without Chameleon Lab, and the live peak of one that only records."""
    bare, again = (train(MODELS[model], amp=amp) for _ in range(2))
    if not bare.same(again):
        pytest.skip("the run without Chameleon Lab does not repeat its own bits here")
    recorded = train(MODELS[model], session={"capacity": None}, amp=amp)
    assert recorded.same(bare), "recording alone changed the numbers"
    assert recorded.report is not None
    return bare, recorded.report.live_peak_bytes


@pytest.mark.parametrize("part", [2, 4, 8])
@pytest.mark.parametrize("amp", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("model", MODELS)
def test_the_same_bits_within_the_capacity(model: str, amp: bool, part: int) -> None:
    bare, live_peak = reference(model, amp)
    capacity = live_peak // part
    run = train(MODELS[model], session={"capacity": capacity}, amp=amp)
    assert run.report is not None
    assert run.losses == bare.losses
    assert run.state == bare.state
    assert run.report.history[-1].swapped_out_bytes > 0, "nothing was moved: the case tests nothing"
    assert run.report.peak_bytes <= capacity
    assert run.reserved_bytes <= capacity
    assert run.driver_bytes <= bare.driver_bytes - (bare.reserved_bytes - capacity) + DRIVER_SLACK


@pytest.mark.parametrize("planning", [True, False], ids=["planned", "evicted"])
def test_the_same_bits_on_two_streams(planning: bool) -> None:
    """Autograd's device thread runs each backward op on the stream of its forward op."""
    bare = train(lambda: gpt2(4), streams=True)
    live = train(lambda: gpt2(4), session={"capacity": None}, streams=True)
    assert live.report is not None
    run = train(
        lambda: gpt2(4),
        session={"capacity": live.report.live_peak_bytes // 3, "planning": planning},
        streams=True,
    )
    assert run.same(bare)


def test_adamw_with_fused_and_foreach_states_larger_than_the_capacity() -> None:
    bare, live_peak = reference("gpt2", False)
    run = train(gpt2, session={"capacity": live_peak // 4, "planning": False})
    assert run.same(bare)
    assert run.report is not None and run.report.evictions > 0
