"""Promises of plans that swap and rematerialize, on arbitrary small steps, against executors that know values."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from examples import examples
from hypothesis import assume, example, given
from hypothesis import strategies as st
from placements import every_choice, swaps_of
from synthetic import StepBuilder, random_calls_step, random_step

from chameleon_lab.errors import BelowFloorError
from chameleon_lab.lab.panel.predicted import predicted_step
from chameleon_lab.planner import lower_bound, plan, simulate
from chameleon_lab.planner.generate import worth_searching
from chameleon_lab.planner.memory import LEAST_SWAP_BYTES, StepMemory, step_memory, step_op_times
from chameleon_lab.planner.program import (
    DROP,
    FREE,
    REPLAY,
    SWAP_IN,
    SWAP_OUT,
    Program,
    compile_program,
)
from chameleon_lab.planner.replay import CHAIN, ReplayChains
from chameleon_lab.planner.simulate import simulate_swaps
from chameleon_lab.policy import Edit, EditAction, EditsUnreachableError, Link, Policy
from chameleon_lab.policy.model import Action
from chameleon_lab.trace import Category, StepTrace
from chameleon_lab.trace.overlap import overlap_of
from chameleon_lab.trace.replay_ops import REPLAY_CLASS

LINKS = [Link(None, None), Link(1e9, 1e9), Link(1e6, 3e6)]
SLOW = [Link(1e6, 3e6), Link(2e7, 2e7), Link(1e7, None), Link(None, 1e7)]

steps = st.one_of(
    st.builds(random_step, seed=st.integers(0, 10**6), ops=st.integers(1, 40), storages=st.integers(1, 14)),
    st.builds(random_calls_step, seed=st.integers(0, 10**6), ops=st.integers(1, 40)),
)


def capacity_of(step: StepTrace, share: float) -> int:
    """A capacity between the floor (share 0) and the live peak (share 1)."""
    lowest = int(
        step_memory(step, LEAST_SWAP_BYTES).least_bytes().max()
    )  # of policies alone, without eviction
    return max(1, lowest + int(share * (step.live_peak_bytes - lowest)))


@dataclasses.dataclass(frozen=True)
class Call:
    """What makes a value of a storage."""

    row: int
    reads: tuple[int, ...]
    good: bool
    """May it run again?"""
    together: tuple[int, ...]
    """The storages that it makes at once."""
    number: int = dataclasses.field(default_factory=itertools.count().__next__)


class Machine:
    """Runs a program on one step, with a number for what each storage holds.

    A replay computes that number again from what the storages of the step hold now, and from those that it makes on the
    way. It knows uses, births, deaths and which call gave which number, and neither gaps nor chains. Unless the trace
    says otherwise, each op is a call that makes all that is born there.
    """

    def __init__(self, step: StepTrace, program: Program) -> None:
        self.step, self.n = step, len(step.ops)
        storages, uses = step.storages, step.uses
        self.birth, self.death = storages.birth_op.tolist(), storages.death_op.tolist()
        self.block = storages.block_bytes.tolist()
        self.row = program.storage_row.tolist()
        self.reads: list[list[int]] = [[] for _ in range(self.n)]
        self.writes: list[list[int]] = [[] for _ in range(self.n)]
        for op, row, reads, writes in zip(
            uses.op.tolist(), uses.storage.tolist(), uses.reads, uses.writes, strict=True
        ):
            if self.birth[row] != op:
                self.reads[op] += [row] * bool(reads)
                self.writes[op] += [row] * bool(writes)
        self.actions: list[list[tuple[int, int]]] = [[] for _ in range(self.n)]
        for op, kind, s in zip(program.action_op, program.action_kind, program.action_storage, strict=True):
            self.actions[op].append((int(kind), self.row[s]))
        self.persistent = [b < 0 and d >= self.n for b, d in zip(self.birth, self.death, strict=True)]
        self.value = {row: hash(("at first", row)) for row in range(len(self.birth)) if self.birth[row] < 0}
        self.calls: list[list[Call]] = [[] for _ in range(self.n)]
        for making in range(int(step.makings.making.max(initial=-1)) + 1):
            rows = np.flatnonzero(step.makings.making == making)
            row, op = int(step.makings.storage[rows[0]]), int(step.makings.op[rows[0]])
            name = step.names[step.makings.name[rows[0]]] if step.makings.name[rows[0]] >= 0 else ""
            good = not step.makings.refusal[rows[0]] and REPLAY_CLASS.get(name, 0) > 0
            read = tuple(r for r in step.makings.input[rows].tolist() if r >= 0)
            self.calls[op].append(Call(row, read, good, ()))
        for op in range(self.n if not len(step.makings) else 0):
            born = [row for row in range(len(self.birth)) if self.birth[row] == op]
            good = REPLAY_CLASS.get(step.op_name(op), 0) > 0 and not self.writes[op]
            together = tuple(born)
            for row in (*self.writes[op], *born):
                self.calls[op].append(Call(row, tuple(self.reads[op]), good, together))
        self.origin: dict[int, tuple[Call, list[tuple[int, int]]]] = {}
        self.away: set[int] = set()
        self.copied: set[int] = set()
        self.dropped: set[int] = set()
        self.bytes = np.zeros(self.n, dtype=np.int64)
        self.replayed = 0

    def run(self, periods: int = 3) -> None:
        for _ in range(periods):
            self.replayed = 0
            self.bytes[:] = 0
            for op in range(self.n):
                self.fire(op, before=True)
                self.execute(op)
                self.fire(op, before=False)
            kept = {row for row in range(len(self.birth)) if self.persistent[row]}
            self.away &= kept
            self.copied &= kept
            assert not self.dropped, "a drop does not outlive the step"

    def there(self, op: int) -> int:
        """Bytes of what lives right before ``op`` and has a block."""
        gone = self.away | self.dropped
        return sum(
            self.block[row]
            for row in range(len(self.birth))
            if self.birth[row] < op <= self.death[row] and row not in gone
        )

    def fire(self, op: int, before: bool) -> None:
        for kind, row in self.actions[op]:
            if kind == FREE and before and row in self.copied:
                self.copied.discard(row)
                self.away.add(row)
            elif kind == SWAP_IN and before:
                self.away.discard(row)
            elif kind == SWAP_OUT and not before and row not in self.away:
                self.copied.add(row)
            elif kind == DROP and not before:
                assert row not in self.away and self.birth[row] <= op < self.death[row]
                self.dropped.add(row)
        # All that the replays of the op make is there by then: what is made on the way comes on top.
        self.base = self.there(op) if before else 0
        replays = [row for kind, row in self.actions[op] if kind == REPLAY and before]
        self.base += sum(self.block[row] for row in replays)
        for row in replays:
            self.made: dict[int, int] = {}
            self.work = 0
            value, level = self.compute(self.value[row], op)
            assert value == self.value[row], f"replaying {row} before op {op} gives something else"
            assert level <= CHAIN
            on_the_way = sum(self.block[self.origin[made][0].row] for made in self.made)
            self.bytes[op] = max(self.bytes[op], self.base + on_the_way + self.work)
            self.dropped.discard(row)
            self.replayed += self.block[row]

    def compute(self, wanted: int, op: int) -> tuple[int, int]:
        """The number that the call behind ``wanted`` gives now, and how many calls in a row that takes."""
        assert wanted in self.origin, "nothing in the step has made it"
        call, inputs = self.origin[wanted]
        assert call.good, "what nobody can repeat was replayed"
        level, read = 1, []
        for row, of in inputs:
            if self.birth[row] < op <= self.death[row] and self.value[row] == of:
                assert row not in self.away and row not in self.dropped, f"{row} is away at a replay"
                read.append(self.value[row])
                continue
            value, before = self.compute(of, op)
            if row != call.row:  # else it has the memory of the result
                self.made[of] = value
            read.append(value)
            level = max(level, before + 1)
        self.work = max(self.work, sum(self.block[row] for row in call.together if row != call.row))
        return hash((call, tuple(read))), level

    def execute(self, op: int) -> None:
        gone = {row for row in self.away | self.dropped if self.persistent[row] or op <= self.death[row]}
        self.away = {row for row in self.away if row in gone}
        assert not {row for row in self.dropped if op >= self.death[row]}, (
            "what is dropped is replayed before it dies"
        )
        touched = {*self.reads[op], *self.writes[op]}
        assert not touched & gone, f"op {op} uses {touched & gone}, which is away"
        lost = sum(self.block[row] for row in gone if self.birth[row] <= op)
        self.bytes[op] = max(self.bytes[op], int(self.step.ops.live_peak_bytes[op]) - lost)
        before = dict(self.value)
        for call in self.calls[op]:
            known = self.value if len(self.step.makings) else before  # calls follow each other; an op is one
            inputs = [(row, known[row]) for row in call.reads]
            made = hash((call, tuple(value for _, value in inputs)))
            if not call.good:
                made = hash((made, known.get(call.row)))
            self.value[call.row] = made
            self.origin[made] = (call, inputs)


@examples(600)
@given(step=steps, share=st.floats(0, 1), link=st.sampled_from([*LINKS, *SLOW]), told=st.booleans())
@example(  # an op in place changes a value that another op of its chain reads, too
    step=random_calls_step(seed=313, ops=18), share=0.0, link=Link(1e6, 3e6), told=False
)
def test_mixed_plan_fits_and_gives_the_same_values(
    step: StepTrace, share: float, link: Link, told: bool
) -> None:
    capacity, times = capacity_of(step, share), step_op_times(step)
    policy = plan(step, capacity, link, op_times=times if told else None, rematerialize=True)
    program = compile_program(policy, step)
    assert program.unmatched == ()
    machine = Machine(step, program)
    machine.run()
    prediction = simulate(step, policy, op_times=times)
    assert machine.bytes.max() <= capacity and prediction.fits
    drawn = overlap_of(predicted_step(policy, step, times))
    assert prediction.overlap == (None if drawn is None else pytest.approx(drawn, abs=1e-6))
    assert (machine.bytes <= prediction.resident_bytes).all()
    assert machine.replayed == prediction.replayed_bytes == sum(drop.bytes for drop in policy.drops)
    alone = simulate(step, plan(step, capacity, link, op_times=times), op_times=times)
    assert prediction.stall_s + prediction.replay_s <= alone.stall_s * (1 + 1e-9)


@examples(150)
@given(step=steps, share=st.floats(0, 1), link=st.sampled_from(SLOW), checkpoints=st.integers(1, 40))
def test_no_mixed_plan_beats_the_bound(step: StepTrace, share: float, link: Link, checkpoints: int) -> None:
    capacity, times = capacity_of(step, share), step.ops.duration_s
    policy = plan(step, capacity, link, op_times=times, rematerialize=True)
    prediction = simulate(step, policy, op_times=times)
    bound = lower_bound(step, capacity, link, times, checkpoints=checkpoints, rematerialize=True)
    # The solver is exact to about 1e-7 of a step's compute and copies.
    copies_s = link.out_s(step.live_peak_bytes) + link.in_s(step.live_peak_bytes)
    overhead_s = prediction.stall_s + prediction.replay_s
    assert overhead_s >= bound.stall_s - 1e-6 * (step.duration_s + copies_s)
    alone = lower_bound(step, capacity, link, times, checkpoints=checkpoints)
    assert bound.stall_s <= alone.stall_s + 1e-6 * (step.duration_s + copies_s)


def tiny_step(seed: int) -> StepTrace:
    """Two storages, the second made of the first or of what was there before, then a peak, then their uses."""
    random, unit = np.random.default_rng(seed), 1 << 14
    step = StepBuilder(op_s=1e-3)
    x = step.carried(Category.INPUT, unit, "x", movable=bool(random.random() < 0.5))

    def made(*reads: int) -> int:
        size = int(random.integers(1, 6)) * unit
        seconds = float(random.random()) * 3e-3
        name = str(random.choice(["aten::gelu", "aten::mm"]))
        return step.op(name, reads=reads, makes=((Category.ACTIVATION, size),), seconds=seconds)[0]

    a = made(x)
    b = made(a if random.random() < 0.7 else x)
    lasts = bool(random.random() < 0.6)
    if not lasts:
        step.free(a)
    step.op("aten::peak", scratch=int(random.integers(1, 12)) * unit)
    step.op("aten::use", reads=(b,))
    if lasts:
        step.op("aten::use", reads=(a,) if random.random() < 0.7 else (a, x))
    return step.build()


def best_mixed(step: StepTrace, link: Link) -> dict[int, float]:
    """The least stall and replay time of all policies of keeps, swaps and drops, at each capacity that matters."""
    memory, times = step_memory(step), step.ops.duration_s
    replayable = ReplayChains(step, memory, times)
    droppable = set(replayable.gaps())
    assume(droppable)
    choices = [
        [*places, "drop"] if gap in droppable else places for gap, places in enumerate(every_choice(memory))
    ]
    assume(np.prod([len(choice) for choice in choices], dtype=float) <= 1500)
    by_peak: dict[int, float] = {}
    for places in itertools.product(*choices):
        dropped = [gap for gap, place in enumerate(places) if place == "drop"]
        replays = replayable.resolve(dropped)
        swaps = swaps_of(memory, tuple(None if place == "drop" else place for place in places))
        predicted = simulate_swaps(memory, swaps, 0, link, times, replays)
        overhead_s = predicted.stall_s + predicted.replay_s
        by_peak[predicted.peak_bytes] = min(by_peak.get(predicted.peak_bytes, np.inf), overhead_s)
    best: dict[int, float] = {}
    least = np.inf
    for peak in sorted(by_peak):
        least = best[peak] = min(least, by_peak[peak])
    return best


@examples(60)
@given(
    step=st.builds(tiny_step, seed=st.integers(0, 10**6)),
    link=st.sampled_from([Link(2e7, 3e7), Link(1e7, None), Link(None, 1e7)]),
)
def test_no_policy_at_all_beats_the_bound_nor_the_plan_the_best(step: StepTrace, link: Link) -> None:
    times, tolerance = step.ops.duration_s, 1e-6 * (1.0 + step.duration_s)
    for capacity, best_s in best_mixed(step, link).items():
        bound = lower_bound(step, capacity, link, times, checkpoints=len(step.ops), rematerialize=True)
        assert bound.stall_s <= best_s + tolerance
        policy = plan(step, capacity, link, op_times=times, rematerialize=True)
        planned = simulate(step, policy, op_times=times)
        assert planned.fits and planned.stall_s + planned.replay_s >= best_s - tolerance


@examples(100)
@given(step=steps, share=st.floats(0, 1), link=st.sampled_from(SLOW))
def test_mixed_plan_is_deterministic_and_survives_its_file(step: StepTrace, share: float, link: Link) -> None:
    capacity = capacity_of(step, share)
    policy = plan(step, capacity, link, rematerialize=True)
    assert plan(step, capacity, link, rematerialize=True) == policy
    again = Policy.from_json(policy.to_json())
    assert again == policy
    assert str(simulate(step, again)) == str(simulate(step, policy))


@examples(100)
@given(step=steps, share=st.floats(0, 1), link=st.sampled_from([*LINKS, *SLOW]))
def test_a_quick_plan_fits_and_costs_no_more_than_swapping_alone(
    step: StepTrace, share: float, link: Link
) -> None:
    capacity, times = capacity_of(step, share), step.ops.duration_s
    quick = plan(step, capacity, link, op_times=times, rematerialize=True, quick=True)
    assert plan(step, capacity, link, op_times=times, rematerialize=True, quick=True) == quick
    swapping = plan(step, capacity, link, op_times=times)
    assert plan(step, capacity, link, op_times=times, quick=True) == swapping
    found, alone = (simulate(step, policy, op_times=times) for policy in (quick, swapping))
    assert found.fits and found.step_s <= alone.step_s + 1e-6 * (1.0 + step.duration_s)
    if not worth_searching(quick):
        assert plan(step, capacity, link, op_times=times, rematerialize=True).decisions == quick.decisions


@examples(100)
@given(step=steps, share=st.floats(0, 1), link=st.sampled_from(SLOW), host_share=st.floats(0.05, 1))
def test_where_there_is_a_plan_for_both_memories_there_is_a_quick_one(
    step: StepTrace, share: float, link: Link, host_share: float
) -> None:
    host_bytes = max(1, int(host_share * step.live_peak_bytes))

    def planned(quick: bool) -> Policy | None:
        try:
            return plan(
                step,
                capacity_of(step, share),
                link,
                op_times=step.ops.duration_s,
                rematerialize=True,
                host_capacity_bytes=host_bytes,
                quick=quick,
            )
        except BelowFloorError:
            return None

    searched, quick = planned(False), planned(True)
    assert (quick is None) == (searched is None)
    assert quick is None or simulate(step, quick, op_times=step.ops.duration_s).fits


@examples(100)
@given(step=steps, share=st.floats(0, 1), link=st.sampled_from(SLOW))
def test_where_all_is_refused_the_plan_is_that_of_swapping_alone(
    step: StepTrace, share: float, link: Link
) -> None:
    capacity, times = capacity_of(step, share), step.ops.duration_s
    refused = plan(step, capacity, link, op_times=times, rematerialize=True, refused=step.names)
    assert refused.decisions == plan(step, capacity, link, op_times=times).decisions


@examples(100)
@given(made_for=steps, run=steps, share=st.floats(0, 1), link=st.sampled_from(SLOW))
def test_mixed_policy_of_another_step_is_safe(
    made_for: StepTrace, run: StepTrace, share: float, link: Link
) -> None:
    policy = plan(made_for, capacity_of(made_for, share), link, rematerialize=True)
    program = compile_program(policy, run)
    Machine(run, program).run()
    compiled = int(np.isin(program.action_kind, (FREE, DROP)).sum())
    kept_back = len(policy.decisions) - compiled - len(program.unmatched)
    assert kept_back >= 0  # those in dead time that a replay still reads


def target_of(memory: StepMemory, step: StepTrace, random: np.random.Generator) -> dict[str, object]:
    gap = int(random.integers(len(memory.gap_out)))
    key = step.storage_keys[int(memory.row[memory.gap_storage[gap]])]
    return {"storage": key, "gap": int(memory.gap_ordinal[gap])}


@examples(200)
@example(  # what the planner would drop beside it reads what an edit has dropped, right after that has left
    step=random_calls_step(seed=18418, ops=29), share=0.0, link=Link(1e6, 3e6), seed=262145
)
@given(step=steps, share=st.floats(0, 1), link=st.sampled_from([*LINKS, *SLOW]), seed=st.integers(0, 10**6))
def test_edits_are_obeyed(step: StepTrace, share: float, link: Link, seed: int) -> None:
    memory, random = step_memory(step), np.random.default_rng(seed)
    assume(len(memory.gap_out))
    actions = [EditAction.REMATERIALIZE, EditAction.NEVER_REMATERIALIZE, EditAction.SWAP, EditAction.KEEP]
    edits: dict[tuple[object, object], Edit] = {}
    for _ in range(int(random.integers(1, 5))):
        target = target_of(memory, step, random)
        action = actions[int(random.integers(len(actions)))]
        edits[target["storage"], target["gap"]] = Edit(action, **target)  # type: ignore[arg-type]
    capacity = capacity_of(step, share)
    try:
        policy = plan(step, capacity, link, edits=tuple(edits.values()), rematerialize=True)
    except EditsUnreachableError:
        return
    Machine(step, compile_program(policy, step)).run()
    assert simulate(step, policy).fits
    excused = {finding.index for finding in policy.findings}
    by_gap = {(decision.storage, decision.gap): decision for decision in policy.decisions}
    for index, (gap, edit) in enumerate(edits.items()):
        if index in excused:
            continue
        action = by_gap[gap].action if gap in by_gap else Action.KEEP
        if edit.action is EditAction.REMATERIALIZE:
            assert action is Action.REMATERIALIZE and by_gap[gap].decided_by == "user"
        elif edit.action is EditAction.NEVER_REMATERIALIZE:
            assert action is not Action.REMATERIALIZE
        else:
            assert action.value == edit.action.value


@examples(50)
@given(step=steps, share=st.floats(0, 1))
def test_rematerialize_edits_do_nothing_where_replaying_is_off(step: StepTrace, share: float) -> None:
    edits = (Edit(EditAction.REMATERIALIZE, min_bytes=1),)
    capacity = capacity_of(step, share)
    policy = plan(step, capacity, SLOW[0], edits=edits)
    assert policy.decisions == plan(step, capacity, SLOW[0]).decisions
    memory = step_memory(step)
    assert bool(policy.findings) or not len(memory.row)
    assert dataclasses.replace(policy, edits=()).drops == ()
