"""The effect of checkpointing whole modules: a coarse remedy where dropping single storages does not suffice.

``torch.utils.checkpoint`` keeps what goes into a module and runs its whole forward again in backward. It has to be put
around modules before they run, so no session can do it for you: this names modules that repeat (the blocks of a
transformer), the memory that it would save and the time that it would take. It is an estimate from a step without it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...trace import Stage, StepTrace
from .suggestion import WORTHWHILE, Suggestion


@dataclass(frozen=True, kw_only=True)
class Checkpointing(Suggestion):
    """Checkpoint modules that repeat: what goes into each is kept, and its forward runs again in the backward."""

    modules: tuple[str, ...]
    """Paths, in the order in which they run."""
    pattern: str
    """What they have in common: ``h.*``."""
    of: int
    """How many modules there are of that pattern."""

    @property
    def what(self) -> str:
        """The modules to checkpoint."""
        some = "" if len(self.modules) == self.of else f"the first {len(self.modules)} of "
        return f"checkpoint {some}the {self.of} modules {self.pattern} (torch.utils.checkpoint)"


def checkpointing(step: StepTrace, times: np.ndarray, goal_bytes: int) -> list[Checkpointing]:
    """A suggestion for each kind of module that repeats: as few modules as reach the goal, else all.

    Args:
        step: the recorded step.
        times: float64 (ops,), compute seconds.
        goal_bytes: the peak to get to; -1: as low as it gets.
    """
    peak = step.live_peak_bytes
    found = []
    for pattern, blocks in _repeated(step).items():
        effects = [effect for path in blocks if (effect := _effect(step, path, blocks[path])) is not None]
        live = step.ops.live_peak_bytes.astype(np.int64)
        taken: list[_Effect] = []
        for effect in effects:
            if taken and int(live.max()) <= goal_bytes:
                break
            live[effect.left + 1 : effect.back] -= effect.saved_bytes
            live[effect.back] += effect.work_bytes
            taken.append(effect)
        suggestion = Checkpointing(
            modules=tuple(effect.path for effect in taken),
            pattern=pattern,
            of=len(blocks),
            live_peak_bytes=peak,
            changed_peak_bytes=int(live.max()),
            extra_s=float(sum(times[effect.ops].sum() for effect in taken)),
            compute_s=float(times.sum()),
            code=_CODE.format(pattern=pattern, paths=[effect.path for effect in taken]),
            same_bits=True,
        )
        if suggestion.saved_bytes >= WORTHWHILE * peak:
            found.append(suggestion)
    return found


_CODE = """\
import functools
from torch.utils.checkpoint import checkpoint

for path in {paths}:  # {pattern}
    module = model.get_submodule(path)
    module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)
"""


@dataclass(frozen=True)
class _Effect:
    path: str
    ops: np.ndarray
    left: int
    """The last op of the module's forward."""
    back: int
    """The first op that needs what the module had kept."""
    saved_bytes: int
    work_bytes: int
    """What the second forward makes and does not keep, at most."""


def _repeated(step: StepTrace) -> dict[str, dict[str, np.ndarray]]:
    """Modules by the pattern of their path, its numbers being stars, with their forward ops; two at least each."""
    ops_of: dict[str, list[int]] = {}
    stage, module = step.ops.stage.tolist(), step.ops.module.tolist()
    for op, (of, index) in enumerate(zip(stage, module, strict=True)):
        if of != Stage.FORWARD or index < 0:
            continue
        parts = step.modules[index].split(".")
        for depth, part in enumerate(parts, 1):
            if part.isdigit():
                ops_of.setdefault(".".join(parts[:depth]), []).append(op)
    patterns: dict[str, dict[str, np.ndarray]] = {}
    for path, ops in ops_of.items():
        pattern = ".".join("*" if part.isdigit() else part for part in path.split("."))
        patterns.setdefault(pattern, {})[path] = np.array(ops, dtype=np.int64)
    return {pattern: paths for pattern, paths in patterns.items() if len(paths) > 1}


def _effect(step: StepTrace, path: str, ops: np.ndarray) -> _Effect | None:
    """What checkpointing one module does; None if it keeps nothing for backward."""
    storages, uses = step.storages, step.uses
    inside = np.zeros(len(step.ops) + 1, dtype=bool)
    inside[ops] = True
    last = int(ops[-1])
    born = inside[storages.birth_op] & (storages.birth_op >= 0)
    later = uses.op > last
    forward_later = later & (step.ops.stage[uses.op] == Stage.FORWARD)
    goes_on = np.zeros(len(storages), dtype=bool)
    goes_on[uses.storage[forward_later]] = True
    kept = born & ~goes_on & (storages.death_op > last)
    first = uses.op[later & kept[uses.storage]]
    if not len(first):
        return None
    made = int(storages.block_bytes[born].sum())
    saved = int(storages.block_bytes[kept].sum())
    # Storages that die in the module live one after the other: the most at once is known from the first forward.
    begin = int(ops[0])
    rise = int(step.ops.live_peak_bytes[begin : last + 1].max() - step.ops.live_peak_bytes[begin])
    return _Effect(path, ops, last, int(first.min()), saved, max(min(made, rise) - saved, 0))
