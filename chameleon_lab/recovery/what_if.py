"""The outlook if ranks die, from recorded steps: traces of the changed step, scaled, planned and simulated."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..errors import BelowFloorError, TraceError
from ..planner import floor, plan
from ..planner.arguments import checked_capacity, checked_link
from ..planner.generate import refused_of, replay_class_of
from ..planner.memory import step_op_times
from ..policy import Link
from ..trace import Stage, StepTrace, Trace
from ..trace.trace import plannable_step
from ..util.units import parse_seconds
from .expand import Changed
from .outlook import (
    BELOW,
    FITS,
    KEEPS,
    NO_PEER,
    REPLAYS,
    SWAPS,
    Costs,
    Outlook,
    RecoveryPolicy,
    Way,
    chosen,
)
from .scaling import (
    in_turns,
    larger_batch,
    larger_shards,
    layers_of,
    micro_batches,
    more_layers,
    recorded,
    whole,
)

_TORCHFT, _ELASTIC = "torchft", "torchelastic, a checkpoint"


@dataclass(frozen=True)
class Load:
    """What a changed step comes to on one rank, at a capacity."""

    needs_bytes: int
    floor_bytes: int
    memory: str
    compute_s: float
    step_s: float
    stall_s: float = 0.0
    replay_s: float = 0.0
    swapped_out_bytes: int = 0

    @property
    def slowdown(self) -> float:
        """Step time over compute: infinite where nothing fits."""
        return self.step_s / self.compute_s if self.compute_s > 0 else 1.0


def load_of(
    step: StepTrace,
    capacity_bytes: int,
    link: Link,
    *,
    rematerialize: int = 0,
    refused: Collection[str] = (),
) -> Load:
    """Plan a step at a capacity: does it fit, swap or replay, and how long does it take?"""
    times = step_op_times(step)
    needs, compute_s = step.live_peak_bytes, float(times.sum())
    lowest = floor(step).bytes
    if capacity_bytes >= needs:
        return Load(needs, lowest, FITS, compute_s, compute_s)
    try:
        made = plan(
            step, capacity_bytes, link, op_times=times, rematerialize=rematerialize, refused=refused
        ).predicted
    except BelowFloorError:
        return Load(needs, lowest, BELOW, compute_s, math.inf)
    replayed = float(made.get("replay_s") or 0.0)
    return Load(
        needs,
        lowest,
        REPLAYS if replayed else SWAPS,
        compute_s,
        float(made["step_s"]),
        float(made["stall_s"]),
        replayed,
        int(made["swapped_out_bytes"]),
    )


def what_if(
    trace: Trace | StepTrace | Sequence[Trace | StepTrace],
    *,
    ranks: int,
    dead: int = 1,
    capacity: int | float | str | None = None,
    link: Link | float | str | tuple[float | str, float | str] | None = None,
    mttr: float | str = "10min",
    shards: int | None = None,
    stages: int | None = None,
    grains: int | None = None,
    samples: int | None = None,
    keep: str = "batch",
    costs: Costs | None = None,
    rematerialize: bool | int | str | None = None,
) -> Outlook:
    """What each way to go on costs if ``dead`` of ``ranks`` ranks die.

    The newest step of ``trace`` is scaled to what a survivor would run, planned at its capacity and simulated. Nothing
    runs, and no torch is needed. Of several traces (of ranks with other capacities, say) each way counts as for the one
    that is worst off.

    Args:
        trace: of one rank's step without a failure, or a sequence of such traces.
        ranks: of the job.
        dead: how many die, each in another replica as long as there are enough.
        capacity: of a survivor, written as for :func:`~chameleon_lab.planner.plan`; None: that of each trace.
        link: likewise.
        mttr: expected time until the dead ranks are back: seconds, or text such as ``"10min"``.
        shards: ranks that share one set of parameters (FSDP, HSDP); None: each rank has its own.
        stages: of a pipeline; the trace is then that of the first stage, which keeps most micro-batches.
        grains: micro-batches of the global batch that can be dealt out; None: as many as the ranks run now.
        samples: of the global batch, for samples per second; None: they are shares of what the job does now.
        keep: what the choice has to keep: ``"nothing"``, the global ``"batch"``, or the ``"bits"`` of the losses too.
        costs: what is assumed of pauses and of the network.
        rematerialize: as for :func:`~chameleon_lab.planner.plan`.

    Raises ValueError or TypeError if an argument does not fit, TraceError if a trace holds no whole step.
    """
    several = list(trace) if isinstance(trace, Sequence) else [trace]
    if not several:
        raise ValueError("trace is an empty list: give at least one recorded trace")
    job = _Job.checked(ranks, dead, shards, stages, grains, samples)
    if keep not in KEEPS:
        raise ValueError(f"keep is {keep!r}: give one of {', '.join(KEEPS)}")
    mttr_s = parse_seconds(mttr, "mttr")
    costs = costs or Costs()
    asked = [_Survivor.of(one, job, capacity, link, mttr_s, costs, rematerialize) for one in several]
    found = [(list(one.ways()), one) for one in asked]
    now = _worst([one.now for one in asked])
    ways = tuple(_worst([ways[k] for ways, _ in found]) for k in range(len(found[0][0])))
    choice, reason = chosen(ways, keep, mttr_s)
    notes = list(dict.fromkeys(note for one in asked for note in one.notes))
    if len(several) > 1:
        notes.append(f"Of {len(several)} traces, each line is that of the rank that is worst off.")
    return Outlook(
        ranks=job.ranks,
        dead=job.dead,
        capacity_bytes=min(one.capacity_bytes for one in asked),
        link=asked[0].link,
        mttr_s=mttr_s,
        now=now,
        ways=ways,
        choice=choice,
        reason=reason,
        costs=costs,
        notes=tuple(notes),
    )


def _worst(ways: Sequence[Way]) -> Way:
    """The one that takes longest, with the most that any needs."""
    worst = max(ways, key=lambda way: (not way.possible, -way.rate, way.step_s))
    return replace(
        worst,
        needs_bytes=max(way.needs_bytes for way in ways),
        floor_bytes=max(way.floor_bytes for way in ways),
    )


@dataclass(frozen=True)
class _Job:
    ranks: int
    dead: int
    shards: int
    stages: int
    grains: int | None
    samples: int | None

    @classmethod
    def checked(
        cls,
        ranks: int,
        dead: int,
        shards: int | None,
        stages: int | None,
        grains: int | None,
        samples: int | None,
    ) -> _Job:
        for name, value, least in (
            ("ranks", ranks, 2),
            ("dead", dead, 1),
            ("shards", 1 if shards is None else shards, 1),
            ("stages", 1 if stages is None else stages, 1),
            ("grains", 1 if grains is None else grains, 1),
            ("samples", 1 if samples is None else samples, 1),
        ):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise ValueError(f"{name} is {value!r}: give a whole number from {least} up")
        job = cls(ranks, dead, shards or 1, stages or 1, grains, samples)
        if dead >= ranks:
            raise ValueError(
                f"dead is {dead}: of {ranks} ranks at most {ranks - 1} can die and leave one to go on"
            )
        if job.shards > 1 and job.stages > 1:
            raise ValueError(
                f"shards is {shards} and stages {stages}: give one of them; a pipeline of sharded stages is not known"
            )
        if ranks % job.unit:
            what = "shards" if job.shards > 1 else "stages"
            raise ValueError(f"ranks is {ranks}, which is no multiple of {what} {job.unit}")
        return job

    @property
    def unit(self) -> int:
        """Ranks of a replica."""
        return self.shards * self.stages

    @property
    def replicas(self) -> int:
        return self.ranks // self.unit

    @property
    def broken(self) -> int:
        """Replicas that have lost a rank."""
        return min(self.dead, self.replicas)

    @property
    def lost_of_one(self) -> int:
        """Ranks that the replica with most deaths has lost."""
        return whole(self.dead / self.replicas)


@dataclass
class _Survivor:
    """One rank's recorded step, and what becomes of it."""

    job: _Job
    step: StepTrace
    capacity_bytes: int
    link: Link
    mttr_s: float
    costs: Costs
    replay_class: int
    refused: frozenset[str]
    micro: int
    notes: list[str]

    @classmethod
    def of(
        cls,
        trace: Trace | StepTrace,
        job: _Job,
        capacity: int | float | str | None,
        link: object,
        mttr_s: float,
        costs: Costs,
        rematerialize: bool | int | str | None,
    ) -> _Survivor:
        step = plannable_step(trace)
        if step.truncated_ops:
            raise TraceError(
                f"step {step.index} has lost {step.truncated_ops} ops, so its bytes are unknown there: record it again "
                "with a larger recorder buffer"
            )
        meta = trace.meta if isinstance(trace, Trace) else {}
        if capacity is None:
            capacity = meta.get("capacity_bytes")
        if capacity is None:
            raise ValueError('the trace knows no capacity: give capacity=..., such as "40GiB" or 0.9')
        if link is None and meta.get("link_out_bytes_per_s") is not None:
            link = Link(meta["link_out_bytes_per_s"], meta["link_in_bytes_per_s"])
        if link is None:
            raise ValueError('the trace knows no link: give link=..., such as "8GiB/s"')
        notes = []
        replay_class = replay_class_of(rematerialize, trace)
        if not replay_class:
            notes.append("Without replays, since the trace knows of none: rematerialize=... allows them.")
        return cls(
            job,
            step,
            checked_capacity(capacity, step),
            checked_link(link),
            mttr_s,
            costs,
            replay_class,
            refused_of(None, trace),
            micro_batches(step),
            notes,
        )

    @cached_property
    def base(self) -> Load:
        """The step as it is now."""
        return self.load(recorded(self.step))

    def load(self, changed: Changed) -> Load:
        """At this survivor's capacity. What was refused of a storage is refused of all its copies."""
        refused = self.refused
        if self.replay_class and refused:
            old = self.step.storage_keys
            keys = changed.step.storage_keys
            refused |= {keys[row] for row, of in enumerate(changed.origin.tolist()) if old[of] in refused}
        return load_of(
            changed.step, self.capacity_bytes, self.link, rematerialize=self.replay_class, refused=refused
        )

    # -------------------------------------------------------------------------------------------- times

    @property
    def micro_s(self) -> float:
        """Compute of one recorded micro-batch."""
        times = step_op_times(self.step)
        return float(times[self.step.ops.stage <= Stage.BACKWARD].sum()) / self.micro

    def pipeline_s(self, load: Load, count: float, stages: int, layers: float = 1.0) -> float:
        """A pipeline's step: ``count`` micro-batches and the optimizer at the slowdown of ``load``, and its bubbles.

        ``layers``: of a stage, as a share of the recorded ones.
        """
        rest_s = self.base.compute_s - self.micro * self.micro_s
        busy_s = (count * self.micro_s + rest_s) * load.slowdown
        return (busy_s + (stages - 1) * self.micro_s) * layers

    @property
    def now(self) -> Way:
        """Without a failure."""
        return self._way(RecoveryPolicy.WAIT, self.base, 1.0, "bits", 0.0, "", step_s=self._now_s)

    @property
    def _now_s(self) -> float:
        return (
            self.pipeline_s(self.base, self.micro, self.job.stages)
            if self.job.stages > 1
            else self.base.step_s
        )

    def _way(
        self,
        policy: RecoveryPolicy,
        load: Load,
        rate: float,
        keeps: str,
        pause_s: float,
        runs_with: str,
        detail: str = "",
        step_s: float | None = None,
    ) -> Way:
        if load.memory == BELOW or not math.isfinite(rate):
            rate = 0.0
        step_s = load.step_s if step_s is None else step_s
        before = self.job.samples / self._now_s if self.job.samples and math.isfinite(self._now_s) else None
        return Way(
            policy=policy,
            needs_bytes=load.needs_bytes,
            floor_bytes=load.floor_bytes,
            memory=load.memory,
            step_s=step_s,
            stall_s=load.stall_s,
            replay_s=load.replay_s,
            swapped_out_bytes=load.swapped_out_bytes,
            rate=rate,
            samples_per_s=None if before is None else before * rate,
            keeps=keeps,
            pause_s=pause_s,
            lost_s=pause_s + (1.0 - rate) * self.mttr_s,
            runs_with=runs_with,
            detail=detail,
        )

    def _nobody(self, policy: RecoveryPolicy, keeps: str, runs_with: str) -> Way:
        load = Load(0, 0, NO_PEER, 0.0, math.inf)
        return self._way(policy, load, 0.0, keeps, 0.0, runs_with, "no replica is whole")

    # -------------------------------------------------------------------------------------------- policies

    def ways(self) -> Iterator[Way]:
        """Each policy that the job's shape allows."""
        job, costs = self.job, self.costs
        alive = job.replicas - job.broken
        pause_s = costs.detect_s + costs.rejoin_s
        if alive:
            yield self._way(
                RecoveryPolicy.FEWER,
                self.base,
                alive / job.replicas,
                "nothing",
                pause_s,
                _TORCHFT,
                step_s=self._now_s,
            )
            yield self._turns(alive, pause_s)
        else:
            yield self._nobody(RecoveryPolicy.FEWER, "nothing", _TORCHFT)
            yield self._nobody(RecoveryPolicy.TURNS, "bits", _TORCHFT)
        if job.stages == 1:
            yield (
                self._larger(alive, pause_s)
                if alive
                else self._nobody(RecoveryPolicy.LARGER, "batch", _TORCHFT)
            )
        if job.shards > 1:
            yield self._reshard()
        else:
            self.notes.append("Without shards=...: no group to re-shard.")
        if job.stages > 1:
            yield from self._pipeline()
        else:
            self.notes.append(
                "Without stages=...: no pipeline to re-partition, to reroute in, or with neighbors."
            )
        idle = replace(self.base, step_s=math.inf, stall_s=0.0, replay_s=0.0, swapped_out_bytes=0)
        yield self._way(RecoveryPolicy.WAIT, idle, 0.0, "bits", pause_s, "torchft with spares")
        half = costs.checkpoint_every_s / 2
        yield self._way(RecoveryPolicy.CHECKPOINT, idle, 0.0, "bits", costs.restart_s + half, _ELASTIC)

    def _turns(self, alive: int, pause_s: float) -> Way:
        job = self.job
        total = job.grains or job.replicas * self.micro
        count = whole(total / alive)
        each = total / job.replicas
        detail = f"{count} micro-batches a survivor, {each:g} before"
        if job.stages > 1:
            step_s = self.pipeline_s(self.base, count * self.micro / each, job.stages)
            rate = self._now_s / step_s
            return self._way(RecoveryPolicy.TURNS, self.base, rate, "bits", pause_s, _TORCHFT, detail, step_s)
        changed = recorded(self.step)
        if each != self.micro:
            changed = larger_batch(self.step, self.micro / each)
        again = in_turns(changed.step, count)
        load = self.load(Changed(again.step, changed.origin[again.origin]))
        return self._way(
            RecoveryPolicy.TURNS, load, self._now_s / load.step_s, "bits", pause_s, _TORCHFT, detail
        )

    def _larger(self, alive: int, pause_s: float) -> Way:
        factor = self.job.replicas / alive
        load = self.load(larger_batch(self.step, factor))
        return self._way(
            RecoveryPolicy.LARGER,
            load,
            self._now_s / load.step_s,
            "batch",
            pause_s,
            _TORCHFT,
            f"{factor:.3g} times the samples in a micro-batch",
        )

    def _reshard(self) -> Way:
        job, costs = self.job, self.costs
        left = job.shards - job.lost_of_one
        if left < 1:
            return self._nobody(RecoveryPolicy.RESHARD, "batch", "")
        factor = job.shards / left
        larger = larger_batch(larger_shards(self.step, factor).step, factor)
        load, how = self.load(larger), "larger micro-batches"
        turns = whole(self.micro * factor)
        again = in_turns(larger_shards(self.step, factor).step, turns)
        other = self.load(again)
        if other.step_s < load.step_s:
            load, how = other, f"{turns} micro-batches"
        moved_s = self._state_bytes() * (factor - 1.0) / costs.network_bytes_per_s
        pause_s = costs.detect_s + costs.rejoin_s + 2 * (costs.regroup_s + moved_s)
        return self._way(
            RecoveryPolicy.RESHARD,
            load,
            min(self._now_s / load.step_s, 1.0),
            "batch",
            pause_s,
            "",
            f"{left} ranks in the group of {job.shards}, {how}",
        )

    def _state_bytes(self) -> int:
        storages = self.step.storages
        lasts = (storages.birth_op < 0) & (storages.death_op >= len(self.step.ops))
        return int(storages.block_bytes[lasts].sum())

    def _pipeline(self) -> Iterator[Way]:
        job, costs = self.job, self.costs
        replicas, stages = job.replicas, job.stages
        pause_s = costs.detect_s + costs.rejoin_s
        total = replicas * self.micro
        in_flight = min(stages, self.micro)
        names = layers_of(self.step)
        left = stages - job.lost_of_one
        if not names:
            self.notes.append("The trace shows no layers, so pipelines cannot be re-partitioned in it.")
        elif left < 1:
            yield self._nobody(RecoveryPolicy.REPARTITION, "batch", "")
        else:
            layers = whole(len(names) * stages / left)
            kept = larger_batch(self.step, min(left, self.micro) / in_flight, slower=1.0)
            grown = more_layers(kept.step, layers)
            load = self.load(Changed(grown.step, kept.origin[grown.origin]))
            step_s = self._shared_s(load, layers / len(names), left, total)
            moved_s = self._state_bytes() * (layers / len(names) - 1.0) / costs.network_bytes_per_s
            yield self._way(
                RecoveryPolicy.REPARTITION,
                load,
                min(self._now_s / step_s, 1.0),
                "batch",
                pause_s + 2 * (costs.regroup_s + moved_s),
                "",
                f"{layers} layers a stage in {left} stages, {len(names)} in {stages} before",
                step_s,
            )
        peers = replicas - whole(job.dead / stages)
        if peers < 1:
            yield self._nobody(RecoveryPolicy.REROUTE, "batch", "")
            yield self._nobody(RecoveryPolicy.FILL, "batch", "")
        else:
            count = whole(total / peers)
            detail = f"{count} micro-batches at the stage's peers, {self.micro} before"
            step_s = self.pipeline_s(self.base, count, stages)
            rate = self._now_s / step_s
            yield self._way(RecoveryPolicy.REROUTE, self.base, rate, "batch", pause_s, "", detail, step_s)
            more = 2 / in_flight
            load = self.load(larger_batch(self.step, 1.0 + more, slower=1.0))
            rest_s = self.base.compute_s - self.micro * self.micro_s
            busy_s = max((self.micro + stages - 1) * self.micro_s, count * self.micro_s * load.slowdown)
            step_s = max(busy_s + rest_s, self._now_s)
            yield self._way(
                RecoveryPolicy.FILL,
                load,
                self._now_s / step_s,
                "batch",
                pause_s,
                "",
                f"{detail}, two more in flight",
                step_s,
            )
        if names:
            both = more_layers(self.step, 2 * len(names))
            load = self.load(both)
            step_s = self.pipeline_s(load, self.micro, stages, 2.0)
            yield self._way(
                RecoveryPolicy.REDUNDANT,
                load,
                self._now_s / step_s,
                "batch",
                pause_s,
                "",
                "held without failures too",
                step_s,
            )

    def _shared_s(self, load: Load, layers: float, stages: int, total: int) -> float:
        """The step time at which whole and broken pipelines together run all micro-batches."""
        if load.memory == BELOW:
            return math.inf
        job = self.job
        kinds = [
            (job.replicas - job.broken, self.base, job.stages, 1.0),
            (job.broken, load, stages, layers),
        ]

        def runs(step_s: float) -> int:
            done = 0
            for count, of, depth, share in kinds:
                fixed_s = self.pipeline_s(of, 0, depth, share)
                each_s = self.pipeline_s(of, 1, depth, share) - fixed_s
                done += count * max(math.floor((step_s - fixed_s) / each_s + 1e-9), 0)
            return done

        low, high = 0.0, self._now_s * 2 * job.replicas * max(load.slowdown * layers, 1.0)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if runs(middle) >= total else (middle, high)
        return high
