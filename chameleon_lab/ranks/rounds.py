"""Rounds of an agreement: ranks with the same program get one plan, and begin to follow it at the same step.

In a round every rank says what it runs and how long it takes. Of the ranks with the same program (a group) the lowest
one makes the plan, for all of them; when each has it ready, that rank names the step. All of it goes over the job's own
store, in the background: a step's border names the step, or looks whether it has been named.

No rank depends on another one: every wait has a limit, and a rank that gives up keeps its own plan. So do all of a
group of which one has not come so far.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

LONGEST_WAIT_S = 60.0
"""For the other ranks, at each stage of a round."""
_LOOK_S = 0.02
_AHEAD_STEPS = 2
"""No rank is a whole step ahead of another one of its group: they meet at collectives."""
_CALLED_OFF = -1
_ROUNDING = 1e-3
"""A margin so little larger is none."""
_MOST_FOR_OTHERS = 0.5
"""Of the link: a rank with less than the rest is an accident that no plan should be made for."""


class Store(Protocol):
    """What is used of a store of torch.distributed. Nothing here waits inside of it."""

    def set(self, key: str, value: str) -> None:
        """Keep a value."""

    def get(self, key: str) -> bytes:
        """A value that is there."""

    def check(self, keys: list[str]) -> bool:
        """Are all of these there?"""

    def add(self, key: str, amount: int) -> int:
        """Count, from 0; returns the sum."""

    def delete_key(self, key: str) -> bool:
        """Forget a value."""


@dataclass(frozen=True)
class Offer:
    """What a rank brings to a round."""

    program: str
    """Equal where one plan serves both: of its ops, its storages and its capacity."""
    link_bytes_per_s: tuple[float, float]
    """Out and in, as this rank has measured it."""
    op_s: tuple[float, ...]
    """Seconds of each op."""
    wait_ops: tuple[int, ...] = ()
    """Those that wait for other ranks."""
    link_margin: float = 0.0
    """Share of the link that plans do without, since in some steps less was left."""


@dataclass(frozen=True)
class Agreed:
    """A plan that the ranks of a group have ready."""

    members: tuple[int, ...]
    plan: str
    step: int
    """The step at whose end all of them begin to follow it."""


def patient(condition: Callable[[], bool], limit_s: float = LONGEST_WAIT_S) -> bool:
    """Wait for a condition; False where it has not come within the limit."""
    end_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() >= end_s:
            return False
        time.sleep(_LOOK_S)
    return True


def mixed(offers: Sequence[Offer]) -> Offer:
    """What a plan for several ranks is made from.

    Op times are the mean of theirs, but waits for other ranks: those go when the ranks follow one plan, and the
    shortest counts. The link is the geometric mean: each rank's measure is a guess at the same speed, off by a factor.
    Its margin covers what the slowest rank has left with its own, since the others wait for that rank.
    """
    first, count = offers[0], len(offers)
    waits = set(first.wait_ops)
    by_op = zip(*(offer.op_s for offer in offers), strict=True)
    link = [1.0, 1.0]
    for offer in offers:
        link = [
            so_far * speed ** (1 / count) for so_far, speed in zip(link, offer.link_bytes_per_s, strict=True)
        ]
    return Offer(
        program=first.program,
        link_bytes_per_s=(link[0], link[1]),
        op_s=tuple(min(seconds) if op in waits else sum(seconds) / count for op, seconds in enumerate(by_op)),
        wait_ops=first.wait_ops,
        link_margin=_covering(offers, link),
    )


def _covering(offers: Sequence[Offer], link: Sequence[float]) -> float:
    """The margin of a link that leaves what each rank has left; beyond a rank's own up to a half."""
    left = [
        speed * (1.0 - offer.link_margin) / mean
        for offer in offers
        for speed, mean in zip(offer.link_bytes_per_s, link, strict=True)
        if mean > 0
    ]
    own, slowest = max(offer.link_margin for offer in offers), 1.0 - min(left, default=1.0)
    return max(own, min(slowest, _MOST_FOR_OTHERS)) if slowest > own + _ROUNDING else own


