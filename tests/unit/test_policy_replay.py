"""What can be replayed in a step, what a replay takes and asks for, and plans that choose it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from synthetic import StepBuilder, declining, gpt_step

from chameleon_lab.errors import TraceError
from chameleon_lab.planner import lower_bound, plan, simulate, sweep
from chameleon_lab.planner.generate import _passes
from chameleon_lab.planner.memory import step_memory
from chameleon_lab.planner.mix import Mixer
from chameleon_lab.planner.program import DROP, REPLAY, compile_program
from chameleon_lab.planner.replay import CHAIN, ReplayChains
from chameleon_lab.policy import Edit, EditAction, Link
from chameleon_lab.policy.model import Action
from chameleon_lab.trace import Category, Stage, StepTrace, Trace
from chameleon_lab.trace.columns import Replays

BIG = 1 << 20
ACT = (Category.ACTIVATION, BIG)
SLOW = Link(1e9, 1e9)
PAUSE = 6


def replayable_of(step: StepTrace, replay_class: int = 2, refused: tuple[str, ...] = ()) -> ReplayChains:
    return ReplayChains(step, step_memory(step), step.ops.duration_s, replay_class, refused)


def gap_of(replayable: ReplayChains, row: int, ordinal: int = 1) -> int:
    """The gap of a storage after its birth (ordinal 0) or the use of that ordinal."""
    memory = replayable.memory
    candidate = memory.row.tolist().index(row)
    pairs = list(zip(memory.gap_storage.tolist(), memory.gap_ordinal.tolist(), strict=True))
    return pairs.index((candidate, ordinal))


def wait(step: StepBuilder, ops: int = PAUSE) -> None:
    """Ops that touch nothing."""
    for _ in range(ops):
        step.op("aten::unrelated")


def line(names: list[str], keep: bool) -> tuple[StepBuilder, list[int]]:
    """Ops in a row, each of the result of the one before; results die at once, or live to the end if ``keep``."""
    step = StepBuilder()
    rows = [step.carried(Category.INPUT, BIG, "x")]
    for name in names:
        rows += step.op(name, reads=(rows[-1],), makes=(ACT,))
        if not keep and len(rows) > 2:
            step.free(rows[-2])
    step.op("aten::sum", reads=(rows[-1],))
    wait(step)
    step.op("aten::backward", reads=tuple(rows[1:]) if keep else (rows[-1],), stage=Stage.BACKWARD)
    return step, rows


def test_an_op_is_replayed_from_its_living_input() -> None:
    step, rows = line(["aten::gelu"], keep=True)
    replayable = replayable_of(step.build())
    gap = gap_of(replayable, rows[-1])
    assert replayable.why_not(gap) is None and replayable.gaps() == [gap]
    chain = replayable.chain(rows[-1], 8)
    assert chain is not None
    assert (chain.made, chain.inputs, chain.transient_bytes) == ((rows[1],), (rows[0],), 0)
    assert chain.seconds == pytest.approx(1e-3)


def test_a_replay_takes_as_long_as_those_that_were_recorded() -> None:
    builder, rows = line(["aten::gelu", "aten::mm", "aten::tanh"], keep=True)
    step = builder.build()
    use = len(step.ops) - 1
    index = np.array([rows[1], rows[2], rows[2]], dtype=np.int32)
    took_s = np.array([0.25e-3, 0.25e-3, 0.5e-3])
    zeros = np.zeros(3, dtype=np.int32)
    replays = Replays(
        zeros + use, index, zeros, zeros.astype(np.uint8), zeros.astype(np.int64), took_s * 0.0, took_s
    )
    replayable = replayable_of(dataclasses.replace(step, replays=replays))
    # Of the first kind a quarter of the op's time, of the second three quarters; of the third what they took together.
    for row, share in zip(rows[1:], (0.25, 0.75, 0.5), strict=True):
        chain = replayable.chain(row, use)
        assert chain is not None and chain.seconds == pytest.approx(share * 1e-3)
    lost = dataclasses.replace(replays, storage=zeros - 1)
    chain = replayable_of(dataclasses.replace(step, replays=lost)).chain(rows[1], use)
    assert chain is not None and chain.seconds == pytest.approx(1e-3)


def test_dead_inputs_are_made_again_on_the_way() -> None:
    step, rows = line(["aten::layer_norm", "aten::mm", "aten::gelu"], keep=False)
    replayable = replayable_of(step.build())
    chain = replayable.chain(rows[-1], 9)
    assert chain is not None
    assert chain.made == tuple(rows[1:]) and chain.inputs == (rows[0],)
    assert chain.seconds == pytest.approx(3e-3) and chain.transient_bytes == 2 * BIG


def test_a_storage_that_no_op_uses_is_swapped_beside_replays() -> None:
    builder, _ = line(["aten::gelu"] * 4, keep=True)
    idle = builder.carried(Category.PARAMETER, 2 * BIG, "idle")
    step = builder.build()
    edit = Edit(EditAction.SWAP, step.storage_keys[idle])
    policy = plan(step, step.live_peak_bytes - 2 * BIG, SLOW, rematerialize=True, edits=[edit])
    assert step.storage_keys[idle] in {swap.storage for swap in policy.swaps}


@pytest.mark.parametrize("recorded", [False, True])
def test_the_results_of_one_op_share_the_table_of_its_inputs(recorded: bool) -> None:
    step = StepBuilder()
    read = tuple(step.carried(Category.INPUT, BIG, f"x{k}") for k in range(40))
    for name in ("aten::unbind_copy", "aten::gelu"):
        for row in step.op(name, reads=read, makes=(ACT,) * 40):
            if recorded:
                step.making(row, name, read)
    begin, end, rows, values = replayable_of(step.build()).values.inputs_table
    assert len(begin) == len(end) == 80 and (end - begin).tolist() == [0] * 40 + [40] * 40
    assert rows.tolist() == list(read) and set(values.tolist()) == {-1}


@pytest.mark.parametrize(("length", "fits"), [(CHAIN, True), (CHAIN + 1, False)])
def test_a_chain_has_so_many_ops_at_most(length: int, fits: bool) -> None:
    step, rows = line(["aten::gelu"] * length, keep=False)
    assert (replayable_of(step.build()).chain(rows[-1], length + 2) is not None) == fits


def test_a_line_of_dropped_storages_may_be_longer_than_a_chain() -> None:
    """Each is restored by itself: the first replay of all restores what the others read."""
    step, rows = line(["aten::gelu"] * (CHAIN + 5), keep=True)
    replayable = replayable_of(step.build())
    asked = [gap_of(replayable, row) for row in rows[1:]]
    replays = replayable.resolve(asked)
    assert replays.gap.tolist() == asked and replays.declined == ()


def test_shared_inputs_are_replayed_once_and_stay_until_their_use() -> None:
    step, rows = line(["aten::gelu", "aten::silu"], keep=True)
    step.op("aten::more", reads=(rows[1],), stage=Stage.BACKWARD)
    replayable = replayable_of(step.build())
    gelu, silu = (gap_of(replayable, row) for row in rows[1:])
    both = replayable.resolve([silu, gelu])
    assert both.gap.tolist() == [gelu, silu], "what is read comes first"
    assert both.in_op.tolist() == [9, 9] and both.seconds[9] == pytest.approx(2e-3)
    alone = replayable.resolve([silu])
    assert alone.in_op.tolist() == [9] and alone.seconds.sum() == pytest.approx(1e-3)


def test_a_dead_input_is_made_for_each_replay() -> None:
    step = StepBuilder()
    x = step.carried(Category.INPUT, BIG, "x")
    (dead,) = step.op("aten::gelu", reads=(x,), makes=(ACT,))
    (one,) = step.op("aten::sin", reads=(dead,), makes=(ACT,))
    (two,) = step.op("aten::cos", reads=(dead,), makes=(ACT,))
    step.free(dead)
    wait(step)
    step.op("aten::use", reads=(two,), stage=Stage.BACKWARD)
    step.op("aten::use", reads=(one,), stage=Stage.BACKWARD)
    replayable = replayable_of(step.build())
    replays = replayable.resolve([gap_of(replayable, one, 0), gap_of(replayable, two, 0)])
    assert replays.seconds.sum() == pytest.approx(4e-3) and set(replays.transient_bytes.tolist()) == {0, BIG}


def written(target: str, name: str = "aten::gelu") -> tuple[StepTrace, int]:
    """A storage that is made of another one, of which one is written; and the gap of the first, by its ordinal."""
    step = StepBuilder()
    x = step.carried(Category.INPUT, BIG, "x")
    (y,) = step.op(name, reads=(x,), makes=(ACT,))
    (z,) = step.op("aten::sin", reads=(y,), makes=(ACT,))
    step.op("aten::mul_", writes=(z if target == "result" else y,))
    if target == "input that dies":
        step.free(y)
    wait(step)
    step.op("aten::use", reads=(y, z) if target != "input that dies" else (z,), stage=Stage.BACKWARD)
    return step.build(), z


def test_what_was_written_is_not_replayed() -> None:
    step, z = written("result")
    replayable = replayable_of(step)
    reason = replayable.why_not(gap_of(replayable, z, 1))
    assert reason == "the op that wrote it last cannot be replayed"


@pytest.mark.parametrize("target", ["input", "input that dies"])
def test_an_input_that_was_written_is_made_again_as_it_was(target: str) -> None:
    step, z = written(target)
    replayable = replayable_of(step)
    assert replayable.why_not(gap_of(replayable, z, 0)) is None
    chain = replayable.chain(z, len(step.ops) - 1)
    assert chain is not None and chain.made == (1, z) and chain.inputs == (0,)
    assert chain.transient_bytes == BIG and chain.names == (0, 1)
    step, z = written(target, "aten::unknown")
    replayable = replayable_of(step)
    reason = replayable.why_not(gap_of(replayable, z, 0))
    assert reason is not None and "written" in reason


def test_writes_before_the_op_and_after_the_replay_do_not_matter() -> None:
    step = StepBuilder()
    x = step.carried(Category.PARAMETER, BIG, "x")
    step.op("aten::mul_", writes=(x,))
    (y,) = step.op("aten::gelu", reads=(x,), makes=(ACT,))
    wait(step)
    step.op("aten::use", reads=(y,), writes=(x,), stage=Stage.BACKWARD)
    replayable = replayable_of(step.build())
    assert replayable.gaps() == [gap_of(replayable, y, 0)]


@pytest.mark.parametrize(
    ("name", "replay_class", "refused", "fits"),
    [
        ("aten::gelu", 1, (), True),
        ("aten::mm", 1, (), False),
        ("aten::mm", 2, (), True),
        ("aten::mm", 2, ("aten::mm",), False),
        ("aten::mm", 2, ("/aten::mm.0#0",), False),
        ("aten::native_dropout", 2, (), False),
    ],
)
def test_ops_have_classes_and_the_runtime_refuses(
    name: str, replay_class: int, refused: tuple[str, ...], fits: bool
) -> None:
    step, _ = line([name], keep=True)
    assert bool(replayable_of(step.build(), replay_class, refused).gaps()) == fits


def test_an_op_that_writes_what_was_there_is_not_replayed() -> None:
    step = StepBuilder()
    x = step.carried(Category.INPUT, BIG, "x")
    (y,) = step.op("aten::add", reads=(x,), writes=(x,), makes=(ACT,))
    wait(step)
    step.op("aten::use", reads=(y,))
    assert replayable_of(step.build()).gaps() == []


def test_a_replay_takes_room_for_all_that_its_op_makes() -> None:
    step = StepBuilder()
    x = step.carried(Category.INPUT, BIG, "x")
    y, mean = step.op("aten::native_layer_norm", reads=(x,), makes=(ACT, ACT), scratch=3 * BIG)
    wait(step)
    step.op("aten::use", reads=(y, mean), stage=Stage.BACKWARD)
    replayable = replayable_of(step.build())
    replays = replayable.resolve([gap_of(replayable, y, 0)])
    assert replays.transient_bytes.tolist() == [0] * 7 + [4 * BIG]
    # x and mean are there, y has its block, and the op works beside them.
    assert replays.applied(replayable.memory).live_bytes[7] == 7 * BIG


def swapped_input() -> tuple[StepTrace, int, int]:
    """A storage that is best swapped and is used last of all, and another that is made of it."""
    step = StepBuilder()
    x = step.carried(Category.INPUT, BIG, "x")
    (y,) = step.op("aten::unknown", reads=(x,), makes=(ACT,))
    (z,) = step.op("aten::gelu", reads=(y,), makes=((Category.ACTIVATION, 4 * BIG),))
    wait(step, 20)
    (high,) = step.op("aten::unknown", makes=((Category.ACTIVATION, 5 * BIG),))
    step.op("aten::unrelated")
    step.free(high)
    wait(step, 5)
    step.op("aten::use", reads=(z,), stage=Stage.BACKWARD)
    step.free(z)
    wait(step, 5)
    step.op("aten::use", reads=(y,), stage=Stage.BACKWARD)
    return step.build(), y, z


def test_an_input_is_prefetched_for_the_replay_and_not_for_its_own_use() -> None:
    step, y, z = swapped_input()
    # The link is so slow that only the small one can be swapped in time.
    policy = plan(step, 5 * BIG, Link(2e8, 2e8), op_times=step.ops.duration_s, rematerialize=True)
    by_storage = {decision.storage: decision for decision in policy.decisions}
    swap, drop = by_storage[step.storage_keys[y]], by_storage[step.storage_keys[z]]
    assert (swap.action, drop.action) == (Action.SWAP, Action.REMATERIALIZE)
    assert swap.in_op <= drop.in_op == drop.use_op < swap.use_op
    predicted = simulate(step, policy, op_times=step.ops.duration_s)
    assert (
        predicted.fits and predicted.replay_s == pytest.approx(1e-3) and predicted.replayed_bytes == 4 * BIG
    )
    assert predicted.step_s == pytest.approx(predicted.compute_s + predicted.stall_s + 1e-3)


def test_the_program_drops_after_the_use_and_replays_in_order() -> None:
    step, rows = line(["aten::gelu", "aten::silu"], keep=True)
    built = step.build()
    policy = plan(built, built.live_peak_bytes, SLOW)
    replayable = replayable_of(built)
    memory = replayable.memory
    replays = replayable.resolve(replayable.gaps())
    from chameleon_lab.planner.generate import _decisions
    from chameleon_lab.planner.memory import Swaps

    none = Swaps(*[np.empty(0, dtype=np.int64)] * 6, np.empty(0, dtype=bool))
    policy = dataclasses.replace(policy, decisions=_decisions(built, memory, none, replays, set(), {}))
    program = compile_program(policy, built)
    assert program.unmatched == ()
    order = [program.storage_row[s] for s in program.action_storage[program.action_kind == REPLAY]]
    assert order == rows[1:]
    assert program.action_op[program.action_kind == REPLAY].tolist() == [9, 9]
    assert sorted(program.action_op[program.action_kind == DROP].tolist()) == [1, 2]


def test_decisions_that_cannot_be_replayed_in_a_step_are_unmatched() -> None:
    step, _, z = swapped_input()
    policy = plan(step, 5 * BIG, Link(2e8, 2e8), op_times=step.ops.duration_s, rematerialize=True)
    names = tuple("aten::native_dropout" if name == "aten::gelu" else name for name in step.names)
    other = dataclasses.replace(step, names=names)
    (drop,) = policy.drops
    renamed = dataclasses.replace(drop, storage=other.storage_keys[z])
    program = compile_program(dataclasses.replace(policy, decisions=(renamed,)), other)
    assert len(program.unmatched) == 1 and "cannot be replayed" in program.unmatched[0]
    assert not len(program.action_op)


@pytest.mark.parametrize("share", [0.5, 0.6, 0.75])
def test_replays_beat_a_slow_link(share: float) -> None:
    step = gpt_step(layers=8)
    capacity, link = int(share * step.live_peak_bytes), Link(5e8, 5e8)
    alone = simulate(
        step, plan(step, capacity, link, op_times=step.ops.duration_s), op_times=step.ops.duration_s
    )
    mixed = plan(step, capacity, link, op_times=step.ops.duration_s, rematerialize=True)
    predicted = simulate(step, mixed, op_times=step.ops.duration_s)
    assert predicted.fits and predicted.overhead_share < 0.5 * alone.stall_share
    assert mixed.predicted["replay_s"] == predicted.replay_s and mixed.assumed["rematerialize"] == 2
    assert f"{len(mixed.drops)} replays" in str(mixed) and "rematerialized" in str(mixed)


def test_replays_that_cost_more_than_swaps_are_taken_back() -> None:
    step = gpt_step(layers=8)
    capacity, link, times = int(0.75 * step.live_peak_bytes), Link(2e9, 2e9), step.ops.duration_s
    memory = step_memory(step)
    replayable = ReplayChains(step, memory, times)
    mixer = Mixer(
        memory, replayable, capacity, link, times, _passes(capacity, link), may_drop=replayable.gaps()
    )
    many = mixer.made(mixer.ranked)
    fewer = mixer._retracted(many, 40)
    assert len(fewer.replays) < len(many.replays) and fewer.overhead_s < many.overhead_s
    assert fewer.prediction.fits and mixer._retracted(many, 0) is many


def test_swapping_is_left_alone_while_it_is_free() -> None:
    step = gpt_step(layers=8)
    capacity = int(0.8 * step.live_peak_bytes)
    mixed = plan(step, capacity, Link(None, None), op_times=step.ops.duration_s, rematerialize=True)
    assert mixed.drops == () and mixed.swaps
    assert mixed.decisions == plan(step, capacity, Link(None, None), op_times=step.ops.duration_s).decisions


def test_the_trace_says_what_its_session_can_replay() -> None:
    step = gpt_step(layers=8)
    capacity, link = int(0.5 * step.live_peak_bytes), Link(5e8, 5e8)
    assert plan(Trace([step]), capacity, link).drops == ()
    assert plan(Trace([step], {"replay_class": 1}), capacity, link).drops
    assert plan(Trace([step], {"replay_class": 1}), capacity, link, rematerialize=False).drops == ()


def test_the_trace_says_what_its_session_does_not_replay() -> None:
    step = gpt_step(layers=8)
    capacity, link = int(0.5 * step.live_peak_bytes), Link(5e8, 5e8)
    free = plan(Trace([step], {"replay_class": 2}), capacity, link)
    dropped = [decision.storage for decision in free.drops]
    first = next(storage for storage in dropped if "gelu" not in storage)
    assert free.assumed["refused"] == [] and any("gelu" in storage for storage in dropped)

    declined = declining(step, first)
    trace = Trace([declined], {"replay_class": 2, "refused": ["aten::gelu"]})
    made = plan(trace, capacity, link)
    assert made.assumed["refused"] == sorted(["aten::gelu", first])
    left = {decision.storage for decision in made.drops}
    assert left and first not in left and not any("gelu" in storage for storage in left)
    assert first not in {d.storage for d in plan(declined, capacity, link, rematerialize=True).drops}
    anyhow = plan(trace, capacity, link, refused=())
    assert anyhow.decisions == free.decisions and anyhow.assumed["refused"] == []

    given = {"rematerialize": True, "refused": ["aten::gelu", first]}
    assert sweep(trace, [capacity], link) == sweep(step, [capacity], link, **given)
    assert sweep(trace, [capacity], link, refused=()) == sweep(
        step, [capacity], link, rematerialize=True, refused=()
    )
    pytest.importorskip("scipy")
    assert lower_bound(trace, capacity, link) == lower_bound(step, capacity, link, **given)
    assert lower_bound(trace, capacity, link).stall_s > lower_bound(trace, capacity, link, refused=()).stall_s


@pytest.mark.parametrize("told", ["aten::gelu", 5, None, [1], {"aten::gelu": "why"}])
def test_refusals_of_a_trace_are_names(told: object) -> None:
    with pytest.raises(TraceError, match=r"refused=\.\.\."):
        plan(Trace([gpt_step()], {"refused": told}), 1 << 30, SLOW)


@pytest.mark.parametrize("value", [3, -1, "most", 1.5])
def test_there_is_no_other_class(value: object) -> None:
    with pytest.raises(ValueError, match="rematerialize is"):
        plan(gpt_step(), 1 << 30, SLOW, rematerialize=value)  # type: ignore[arg-type]


def chain_of_five() -> tuple[StepBuilder, list[int]]:
    """An input and five storages, each made of the one before, and then idle for long."""
    step = StepBuilder()
    rows = [step.carried(Category.INPUT, BIG, "x")]
    for name in ("aten::gelu", "aten::tanh", "aten::mm", "aten::silu", "aten::mul"):
        rows += step.op(name, reads=(rows[-1],), makes=(ACT,))
    step.op("aten::sum", reads=(rows[5],))
    wait(step)
    return step, rows


def test_a_replay_needs_what_it_reads_and_no_more() -> None:
    """By its own use the third storage reads one that is back; for the fifth, all are replayed before that."""
    step, rows = chain_of_five()
    for used in ((5,), (4,), (2,), (3,), (2, 1)):
        step.op("aten::backward", reads=tuple(rows[k] for k in used), stage=Stage.BACKWARD)
    replayable = replayable_of(step.build())
    first = [gap_of(replayable, rows[k], 1) for k in range(1, 6)]
    assert [len(replayable.needs(gap)) for gap in first] == [1] * 5
    replays = replayable.resolve(first)
    assert replays.declined == () and replays.in_op.tolist() == [replays.in_op[0]] * 5
    assert replayable.resolve(first, fixed={first[3]}).declined == (first[4],), "its input is decided about"


def test_where_replays_find_no_room_together_a_storage_in_their_middle_is_kept() -> None:
    """As checkpointing keeps a block's input: what comes before it is replayed later, and not beside the rest."""
    step = StepBuilder()
    rows = [step.carried(Category.INPUT, BIG, "x")]
    for _ in range(16):
        rows += step.op("aten::gelu", reads=(rows[-1],), makes=(ACT,))
    wait(step)
    for row in reversed(rows[1:]):
        step.op("aten::backward", reads=(row,), stage=Stage.BACKWARD)
    built = step.build()
    replayable = replayable_of(built)
    capacity, link = 7 * BIG, Link(1e6, 1e6)
    memory = step_memory(built)
    mixer = Mixer(
        memory,
        replayable,
        capacity,
        link,
        built.ops.duration_s,
        _passes(capacity, link),
        may_drop=replayable.gaps(),
    )
    replays = mixer.fitting(replayable.gaps())
    assert 0 < len(replays) < 16 and len(set(replays.in_op.tolist())) > 1
    assert int(mixer.view(replays).least_bytes().max()) <= capacity


