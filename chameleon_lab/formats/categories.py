"""What storages are for, told from how the stages of a step use them: other tools do not say."""

from __future__ import annotations

import numpy as np

from ..trace import Category, Stage


def categories(
    birth_op: np.ndarray,
    stage: np.ndarray,
    use_op: np.ndarray,
    use_storage: np.ndarray,
    use_writes: np.ndarray,
) -> np.ndarray:
    """uint8 (storages,): their Category.

    Parameters are there from the start, read before the optimizer and written by it; what only the optimizer uses of
    the rest is its state. Gradients are made in backward and read by the optimizer.
    """
    count = len(birth_op)
    use_stage = stage[use_op]

    def any_use(chosen: np.ndarray) -> np.ndarray:
        return np.bincount(use_storage[chosen], minlength=count) > 0

    by_optimizer = use_stage == Stage.OPTIMIZER
    before = any_use(~by_optimizer)
    in_optimizer, written = any_use(by_optimizer), any_use(by_optimizer & use_writes)
    carried = birth_op < 0
    born_in = np.where(carried, Stage.NO_GRAD, stage[np.maximum(birth_op, 0)])
    found = np.full(count, Category.ACTIVATION, dtype=np.uint8)
    found[carried] = Category.INPUT
    found[carried & any_use(~by_optimizer & use_writes)] = Category.OTHER
    found[carried & in_optimizer & ~before] = Category.OPTIMIZER_STATE
    found[carried & before & written] = Category.PARAMETER
    found[(born_in == Stage.OPTIMIZER) & ~carried] = Category.OTHER
    found[(born_in == Stage.BACKWARD) & in_optimizer] = Category.GRADIENT
    return found