class Round:
    """One round, as one rank sees it. :meth:`agree` runs in the background, :meth:`border` in the training loop.

    Args:
        store: of the job; its keys begin with the round's.
        number: of the round, the same on all ranks.
        rank: this one's.
        world_size: how many there are.
        wait: waits for a condition, or gives up: :func:`patient`.
    """

    def __init__(
        self,
        store: Store,
        number: int,
        rank: int,
        world_size: int,
        wait: Callable[[Callable[[], bool]], bool] = patient,
    ) -> None:
        self._store = store
        self._number = number
        self._rank = rank
        self._world_size = world_size
        self._wait = wait
        self._lock = threading.Lock()  # of what follows; held while the store is asked
        self._leader = -1
        self._members: tuple[int, ...] = ()
        self._plan = ""
        self._is_ready = False  # this rank; of the one that leads: all are
        self._step: int | None = None
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Does nothing come of it any more, or has its plan been handed out?"""
        return self._is_over

    def give_up(self) -> None:
        """Nothing comes of it any more: borders no longer ask the store."""
        self._is_over = True

    def border(self, steps: int) -> Agreed | None:
        """Between two steps: the plan, once, where this is the step from whose end on the group follows it.

        Asks the store once where this rank is ready, and waits for nobody.
        """
        if not self._is_ready or self._is_over:
            return None
        with self._lock:
            if self._is_over:
                return None
            if self._step is None and self._leader == self._rank:
                # Here, so that no rank of the group has passed that step when it is named.
                self._step = steps + _AHEAD_STEPS
                self._store.set(self._key("go", self._rank), str(self._step))
            elif self._step is None and self._has("go", self._leader):
                self._step = int(self._store.get(self._key("go", self._leader)))
            if self._step is None or (self._step != _CALLED_OFF and steps < self._step):
                return None
            self._is_over = True
        return None if self._step == _CALLED_OFF else Agreed(self._members, self._plan, self._step)

    def agree(self, offer: Offer, make: Callable[[Offer], str], prepare: Callable[[str], None]) -> bool:
        """Get a plan with the ranks that run the same. False where that has failed, or nobody else does.

        Args:
            offer: this rank's.
            make: makes the plan, on one rank of a group.
            prepare: gets it ready to be followed, on each of them.
        """
        try:
            agreed = self._agree(offer, make, prepare)
        except BaseException:
            self._is_over = True
            raise
        if not agreed:
            self._is_over = True
        return agreed

    def _agree(self, offer: Offer, make: Callable[[Offer], str], prepare: Callable[[str], None]) -> bool:
        self._store.set(self._key("offer", self._rank), json.dumps(asdict(offer)))
        keys = [self._key("offer", rank) for rank in range(self._world_size)]
        self._wait(lambda: self._store.check(keys))
        offers = {rank: self._offer(rank) for rank in range(self._world_size) if self._has("offer", rank)}
        if self._store.add(f"{self._number}/read", 1) == self._world_size:  # nobody needs them any more
            for key in (*keys, f"{self._number}/read"):
                self._store.delete_key(key)
        group = [rank for rank, other in offers.items() if other.program == offer.program]
        if len(group) < 2:
            return False
        self._leader, self._members = group[0], tuple(group)
        if self._leader == self._rank:
            return self._lead([offers[rank] for rank in group], make, prepare)
        return self._follow(prepare)

    def _lead(
        self, offers: list[Offer], make: Callable[[Offer], str], prepare: Callable[[str], None]
    ) -> bool:
        others = len(self._members) - 1
        all_ready = False
        try:
            self._plan = make(mixed(offers))
            told = json.dumps({"members": self._members, "plan": self._plan})
            self._store.set(self._key("plan", self._rank), told)
            prepare(self._plan)
            all_ready = self._wait(lambda: self._count("ready") >= others)
        finally:
            if not all_ready:
                self._store.set(self._key("go", self._rank), str(_CALLED_OFF))
        if not all_ready:
            return False
        self._is_ready = True
        if self._wait(lambda: self._is_over and self._count("done") >= others):
            self._forget()
        return True

    def _follow(self, prepare: Callable[[str], None]) -> bool:
        if not self._wait(lambda: self._has("plan", self._leader) or self._has("go", self._leader)):
            return False
        if not self._has("plan", self._leader):
            return False  # called off
        told = json.loads(self._store.get(self._key("plan", self._leader)))
        if self._rank not in told["members"]:
            return False  # this rank's offer came too late
        self._members, self._plan = tuple(told["members"]), told["plan"]
        prepare(self._plan)
        self._is_ready = True
        self._store.add(self._key("ready", self._leader), 1)
        if not self._wait(lambda: self._is_over):
            with self._lock:  # nobody has named a step: then it is for nobody any more
                if not self._is_over and self._step is None:
                    self._is_over = True
                    return False
        self._store.add(self._key("done", self._leader), 1)
        return True

    def _offer(self, rank: int) -> Offer:
        values = json.loads(self._store.get(self._key("offer", rank)))
        out, back = values["link_bytes_per_s"]
        return Offer(
            program=values["program"],
            link_bytes_per_s=(out, back),
            op_s=tuple(values["op_s"]),
            wait_ops=tuple(values["wait_ops"]),
            link_margin=values["link_margin"],
        )

    def _forget(self) -> None:
        for name in ("plan", "ready", "go", "done"):
            self._store.delete_key(self._key(name, self._rank))

    def _key(self, name: str, rank: int) -> str:
        return f"{self._number}/{name}/{rank}"

    def _has(self, name: str, rank: int) -> bool:
        return self._store.check([self._key(name, rank)])

    def _count(self, name: str) -> int:
        return self._store.add(self._key(name, self._leader), 0)
