"""The outlook if ranks die, from made-up steps: shapes that are checked by hand, bad input, the table."""

import dataclasses
import json
import math
from html.parser import HTMLParser

import numpy as np
import pytest
from synthetic import blocks_step, gpt_step, random_step

from chameleon_lab.errors import TraceError
from chameleon_lab.planner import floor, plan
from chameleon_lab.policy import Link
from chameleon_lab.recovery import Costs, RecoveryPolicy, what_if
from chameleon_lab.recovery.outlook import TITLES
from chameleon_lab.recovery.scaling import (
    in_turns,
    larger_batch,
    larger_shards,
    layers_of,
    micro_batches,
    more_layers,
    recorded,
)
from chameleon_lab.trace import Category, Trace
from chameleon_lab.trace.check import check_step

LINK = Link(2.0**30, 2.0**30)


@pytest.fixture(scope="module")
def step():
    return gpt_step(layers=4)


def bytes_of(step, *categories):
    return int(step.storages.block_bytes[np.isin(step.storages.category, categories)].sum())


def test_a_larger_batch_has_larger_activations_and_the_same_states(step):
    twice = larger_batch(step, 2.0).step
    check_step(twice)
    states = (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE)
    assert bytes_of(twice, *states) == bytes_of(step, *states)
    assert bytes_of(twice, Category.ACTIVATION) == 2 * bytes_of(step, Category.ACTIVATION)
    assert twice.live_peak_bytes > step.live_peak_bytes
    in_model = step.ops.stage < 2
    assert twice.ops.duration_s[in_model] == pytest.approx(2 * step.ops.duration_s[in_model])
    assert twice.ops.duration_s[~in_model] == pytest.approx(step.ops.duration_s[~in_model])


def test_a_batch_of_the_same_size_is_the_recorded_step(step):
    same = larger_batch(step, 1.0).step
    assert (same.ops.live_peak_bytes == step.ops.live_peak_bytes).all()
    assert (same.storages.block_bytes == step.storages.block_bytes).all()
    assert in_turns(step, 1).step.live_peak_bytes == more_layers(step, 4).step.live_peak_bytes
    assert floor(recorded(step).step).bytes == floor(step).bytes


def test_larger_shards_leave_the_activations(step):
    larger = larger_shards(step, 8 / 7).step
    check_step(larger)
    assert bytes_of(larger, Category.ACTIVATION) == bytes_of(step, Category.ACTIVATION)
    assert bytes_of(larger, Category.PARAMETER) == pytest.approx(
        8 / 7 * bytes_of(step, Category.PARAMETER), rel=1e-4
    )


@pytest.mark.parametrize("count", [2, 3, 7])
def test_turns_repeat_forward_and_backward_and_add_to_one_gradient(step, count):
    assert micro_batches(step) == 1
    several = in_turns(step, count).step
    check_step(several)
    assert micro_batches(several) == count
    in_model = int((step.ops.stage < 2).sum())
    assert len(several.ops) == len(step.ops) + (count - 1) * in_model
    # Gradients are there from the first micro-batch on, beside everything that the later ones need.
    gradients = bytes_of(step, Category.GRADIENT)
    assert step.live_peak_bytes <= several.live_peak_bytes <= step.live_peak_bytes + gradients
    assert several.live_peak_bytes == in_turns(step, 2).step.live_peak_bytes
    kept = several.storages.category == Category.GRADIENT
    lasts = several.storages.death_op[kept] - several.storages.birth_op[kept] > 1
    assert lasts.sum() == (step.storages.category == Category.GRADIENT).sum()


def test_what_is_live_is_what_the_storages_say():
    """Bytes at each op follow from births and deaths, and the recorded excess of an op stays its own."""
    for step in (gpt_step(3, foreach=True), blocks_step(2)):
        for changed in (in_turns(step, 3), more_layers(step, 5), larger_batch(step, 1.5)):
            change = np.zeros(len(changed.step.ops) + 2, dtype=np.int64)
            storages = changed.step.storages
            np.add.at(change, np.maximum(storages.birth_op, 0), storages.block_bytes)
            np.subtract.at(change, storages.death_op + 1, storages.block_bytes)
            assert (np.cumsum(change)[: len(changed.step.ops)] == changed.step.ops.live_peak_bytes).all()


