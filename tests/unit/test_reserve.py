"""What plans leave free for the device's allocator: learned from counts, bounded, and never less."""

from __future__ import annotations

from dataclasses import replace

from test_report import STEP

from chameleon_lab.session.reserve import Reserve

CAPACITY = 640
QUIET = replace(STEP, plan=1)
REFUSED = replace(QUIET, refusals=2, useless_bytes=33)


def test_it_grows_to_what_lay_useless_when_two_steps_in_a_row_were_refused_memory() -> None:
    reserve = Reserve()
    assert not reserve.learn(QUIET, CAPACITY, 0.0) and reserve.bytes == 0
    assert not reserve.learn(REFUSED, CAPACITY, 0.0), "the first step under a plan has other segments still"
    assert not reserve.learn(QUIET, CAPACITY, 0.0)
    assert not reserve.learn(REFUSED, CAPACITY, 0.0)
    assert reserve.learn(REFUSED, CAPACITY, 0.0)
    assert reserve.bytes == 40, "in steps of a 64th of the capacity"
    assert not reserve.learn(replace(REFUSED, plan=2), CAPACITY, 0.0), "another plan: its first step"


def test_copies_in_that_wait_count_only_where_an_op_missed_them() -> None:
    waits = replace(QUIET, useless_bytes=33, demand_swap_ins=0, evictions=0)
    reserve = Reserve()
    assert not any(reserve.learn(waits, CAPACITY, 0.0) for _ in range(4)) and reserve.bytes == 0
    assert [reserve.learn(replace(waits, demand_swap_ins=1), CAPACITY, 0.0) for _ in range(2)] == [
        False,
        True,
    ]


def test_the_margin_counts_and_flushes_do_too() -> None:
    reserve = Reserve()
    flushed = replace(QUIET, alloc_retries=1, useless_bytes=33)
    assert [reserve.learn(flushed, CAPACITY, 0.02) for _ in range(2)] == [False, True]
    assert reserve.bytes == 30


def test_it_grows_step_by_step_to_its_bound_and_never_shrinks() -> None:
    reserve, sizes = Reserve(), []
    for number in range(40):
        reserve.learn(replace(REFUSED, useless_bytes=5, plan=number // 2), CAPACITY, 0.0)
        sizes.append(reserve.bytes)
    assert sizes == sorted(sizes) and sizes[-1] == CAPACITY // 4
    assert reserve.learn(replace(REFUSED, useless_bytes=CAPACITY), CAPACITY, 0.0) is False


def test_at_its_bound_what_is_free_goes_back_between_two_steps_once_for_a_plan() -> None:
    reserve = Reserve()
    for number in range(4):
        assert reserve.flush is False
        reserve.learn(replace(REFUSED, useless_bytes=CAPACITY, plan=number // 2), CAPACITY, 0.0)
    assert reserve.bytes == CAPACITY // 4
    for plan in (7, 8):
        flushes = []
        for _ in range(10):
            assert not reserve.learn(replace(REFUSED, plan=plan), CAPACITY, 0.0)
            flushes.append(reserve.flush)
        assert flushes == [False, True] + [False] * 8
    assert not reserve.learn(replace(QUIET, plan=8), CAPACITY, 0.0) and not reserve.flush


def test_it_grows_at_once_to_what_lay_useless_within_bounds() -> None:
    many = Reserve()
    for _ in range(2):
        many.learn(replace(REFUSED, useless_bytes=CAPACITY), CAPACITY, 0.0)
    assert many.bytes == CAPACITY // 8
    for _ in range(8):
        many.learn(replace(REFUSED, useless_bytes=CAPACITY), CAPACITY, 0.0)
    assert many.bytes == CAPACITY // 4
