"""The op times of predictions: their steps, and one set for all predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...errors import SessionError
from ...planner.memory import step_op_times
from ...policy.model import fingerprint
from ...trace import StepTrace

if TYPE_CHECKING:
    from ...session import Session

_MOST_STEPS = 8


@dataclass(frozen=True, eq=False)
class Clock:
    """Compute seconds of each op of a step, float64 (ops,), and the steps of the run that they were measured in."""

    op_times: np.ndarray
    steps: tuple[int, ...]

    def __str__(self) -> str:
        first, last = self.steps[0], self.steps[-1]
        if first == last:
            return f"op times of step {first}"
        return f"op times: median of {len(self.steps)} steps, {first} to {last}"


def clock_of(session: Session | None, step: StepTrace) -> Clock:
    """The median of the newest recorded steps with the same ops, else what the step says of itself."""
    same, indices, mark = [], [], fingerprint(step)
    for index in () if session is None else session.recorded_steps()[-_MOST_STEPS:]:
        assert session is not None
        try:
            other = session.recorded_step(index)
        except SessionError:
            continue  # steps come and go while a cell trains
        alike = len(other.ops) == len(step.ops) and other.session_stage == "Stable"
        if alike and fingerprint(other) == mark:
            same.append(step_op_times(other))
            indices.append(index)
    if not same:
        return Clock(step_op_times(step), (step.index,))
    return Clock(np.median(same, axis=0), tuple(indices))
