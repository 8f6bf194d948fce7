"""Where a training step ends, of all the steps that optimizers take."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable

from torch.optim.optimizer import Optimizer


class StepEnds:
    """Tells which step of an optimizer ends a training step.

    Several optimizers may step in one training step. The first one that has stepped ends each of them; where it has
    been deleted, the next one that steps takes its place.

    DeepSpeed's ZeRO makes one optimizer step several times in a training step, each time with other parameters in its
    groups (runtime/zero/stage3.py, ``_optimizer_step``). The first of these steps ends the training step. The others
    are known by their parameters, and because no backward has run since that end.
    """

    def __init__(self, backwards: Callable[[], int]) -> None:
        self._backwards = backwards
        self._anchor: weakref.ref[Optimizer] | None = None
        self._last: tuple[int, int | None] | None = None
        """At the newest end: how many backwards there had been, and the ``id()`` of the optimizer's first parameter."""

    def at(self, optimizer: Optimizer) -> bool:
        """Does this step end a training step?"""
        if self._anchor is None or self._anchor() is None:
            self._anchor, self._last = weakref.ref(optimizer), None
        if self._anchor() is not optimizer:
            return False
        parameters = (id(one) for group in optimizer.param_groups for one in group["params"])
        backwards, first = self._backwards(), next(parameters, None)
        if self._last is not None and backwards == self._last[0] and first != self._last[1] and has_zero():
            return False
        self._last = backwards, first
        return True


def has_zero() -> bool:
    """May an optimizer be DeepSpeed's ZeRO's, so that its groups change from step to step?"""
    return "deepspeed.runtime.zero" in sys.modules