# ---------------------------------------------------------------------------------------------------- makings


def dropout_step() -> tuple[StepTrace, int, int, int]:
    """A mask that is drawn, scaled and multiplied with inside of one op; input, mask and result."""
    step = StepBuilder()
    x = step.carried(Category.INPUT, BIG, "x")
    mask, out = step.op("aten::dropout", reads=(x,), makes=(ACT, ACT), seconds=4e-3)
    step.making(mask, "aten::empty_like", refusal=2)
    step.making(mask, "aten::bernoulli_")
    step.making(mask, "aten::div_", (mask,))
    step.making(out, "aten::mul", (x, mask))
    wait(step)
    step.op("aten::use", reads=(mask, out), stage=Stage.BACKWARD)
    return step.build(), x, mask, out


def test_what_ops_inside_of_others_make_in_place_is_replayed() -> None:
    step, x, mask, out = dropout_step()
    assert replayable_of(dataclasses.replace(step, makings=StepBuilder().build().makings)).gaps() == []
    replayable = replayable_of(step)
    use = len(step.ops) - 1
    chain = replayable.chain(mask, use)
    assert chain is not None
    assert [step.names[name] for name in chain.names] == ["aten::bernoulli_", "aten::div_"]
    assert chain.made == (mask, mask) and chain.inputs == () and chain.transient_bytes == 0
    result = replayable.chain(out, use)
    assert result is not None and result.made == (out,) and set(result.inputs) == {x, mask}
    # By bytes read and made: empty_like 1, bernoulli_ 1, div_ 2, mul 3.
    assert chain.op_seconds == pytest.approx([4e-3 / 7, 8e-3 / 7]) and result.seconds == pytest.approx(
        12e-3 / 7
    )
    both = replayable.resolve(replayable.gaps())
    assert both.storage.tolist() == [replayable.memory.row.tolist().index(row) for row in (mask, out)]
    assert both.declined == () and both.in_op.tolist() == [use, use]


