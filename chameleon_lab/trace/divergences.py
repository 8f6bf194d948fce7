"""Where a step diverged from the plan that it followed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .columns import StepColumns


@dataclass(frozen=True)
class Divergence:
    """A place in a step where the ops were not those of the plan."""

    step: int
    from_op: int
    to_op: int
    """The first op that matches again; the step's end if none does."""
    op_name: str
    module: str
    """The op at ``from_op``, and its module."""
    extra_ops: int
    """Ops that the plan does not have there."""
    left_out_ops: int
    """Ops of the plan that did not run there; negative where the run jumped back in the plan."""

    def __str__(self) -> str:
        where = f"{self.op_name} in {self.module}" if self.module else self.op_name
        return f"step {self.step}, op {self.from_op}, {where}: {self.extra_ops} extra, {self.left_out_ops} skipped"


def divergences(step: StepColumns) -> tuple[Divergence, ...]:
    """Each run of unplanned ops, and each jump in the plan, in program order.

    Empty where no plan was followed. A trace does not hold the plan's ops after the last match, so none are counted as
    left out there. Where the step changed plans in the middle, the jump is one between two plans.
    """
    plan_op = step.ops.plan_op
    matched = np.flatnonzero(plan_op >= 0)
    if not len(matched):
        return ()
    ends = np.append(matched, len(plan_op))  # the first op behind each run, however short
    begins = np.append(0, matched + 1)
    jumps = np.append(np.diff(plan_op[matched].astype(np.int64), prepend=-1) - 1, 0)
    diverged = (ends > begins) | (jumps != 0)
    return tuple(
        Divergence(
            step=step.index,
            from_op=begin,
            to_op=end,
            op_name=step.op_name(begin),
            module=step.module_path(int(step.ops.module[begin])),
            extra_ops=end - begin,
            left_out_ops=left_out,
        )
        for begin, end, left_out in zip(*(c[diverged].tolist() for c in (begins, ends, jumps)), strict=True)
    )
