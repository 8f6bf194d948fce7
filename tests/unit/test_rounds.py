"""Rounds with ranks that are threads, over a store in memory. No wait is for a time: a test says when ranks give up."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable

import pytest
from hangs import HANGS_AFTER_S, until

from chameleon_lab.ranks.rounds import Agreed, Offer, Round, mixed


class _Store:
    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def set(self, key: str, value: str) -> None:
        with self._lock:
            self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        with self._lock:
            return self.values[key]

    def check(self, keys: list[str]) -> bool:
        with self._lock:
            return all(key in self.values for key in keys)

    def add(self, key: str, amount: int) -> int:
        with self._lock:
            total = int(self.values.get(key, b"0")) + amount
            self.values[key] = str(total).encode()
            return total

    def delete_key(self, key: str) -> bool:
        with self._lock:
            return self.values.pop(key, None) is not None


class _Rank(threading.Thread):
    def __init__(
        self, store: _Store, rank: int, world_size: int, offer: Offer, fails_to_prepare: bool = False
    ) -> None:
        super().__init__(daemon=True)
        self.gives_up = threading.Event()
        self.prepared: list[str] = []
        self.made: list[Offer] = []
        self.agreed = False
        self.error: Exception | None = None
        self._fails_to_prepare = fails_to_prepare
        self.round = Round(store, 0, rank, world_size, wait=self._wait)
        self._offer, self._rank = offer, rank
        self.start()

    def _wait(self, condition: Callable[[], bool]) -> bool:
        until(lambda: condition() or self.gives_up.is_set())
        return condition()

    def _make(self, offer: Offer) -> str:
        self.made.append(offer)
        return f"plan of {self._rank}"

    def _prepare(self, plan: str) -> None:
        if self._fails_to_prepare:
            raise ValueError("no such storage")
        self.prepared.append(plan)

    def run(self) -> None:
        try:
            self.agreed = self.round.agree(self._offer, self._make, self._prepare)
        except Exception as error:
            self.error = error

    def ended(self) -> _Rank:
        self.join(HANGS_AFTER_S)
        assert not self.is_alive()
        return self


def _train_until(ranks: list[_Rank], condition: Callable[[], bool]) -> list[tuple[int, list[Agreed | None]]]:
    """The same until a condition comes: the steps at which a rank has got something, with what each has got."""
    found, step = [], 0

    def trained() -> bool:
        nonlocal step
        got = [rank.round.border(step) for rank in ranks]
        if any(got):
            found.append((step, got))
        step += 1
        return condition()

    if not condition():
        until(trained)
    return found


def _offer(program: str = "a", *op_s: float, out: float = 1.0, waits: tuple[int, ...] = ()) -> Offer:
    return Offer(program, (out, 1.0), op_s or (1.0, 1.0), waits)


def test_one_rank_plans_for_all_that_run_the_same_and_all_begin_at_one_step() -> None:
    store = _Store()
    ranks = [_Rank(store, rank, 4, _offer("ab"[rank % 2])) for rank in range(4)]
    got = _train_until(ranks, lambda: not any(rank.is_alive() for rank in ranks))
    by_rank = [[(step, one[rank]) for step, one in got if one[rank] is not None] for rank in range(4)]
    assert [len(each) for each in by_rank] == [1, 1, 1, 1], "once"
    assert by_rank[0] == by_rank[2] and by_rank[1] == by_rank[3]
    for rank, leader in enumerate((0, 1, 0, 1)):
        step, agreed = by_rank[rank][0]
        assert agreed == Agreed((leader, leader + 2), f"plan of {leader}", step)
    assert [len(rank.made) for rank in ranks] == [1, 1, 0, 0]
    assert ranks[2].prepared == ["plan of 0"] and ranks[3].prepared == ["plan of 1"]
    assert store.values == {}, "its keys are left in the job's store"


def test_a_rank_with_a_program_of_its_own_keeps_its_own_plan() -> None:
    store = _Store()
    ranks = [_Rank(store, rank, 3, _offer("aab"[rank])) for rank in range(3)]
    got = _train_until(ranks, lambda: not any(rank.is_alive() for rank in ranks))
    assert [agreed is not None for agreed in got[0][1]] == [True, True, False]
    assert len(got) == 1 and not ranks[2].agreed and ranks[2].round.is_over


def test_a_rank_that_never_comes_holds_nobody_up() -> None:
    store = _Store()
    ranks = [_Rank(store, rank, 3, _offer()) for rank in range(2)]
    until(lambda: store.check(["0/offer/0", "0/offer/1"]))
    for rank in ranks:
        rank.gives_up.set()
    _train_until(ranks, lambda: not any(rank.is_alive() for rank in ranks))
    assert [rank.error for rank in ranks] == [None, None]


def test_a_leader_that_dies_is_given_up() -> None:
    store = _Store()
    store.set(
        "0/offer/0",
        '{"program": "a", "link_bytes_per_s": [1, 1], "op_s": [1, 1], "wait_ops": [], "link_margin": 0}',
    )
    follower = _Rank(store, 1, 2, _offer())
    until(lambda: store.check(["0/offer/1"]))
    follower.gives_up.set()
    assert not follower.ended().agreed and follower.round.is_over and follower.error is None


def test_a_leader_that_dies_before_it_names_a_step_is_given_up() -> None:
    store = _Store()
    store.set(
        "0/offer/0",
        '{"program": "a", "link_bytes_per_s": [1, 1], "op_s": [1, 1], "wait_ops": [], "link_margin": 0}',
    )
    store.set("0/plan/0", '{"members": [0, 1], "plan": "a plan"}')
    follower = _Rank(store, 1, 2, _offer())
    until(lambda: store.check(["0/ready/0"]))
    assert follower.round.border(3) is None
    follower.gives_up.set()
    assert not follower.ended().agreed and follower.prepared == ["a plan"]
    store.set("0/go/0", "5")  # too late
    assert follower.round.border(6) is None


@pytest.mark.parametrize("who", [0, 1])
def test_nobody_follows_a_plan_that_one_of_them_cannot(who: int) -> None:
    store = _Store()
    ranks = [_Rank(store, rank, 2, _offer(), fails_to_prepare=rank == who) for rank in range(2)]
    ranks[who].ended()
    assert isinstance(ranks[who].error, ValueError)
    ranks[1 - who].gives_up.set()
    assert not ranks[1 - who].ended().agreed and ranks[1 - who].error is None
    assert [rank.round.border(9) for rank in ranks] == [None, None]


def test_times_are_the_mean_but_waits_and_links_the_geometric_one() -> None:
    found = mixed([_offer("a", 1.0, 8.0, out=2.0, waits=(1,)), _offer("a", 3.0, 2.0, out=8.0, waits=(1,))])
    assert found.op_s == (2.0, 2.0)
    assert found.link_bytes_per_s == pytest.approx((4.0, 1.0))


@pytest.mark.parametrize(
    ("outs", "margins", "wanted"),
    [
        ((4.0, 4.0), (0.0, 0.0), 0.0),
        ((4.0, 4.0), (0.1, 0.2), 0.2),  # of the rank that found least
        ((2.0, 8.0), (0.0, 0.0), 0.5),  # the mean is 4, and the slower rank has half of it
        ((3.0, 5.3333), (0.1, 0.0), 0.325),
        ((1.0, 100.0), (0.0, 0.0), 0.5),  # no more for others
        ((1.0, 100.0), (0.7, 0.0), 0.7),  # but what a rank has asked for
    ],
)
def test_the_margin_covers_what_the_slowest_rank_has_left(
    outs: tuple[float, float], margins: tuple[float, float], wanted: float
) -> None:
    offers = [
        dataclasses.replace(_offer(out=out), link_margin=margin)
        for out, margin in zip(outs, margins, strict=True)
    ]
    assert mixed(offers).link_margin == pytest.approx(wanted, abs=1e-4)


def test_rounding_is_no_margin() -> None:
    for speed in (0.1, 1e9 / 3, 7.3e10):
        assert mixed([_offer(out=speed)] * 7).link_margin == 0.0
