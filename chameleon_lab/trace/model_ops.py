"""A step's ops inside of the model: they identify a run from its first step on."""

from __future__ import annotations

import numpy as np

from .columns import Stage, StepColumns


def model_ops(step: StepColumns) -> np.ndarray:
    """The ops of forward and backward that ran in a module; without modules all up to the last backward's optimizer.

    The others differ between the first step and the rest: a model is built there, metrics are made, gradients are there
    to add to only later; and what came after the optimizer (the loss is read, say) is at a step's end, or at the next
    one's begin.
    """
    chosen = np.flatnonzero(step.ops.stage <= Stage.BACKWARD)
    within = chosen[step.ops.module[chosen] >= 0]
    if len(within):
        return within
    last_backward = int(np.flatnonzero(step.ops.stage == Stage.BACKWARD).max(initial=-1))
    optimizer = np.flatnonzero(step.ops.stage[last_backward + 1 :] == Stage.OPTIMIZER)
    return chosen[chosen <= last_backward + int(optimizer[0])] if len(optimizer) else chosen
