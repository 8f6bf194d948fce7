"""Runs of ops in one stage, as drawings mark them."""

from __future__ import annotations

import numpy as np

from ...trace import Stage, StepTrace

_FEW_OPS = 4
_FEW_SHARE = 0.01
_MOST_RUNS = 24


def stage_runs(step: StepTrace) -> list[tuple[Stage, int]]:
    """Forward, backward, optimizer, as often as they take turns: each with its first op.

    Ops outside autograd (data, metrics) come in the midst of every stage and are none of their own; nor are a few ops
    that fall back to an earlier stage, such as what a kernel allocates in backward, which autograd does not see. Empty
    where there are more turns than can be read.
    """
    ops = np.flatnonzero(step.ops.stage != Stage.NO_GRAD)
    if not len(ops):
        return []
    few = min(_FEW_OPS, _FEW_SHARE * len(ops))
    runs: list[tuple[Stage, int]] = []
    for run in np.split(ops, np.flatnonzero(np.diff(step.ops.stage[ops])) + 1):
        stage = Stage(int(step.ops.stage[run[0]]))
        falls_back = bool(runs) and stage < runs[-1][0] and len(run) < few
        if not falls_back and (not runs or stage != runs[-1][0]):
            runs.append((stage, int(run[0])))
    return runs if len(runs) <= _MOST_RUNS else []
