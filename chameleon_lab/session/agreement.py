"""One plan for the ranks that run the same program: the session's part of :mod:`chameleon_lab.ranks.rounds`."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import numpy as np
import torch.distributed

from ..planner.program import compile_program
from ..policy import Link, Policy
from ..ranks.rounds import Offer, Round, Store, patient
from ..runtime import core
from ..trace import StepTrace
from ..trace.collective_ops import wait_ops
from .plan_cache import StepPlan

_LONGEST_END_S = 10.0

_numbers = itertools.count()
"""Of the agreements of this process: the same on all ranks, where they open the same sessions."""


@dataclass
class _Running:
    round: Round
    made: list[StepPlan] = field(default_factory=list)


class Agreement:
    """Looks for the ranks that run what this one does, and gets a plan with them: once, when its steps repeat.

    Args:
        store: the job's.
        rank: this one's.
        world_size: how many there are.
        key: of what else must be equal where one plan serves two ranks: their capacities and settings.
        step_of: a finished step as planning sees it, and the seconds of its ops.
        link: as this rank has measured it, and the share of it that plans do without.
        plan: makes a plan for a step, from a link and such a share, and the seconds of its ops.
        interrupt: ends what ``plan`` does.
        note: tells the session's user something.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        *,
        key: Callable[[], str],
        step_of: Callable[[core.StepLog], tuple[StepTrace, np.ndarray]],
        link: Callable[[], tuple[Link, float]],
        plan: Callable[[StepTrace, Link, float, np.ndarray], Policy],
        interrupt: Callable[[], None],
        note: Callable[[str], None],
    ) -> None:
        self._store, self._rank, self._world_size = store, rank, world_size
        self._key, self._step_of, self._link, self._plan, self._note = key, step_of, link, plan, note
        self._interrupt = interrupt
        self._running: _Running | None = None
        self._before = -1
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.members: tuple[int, ...] = ()
        """The ranks whose plan this one follows, and its own; none before it has agreed with any."""

    @classmethod
    def of_job(cls, rank: int, world_size: int, **calls: Any) -> Agreement | None:
        """Over the store of torch.distributed's process group; None where there is none, or one rank alone."""
        if world_size < 2 or not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return None
        job: Any = torch.distributed.distributed_c10d._get_default_store()
        own = job.clone()  # others wait inside of theirs, for long
        own.set_timeout(timedelta(seconds=_LONGEST_END_S))
        prefixed: Any = vars(torch.distributed)["PrefixStore"]
        store = prefixed(f"chameleon_lab/agreement/{next(_numbers)}", own)
        return cls(store, rank, world_size, **calls)

    def step_ended(self, log: core.StepLog, steps: int, *, is_stable: bool) -> tuple[StepPlan, str] | None:
        """At a border: the plan to follow from here on, and why, where it is time for one."""
        repeats, self._before = log.fingerprint == self._before, log.fingerprint
        if self._running is None:
            if is_stable and repeats and not log.truncated_ops:
                own_round = Round(self._store, 0, self._rank, self._world_size, self._wait)
                self._running = _Running(own_round)
                self._thread = work = threading.Thread(
                    target=self._agree, args=(self._running, log), name="chameleon-lab-agreement", daemon=True
                )
                work.start()
            return None
        try:
            agreed = self._running.round.border(steps)
        except Exception as error:  # the store has gone, with the rank that keeps it
            self._running.round.give_up()
            self._failed(error)
            return None
        if agreed is None:
            return None
        self.members = agreed.members
        return self._running.made[0], f"agreed by ranks {', '.join(map(str, agreed.members))}"

    def stop(self) -> None:
        """The session ends: so does what is left of a round."""
        self._stopped.set()
        self._interrupt()
        if self._thread is not None:
            self._thread.join(_LONGEST_END_S)

    def _wait(self, condition: Callable[[], bool]) -> bool:
        return patient(lambda: self._stopped.is_set() or condition()) and not self._stopped.is_set()

    def _agree(self, running: _Running, log: core.StepLog) -> None:
        try:
            step, op_s = self._step_of(log)
            link, link_margin = self._link()
            offer = Offer(
                program=f"{_program(step)}/{self._key()}",
                link_bytes_per_s=(float(link.out_bytes_per_s or 0), float(link.in_bytes_per_s or 0)),
                op_s=tuple(float(f"{seconds:.4g}") for seconds in op_s),
                wait_ops=tuple(np.flatnonzero(wait_ops(step)).tolist()),
                link_margin=link_margin,
            )

            def make(mixed: Offer) -> str:
                link, op_s = Link(*mixed.link_bytes_per_s), np.array(mixed.op_s)
                return self._plan(step, link, mixed.link_margin, op_s).to_json()

            def prepare(text: str) -> None:
                policy = replace(Policy.from_json(text, "the plan of another rank"), source=step)
                running.made.append(StepPlan(policy, compile_program(policy, step), step))

            running.round.agree(offer, make, prepare)
        except Exception as error:  # this rank keeps its own plan
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        if self._stopped.is_set():
            return
        self._note(f"the ranks have agreed on no plan, each keeps its own: {type(error).__name__}: {error}")


def _program(step: StepTrace) -> str:
    """Equal where one policy fits both steps. Rows of storages come in the order in which plans touch them."""
    births = np.stack([step.storages.birth_op.astype(np.int64), step.storages.block_bytes.astype(np.int64)])
    births = births[:, np.lexsort(births)]
    found = hashlib.sha256(np.ascontiguousarray(step.ops.token).tobytes())
    found.update(births.tobytes())
    return found.hexdigest()[:32]
