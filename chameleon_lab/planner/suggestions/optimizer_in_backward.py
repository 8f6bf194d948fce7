"""The optimizer's step for each parameter as soon as its gradient is ready, while the backward goes on.

Gradients then live for a moment each, and what the optimizer reads comes in while the backward computes, where a step
of its own has little compute to hide copies behind. ``torch.Tensor.register_post_accumulate_grad_hook`` is made for it
(PyTorch's tutorial "How to save memory by fusing the optimizer step into the backward pass").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...policy import Link
from ...trace import Category, Direction, Stage, StepTrace
from ...trace.alive_bytes import alive_bytes, bytes_between
from ...util.units import format_seconds
from ..generate import plan
from ..simulate import simulate
from .suggestion import WORTHWHILE, Suggestion


@dataclass(frozen=True, kw_only=True)
class OptimizerInBackward(Suggestion):
    """Run the optimizer for each parameter in the backward."""

    saved_s: float | None
    """About the stalls that it saves a step under a plan for the capacity and link; None where no plan was made."""

    @property
    def what(self) -> str:
        """The change."""
        return "run the optimizer in the backward (register_post_accumulate_grad_hook)"

    @property
    def benefit(self) -> str:
        """Memory, and stalls."""
        stalls = f" and about {format_seconds(self.saved_s)} of stalls off each step" if self.saved_s else ""
        return super().benefit + stalls


_CODE = """\
# In place of the one optimizer. Not with a gradient scaler, gradient clipping by the norm of all gradients,
# or gradients that add up over several backwards: they need all gradients at once.
optimizers = {p: torch.optim.AdamW([p], lr=1e-4) for p in model.parameters() if p.requires_grad}

def step_at_once(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()

for parameter in optimizers:
    parameter.register_post_accumulate_grad_hook(step_at_once)
# Then leave out optimizer.step() and optimizer.zero_grad(). In a session, session.step() ends each step.
"""


def optimizer_in_backward(
    step: StepTrace, times: np.ndarray, capacity_bytes: int | None, link: Link | None
) -> list[OptimizerInBackward]:
    """The suggestion, where the step has gradients that nothing but the optimizer reads after the backward."""
    found = _gradients(step)
    if found is None:
        return []
    gradients, ready, carried = found
    storages, stage = step.storages, step.ops.stage
    optimizer = np.flatnonzero(stage == Stage.OPTIMIZER)
    sizes = storages.block_bytes[gradients].astype(np.int64)
    live = step.ops.live_peak_bytes.astype(np.int64)
    before = int(live[optimizer[0] - 1])
    rise = max(int(live[optimizer].max()) - before, 0)
    # What one update takes beside its gradient: a list op holds temporaries for many parameters at once.
    at_once = int(sizes.sum()) if len(step.list_runs) else int(sizes.max())
    live -= bytes_between(len(live), ready + 1, storages.death_op[gradients] + 1, sizes)
    live -= alive_bytes(
        len(live), storages.birth_op[carried], storages.death_op[carried], storages.block_bytes[carried]
    )
    np.add.at(live, ready, (sizes * (rise / at_once)).astype(np.int64))
    live[optimizer] = before - int(sizes.sum())  # their work is done in the backward
    suggestion = OptimizerInBackward(
        live_peak_bytes=step.live_peak_bytes,
        changed_peak_bytes=int(live.max()),
        compute_s=float(times.sum()),
        extra_s=0.0,
        code=_CODE,
        same_bits=True,
        saved_s=_saved_s(step, times, capacity_bytes, link),
    )
    stalls = (suggestion.saved_s or 0.0) >= WORTHWHILE * suggestion.compute_s
    return [suggestion] if stalls or suggestion.saved_bytes >= WORTHWHILE * step.live_peak_bytes else []


def _gradients(step: StepTrace) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Rows of gradients that can be freed in the backward, the last op there that uses each, and the step before's.

    None where the change does not apply.
    """
    storages, uses, stage = step.storages, step.uses, step.ops.stage
    of_kind = (storages.category == Category.GRADIENT) & (storages.name >= 0)
    carried = np.flatnonzero(of_kind & (storages.birth_op < 0))
    rows = np.flatnonzero(of_kind & (storages.birth_op >= 0))
    optimizer = np.flatnonzero(stage == Stage.OPTIMIZER)
    if not len(rows) or not len(optimizer) or (stage[storages.birth_op[rows]] != Stage.BACKWARD).any():
        return None
    begin, first = int(storages.birth_op[rows].min()), int(optimizer[0])
    # Gradients that are there before the backward, or through two of them, add up. Some are freed in it already.
    adds_up = (storages.death_op[carried] >= begin).any() or (stage[begin:first] == Stage.FORWARD).any()
    if adds_up or (storages.death_op[rows] < first).any():
        return None
    place = np.full(len(storages), -1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    of = place[uses.storage]
    read = (of >= 0) & (uses.op < first)
    # A norm of all gradients, or a scaler's check, comes between: the optimizer has to wait for the last gradient.
    if (stage[uses.op[read]] != Stage.BACKWARD).any():
        return None
    ready = storages.birth_op[rows].astype(np.int64)
    np.maximum.at(ready, of[read], uses.op[read])
    return rows, ready, carried


def _saved_s(
    step: StepTrace, times: np.ndarray, capacity_bytes: int | None, link: Link | None
) -> float | None:
    """Stalls of the backward and the optimizer, less what their copies take beyond the compute of both."""
    if capacity_bytes is None or link is None or capacity_bytes >= step.live_peak_bytes:
        return None
    try:
        found = simulate(step, plan(step, capacity_bytes, link, op_times=times), op_times=times)
    except ValueError:  # below the floor
        return None
    stage = step.ops.stage
    both = (stage == Stage.BACKWARD) | (stage == Stage.OPTIMIZER)
    begin = int(np.flatnonzero(both)[0])
    stalled_s = float(found.stall_op_s[both].sum())
    copies = found.copies
    stays = step.storages.category[copies.storage] != Category.GRADIENT  # gradients need no copy any more
    busy_s = 0.0
    for direction in Direction:
        of = (copies.direction == direction) & (copies.issue_op >= begin) & stays
        busy_s = max(busy_s, float((copies.end_s[of] - copies.start_s[of]).sum()))
    return max(stalled_s - max(busy_s - float(times[both].sum()), 0.0), 0.0)