@pytest.mark.parametrize("count", [5, 8, 11])
def test_more_layers_are_the_step_of_a_deeper_model(count):
    step, real = blocks_step(4), blocks_step(count)
    assert layers_of(step) == tuple(f"model.blocks.{k}" for k in range(4))
    deeper = more_layers(step, count).step
    check_step(deeper)
    assert len(deeper.ops) == len(real.ops)
    assert deeper.live_peak_bytes == pytest.approx(real.live_peak_bytes, rel=0.01)
    assert floor(deeper).bytes == floor(real).bytes
    assert deeper.duration_s == pytest.approx(real.duration_s, rel=0.02)
    capacity = int(0.7 * real.live_peak_bytes)
    ours, theirs = (plan(one, capacity, LINK).predicted for one in (deeper, real))
    assert ours["swapped_out_bytes"] == pytest.approx(theirs["swapped_out_bytes"], rel=0.1)


@pytest.mark.parametrize("seed", range(20))
def test_any_step_can_be_scaled(seed):
    step = random_step(seed)
    for changed in (larger_batch(step, 1.3), larger_shards(step, 1.5), recorded(step)):
        check_step(changed.step)
        assert len(changed.origin) == len(changed.step.storages)
    if micro_batches(step) > 1 or (step.ops.stage == 1).any():
        try:
            check_step(in_turns(step, micro_batches(step) + 2).step)
        except TraceError as error:
            assert "forward" in str(error)
    if layers_of(step):
        check_step(more_layers(step, 2 * len(layers_of(step)) + 1).step)


def test_values_that_replays_need_have_copies_too(step):
    from synthetic import StepBuilder

    from chameleon_lab.trace import Stage

    made = StepBuilder()
    weight = made.carried(Category.PARAMETER, 4096, "h.0.weight")
    (x,) = made.op("aten::mm", reads=(weight,), makes=((Category.ACTIVATION, 8192),), module="h.0")
    made.making(x, "aten::mm", (weight,))
    (y,) = made.op("aten::gelu", reads=(x,), makes=((Category.ACTIVATION, 8192),), module="h.0")
    made.making(y, "aten::gelu", (x,))
    back = {"stage": Stage.BACKWARD, "module": "h.0"}
    (g,) = made.op("aten::gelu_backward", reads=(x, y), makes=((Category.GRADIENT, 4096),), **back)
    made.making(g, "aten::gelu_backward", (x, y))
    made.free(x, y)
    made.op("aten::add_", reads=(g,), writes=(weight,), stage=Stage.OPTIMIZER)
    made.making(weight, None)
    made.free(g)
    three = in_turns(made.build(), 3).step
    check_step(three)
    assert len(three.makings) == 3 * 4 + 1
    assert (np.diff(three.makings.making) >= 0).all() and (np.diff(three.makings.op) >= 0).all()
    gelus = [
        (int(three.makings.storage[k]), int(three.makings.input[k]))
        for k in range(len(three.makings))
        if three.names[int(three.makings.name[k])] == "aten::gelu"
    ]
    assert len({out for out, _ in gelus}) == len({read for _, read in gelus}) == 3


# ------------------------------------------------------------------------------------------------ the outlook


def outlook(step, **kwargs):
    arguments = {"ranks": 8, "capacity": 1.0, "link": LINK, "costs": Costs(detect_s=1, rejoin_s=1)}
    return what_if(step, **arguments | kwargs)


def test_rows_of_a_data_parallel_job(step):
    found = outlook(step, mttr=100)
    assert [way.policy for way in found.ways] == ["fewer", "turns", "larger", "wait", "checkpoint"]
    fewer, turns, larger = found["fewer"], found["turns"], found["larger"]
    assert fewer.rate == 7 / 8 and fewer.keeps == "nothing" and fewer.memory == "fits"
    assert fewer.lost_s == pytest.approx(2 + 100 / 8)
    # One micro-batch a rank cannot be shared: somebody has two.
    assert turns.keeps == "bits" and turns.detail.startswith("2 micro-batches")
    compute = step.ops.duration_s
    twice = compute.sum() + compute[step.ops.stage < 2].sum()
    assert turns.needs_bytes == in_turns(step, 2).step.live_peak_bytes
    assert turns.rate == pytest.approx(compute.sum() / turns.step_s) and turns.step_s >= twice * (1 - 1e-9)
    assert larger.needs_bytes == larger_batch(step, 8 / 7).step.live_peak_bytes > fewer.needs_bytes
    assert larger.memory == "swaps" and larger.swapped_out_bytes > 0
    assert found["wait"].rate == 0 and found["wait"].lost_s == pytest.approx(102)
    assert found["checkpoint"].lost_s == pytest.approx(100 + 120 + 900)
    assert found.choice is larger and "larger micro-batches" in found.reason


