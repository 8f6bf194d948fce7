"""A batch in several parts, one after the other, whose gradients add up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...trace import Category, Stage, StepTrace
from .chosen_bytes import chosen_bytes
from .suggestion import WORTHWHILE, Suggestion

MOST_PARTS = 64


@dataclass(frozen=True, kw_only=True)
class GradientAccumulation(Suggestion):
    """Run forward and backward on parts of the batch, and the optimizer once."""

    parts: int

    @property
    def what(self) -> str:
        """The change."""
        return f"accumulate gradients over {self.parts} parts of the batch"

    @property
    def cost(self) -> str:
        """Smaller ops are less efficient, by how much only a run can tell."""
        return f"ops {self.parts} times as many and each smaller, which may be slower"


_CODE = """\
for part in batch.split(len(batch) // {parts}):
    loss = model(part) / {parts}  # a mean over the part
    loss.backward()
optimizer.step()
optimizer.zero_grad()
"""


def gradient_accumulation(step: StepTrace, times: np.ndarray, goal_bytes: int) -> list[GradientAccumulation]:
    """As few parts (a power of two) as reach the goal; where none do, as many as still save a noticeable share."""
    stage, storages = step.ops.stage, step.storages
    in_loop = (stage == Stage.FORWARD) | (stage == Stage.BACKWARD)
    if not (stage == Stage.BACKWARD).any():
        return []
    made = storages.birth_op >= 0
    scales = made & np.isin(storages.category, (Category.ACTIVATION, Category.INPUT, Category.OTHER))
    scales[made] &= in_loop[storages.birth_op[made]]
    live = step.ops.live_peak_bytes.astype(np.int64)
    scaling = np.minimum(chosen_bytes(step, scales), live)
    gradients = made & (storages.category == Category.GRADIENT)
    kept = int(storages.block_bytes[gradients].sum())
    largest = int(storages.block_bytes[gradients].max(initial=0))
    # From the second part on all gradients are there, beside the one that is being made.
    own = chosen_bytes(step, gradients)
    fixed = live - scaling
    fixed[in_loop] += (kept - own)[in_loop]
    fixed[stage == Stage.BACKWARD] += largest

    def peak(parts: int) -> int:
        return int((fixed + scaling // parts).max())

    parts = 2
    while parts < MOST_PARTS and peak(parts) > goal_bytes:
        if peak(parts) - peak(2 * parts) < WORTHWHILE * step.live_peak_bytes:
            break
        parts *= 2
    suggestion = GradientAccumulation(
        parts=parts,
        live_peak_bytes=step.live_peak_bytes,
        changed_peak_bytes=peak(parts),
        compute_s=float(times.sum()),
        extra_s=0.0,
        code=_CODE.format(parts=parts),
        same_bits=False,
    )
    return [suggestion] if suggestion.saved_bytes >= WORTHWHILE * step.live_peak_bytes else []
