"""One recorded step, with its queries."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .alive import Alive
from .columns import StepColumns
from .divergences import Divergence, divergences
from .flame import Node, flame
from .list_ops import ListRun, list_runs


@dataclass(frozen=True, repr=False)
class StepTrace(StepColumns):
    """One recorded training step."""

    def alive(self, op: int | None = None) -> Alive:
        """What is alive at an op, by default that with the most bytes, by category, module or storage.

        Raises IndexError if the step has no such op, TypeError if ``op`` is no number.
        """
        return Alive.at(self, op)

    def flame(self, op: int | None = None, by: str = "module") -> Node:
        """What is alive at an op, by default the peak, as a tree by ``"module"`` or by the Python ``"stack"``.

        Raises IndexError if the step has no such op, ValueError if ``by`` is something else.
        """
        return flame(self, self.alive(op).rows, by)

    @cached_property
    def divergences(self) -> tuple[Divergence, ...]:
        """Where the ops differ from the plan's, in program order; empty where no plan was followed.

        See :func:`~chameleon_lab.trace.divergences.divergences`.
        """
        return divergences(self)

    @cached_property
    def list_runs(self) -> tuple[ListRun, ...]:
        """List ops that could run in smaller parts; see :mod:`~chameleon_lab.trace.list_ops`."""
        return list_runs(self)
