"""One rank's side of a job: the figures of its steps, and its collectives. Small enough to be sent to another rank."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from ..policy.model import fingerprint
from ..trace import StepTrace, Trace
from .collectives import Collectives, collectives_of, op_times
from .identity import Identity

_NUMBER = re.compile(r"(?:rank|\D)[._-]?(\d+)(?:\.(?:unfinished|killed))?(?:\.\w+)?$")


@dataclass(frozen=True, eq=False)
class SideStep:
    """One step of a rank."""

    index: int
    session_stage: str
    start_s: float
    """Unix time, of the rank's own clock."""
    step_s: float
    """Without pauses, but with those that were waits at collectives."""
    stall_s: float
    blocked_s: float
    """Waits for results of collectives: for other ranks, and for the bytes on their way."""
    peak_bytes: int
    live_peak_bytes: int
    swapped_out_bytes: int
    swapped_in_bytes: int
    ops: int
    program: str
    """Hash of its ops' tokens, as policies have it."""
    collectives: Collectives

    @property
    def compute_s(self) -> float:
        """What is left: no wait at a collective, and no stall."""
        return max(self.step_s - self.stall_s - self.blocked_s, 0.0)

    @classmethod
    def of(cls, step: StepTrace) -> SideStep:
        """Of a recorded step."""
        found = collectives_of(step)
        moved = step.transfers
        blocked_s, as_pauses_s = _blocked(step, found)
        return cls(
            index=step.index,
            session_stage=step.session_stage,
            start_s=float(step.start_s),
            step_s=float(step.duration_s) + as_pauses_s,
            stall_s=float(step.stalls.duration_s.sum()),
            blocked_s=blocked_s,
            peak_bytes=step.peak_bytes,
            live_peak_bytes=step.live_peak_bytes,
            swapped_out_bytes=int(moved.bytes[moved.direction == 0].sum()),
            swapped_in_bytes=int(moved.bytes[moved.direction == 1].sum()),
            ops=len(step.ops),
            program=fingerprint(step),
            collectives=found,
        )


@dataclass(frozen=True, eq=False)
class RankSide:
    """What a rank's trace has to say where ranks are put side by side."""

    who: Identity
    name: str
    """Of the rank, as it is shown: ``rank 3``, or a file's where that is all there is."""
    device: str
    capacity_bytes: int | None
    groups: tuple[frozenset[int], ...]
    """Its process groups of two or more ranks; empty where nobody says."""
    steps: tuple[SideStep, ...]
    lost: str | None = None

    @property
    def is_synchronous(self) -> bool:
        """Does the host wait where the device does, so that times of ops are those of their work?"""
        return self.device == "cpu"

    @cached_property
    def _by_index(self) -> dict[int, SideStep]:
        return {step.index: step for step in self.steps}

    def step(self, index: int) -> SideStep | None:
        """The step of a number, if it is there."""
        return self._by_index.get(index)

    def at(self, index: int) -> SideStep:
        """The step of a number, which is there."""
        return self._by_index[index]

    @classmethod
    def of(cls, trace: Trace, path: str = "", steps: Iterable[int] | None = None) -> RankSide:
        """Of a trace, and where its meta does not say which rank it is of, of the number in its file's name."""
        who = Identity.of_meta(trace.meta)
        name = "" if who is None else f"rank {who.rank}"
        if who is None:
            number = _NUMBER.search(path)
            who = Identity(int(number[1]) if number else 0, 1 << 30)
            name = f"rank {number[1]}" if number else path or "trace"
        groups = trace.meta.get("groups")
        chosen = None if steps is None else set(steps)
        return cls(
            who=who,
            name=name,
            device=str(trace.meta.get("device", "cpu")),
            capacity_bytes=trace.meta.get("capacity_bytes"),
            groups=_groups(groups),
            steps=tuple(SideStep.of(step) for step in trace if chosen is None or step.index in chosen),
            lost=trace.lost,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        steps = [
            {
                each.name: getattr(step, each.name)
                if each.name != "collectives"
                else step.collectives.to_dict()
                for each in fields(SideStep)
            }
            for step in self.steps
        ]
        return {
            "who": asdict(self.who),
            "name": self.name,
            "device": self.device,
            "capacity_bytes": self.capacity_bytes,
            "groups": [sorted(group) for group in self.groups],
            "steps": steps,
            "lost": self.lost,
        }

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> RankSide:
        """The reverse of :meth:`to_dict`. Raises KeyError, TypeError, ValueError where it is none."""
        steps = tuple(
            SideStep(**{**step, "collectives": Collectives.of_dict(step["collectives"])})
            for step in values["steps"]
        )
        who = Identity(**values["who"])
        groups = _groups(dict(enumerate(values["groups"])))
        return cls(**{**values, "who": who, "groups": groups, "steps": steps})


def _groups(found: Any) -> tuple[frozenset[int], ...]:
    if not isinstance(found, Mapping):
        return ()
    several = {frozenset(ranks) for ranks in found.values() if isinstance(ranks, list) and len(ranks) > 1}
    return tuple(sorted(several, key=sorted))


def _blocked(step: StepTrace, found: Collectives) -> tuple[float, float]:
    """Seconds of waits for results, each wait once; and what of these the step's clock took for pauses."""
    exact = found.is_exact & ~np.isnan(found.done_s)
    users, first = np.unique(found.user_op[exact], return_index=True)
    waits = (found.done_s[exact] - found.needed_s[exact])[first]
    paused = np.zeros(len(step.ops) + 1)
    np.add.at(paused, np.minimum(step.pauses.op, len(step.ops)), step.pauses.duration_s)
    before_user = (
        found.needed_s[exact][first] < op_times(step)[0][users]
    )  # else the wait is an op, and no pause
    as_pauses_s = np.where(before_user, np.minimum(paused[users], waits), 0.0)
    return float(waits.sum()), float(as_pauses_s.sum())
