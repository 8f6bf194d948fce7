"""The copy engine of the embedded device: which copy comes next."""

from __future__ import annotations

from chameleon_lab.runtime import core


def test_copies_go_in_order_of_issue() -> None:
    assert core.copy_order([False] * 6) == list(range(6))


def test_what_an_op_waits_for_overtakes_what_has_not_begun() -> None:
    assert core.copy_order([False, False, True, False, True, True]) == [2, 4, 5, 0, 1, 3]