def test_finer_grains_are_dealt_better(step):
    coarse, fine = outlook(step)["turns"], outlook(step, grains=56)["turns"]
    assert fine.rate > coarse.rate and fine.detail == "8 micro-batches a survivor, 7 before"
    assert fine.needs_bytes < coarse.needs_bytes


def test_the_choice_keeps_what_is_asked_for(step):
    assert outlook(step, keep="bits").choice.policy == "turns"
    assert outlook(step, keep="nothing", capacity=0.6, link="1MiB/s").choice.policy == "fewer"


def test_samples_a_second(step):
    found = outlook(step, samples=64)
    assert found.now.samples_per_s == pytest.approx(64 / found.now.step_s)
    assert found["fewer"].samples_per_s == pytest.approx(56 / found["fewer"].step_s)


def test_all_but_one_dead_and_nobody_left(step):
    found = outlook(step, dead=7)
    assert found["fewer"].rate == 1 / 8 and found["turns"].detail.startswith("8 micro-batches")
    nobody = outlook(step, ranks=2, shards=2)
    assert nobody["fewer"].memory == nobody["turns"].memory == "nobody is left"
    assert nobody.choice.policy == "wait" and not nobody["turns"].possible
    assert nobody["reshard"].detail.startswith("1 ranks in the group of 2")
    assert "nothing runs it today" in nobody.reason


def test_below_the_floor_names_what_would_help(step):
    lowest = floor(step).bytes
    found = outlook(step, capacity=lowest - 1)
    assert {found[p].memory for p in ("fewer", "turns", "larger")} == {"below the floor"}
    assert found["fewer"].rate == 0
    # A repaired rank has no more memory than the others.
    assert found["wait"].memory == "below the floor" and found.choice is None
    assert "None of these fits" in found.reason and "floor" in found.reason


def test_replays_are_in_it(step):
    slow = outlook(step, capacity=0.75, link="20MiB/s", rematerialize="all")["larger"]
    copies = outlook(step, capacity=0.75, link="20MiB/s", rematerialize="no")["larger"]
    assert slow.memory == "swaps and replays" and slow.replay_s > 0
    assert slow.step_s < copies.step_s


def test_a_pipeline():
    step = blocks_step(3)
    found = outlook(step, ranks=32, stages=4, capacity=int(1.3 * step.live_peak_bytes), mttr="4h")
    assert [way.policy for way in found.ways] == [
        "fewer",
        "turns",
        "repartition",
        "reroute",
        "fill",
        "redundant",
        "wait",
        "checkpoint",
    ]
    assert found["fewer"].rate == 7 / 8
    assert found["repartition"].detail == "4 layers a stage in 3 stages, 3 in 4 before"
    assert found["redundant"].needs_bytes == more_layers(step, 6).step.live_peak_bytes
    assert 0 < found["redundant"].rate < found["repartition"].rate <= 1
    assert not found["repartition"].runs_with and found.choice.runs_with
    several = outlook(in_turns(step, 16).step, ranks=32, stages=4, mttr="4h")
    assert several["reroute"].rate > found["reroute"].rate
    assert several["fill"].rate >= several["reroute"].rate or several["fill"].memory != "fits"


def test_shards_of_a_group(step):
    found = outlook(step, ranks=32, shards=8)
    assert found["fewer"].rate == 3 / 4
    assert found["reshard"].rate > found["fewer"].rate
    assert found["reshard"].detail.startswith("7 ranks in the group of 8")


def test_of_several_ranks_the_worst_counts(step):
    small = Trace([step], {"capacity_bytes": int(0.6 * step.live_peak_bytes)})
    large = Trace([step], {"capacity_bytes": 2 * step.live_peak_bytes})
    both, alone = outlook([large, small], capacity=None), outlook(small, capacity=None)
    assert both["larger"].memory == alone["larger"].memory == "swaps"
    assert both["larger"].step_s == alone["larger"].step_s
    assert both.capacity_bytes == small.meta["capacity_bytes"]


