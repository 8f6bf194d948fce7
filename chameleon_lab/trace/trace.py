"""A trace: recorded steps with their environment, as saved in a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._lazy import at_first_use
from ..errors import TraceError
from . import store
from .alive import Alive
from .columns import Ops, Storages, Transfers, Uses
from .growth import Growth, growth
from .step import StepTrace

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(repr=False)
class Trace:
    """Recorded steps, and what they were recorded on."""

    steps: list[StepTrace]
    meta: dict[str, Any] = field(default_factory=dict)
    """``torch``, ``device``, ``kernels`` (the CPU with its instructions, or the GPU; empty where none ran),
    ``capacity_bytes`` (or None), ``link_out_bytes_per_s``, ``link_in_bytes_per_s`` (None: as fast as the machine
    copies), ``created_s``; ``replay_class``, the highest class of ops that could be replayed, and ``refused``, names of
    ops and keys of storages that were not, whatever their class. For reports: ``not_replayed``, why ops are not
    replayed, or not with every dtype, and ``replays_off``, why nothing is. Of a file of another tool: ``format``, what
    it was."""

    lost: str | None = None
    """What the file that it was read from has lost, in words, and with it this trace; None: nothing."""

    def __repr__(self) -> str:
        return f"<Trace of {len(self.steps)} steps on {self.meta.get('device', '?')}>"

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[StepTrace]:
        return iter(self.steps)

    @property
    def last(self) -> StepTrace:
        """The newest step; the one that planners and figures use when nothing else is said."""
        if not self.steps:
            raise ValueError(
                "the trace is empty: train at least one whole step, or call session.step() at its end"
            )
        return self.steps[-1]

    @property
    def ops(self) -> Ops:
        """The newest step's ops."""
        return self.last.ops

    @property
    def storages(self) -> Storages:
        """The newest step's storages."""
        return self.last.storages

    @property
    def uses(self) -> Uses:
        """The newest step's uses."""
        return self.last.uses

    @property
    def transfers(self) -> Transfers:
        """The newest step's transfers."""
        return self.last.transfers

    def alive(self, op: int | None = None) -> Alive:
        """What is alive at an op of the newest step, by default that with the most bytes.

        See :meth:`StepTrace.alive`; raises ValueError if the trace is empty.
        """
        return self.last.alive(op)

    def growth(self) -> Growth:
        """What grew from step to step, by what made it, the fastest first: where a leak is to be seen."""
        return growth(self.steps)

    def step_figure(self) -> go.Figure:
        """The newest step: resident bytes by category, transfers and stalls, over its time.

        See :func:`~chameleon_lab.lab.figures.step_figures.step_figure`, which says what is raised.
        """
        return at_first_use("step_figure")(self)

    def history_figure(self) -> go.Figure:
        """The time of each step, with its stall and its replays.

        See :func:`~chameleon_lab.lab.figures.step_figures.session_figure`, which says what is raised.
        """
        return at_first_use("history_figure")(self)

    def figure(self, policy: Any = None, *, step: int | None = None) -> go.FigureWidget:
        """The occupancy over a step (the newest) by category, as a Plotly widget.

        With a policy, or a draft of one: what it should do in that step beside what was measured. See
        :func:`~chameleon_lab.lab.figures.trace_figure.trace_figure`, which says what is raised.
        """
        return at_first_use("trace_figure")(self, policy, step=step)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as Parquet, one row a step. See :mod:`chameleon_lab.trace.store`."""
        store.save(store.Contents(self.steps, self.meta, self.lost), path)

    def export(
        self,
        path: str | os.PathLike[str],
        format: str | None = None,
        *,
        step: int | None = None,
        table: str | None = None,
    ) -> list[Path]:
        """Write the trace in another tool's format, by the ending of ``path``; the files that were written.

        See :func:`chameleon_lab.export.formats.export`, which says what the formats and the arguments are, and what is
        raised.
        """
        written: list[Path] = at_first_use("export")(self, path, format, step=step, table=table)
        return written

    @classmethod
    def load(cls, path: str | os.PathLike[str], partial: bool = False) -> Trace:
        """Read what :meth:`save` wrote.

        Args:
            path: of the file.
            partial: read the whole steps of a file whose end is missing; :attr:`lost` says what is gone.

        Raises CutFileError, a :class:`~chameleon_lab.errors.TraceError`, if the file's end is missing (``partial``:
        and no step is whole). See :func:`chameleon_lab.trace.store.load`.
        """
        return cls(*store.load(path, partial))

    @classmethod
    def open(cls, path: str | os.PathLike[str], *more: str | os.PathLike[str]) -> Trace:
        """Read a trace, or what another tool has recorded; the content decides what it is, not the name.

        Known are the files of :meth:`save` (of one whose end is missing, the whole steps), PyTorch's memory snapshots,
        Chrome traces of ``torch.profiler``, PyTorch's execution traces, and SQLite exports of Nsight Systems. What is
        kept and lost of each: docs/formats.md. ``meta["format"]`` names it; a step's ``lacks`` says why it cannot be
        planned.

        Args:
            path: of the file.
            more: one other file of the same run, to be joined: an execution trace or a memory snapshot, and a Chrome
                trace.

        Raises TraceError if a file is damaged, of no known format, or does not join; OSError if it cannot be opened.
        """
        opened: Trace = at_first_use("open_trace")(path, *more)
        return opened


def newest_step(trace: Trace | StepTrace) -> StepTrace:
    """The step that stands for a trace: the step itself, or the newest of a trace.

    Raises TraceError if it holds no op, TypeError if it is no trace.
    """
    step = trace.last if isinstance(trace, Trace) else trace
    if not isinstance(step, StepTrace):
        raise TypeError(
            f"this is no trace, but {type(trace).__name__}: give what session.trace(), Trace.load or trace_meta returns"
        )
    if not len(step.ops):
        raise TraceError(
            f"step {step.index} holds no op: record at least one training step inside the session"
        )
    return step


def plannable_step(trace: Trace | StepTrace) -> StepTrace:
    """As :func:`newest_step`, for plans. Raises TraceError, too, if the step's file does not tell what a plan needs."""
    step = newest_step(trace)
    if step.lacks:
        raise TraceError(f"step {step.index} cannot be planned: {step.lacks}")
    return step
