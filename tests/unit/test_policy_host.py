"""The host bytes of policies that are worked out by hand."""

from __future__ import annotations

from synthetic import StepBuilder

from chameleon_lab.planner.host_layout import HostLayout, host_layout
from chameleon_lab.planner.program import bind
from chameleon_lab.policy import Link, Policy
from chameleon_lab.policy.model import Action, Decision
from chameleon_lab.trace import Category, Stage, StepTrace

PAGE = 4096


def swap(storage: str, out_op: int, in_op: int, use_op: int, gap: int = 0) -> Decision:
    return Decision(storage, "activation", "", PAGE, Action.SWAP, gap, out_op, out_op + 1, in_op, use_op)


def policy(*decisions: Decision) -> Policy:
    return Policy(1 << 30, Link(None, None), decisions, {"min_swap_bytes": 1})


def layout(policy: Policy, step: StepTrace) -> HostLayout:
    memory, swaps, _, unmatched = bind(policy, step)
    assert not unmatched
    return host_layout(memory, swaps, step)


def host_bytes(policy: Policy, step: StepTrace) -> int:
    found = layout(policy, step)
    assert found.pool_bytes == found.peak_bytes
    return found.peak_bytes


def test_copies_count_until_their_storages_are_written_or_die() -> None:
    builder = StepBuilder()
    weight = builder.carried(Category.PARAMETER, PAGE, "w")
    (a,) = builder.op("a", makes=((Category.ACTIVATION, 2 * PAGE),), reads=(weight,))
    (b,) = builder.op("b", makes=((Category.ACTIVATION, 3 * PAGE - 100),))
    for _ in range(2):
        builder.op("other")
    builder.op("backward", reads=(b,), stage=Stage.BACKWARD)
    builder.free(b)
    builder.op("backward", writes=(a,), stage=Stage.BACKWARD)
    builder.op("other")
    builder.op("backward", reads=(a,), stage=Stage.BACKWARD)
    builder.free(a)
    builder.op("step", writes=(weight,), stage=Stage.OPTIMIZER)
    step = builder.build()
    key_w, key_a, key_b = step.storage_keys

    assert host_bytes(policy(), step) == 0
    assert host_bytes(policy(swap(key_a, 0, 3, 5)), step) == 2 * PAGE
    assert host_bytes(policy(swap(key_b, 1, 3, 4)), step) == 3 * PAGE, "whole pages"
    assert host_bytes(policy(swap(key_a, 0, 3, 5), swap(key_b, 1, 3, 4)), step) == 5 * PAGE
    # A's copy is stale from op 5 on; a second one takes its place, or that of b, which has died.
    assert host_bytes(policy(swap(key_a, 0, 3, 5), swap(key_a, 5, 6, 7, gap=1)), step) == 2 * PAGE
    found = layout(policy(swap(key_b, 1, 3, 4), swap(key_a, 5, 6, 7, gap=1)), step)
    assert found.pool_bytes == 3 * PAGE
    assert sorted(found.place.tolist()) == [-1, 0, 0]


def test_a_clean_storage_keeps_its_copy_and_one_that_lives_on_has_it_over_the_end() -> None:
    builder = StepBuilder()
    weight = builder.carried(Category.PARAMETER, 4 * PAGE, "w")
    builder.op("forward", reads=(weight,))
    builder.op("other")
    builder.op("backward", reads=(weight,), stage=Stage.BACKWARD)
    builder.op("other")
    builder.op("step", writes=(weight,), stage=Stage.OPTIMIZER)
    builder.op("other")
    step = builder.build()
    (key,) = step.storage_keys

    # Out after its use in forward and again after the one in backward: one copy serves both.
    assert host_bytes(policy(swap(key, 0, 1, 2), swap(key, 2, 3, 4, gap=1)), step) == 4 * PAGE
    # Out after the optimizer wrote it, until the optimizer writes it in the next step: one copy at any time.
    assert host_bytes(policy(swap(key, 4, 6, 6, gap=2)), step) == 4 * PAGE
