"""Promises of the host layout: copies that exist at the same time share no bytes, in any step and under any policy."""

from __future__ import annotations

import numpy as np
from examples import examples
from host_walk import deaths, walk
from hypothesis import given
from hypothesis import strategies as st
from synthetic import random_step

from chameleon_lab.errors import BelowFloorError
from chameleon_lab.planner import floor, plan
from chameleon_lab.planner.host_layout import PAGE_BYTES, HostCopies, host_copies, host_layout, pack
from chameleon_lab.planner.memory import step_memory
from chameleon_lab.planner.program import bind, compile_program
from chameleon_lab.policy import Link
from chameleon_lab.trace import StepTrace


@examples(120)
@given(
    step=st.builds(
        random_step, seed=st.integers(0, 10**6), ops=st.integers(1, 40), storages=st.integers(1, 14)
    ),
    share=st.floats(0, 0.9),
)
def test_copies_that_exist_at_once_share_no_bytes(step: StepTrace, share: float) -> None:
    lowest = floor(step, min_swap_bytes=1).bytes
    capacity = max(1, lowest + int(share * (step.live_peak_bytes - lowest)))
    try:
        policy = plan(step, capacity, link=Link(None, None), min_swap_bytes=1)
    except BelowFloorError:
        return
    program = compile_program(policy, step)
    memory, swaps, *_ = bind(policy, step)
    most = walk(program, step, deaths(program, step))
    assert most <= program.host.peak_bytes <= program.host.pool_bytes
    again = host_layout(memory, swaps, step)
    assert (again.place == program.host.place).all() and again.pool_bytes == program.host.pool_bytes


@st.composite
def lifetimes(draw: st.DrawFn) -> HostCopies:
    """Up to 30 storages with up to three lifetimes each, in a step of 50 ops."""
    rows = []
    for storage in range(draw(st.integers(1, 30))):
        size = PAGE_BYTES * draw(st.integers(1, 9))
        marks = sorted(draw(st.sets(st.integers(0, 50), min_size=2, max_size=6)))
        rows += [(storage, b, e, size) for b, e in zip(marks[::2], marks[1::2], strict=False)]
    return HostCopies(*np.array(rows, dtype=np.int64).T)


@examples(120)
@given(copies=lifetimes(), random=st.randoms(use_true_random=False))
def test_any_order_of_placing_keeps_them_apart(copies: HostCopies, random) -> None:
    storages, first = np.unique(copies.storage, return_index=True)
    order = list(range(len(storages)))
    random.shuffle(order)
    place = pack(copies, order)
    assert (place >= 0).all()
    for op in range(50):
        here = np.flatnonzero((copies.begin <= op) & (op < copies.end))
        begin = place[np.searchsorted(storages, copies.storage[here])]
        by_begin = np.argsort(begin)
        end = begin + copies.bytes[here]
        assert (end[by_begin][:-1] <= begin[by_begin][1:]).all()
    assert int((place + copies.bytes[first]).max()) >= copies.peak_bytes(50)


def test_a_pool_of_a_real_step_wastes_little() -> None:
    from synthetic import gpt_step

    step = gpt_step()
    policy = plan(step, int(0.4 * step.live_peak_bytes), link=Link(None, None))
    host = compile_program(policy, step).host
    assert 0 < host.peak_bytes <= host.pool_bytes <= 1.1 * host.peak_bytes
    assert len(step_memory(step).row) == len(host.place)
    assert host_copies(*bind(policy, step)[:2], step).peak_bytes(len(step.ops)) == host.peak_bytes
