"""Op times on an asynchronous device: measured for a few ops in each step, and remembered for all.

The host hands its ops to a GPU and goes on, so that its own clock says little about them. Events around an op tell,
but cost the host time: all ops of the first steps get them, which a plan is made from, and a few of every
later step, others each time.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ..runtime import core
from ..trace import StepTrace

_SAMPLES = 64
"""Ops that are timed in a step once there is a plan."""

_WEIGHT = 0.25
"""Of a new measurement among those before it."""


class DeviceTimes:
    """Seconds on the device by what ops are matched by, their tokens: name, ranks, dtypes, stage and module."""

    def __init__(self, runtime: core.Runtime) -> None:
        self._runtime = runtime
        self._seconds: dict[int, float] = {}

    def time_next_step(self, number: int, ops: int, *, all_ops: bool) -> None:
        """Choose which ops of the step to come are timed, by its number: ``all_ops``, or some of about ``ops``."""
        every = 1 if all_ops else max(1, ops // _SAMPLES)
        self._runtime.time_ops(every, number % every)

    def learn(self, log: core.StepLog, tick_s: float) -> None:
        """Take in what was measured in a finished step. Call it once the device has been there."""
        ops = log.ops()
        measured = ops["device_ticks"] >= 0
        seconds = ops["device_ticks"][measured] * tick_s
        for token, one in zip(ops["token"][measured].tolist(), seconds.tolist(), strict=True):
            before = self._seconds.get(token, one)
            self._seconds[token] = before + _WEIGHT * (one - before)

    def completed(self, step: StepTrace) -> StepTrace:
        """The step with what is remembered in place of what was not measured in it."""
        ops, known = step.ops, np.isfinite(step.ops.device_s)
        if known.all() or not self._seconds:
            return step
        remembered = [self._seconds.get(token, np.nan) for token in ops.token.tolist()]
        seconds = np.where(known, ops.device_s, remembered)
        return dataclasses.replace(step, ops=dataclasses.replace(ops, device_s=seconds))
