"""The decision of a policy on one gap of one storage."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ..errors import PolicyError

NEVER = -1
"""``in_op`` and ``use_op`` of a swap that has no way back in the step, and ``gap`` of a storage that has no use."""

PLANNER, USER = "planner", "user"
"""Who a decision goes back to: the planner alone, or an edit."""


class Action(StrEnum):
    """What a decision does in its gap."""

    KEEP = "keep"
    SWAP = "swap"
    REMATERIALIZE = "rematerialize"


@dataclass(frozen=True)
class Decision:
    """What to do with one storage in one gap. Op indices count from the start of the step that the gap begins in.

    Of a swap: the copy to the host is issued right after op ``out_op``; before op ``free_op`` the compute
    stream waits for that copy and the block is freed; before op ``in_op`` a block is allocated and the copy
    back is issued; op ``use_op`` waits for it. So ``out_op < free_op <= in_op <= use_op``, and the storage is
    away during the ops ``free_op <= i < in_op``. Indices at or above the number of ops lie in the next step.
    In dead time, after the last use of a storage that dies in this step or early in the next, ``in_op`` and ``use_op``
    are NEVER (-1). A persistent storage that no op uses has ``gap`` NEVER as well: it leaves after op ``out_op`` of the
    first step and stays away, so at later steps the decision finds nothing to do.

    Of a rematerialize: right after op ``out_op`` the block is given back (``free_op = out_op + 1``) and nothing is
    copied; before op ``in_op`` a block is allocated and the op that made the storage is replayed. That is the next use,
    or an earlier op before which another storage is replayed from this one.

    Of a kept gap the op indices only say where it lies.

    Raises PolicyError if the fields contradict each other.
    """

    storage: str
    """Key of the storage, see StepTrace.storage_keys."""
    category: str
    """Name of its Category, in lower case."""
    module: str
    """Path of the module that made it, or empty."""
    bytes: int
    """Size of its block on the device."""
    action: Action
    gap: int
    """Ordinal, among the storage's uses in the step (its birth is one), of the use that the gap follows."""
    out_op: int
    free_op: int
    in_op: int
    use_op: int
    decided_by: str = PLANNER
    """``"planner"``, or ``"user"`` where an edit demanded it or moved its prefetch."""
    retains: tuple[str, ...] = ()
    """Of a rematerialize: keys of storages that the replay reads and that die before it. They are retained until op
    ``use_op``: their bytes stay, on the device or, where a decision swaps them, on the host."""

    def __post_init__(self) -> None:
        if not isinstance(self.action, Action):
            object.__setattr__(self, "action", Action(self.action))
        object.__setattr__(self, "retains", tuple(self.retains))
        where = f"the decision on {self.storage!r}, gap {self.gap}"
        if self.bytes < 0 or self.gap < NEVER:
            raise PolicyError(f"{where}: bytes is {self.bytes} and gap {self.gap}; neither may be so low")
        if self.retains and (self.action is not Action.REMATERIALIZE or self.storage in self.retains):
            raise PolicyError(
                f"{where}: it retains {', '.join(self.retains)}; only a rematerialize retains storages, for its "
                "replay, and other ones than its own: delete them"
            )
        if self.action is Action.KEEP:
            return
        if self.action is Action.REMATERIALIZE:
            if not 0 <= self.out_op < self.free_op <= self.in_op <= self.use_op or self.gap == NEVER:
                raise PolicyError(
                    f"{where}: a rematerialize needs 0 <= out_op < free_op <= in_op <= use_op, not {self.out_op}, "
                    f"{self.free_op}, {self.in_op}, {self.use_op}; mend the order or delete the decision"
                )
            if self.free_op != self.out_op + 1:
                raise PolicyError(
                    f"{where}: free_op of a rematerialize is out_op + 1, {self.out_op + 1}, since nothing is copied, "
                    f"and not {self.free_op}; mend it or delete the decision"
                )
            return
        if (self.in_op == NEVER) != (self.use_op == NEVER) or (self.gap == NEVER and self.in_op != NEVER):
            raise PolicyError(
                f"{where}: in_op and use_op are both -1 (the storage does not return), or neither is, and both are "
                "where gap is -1 (nothing uses it)"
            )
        returns = self.in_op != NEVER
        if not 0 <= self.out_op < self.free_op or (returns and not self.free_op <= self.in_op <= self.use_op):
            raise PolicyError(
                f"{where}: a swap needs 0 <= out_op < free_op <= in_op <= use_op, "
                f"not {self.out_op}, {self.free_op}, {self.in_op}, {self.use_op}; mend the order or delete the decision"
            )
