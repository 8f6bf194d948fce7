"""Promise 1 on a GPU: bit-identical training within a capacity, by the allocator's statistics and by the driver's."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from gpu_training import AMP, PARTS, GpuRun, MiB, child, gpt2, llama, needs, train
from torch import nn

from chameleon_lab.runtime import core

pytestmark = pytest.mark.bits

MODELS: dict[str, Callable[[], nn.Module]] = {"gpt2": gpt2, "llama": llama}
DRIVER_SLACK = 64 * MiB  # what libraries take for themselves when they first run


@cache
def reference(model: str, amp: bool) -> tuple[GpuRun, int]:
    """The run without Chameleon Lab, and the live peak of one that only records."""
    bare, again = (train(MODELS[model], amp=amp) for _ in range(2))
    if not bare.same(again):
        pytest.skip("the run without Chameleon Lab does not repeat its own bits here")
    recorded = train(MODELS[model], session={"capacity": "unlimited"}, amp=amp)
    assert recorded.same(bare), "recording alone changed the numbers"
    assert recorded.report is not None
    return bare, recorded.report.live_peak_bytes


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("amp", AMP)
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
    assert run.reserved_within(capacity)
    assert run.driver_bytes <= bare.driver_bytes - (bare.reserved_bytes - capacity) + DRIVER_SLACK


@pytest.mark.parametrize("expandable", [False, pytest.param(True, marks=needs("expandable segments"))])
def test_the_same_bits_for_two_hundred_steps(expandable: bool) -> None:
    """Under both settings of torch's allocator, with and without the promise that "trusting" asks for."""
    said = child(
        """
        bare, again = (train(lambda: gpt2(4), 200) for _ in range(2))
        print("repeats" if bare.same(again) else "does not repeat")
        live = train(lambda: gpt2(4), 4, {"capacity": "unlimited"}).report.live_peak_bytes
        for mode in (True, "trusting"):
            run = train(lambda: gpt2(4), 200, {"capacity": live // 3, "rematerialize": mode})
            last = run.report.history[-1]
            moved = last.swapped_out_bytes + last.dropped_bytes
            print(mode, run.same(bare), run.reserved_within(live // 3), moved > 0, len(run.losses), sep="/")
        """,
        PYTORCH_CUDA_ALLOC_CONF=f"expandable_segments:{expandable}",
    )
    repeats, *modes = said.splitlines()
    if repeats != "repeats":
        pytest.skip("the run without Chameleon Lab does not repeat its own bits here")
    assert modes == ["True/True/True/True/200", "trusting/True/True/True/200"]


@pytest.mark.parametrize("planning", [True, False], ids=["planned", "evicted"])
def test_the_same_bits_on_two_streams(planning: bool) -> None:
    """Autograd's device thread runs each backward op on the stream of its forward op."""
    bare = train(lambda: gpt2(4), streams=True)
    live = train(lambda: gpt2(4), session={"capacity": "unlimited"}, streams=True)
    assert live.report is not None
    # Before torch 2.13 gradients stay until the backward is over: see Note [Gradients under way].
    capacity = live.report.live_peak_bytes // (3 if core.SEES_RAW_ACCESS else 2)
    run = train(lambda: gpt2(4), session={"capacity": capacity, "planning": planning}, streams=True)
    assert run.same(bare)


@pytest.mark.parametrize("how", ["fused", "foreach"])
def test_adamw_of_all_parameters_at_once_with_states_larger_than_the_capacity(how: str) -> None:
    """One op of all parameters, gradients and states would be the floor: it is cut into groups that fit."""
    bare, again = (train(gpt2, **{how: True}) for _ in range(2))
    if not bare.same(again):
        pytest.skip("the run without Chameleon Lab does not repeat its own bits here")
    live = train(gpt2, session={"capacity": "unlimited"}, **{how: True})
    assert live.report is not None
    states = 2 * sum(p.numel() * p.element_size() for p in gpt2().parameters())
    capacity = min(live.report.live_peak_bytes // 4, states * 3 // 4)
    run = train(gpt2, session={"capacity": capacity, "planning": False}, **{how: True})
    assert run.same(bare)
    assert run.report is not None and run.report.evictions > 0
    assert run.reserved_within(capacity)