def test_a_dead_mask_is_made_in_memory_of_its_own() -> None:
    step = StepBuilder()
    x = step.carried(Category.INPUT, BIG, "x")
    mask, out = step.op("aten::dropout", reads=(x,), makes=(ACT, ACT))
    step.making(mask, "aten::bernoulli_")
    step.making(mask, "aten::div_", (mask,))
    step.making(out, "aten::mul", (x, mask))
    step.free(mask)
    wait(step)
    step.op("aten::use", reads=(out,), stage=Stage.BACKWARD)
    replayable = replayable_of(step.build())
    chain = replayable.chain(out, 7)
    assert chain is not None and chain.made == (mask, mask, out) and chain.transient_bytes == BIG


@pytest.mark.parametrize("changes", [CHAIN - 1, CHAIN, 3000])
def test_ops_in_place_count_into_the_chain(changes: int) -> None:
    step = StepBuilder()
    x = step.carried(Category.INPUT, BIG, "x")
    (y,) = step.op("aten::gelu", reads=(x,), makes=(ACT,))
    step.making(y, "aten::gelu", (x,))
    for _ in range(changes):
        step.op("aten::add_", reads=(y,), writes=(y,))
        step.making(y, "aten::add_", (y,))
    wait(step)
    step.op("aten::use", reads=(y,), stage=Stage.BACKWARD)
    replayable = replayable_of(step.build())
    gap = gap_of(replayable, y, changes)
    assert (replayable.why_not(gap) is None) == (changes < CHAIN)


