"""The effect of checkpointing whole modules: a coarse remedy where dropping single storages does not suffice.

``torch.utils.checkpoint`` keeps what goes into a module and runs its whole forward again in backward. It has to be put
around modules before they run, so no session can do it for you: this names modules that repeat (the blocks of a
transformer), the memory that it would save and the time that it would take. It is an estimate from a step without it.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..trace import Stage, StepTrace, Trace
from ..trace.trace import newest_step
from ..util.units import format_bytes, format_percent, format_seconds
from .arguments import checked_capacity
from .memory import step_op_times

_WORTHWHILE = 0.02
"""Share of the peak that a suggestion must save."""


@dataclass(frozen=True)
class Suggestion:
    """Modules to checkpoint, and what comes of it."""

    modules: tuple[str, ...]
    """Paths, in the order in which they run."""
    pattern: str
    """What they have in common: ``h.*``."""
    of: int
    """How many modules there are of that pattern."""
    live_peak_bytes: int
    """Most bytes alive at once in a step, as it was recorded."""
    checkpointed_peak_bytes: int
    """The same with those modules checkpointed."""
    replay_s: float
    """Time of the second forward of the modules, in a step."""
    compute_s: float
    """Of the step as it was recorded, without stalls."""

    @property
    def saved_bytes(self) -> int:
        """How much lower the peak gets."""
        return self.live_peak_bytes - self.checkpointed_peak_bytes

    @property
    def replay_share(self) -> float:
        """The second forward as a share of the step's compute; 0 without any."""
        return self.replay_s / self.compute_s if self.compute_s > 0 else 0.0

    def __str__(self) -> str:
        some = "" if len(self.modules) == self.of else f"the first {len(self.modules)} of "
        return (
            f"checkpoint {some}the {self.of} modules {self.pattern} (torch.utils.checkpoint): they take "
            f"{format_bytes(self.saved_bytes)} off the peak of {format_bytes(self.live_peak_bytes)}, for "
            f"{format_seconds(self.replay_s)} more a step ({format_percent(self.replay_share)} of compute)"
        )

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(str(self))}</p>"


def suggest(
    trace: Trace | StepTrace,
    capacity_bytes: int | float | str | None = None,
    op_times: Sequence[float] | np.ndarray | None = None,
) -> tuple[Suggestion, ...]:
    """Modules whose checkpointing would lower the peak of the newest step of ``trace``, the most useful first.

    With ``capacity_bytes``, written as for :func:`~chameleon_lab.planner.plan`, as few modules of each kind as make the
    peak fit it, if any number does; else all of them. ``op_times`` as for :func:`~chameleon_lab.planner.simulate`.
    Empty where no kind of module saves a noticeable part of the peak. Raises TraceError if the trace holds no op,
    ValueError or TypeError if the capacity is none.
    """
    step = newest_step(trace)
    times = step_op_times(step, op_times)
    peak = int(step.ops.live_peak_bytes.max())
    goal = -1 if capacity_bytes is None else checked_capacity(capacity_bytes, step)
    if peak <= goal:
        return ()
    found = []
    for pattern, blocks in _repeated(step).items():
        effects = [effect for path in blocks if (effect := _effect(step, path, blocks[path])) is not None]
        live = step.ops.live_peak_bytes.astype(np.int64)
        taken: list[_Effect] = []
        for effect in effects:
            if taken and int(live.max()) <= goal:
                break
            live[effect.left + 1 : effect.back] -= effect.saved_bytes
            live[effect.back] += effect.work_bytes
            taken.append(effect)
        suggestion = Suggestion(
            modules=tuple(effect.path for effect in taken),
            pattern=pattern,
            of=len(blocks),
            live_peak_bytes=peak,
            checkpointed_peak_bytes=int(live.max()),
            replay_s=float(sum(times[effect.ops].sum() for effect in taken)),
            compute_s=float(times.sum()),
        )
        if suggestion.saved_bytes >= _WORTHWHILE * peak:
            found.append(suggestion)
    # First those that fit, then by the time that a saved byte takes.
    found.sort(key=lambda s: (0 <= goal < s.checkpointed_peak_bytes, s.replay_s / s.saved_bytes, s.pattern))
    return tuple(found)


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
