"""A sufficient capacity, from the recorded steps: for reports and for errors below the floor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..planner import Floor, floor
from ..trace import StepTrace
from ..trace.model_ops import model_ops
from ..util.units import format_bytes

if TYPE_CHECKING:
    from ..runtime import core

_ABOVE = 1.02
"""What an op asks for beside storages is known to within its alignment."""


def above(floor_bytes: int) -> int:
    """A capacity that is enough for steps with this floor, in a figure with three digits that can be typed."""
    least = max(1, math.ceil(_ABOVE * floor_bytes))  # 0: all that it uses is too small to count
    unit = 1 << (least.bit_length() - 1) // 10 * 10
    digits: int = 10 ** max(0, 3 - len(str(least // unit)))
    return math.ceil(math.ceil(least * digits / unit) * unit / digits)


def highest_floor(steps: Sequence[StepTrace]) -> Floor | None:
    """Of the steps that were recorded to their end; None where there is none."""
    floors = [floor(step) for step in steps if len(step.ops) and not step.truncated_ops]
    return max(floors, key=lambda lowest: lowest.bytes, default=None)


def unnamed(failure: core.Failure) -> str:
    """What the core says of an op that found no room."""
    return f"{failure['needs']} {failure['advice']}"


def named(failure: core.Failure, cut: StepTrace, steps: Sequence[StepTrace], given: StepTrace | None) -> str:
    """The same, with the capacity that is enough where a step that was recorded tells.

    Args:
        failure: what the op asked for.
        cut: the step that the op has ended, or as far as it has come since.
        steps: whole ones of this session.
        given: the step that the session's policy was made for, of another process.
    """
    end, request_bytes, known = min(failure["ops"], len(cut.ops)), failure["request_bytes"], []
    for begin in {0, failure["since"]}:  # a loop that catches the error may begin its step anew
        ours = np.arange(begin, end)
        known += [
            step for step in steps if _begins_as(step, np.arange(len(step.ops)), cut, ours, request_bytes)
        ]
        models = model_ops(cut)
        begun = models[np.isin(models, ours)]
        if given is not None and _begins_as(given, model_ops(given), cut, begun, request_bytes):
            known.append(given)
    lowest = highest_floor([_kept_here(step, cut) for step in known])
    if lowest is None:
        return unnamed(failure)
    kept = _kept_beside(known[-1], cut)
    beside = failure["other_bytes"] + failure["useless_bytes"]  # the floor is that of storages alone
    enough = above(max(lowest.bytes + kept + beside, failure["needed_bytes"]))
    return (
        f"{failure['needs']} {format_bytes(enough)} are enough for the step as it has been recorded, whose "
        f'{lowest.op_name} needs most: give a capacity of "{typed(enough)}", or make that op\'s tensors smaller (a '
        "smaller batch, or the loss computed in chunks)."
    )


def typed(size: int) -> str:
    """Bytes as a capacity is typed: ``"11.2MiB"``. Never less than ``size``, if :func:`above` made it."""
    return format_bytes(size).replace(" ", "")


def _begins_as(
    whole: StepTrace, its: np.ndarray, cut: StepTrace, ours: np.ndarray, request_bytes: int
) -> bool:
    """Are the ops of a step that was cut off the first ones of a whole one, and made storages of the same size?

    The last of them has not made all of its own: there, the request that failed must be one that the whole step knows.
    """
    count = len(ours)
    if not count or count > len(its) or whole.truncated_ops or cut.truncated_ops:
        return False
    if (whole.ops.token[its[:count]] != cut.ops.token[ours]).any():
        return False
    if request_bytes > _most_asked_bytes(whole, int(its[count - 1])):
        return False
    return bool((_born_bytes(whole)[its[: count - 1]] == _born_bytes(cut)[ours[:-1]]).all())


def _most_asked_bytes(step: StepTrace, op: int) -> int:
    """What an op has asked for at once, at most: all that it makes, or one of the storages that it uses."""
    storages, uses = step.storages, step.uses
    made = storages.block_bytes[storages.birth_op == op].sum()
    used = storages.block_bytes[uses.storage[uses.op == op]]
    return int(max(made, used.max(initial=0)))


def _born_bytes(step: StepTrace) -> np.ndarray:
    """What each op has made and not freed again, int64 (ops,)."""
    storages = step.storages
    lasting = (storages.birth_op >= 0) & (storages.death_op > storages.birth_op)
    birth, size = storages.birth_op[lasting], storages.block_bytes[lasting]
    return np.bincount(birth, size, minlength=len(step.ops)).astype(np.int64)


def _kept_here(step: StepTrace, cut: StepTrace) -> StepTrace:
    """The step, had what may not leave now been kept in it as well."""
    kept = np.isin(step.storages.uid, cut.storages.uid[~cut.storages.movable])
    return replace(step, storages=replace(step.storages, movable=step.storages.movable & ~kept))


def _kept_beside(step: StepTrace, cut: StepTrace) -> int:
    """Bytes that may not leave now, and were not there in the step."""
    storages = cut.storages
    kept = ~storages.movable & (storages.birth_op < 0) & (storages.death_op >= len(cut.ops))
    return int(storages.block_bytes[kept & ~np.isin(storages.uid, step.storages.uid)].sum())
