"""The planner's C++ extension says what is wrong with the arrays that it is given, and needs no torch."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from chameleon_lab.planner import native

OPS = 4
ONE_GAP: dict[str, Any] = {
    "bytes": [8],
    "out_op": [0],
    "use_op": [3],
    "latest_in": [2],
    "least_s": [0.0],
    "returns": [True],
    "op_bytes": [4, 16, 16, 4],
    "capacity_bytes": 10,
}
START_S = np.arange((native.PERIODS + 1) * OPS, dtype=float)


def test_a_gap_over_the_capacity_is_away_where_it_has_to_be() -> None:
    free, back = native.choose_swaps(**ONE_GAP, start_s=START_S)
    assert free.tolist() == [1] and back.tolist() == [3]
    with pytest.raises(ValueError, match="start_s has 3 values in 1 dimensions: give 16 in one"):
        native.choose_swaps(**ONE_GAP, start_s=START_S[:3])
    free, back = native.prefetch(**ONE_GAP, free=[1], back=[3])
    assert free.tolist() == [1] and back.tolist() == [3]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("out_op", [0, 1], "out_op has 2 values in 1 dimensions: give 1 in one"),
        ("out_op", [4], "out_op holds 4: give values from 0 to 3"),
        ("use_op", [9], "use_op holds 9: give values from 0 to 8"),
        ("latest_in", [-1], "latest_in holds -1: give values from 0 to 8"),
        ("returns", [[True]], "returns has 1 values in 2 dimensions: give 1 in one"),
    ],
)
def test_arrays_that_do_not_fit_are_named(name: str, value: Any, message: str) -> None:
    with pytest.raises((ValueError, IndexError), match=message):
        native.choose_swaps(**ONE_GAP | {name: value}, start_s=START_S)


def test_events_of_no_swap_are_named() -> None:
    times: dict[str, Any] = {"start_s": [0.0, 1.0], "op_start_s": [0.0], "out_s": [1.0], "in_s": [1.0]}
    with pytest.raises(IndexError, match="swap holds 1: give values from 0 to 0"):
        native.run_until_steady([0], [native.USE], [1], **times, copies=[True])
    with pytest.raises(IndexError, match="kind holds 5: give values from 0 to 4"):
        native.run_until_steady([0], [5], [0], **times, copies=[True])


def test_positions_outside_of_a_range_are_named() -> None:
    tree = native.RangeMax([1, 2, 3])
    with pytest.raises(IndexError, match="positions 1 to 4: there are 3"):
        tree.add(1, 4, 1)
    with pytest.raises(IndexError, match="positions -1 to 2: there are 3"):
        tree.last_above(-1, 2, 0)
    tree.add(2, 1, 5)  # an empty range
    assert tree.last_above(0, 3, 2) == 2 and tree.last_above(0, 2, 2) == -1


def test_the_extension_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; from chameleon_lab.planner import native; print(native.PERIODS)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(native.PERIODS)]


@pytest.mark.full
def test_a_process_ends_well_while_a_daemon_thread_plans() -> None:
    """Python 3.13 and older end such a thread when it asks for the interpreter again."""
    script = f"""
import threading
import numpy as np
from chameleon_lab.planner import native

swaps, ops = 20_000, 1_000
rows = np.arange(swaps) % (ops // 2)
gaps = {{
    "bytes": np.full(swaps, 8), "out_op": rows, "use_op": rows + ops // 2, "latest_in": rows + ops // 2 - 1,
    "least_s": np.zeros(swaps), "returns": np.ones(swaps, bool), "op_bytes": np.full(ops, 8 * swaps),
}}
start_s = np.arange((native.PERIODS + 1) * ops, dtype=float)
begun = threading.Event()

def plan():
    begun.set()
    while True:
        native.choose_swaps(**gaps, start_s=start_s, capacity_bytes={8 * 100})

threading.Thread(target=plan, daemon=True).start()
begun.wait()
"""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
