"""A local search over the drops of a plan: add or take back some of a kind, and keep what costs less.

Storages of one *kind* are alike: made by the same op in the same kind of module, of the same size, used in the same
stages. A transformer has a storage of each kind in every block. The ranking of :mod:`~chameleon_lab.planner.mix` sees
gaps one by one; what pays is often to drop a kind in some of the blocks and to swap it in the others. A move adds or
takes back a share of one kind or two, from the first block on or from the last.

Moves are drawn from a generator with a fixed seed, and the search ends after a number of plans: the same arguments
give the same plan.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterable

from ..trace import Stage, StepTrace
from ..trace.replay_ops import REPLAY_CLASS
from .memory import StepMemory
from .mix import Mixed, Mixer
from .replay import HIGHEST_CLASS

_SHARES = (1.0, 0.5, 0.25, 0.1)
"""Of a kind, that a move adds or takes back."""

_MOST_PLANS, _PLANNED_OPS = 100, 200_000
"""Plans that the search makes, and the ops of them all together, for steps so long that this makes them fewer."""

_MOST_FAILURES = 40
"""Plans in a row that cost no less, after which the search ends."""

_LEAST_SHARE = 1e-3
"""Of the capacity: kinds with fewer bytes are left alone."""

_LEAST_BYTES = 1 << 20
"""Smaller storages are no part of a starting point, unless the capacity is small too."""


def kinds_of(step: StepTrace, memory: StepMemory, gaps: Iterable[int]) -> list[list[int]]:
    """The gaps by the kind of their storage, those of each kind in program order."""
    kinds: dict[tuple[object, ...], list[int]] = {}
    for gap in gaps:
        row = int(memory.row[memory.gap_storage[gap]])
        birth, use = int(step.storages.birth_op[row]), int(memory.gap_use[gap]) % memory.ops
        kind = (
            step.op_name(birth),
            re.sub(r"\d+", "N", step.module_path(int(step.storages.module[row]))),
            int(memory.gap_bytes[gap]),
            int(step.ops.stage[int(memory.gap_out[gap])]),
            int(step.ops.stage[use]),
            int(memory.gap_ordinal[gap]),
        )
        kinds.setdefault(kind, []).append(gap)
    return [sorted(kind, key=lambda gap: (int(memory.gap_out[gap]), gap)) for kind in kinds.values()]


def starting_points(mixer: Mixer, step: StepTrace) -> list[list[int]]:
    """Drops such as checkpointing makes, of what may be dropped between forward and backward, but for what is retained.

    All of it, as when blocks are checkpointed whole; all but what takes longer to replay than to bring back; and all
    but matrix products and attention, as in selective checkpointing.
    """
    memory, stage = mixer.memory, step.ops.stage
    least = _LEAST_SHARE * mixer.capacity
    every = [
        gap
        for gap in mixer.may_drop
        if stage[int(memory.gap_out[gap])] == Stage.FORWARD
        and stage[int(memory.gap_use[gap]) % memory.ops] == Stage.BACKWARD
        and int(memory.gap_bytes[gap]) > min(least, _LEAST_BYTES)
        and not mixer.replayable.retained(gap)
    ]
    rows = memory.row[memory.gap_storage]
    cheap, selective = [], []
    for gap in every:
        chain = mixer.chain(gap)
        if chain.seconds <= mixer.link.in_s(int(memory.gap_bytes[gap])):
            cheap.append(gap)
        if REPLAY_CLASS.get(step.op_name(int(step.storages.birth_op[rows[gap]])), 0) < HIGHEST_CLASS:
            selective.append(gap)
    found: list[list[int]] = []
    for gaps in (every, cheap, selective):
        if gaps and gaps not in found:
            found.append(gaps)
    return found


def improved(mixer: Mixer, start: Mixed, step: StepTrace) -> Mixed:
    """The best of ``start`` and of some plans near it."""
    memory, most = mixer.memory, min(_PLANNED_OPS // mixer.memory.ops, _MOST_PLANS)
    must = set(mixer.must_drop)
    candidates = sorted(set(mixer.ranked) | (set(start.replays.gap.tolist()) - must))
    kinds = [
        kind
        for kind in kinds_of(step, memory, candidates)
        if int(memory.gap_bytes[kind].sum()) > _LEAST_SHARE * mixer.capacity
    ]
    if not kinds:
        return start
    best = start
    dropped = set(best.replays.gap.tolist()) - must
    draw = random.Random(0)
    weights = [float(memory.gap_bytes[kind].sum()) ** 0.5 for kind in kinds]
    seen = {frozenset(dropped)}
    failures, left, drawn = 0, most, 20 * most
    while left > 0 and drawn > 0 and failures < _MOST_FAILURES:
        drawn -= 1
        picked = draw.choices(kinds, weights, k=2 if draw.random() < 0.25 else 1)
        wanted = set(dropped)
        for kind in picked:
            _move(wanted, dropped, kind, draw)
        if frozenset(wanted) in seen:
            continue
        seen.add(frozenset(wanted))
        plan = mixer.made(sorted(wanted))
        left -= 1
        if plan.cost < best.cost:
            best, failures = plan, 0
            dropped = set(plan.replays.gap.tolist()) - must
            seen.add(frozenset(dropped))
        else:
            failures += 1
    return best


def _move(wanted: set[int], dropped: Collection[int], kind: list[int], draw: random.Random) -> None:
    share, adds, from_first = draw.choice(_SHARES), draw.random() < 0.5, draw.random() < 0.5
    some = [gap for gap in kind if (gap in dropped) != adds]
    count = max(1, int(len(some) * share))
    some = some[:count] if from_first else some[-count:]
    if adds:
        wanted.update(some)
    else:
        wanted.difference_update(some)
