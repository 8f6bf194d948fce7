"""The replays that tests/cuda counts on a GPU, on the embedded device."""

from __future__ import annotations

import pytest
from replay_cases import CASES, SMALL, count_replays

pytestmark = pytest.mark.bits


def test_every_op_that_models_use_comes_back_to_the_bit() -> None:
    count = count_replays("cpu", SMALL)
    print("\n".join(count.lines()))
    assert count.different == []
    assert count.unseen == []
    assert sum(count.replayed.values()) > 5 * len(CASES)
    assert {label.partition(",")[0].split()[0] for label in count.not_run} == {"attention"}
