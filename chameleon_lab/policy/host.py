"""How much host memory a policy needs, so that it can be pinned once, ahead of its use."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ..trace import StepTrace
from .model import Action, Policy

_PAGE_BYTES = 4096


def host_bytes(policy: Policy, step: StepTrace) -> int:
    """Most bytes of host copies that exist at once in a steady step under the policy.

    A copy exists from the swap-out that makes it until an op writes the storage or the storage dies: it outlives the
    swap-in, so that the next swap-out needs no copy. What pressure evicts beside the policy comes on top.
    """
    n = len(step.ops)
    rows = {key: row for row, key in enumerate(step.storage_keys)}
    writes: dict[int, list[int]] = defaultdict(list)
    written = step.uses.writes.astype(bool)
    for storage, op in zip(step.uses.storage[written].tolist(), step.uses.op[written].tolist(), strict=True):
        writes[storage].append(op)
    change = np.zeros(
        3 * n + 2, dtype=np.int64
    )  # a copy made in one step is gone before the end of the next but one
    until: dict[int, int] = {}
    for decision in sorted(policy.decisions, key=lambda d: d.out_op):
        row = rows.get(decision.storage)
        if decision.action is not Action.SWAP or row is None or not 0 <= decision.out_op < n:
            continue
        begin = decision.out_op
        if until.get(row, -1) > begin:
            continue  # clean: the copy is still there
        death = int(step.storages.death_op[row])
        later = [op for op in writes[row] if op > begin]
        if death < n:
            later.append(death)
        elif (
            not later and int(step.storages.birth_op[row]) < 0
        ):  # it lives on: into the next step, or all through it
            later = [min(writes[row]) + n] if writes[row] else [begin + n]
        end = min(later, default=n)
        until[row] = end
        size = -(-int(step.storages.bytes[row]) // _PAGE_BYTES) * _PAGE_BYTES
        change[begin] += size
        change[end] -= size  # the op that writes it has no copy any more when it ends
    held = np.cumsum(change)
    folded = held[:n] + held[n : 2 * n] + held[2 * n : 3 * n] if n else held
    return int(folded.max(initial=0))
