"""Why stalls are: seconds of the copy, the queue, missing room and late triggers, which add up to the stall."""

from dataclasses import replace

import numpy as np
import pytest
from synthetic import gpt_step

from chameleon_lab.trace import Cause, Direction, Residencies, Stalls
from chameleon_lab.trace.stall_parts import PARTS, explained, parts_of_step

STEP = gpt_step(layers=2)
OUT, IN = int(Direction.OUT), int(Direction.IN)


def parts(direction, cause, *, due, issue, begin, end, start, stop, away=(), room=(0, -1)):
    """Of one stall from ``start`` to ``stop``, by the times of its copy; ``away``: since when its storage is."""
    one = {
        "op": np.array([5], np.int32),
        "storage": np.array([0], np.int32),
        "direction": np.array([direction], np.uint8),
        "cause": np.array([cause], np.uint8),
        "start_s": np.array([start]),
        "duration_s": np.array([stop - start]),
        "room_bytes": np.array([room[0]]),
        "room_storage": np.array([room[1]], np.int32),
    }
    times = {"due_s": due, "issue_s": issue, "copy_start_s": begin, "copy_end_s": end}
    stalls = Stalls(**one, **{name: np.array([time], float) for name, time in times.items()})
    zero = np.zeros(len(away), np.int32)
    held = Residencies(zero, zero, zero + 1, np.zeros(len(away)), np.array(away, float))
    step = replace(STEP, stalls=stalls, residencies=held)
    found = parts_of_step(step).of(0)
    assert sum(found.values()) == pytest.approx(stop - start)
    assert min(found.values()) >= 0
    return {name: pytest.approx(took) for name, took in found.items() if took > 1e-12}, explained(step, 0)


def test_a_copy_that_others_were_before_waited_in_the_queue():
    found, why = parts(IN, Cause.PLANNED, due=0, issue=0, begin=9, end=12, start=10, stop=12)
    assert found == {"queue": 2.0} and "2.00 s the queue before it" in why


def test_a_copy_that_was_asked_for_too_late_and_could_have_been_earlier():
    found, why = parts(IN, Cause.PLANNED, due=8, issue=8, begin=8, end=13, start=10, stop=13, away=[1])
    assert found == {"late": 3.0} and "3.00 s triggered late, by the plan at op" in why
    found, why = parts(IN, Cause.DEMAND, due=10, issue=10, begin=10, end=13, start=10, stop=13, away=[1])
    assert found == {"late": 3.0} and "at its use: nothing had asked for it before" in why


def test_a_copy_that_could_not_have_been_asked_for_earlier_is_what_it_takes_itself():
    found, why = parts(IN, Cause.PLANNED, due=8, issue=8, begin=8, end=13, start=10, stop=13, away=[8])
    assert found == {"copy": 3.0} and why == "3.00 s the copy itself"
    found, _ = parts(IN, Cause.PLANNED, due=9, issue=9, begin=9, end=14, start=10, stop=14, away=[8])
    assert found == {"copy": 3.0, "late": 1.0}


def test_a_copy_whose_block_had_no_room_says_so():
    found, why = parts(IN, Cause.PLANNED, due=0, issue=8, begin=8, end=12, start=10, stop=12)
    assert found == {"room": 2.0} and "no room for" in why and "its own block" in why
    found, _ = parts(IN, Cause.PLANNED, due=0, issue=6, begin=9, end=12, start=10, stop=12)
    assert found == {"room": 2 * 6 / 9, "queue": 2 * 3 / 9}


def test_what_pressure_sends_out_is_a_matter_of_room_and_says_for_what():
    times = {"due": 10, "issue": 10, "begin": 11, "end": 14, "start": 10, "stop": 14}
    found, why = parts(OUT, Cause.EVICT, **times, room=(3 << 20, -1))
    assert found == {"room": 3.0, "queue": 1.0}
    assert "3.00 s no room for 3.00 MiB, a new storage" in why
    _, why = parts(OUT, Cause.EVICT, **times, room=(1 << 20, 1))
    assert f"no room for 1.00 MiB, {STEP.storage_keys[1]}" in why


def test_what_comes_after_the_copy_and_what_is_not_recorded_is_other():
    found, why = parts(IN, Cause.DEMAND, due=10, issue=10, begin=10, end=13, start=10, stop=24, away=[1])
    assert found == {"late": 3.0, "other": 11.0} and why.startswith("11.0 s compute went on later")
    nan = float("nan")
    found, _ = parts(IN, Cause.PLANNED, due=nan, issue=nan, begin=nan, end=nan, start=1, stop=3)
    assert found == {"other": 2.0}


def test_there_are_five_parts():
    assert PARTS == ("copy", "queue", "room", "late", "other")
