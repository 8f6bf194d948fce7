"""The planner's C++ extension says what is wrong with the arrays that it is given, and needs no torch."""

from __future__ import annotations

import subprocess
import sys
import threading
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


STORED: dict[str, Any] = {
    "value_row": [0, 1],
    "value_op": [0, 1],
    "inputs_begin": [0, 0],
    "inputs_end": [0, 1],
    "input_row": [0],
    "input_value": [0],
    "possible": [True, True],
    "seconds": [1.0, 2.0],
    "beside_bytes": [0, 5],
    "death_op": [2, 8],
    "block_bytes": [16, 32],
    "gap_row": [0, 1],
    "out_op": [0, 1],
    "use_op": [1, 3],
    "returns": [True, True],
    "ops": OPS,
    "longest": 2,
}
"""Two storages; the second is made of the first, which dies before the second is used again."""


def test_a_chain_is_made_in_order_and_what_it_reads_is_named() -> None:
    chains = native.ReplayChains(**STORED)
    made, inputs, seconds, transient_bytes = chains.chain(1, 3)
    assert made.tolist() == [0, 1] and inputs.tolist() == []
    assert seconds == 3.0 and transient_bytes == 16 + 5
    assert chains.chain(1, 2)[1].tolist() == [0], "at op 2 its input lives"
    assert chains.value_at(1, 1) == -1 and chains.value_at(1, 2) == 1
    assert chains.gap_around(1, 3) == (1, 3) and chains.gap_around(0, 3)[0] == -1
    assert native.ReplayChains(**STORED | {"longest": 1}).chain(1, 3)[0].tolist() == []


Resolved = dict[str, list[float]]


def resolved(chains: native.ReplayChains, *arguments: Any) -> Resolved:
    """What drops ask for, by name."""
    names = ("gap", "in_op", "seconds", "transient_bytes", "needed_gap", "needed_op", "stays", "declined")
    found = chains.resolve(*arguments)
    return dict(zip(names, (array.tolist() for array in found), strict=True))


def test_of_drops_together_each_is_made_before_its_use() -> None:
    found = resolved(native.ReplayChains(**STORED), [1], [], [], [])
    assert found["gap"] == [1] and found["in_op"] == [3]
    assert found["seconds"] == [0.0, 0.0, 0.0, 3.0] and found["transient_bytes"] == [0, 0, 0, 21]
    assert not any(found[name] for name in ("needed_gap", "needed_op", "stays", "declined"))


LIVING: dict[str, Any] = STORED | {"death_op": [8, 8], "use_op": [4, 3], "ops": 5}
"""The first one lives on, and is used again later."""


def test_what_a_replay_reads_is_needed_there_or_made_there_or_stays() -> None:
    chains = native.ReplayChains(**LIVING)
    alone = resolved(chains, [1], [], [], [])
    assert alone["needed_gap"] == [0] and alone["needed_op"] == [3]
    both = resolved(chains, [1, 0], [], [], [])
    assert both["gap"] == [0, 1] and both["in_op"] == [3, 3] and both["needed_gap"] == []
    assert resolved(chains, [1, 0], [0], [], [])["declined"] == [1]
    dead = native.ReplayChains(**LIVING | {"returns": [False, True]})
    assert resolved(dead, [1], [], [], [])["stays"] == [0]


def test_a_drop_that_is_away_at_no_useful_op_is_declined_unless_it_must_be() -> None:
    chains, useful = native.ReplayChains(**LIVING), [0, 1, 1, 1, 2, 2]
    assert resolved(chains, [0, 1], [], useful, [])["declined"] == [1]
    assert resolved(chains, [0, 1], [], useful, [1])["declined"] == [0], (
        "it is made before op 3, for the other"
    )


def test_threads_share_what_was_found() -> None:
    ops = 400
    row = np.arange(ops)
    chains = native.ReplayChains(
        **STORED
        | {
            "value_row": row, "value_op": row, "inputs_begin": np.maximum(row - 1, 0), "inputs_end": row,
            "input_row": row[:-1], "input_value": row[:-1], "possible": row >= 0, "seconds": np.ones(ops),
            "beside_bytes": row * 0, "death_op": row + 2, "block_bytes": row * 0 + 8, "gap_row": row[:-30],
            "out_op": row[:-30], "use_op": row[:-30] + 20, "returns": row[:-30] >= 0, "ops": ops, "longest": 64,
        }
    )  # fmt: skip
    found: list[list[list[int]]] = []

    def ask() -> None:
        found.append([chains.chain(asked, asked + 20)[0].tolist() for asked in range(ops - 30)])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(answers == found[0] for answers in found)
    assert found[0][5] == [0, 1, 2, 3, 4, 5] and found[0][100] == [], "more than 64 ops in a row"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("value_row", [0, 2], "value_row holds 2: give values from 0 to 1"),
        ("input_value", [1], "input_value holds 1: give values from -1 to 0"),
        ("input_row", [-1], "input_row holds -1: give values from 0 to 1"),
        ("inputs_begin", [0, -1], "inputs_begin holds -1: give values from 0 to 1"),
        ("inputs_end", [0, 2], "inputs_end holds 2: give values from 0 to 1"),
        ("seconds", [1.0], "seconds has 1 values in 1 dimensions: give 2 in one"),
        ("use_op", [1, 9], "use_op holds 9: give values from 0 to 8"),
        ("longest", -1, "longest holds -1: give values from 0 to 1000"),
        ("gap_row", [0, 5], "gap_row holds 5: give values from 0 to 1"),
    ],
)
def test_values_and_gaps_that_do_not_fit_are_named(name: str, value: Any, message: str) -> None:
    with pytest.raises((ValueError, IndexError), match=message):
        native.ReplayChains(**STORED | {name: value})


def test_questions_about_no_storage_gap_or_op_are_named() -> None:
    chains = native.ReplayChains(**STORED)
    with pytest.raises(IndexError, match="row holds 2: give values from 0 to 1"):
        chains.chain(2, 0)
    with pytest.raises(IndexError, match="op holds 9: give values from 0 to 8"):
        chains.value_at(0, 9)
    with pytest.raises(IndexError, match="gap holds 2: give values from 0 to 1"):
        chains.needs(2, 0)
    with pytest.raises(ValueError, match="gap 0 cannot be dropped"):
        native.ReplayChains(**STORED | {"possible": [False, True]}).needs(0, 1)
    with pytest.raises(IndexError, match="gaps holds 7: give values from 0 to 1"):
        chains.resolve([7], [], [], [])
    with pytest.raises(IndexError, match="use_op of gaps holds 7: give values from 0 to 3"):
        native.ReplayChains(**STORED | {"use_op": [1, 7]}).resolve([1], [], [], [])
    with pytest.raises(ValueError, match="gap 1 cannot be dropped"):
        native.ReplayChains(**STORED | {"possible": [True, False]}).resolve([1], [], [], [])
    with pytest.raises(ValueError, match="useful has 2 values in 1 dimensions: give 5 in one"):
        chains.resolve([1], [], [0, 1], [])


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
