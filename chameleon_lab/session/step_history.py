"""The recorded steps of a session: summaries of all, and the newest op by op."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..errors import SessionError
from ..report.session_report import StepSummary
from ..runtime import core
from ..runtime.discovery import Discovery
from ..runtime.pause_times import pause_times
from ..runtime.recording import step_trace
from ..runtime.replay_check import Replayable
from ..trace import Divergence, Pause, StepTrace

_KEPT_SUMMARIES = 10_000
_KEPT_STACKED = 4
"""Steps with stacks that are held, so that others with the same ops have them too."""
_FIRST_STACKED, _STACKS_EVERY = 4, 16
"""Steps of new ops have stacks recorded at once among the first, and at most one of so many later on."""
_KEPT_STAGES = 64  # more than the steps that the core keeps


class StepHistory:
    """The steps of one session. All but :meth:`ended` and :meth:`settle` may be asked from any thread.

    Args:
        runtime: records them.
        discovery: knows what modules and tensors are called.
    """

    def __init__(self, runtime: core.Runtime, discovery: Discovery, keeps_host_copies: bool = True) -> None:
        self._runtime = runtime
        self._discovery = discovery
        self._keeps_host_copies = keeps_host_copies
        self._history: deque[StepSummary] = deque(maxlen=_KEPT_SUMMARIES)
        self._stages: dict[int, str] = {}
        self._kept: list[core.StepLog] | None = []  # None while the core has them
        self._counters: core.Counters | None = None
        self._allocator_setting = ""
        self._tick_s = 0.0
        self._stacked: dict[int, core.StepLog] = {}  # the newest steps with stacks, by their fingerprints
        self._stackless = 0  # steps since the newest of those
        self._unsettled: list[tuple[int, core.StepLog]] = []  # with their places in the history, from its end

    def begin(self) -> None:
        """The core records for this session from now on."""
        self._kept = None

    def close(self) -> None:
        """Keep what there is, before the core closes. May be repeated."""
        if self._kept is None:
            self._counters = self._runtime.counters()
            self._allocator_setting = self._runtime.allocator_setting()
            self._kept = self._runtime.logs()  # from here on nobody asks the core

    # ------------------------------------------------------------------------------------------------ while it runs

    def ended(self, log: core.StepLog, stage: str) -> StepSummary:
        """Take in a step that has just ended."""
        if not self._history:
            self._tick_s = core.seconds_per_tick()
        self._stages[log.index] = stage
        self._stages.pop(log.index - _KEPT_STAGES, None)
        tick_s, paused = self._tick_s, pause_times(log)
        summary = StepSummary(
            index=log.index,
            stage=stage,
            step_s=(log.end_ticks - log.start_ticks - paused.ticks) * tick_s,
            stall_s=log.stall_ticks * tick_s,
            peak_bytes=log.peak_resident_bytes,
            swapped_out_bytes=log.swapped_out_bytes,
            swapped_in_bytes=log.swapped_in_bytes,
            ops=log.op_count,
            plan=log.program,
            divergences=log.departure_count,
            replays=log.replay_count,
            replay_s=log.replay_ticks * tick_s,
            declined_drops=len(log.declined()),
            overlap=log.overlap(),
            paused_s=paused.ticks * tick_s,
            loading_s=paused.ticks_of(Pause.LOADING) * tick_s,
            **log.counts(),
        )
        self._history.append(summary)
        self._stackless += 1
        if log.has_stacks:
            self._stackless = 0
            self._stacked.pop(log.fingerprint, None)
            self._stacked[log.fingerprint] = log
            while len(self._stacked) > _KEPT_STACKED:
                self._stacked.pop(next(iter(self._stacked)))
        if not log.settled:
            self._unsettled.append((-1, log))
        return summary

    def settle(self) -> Iterator[tuple[core.StepLog, float]]:
        """Fill in what a GPU, which runs behind, has told of earlier steps since. Call it before :meth:`ended`.

        Yields the steps of which all is known now, with the seconds of a tick.
        """
        unsettled, self._unsettled = self._unsettled, []
        for place, log in unsettled:
            if place >= -len(self._history):
                self._history[place] = replace(
                    self._history[place],
                    stall_s=log.stall_ticks * self._tick_s,
                    late_prefetches=log.counts()["late_prefetches"],
                    overlap=log.overlap(),
                )
            if log.settled:
                yield log, self._tick_s
            else:
                self._unsettled.append((place - 1, log))

    def lacks_stacks(self, log: core.StepLog) -> bool:
        """Should the next step record its stacks, so that ops such as those of ``log`` have some? Ever more rarely."""
        known = log.fingerprint in self._stacked
        return not known and (len(self._history) < _FIRST_STACKED or self._stackless >= _STACKS_EVERY)

    # ------------------------------------------------------------------------------------------------ finished steps

    @property
    def history(self) -> tuple[StepSummary, ...]:
        """The finished steps in figures, oldest first."""
        return tuple(self._history)

    @property
    def newest(self) -> StepSummary | None:
        """The step that ended last, in figures."""
        return self._history[-1] if self._history else None

    def median_step_s(self) -> float:
        """Of the newest steps of the newest one's stage; 0.0 before the first."""
        return self.median_s("step_s")

    def median_s(self, name: str) -> float:
        """The same of another figure of the steps, in seconds."""
        newest = self.newest
        alike = [getattr(s, name) for s in list(self._history)[-50:] if newest and s.stage == newest.stage]
        return statistics.median(alike) if alike else 0.0

    def peak_bytes_since(self, index: int) -> int:
        """Most bytes resident at once in the finished steps from this one on."""
        return max((step.peak_bytes for step in self.history if step.index >= index), default=0)

    def counters(self) -> core.Counters:
        """What the device holds now; after the end, what it held last. Raises SessionError before the start."""
        counters = self._runtime.counters() if self._kept is None else self._counters
        if counters is None:
            raise SessionError("the session has not started: enter it with `with` or call start()")
        return counters

    def allocator_setting(self) -> str:
        """``"default"`` or ``"expandable_segments"``, as torch's allocator is set now; empty where there is none."""
        return self._runtime.allocator_setting() if self._kept is None else self._allocator_setting

    # ------------------------------------------------------------------------------------------------ op by op

    def logs(self) -> list[core.StepLog]:
        """The newest finished steps, oldest first."""
        return self._runtime.logs() if self._kept is None else self._kept

    def log(self, index: int) -> core.StepLog:
        """One finished step. Raises SessionError if it is not, or no longer, recorded."""
        logs = self.logs()
        for log in logs:
            if log.index == index:
                return log
        kept = f"steps {logs[0].index} to {logs[-1].index} are" if logs else "none has ended yet"
        raise SessionError(f"step {index} is not recorded: {kept}")

    def trace(self, log: core.StepLog) -> StepTrace:
        """A finished step as columns."""
        stage = self._stages.get(log.index)
        if stage is None:  # long past, and kept by a planner; or so new that it has not been taken in
            stage = self.newest.stage if self.newest else ""
        texts = self._discovery.modules.texts, self._discovery.labels.texts
        alike = None if log.has_stacks else self._stacked.get(log.fingerprint)
        if alike is not None and alike.op_count != log.op_count:
            alike = None
        return step_trace(
            self._runtime, log, stage, *texts, keeps_host_copies=self._keeps_host_copies, stacks_of=alike
        )

    def resident_peaks(self, index: int, parts: int) -> np.ndarray:
        """See :meth:`chameleon_lab.Session.resident_peaks`."""
        peaks = self.log(index).ops()["resident_peak_bytes"].astype(np.int64)
        parts = min(parts, len(peaks))
        return np.maximum.reduceat(peaks, np.arange(parts) * len(peaks) // parts) if parts else peaks

    def divergences(self) -> Iterator[Divergence]:
        """Where the recorded steps diverged from the plans that they followed."""
        names, modules = core.op_names(), self._discovery.modules.texts
        for log in self.logs():
            rows = log.departures()
            ops = log.ops() if len(rows) else rows
            for from_op, to_op, plan_op, plan_to_op in rows.tolist():
                if from_op >= len(ops):
                    continue  # past the end of the ring
                module = int(ops["module"][from_op])
                end = to_op if to_op >= 0 else len(ops)
                extra_ops = int((ops["plan_op"][from_op:end] < 0).sum())
                found_ops = end - from_op - extra_ops  # the plan's, seen before it was sure where it goes on
                yield Divergence(
                    step=log.index,
                    from_op=from_op,
                    to_op=end,
                    op_name=names[ops["name"][from_op]],
                    module=modules[module] if 0 <= module < len(modules) else "",
                    extra_ops=extra_ops,
                    left_out_ops=plan_to_op - plan_op - found_ops if plan_to_op >= 0 else 0,
                )


def declined_drops(log: core.StepLog, replayable: Replayable) -> dict[str, int]:
    """How many drops were declined in a step, by reason."""
    rows, names = log.declined(), (*core.op_names(), "")  # -1 is the last: unknown
    return dict(
        Counter(
            replayable.why_declined(refusal, names[name])
            for refusal, name in zip(rows["refusal"].tolist(), rows["name"].tolist(), strict=True)
        )
    )
