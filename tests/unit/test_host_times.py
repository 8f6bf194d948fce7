"""What is remembered of the times of ops."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chameleon_lab.runtime import core
from chameleon_lab.session import host_times
from chameleon_lab.session.host_times import HostTimes

_OP = np.dtype(
    [("token", "u4"), ("start_ticks", "i8"), ("end_ticks", "i8"), ("stall_ticks", "i8"), ("live_peak_bytes", "i8")]
)  # fmt: skip
_REPLAY = np.dtype([("op", "i4"), ("start_ticks", "i8"), ("end_ticks", "i8")])


@pytest.fixture(autouse=True)
def ticks_are_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "seconds_per_tick", lambda: 1.0)


def log(
    starts: list[int],
    end: int,
    *,
    begin: int = 0,
    stalls: tuple[int, ...] = (),
    replays: tuple[tuple[int, int, int], ...] = (),
    tokens: tuple[int, ...] = (),
    peak: int = 100,
    truncated: int = 0,
) -> Any:
    ops = np.zeros(len(starts), _OP)
    ops["token"] = tokens or range(len(starts))
    ops["start_ticks"] = starts
    ops["stall_ticks"][: len(stalls)] = stalls
    ops["live_peak_bytes"] = peak
    rows = np.array(list(replays), _REPLAY)
    return SimpleNamespace(
        ops=lambda: ops,
        fingerprint=hash(ops["token"].tobytes()),
        live_peak_bytes=peak,
        replays=lambda: rows,
        pauses=lambda: np.zeros(0),
        start_ticks=begin,
        end_ticks=end,
        truncated_ops=truncated,
        op_count=len(starts),
    )


def step(ops: int, peak: int = 100, tokens: tuple[int, ...] = ()) -> Any:
    token = np.array(tokens or range(ops), dtype=np.uint32)
    return SimpleNamespace(ops=SimpleNamespace(token=token), live_peak_bytes=peak)


def test_an_op_takes_until_the_next_one_less_stalls_and_replays() -> None:
    times = HostTimes()
    assert (
        times.learn(log([0, 10, 30], 60, stalls=(3, 0, 5), replays=((1, 10, 16), (3, 55, 58)))) == 7 + 14 + 25
    )
    least = times.least(step(3))
    assert least is not None and least.tolist() == [7, 14, 25]


def test_shares_are_of_the_shortest_ops_and_the_sum_of_the_shortest_step() -> None:
    times = HostTimes()
    assert times.learn(log([0, 10, 20], 40)) == 40
    assert times.learn(log([0, 20, 30], 36)) == 36
    assert times.learn(log([0, 50, 60], 90)) == 36
    least = times.least(step(3))
    assert least is not None and least.tolist() == pytest.approx([36 * k / 26 for k in (10, 10, 6)])


def test_ops_of_two_threads_turn_no_time_negative() -> None:
    times = HostTimes()
    assert times.learn(log([0, 30, 20, 50], 60)) == 60
    least = times.least(step(4))
    assert least is not None and (least >= 0).all() and least.sum() == pytest.approx(60)


def test_each_sequence_and_size_has_its_own_and_the_oldest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_times, "_MOST_SEQUENCES", 2)
    times = HostTimes()
    times.learn(log([0, 10], 20))
    times.learn(log([0, 10], 50, peak=200))
    times.learn(log([0, 10], 20))
    times.learn(log([0, 10], 90, tokens=(7, 8)))
    found = [times.least(s) for s in (step(2), step(2, 200), step(2, tokens=(7, 8)), step(3))]
    assert [None if least is None else least.sum() for least in found] == [20, None, 90, None]


def test_of_many_steps_that_are_alike_not_each_is_looked_at() -> None:
    looked_at = []

    def counted(*steps: int) -> Any:
        one = log([0, 10], 50)
        return SimpleNamespace(**{**vars(one), "ops": lambda: looked_at.append(steps) or one.ops()})

    times = HostTimes()
    assert {times.learn(counted(step)) for step in range(100)} == {50}
    assert 32 < len(looked_at) < 50
    assert times.learn(log([0, 10], 20, peak=200)) == 20, "another size"
    assert {times.learn(log([0, 10], 40)) for _ in range(16)} >= {40}, "a shorter one is found soon"


def test_what_comes_before_the_first_op_belongs_to_it() -> None:
    times = HostTimes()
    assert times.learn(log([50, 60], 70, begin=10)) == 60
    least = times.least(step(2))
    assert least is not None and least.tolist() == [50, 10]


def test_steps_without_their_ops_tell_nothing() -> None:
    times = HostTimes()
    assert times.learn(log([0, 10], 20, truncated=1)) == math.inf
    assert times.learn(log([], 20)) == math.inf
    assert times.learn(log([0, 10], 20)) == 20
    assert times.learn(log([0, 1], 2)) == 2
