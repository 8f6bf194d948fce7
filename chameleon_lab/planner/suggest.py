"""What no plan can do: changes of the training script, each with code to paste and its predicted effect."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..policy import Link
from ..trace import StepTrace, Trace
from ..trace.trace import plannable_step
from .arguments import checked_capacity, checked_link
from .memory import step_op_times
from .suggestions.checkpointing import checkpointing
from .suggestions.chunked_loss import chunked_loss
from .suggestions.gradient_accumulation import gradient_accumulation
from .suggestions.optimizer_in_backward import optimizer_in_backward
from .suggestions.suggestion import Suggestion

__all__ = ["Suggestion", "suggest"]


def suggest(
    trace: Trace | StepTrace,
    capacity_bytes: int | float | str | None = None,
    op_times: Sequence[float] | np.ndarray | None = None,
    link: Link | float | str | tuple[float | str, float | str] | None = None,
) -> tuple[Suggestion, ...]:
    """Changes of the script that would lower the peak of the newest step of ``trace``, the most useful first.

    Checkpointing of modules that repeat, the optimizer in the backward, a loss in chunks, and gradient accumulation:
    each where it applies and saves a noticeable part of the peak. They are estimates from a step without them.

    With ``capacity_bytes``, written as for :func:`~chameleon_lab.planner.plan`, each changes as little as makes the
    peak fit it, if that can be; else as much as helps. Capacity and ``link`` together also tell the stalls that the
    optimizer in the backward saves. ``op_times`` as for :func:`~chameleon_lab.planner.simulate`. Raises TraceError if
    the trace holds no op, ValueError or TypeError if the capacity or the link is none.
    """
    step = plannable_step(trace)
    times = step_op_times(step, op_times)
    goal = -1 if capacity_bytes is None else checked_capacity(capacity_bytes, step)
    over = None if link is None else checked_link(link)
    peak = step.live_peak_bytes
    if peak <= goal:
        return ()
    found: list[Suggestion] = [
        *checkpointing(step, times, goal),
        *optimizer_in_backward(step, times, None if capacity_bytes is None else goal, over),
        *chunked_loss(step, times, goal),
        *gradient_accumulation(step, times, goal),
    ]
    # First those that fit, then those that keep the numbers, then by the compute that a saved byte takes.
    found.sort(
        key=lambda s: (
            0 <= goal < s.changed_peak_bytes,
            not s.same_bits,
            s.extra_s / max(s.saved_bytes, 1),
            s.what,
        )
    )
    return tuple(found)