def test_each_value_is_made_from_those_that_were_there() -> None:
    """Between its writes a storage holds other values: what was made of the first goes back to that."""
    step = StepBuilder()
    x = step.carried(Category.INPUT, BIG, "x")
    (y,) = step.op("aten::gelu", reads=(x,), makes=(ACT,))
    step.making(y, "aten::gelu", (x,))
    (z,) = step.op("aten::sin", reads=(y,), makes=(ACT,))
    step.making(z, "aten::sin", (y,))
    step.op("aten::add_", reads=(y,), writes=(y,))
    step.making(y, "aten::add_", (y,))
    (both,) = step.op("aten::mul", reads=(y, z), makes=(ACT,))
    step.making(both, "aten::mul", (y, z))
    wait(step)
    step.op("aten::copy_", writes=(x,))
    step.making(x, None)
    step.op("aten::use", reads=(y, z, both), stage=Stage.BACKWARD)
    replayable = replayable_of(step.build())
    before, after = 10, 11  # the write of x
    for row, made, inputs in ((y, (y, y), (x,)), (z, (y, z), (x,)), (both, (both,), (y, z))):
        chain = replayable.chain(row, before)
        assert chain is not None and (chain.made, chain.inputs) == (made, inputs)
    assert replayable.chain(y, after) is None and replayable.chain(z, after) is None
    assert replayable.chain(both, after) is not None


def test_only_a_call_knows_what_it_takes_beside_its_result() -> None:
    step = StepBuilder()
    x = step.carried(Category.INPUT, BIG, "x")
    cast, out, mean = step.op("aten::linear", reads=(x,), makes=(ACT, ACT, ACT), scratch=2 * BIG)
    step.making(cast, "aten::_to_copy", (x,))
    step.making(out, "aten::native_layer_norm", (x, cast))
    step.making(mean, "aten::native_layer_norm", (x, cast))
    wait(step)
    step.op("aten::use", reads=(cast, out, mean), stage=Stage.BACKWARD)
    replayable = replayable_of(step.build())
    sizes = [replayable.chain(row, 7).transient_bytes for row in (cast, out)]  # type: ignore[union-attr]
    assert sizes == [2 * BIG, 3 * BIG], "the scratch memory may be either's"


def test_a_refused_making_says_so() -> None:
    step, _, mask, _ = dropout_step()
    refused = dataclasses.replace(step.makings, refusal=step.makings.refusal + np.uint8(1))
    replayable = replayable_of(dataclasses.replace(step, makings=refused))
    gap = gap_of(replayable, mask, 0)
    assert replayable.gaps() == [] and "cannot be replayed" in str(replayable.why_not(gap))