def test_the_table_and_its_json(step):
    found = outlook(step, mttr="10min")
    text = str(found)
    assert "calculated, not measured" in text and found.reason in text
    assert all(TITLES[way.policy] in text for way in found.ways)
    assert [line for line in text.splitlines() if line.startswith("*")][0].split("  ")[1].strip() == (
        TITLES[found.choice.policy]
    )
    HTMLParser().feed(found._repr_html_())
    values = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert values["choice"] == found.choice.policy
    assert values["ways"][3]["step_s"] is None and values["ways"][0]["possible"]
    with pytest.raises(KeyError, match="it has fewer, turns"):
        found["repartition"]


def test_every_policy_has_a_title():
    assert set(TITLES) == set(RecoveryPolicy)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"ranks": 1}, "ranks is 1"),
        ({"ranks": 2.5}, "ranks is 2.5"),
        ({"dead": 0}, "dead is 0"),
        ({"dead": 8}, "at most 7 can die"),
        ({"stages": 3}, "no multiple of stages 3"),
        ({"shards": 2, "stages": 2}, "give one of them"),
        ({"grains": 0}, "grains is 0"),
        ({"mttr": "soon"}, "mttr 'soon' is not a duration"),
        ({"keep": "all"}, "keep is 'all': give one of nothing, batch, bits"),
        ({"capacity": None}, "knows no capacity"),
        ({"link": None}, "knows no link"),
        ({"trace": []}, "empty list"),
    ],
)
def test_bad_input(step, wrong, says):
    arguments = {"trace": step, "ranks": 8, "capacity": 1.0, "link": LINK} | wrong
    with pytest.raises(ValueError, match=says):
        what_if(arguments.pop("trace"), **arguments)


def test_a_step_without_a_whole_loop_says_so(step):
    cut = dataclasses.replace(step, truncated_ops=3)
    with pytest.raises(TraceError, match="has lost 3 ops"):
        outlook(cut)
    forward = dataclasses.replace(
        step, ops=dataclasses.replace(step.ops, stage=np.zeros(len(step.ops), np.uint8))
    )
    with pytest.raises(TraceError, match="no forward that a backward follows"):
        outlook(forward)
    with pytest.raises(TraceError, match="shows no layers"):
        more_layers(dataclasses.replace(step, labels=tuple("x" for _ in step.labels)), 6)


def test_lost_work_is_finite_where_something_runs(step):
    for way in outlook(step).ways:
        assert math.isfinite(way.lost_s) and way.lost_s >= way.pause_s


# ------------------------------------------------------------------------------------------------ the command


@pytest.fixture
def trace(tmp_path, monkeypatch):
    """A trace in the file t.parquet of the current folder."""
    monkeypatch.chdir(tmp_path)
    links = {"link_out_bytes_per_s": 2.0**30, "link_in_bytes_per_s": 2.0**30}
    made = Trace([gpt_step()], {"device": "cpu", "capacity_bytes": 8 << 20} | links)
    made.save("t.parquet")
    return made


def test_recover_compares_the_ways_to_go_on(trace, chameleon):
    code, out, err = chameleon(
        "recover", "t.parquet", "--ranks", "32", "--mttr", "10min", "--capacity", "90%"
    )
    expected = what_if(trace, ranks=32, mttr="10min", capacity=0.9)
    assert (code, err) == (0, "") and out == f"{expected}\n"
    words = ("--ranks", "32", "--capacity", "90%", "--keep", "bits", "--json")
    code, out, _ = chameleon("recover", "t.parquet", "t.parquet", *words)
    found = json.loads(out)
    assert code == 0 and found["choice"] == "turns" and found["mttr_s"] == 600
    assert "Of 2 traces" in found["notes"][-1]


def test_recover_says_what_is_wrong(trace, chameleon):
    lowest = floor(trace).bytes
    code, out, _ = chameleon("recover", "t.parquet", "--ranks", "8", "--capacity", str(lowest - 1))
    assert code == 3 and "None of these fits" in out
    for words, says in (
        (("--ranks", "1"), "ranks is 1"),
        (("--ranks", "8", "--mttr", "soon"), "--mttr 'soon' is not a duration"),
        (("--ranks", "8", "--stages", "3"), "no multiple of stages 3"),
        (("--ranks", "8", "--network", "fast"), "--network 'fast' is not a bandwidth"),
        ((), "--ranks"),
    ):
        code, out, err = chameleon("recover", "t.parquet", *words)
        assert (code, out) == (2, "") and says in err and len(err.splitlines()) == 1
    assert chameleon("recover", "gone.parquet", "--ranks", "8")[0] == 4
