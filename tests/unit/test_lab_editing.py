"""The policy editor's side in the kernel, on a trace file's step; integration tests run it beside a session."""

import json
import sys
import threading
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from hangs import HANGS_AFTER_S, until
from synthetic import REASONS, dropped_step, gpt_step

from chameleon_lab.lab.panel import plan_worker
from chameleon_lab.lab.panel.dispatch import answer
from chameleon_lab.lab.panel.editing import DraftEditor
from chameleon_lab.lab.panel.protocol import MAX_ROWS, VERSION, ProtocolError
from chameleon_lab.lab.panel.sources import Sources
from chameleon_lab.planner import floor, plan, simulate
from chameleon_lab.planner.memory import step_op_times
from chameleon_lab.planner.process import PlannerProcess
from chameleon_lab.planner.sweep import POINTS
from chameleon_lab.policy import Edit, EditAction, Policy
from chameleon_lab.trace import Trace

STEP = gpt_step(layers=6)
CAPACITY = int(0.6 * STEP.live_peak_bytes)
META = {
    "kernels": "a CPU (AVX2)",
    "capacity_bytes": CAPACITY,
    "link_out_bytes_per_s": 4e9,
    "link_in_bytes_per_s": 4e9,
}


PLANNER = PlannerProcess()


@pytest.fixture(scope="module", autouse=True)
def planner_process():
    """One for all of these tests."""
    yield
    PLANNER.close()


def draft_editor(step=STEP, meta=META, news=lambda: None, planner=PLANNER):
    return DraftEditor("file:a.parquet", None, step, meta, planner, news)


@pytest.fixture
def editor():
    editor = draft_editor()
    opened(editor)
    return editor


def opened(editor):
    def state():
        found = editor.state()
        assert found["editable"] or found["why"] == "Preparing the draft", found
        return found["editable"] and found

    return until(state)


def planned(editor):
    """The state once the plan is there."""
    return until(lambda: (state := editor.state())["exact"] and state)


def test_a_change_is_news_for_other_panels_and_none_for_the_one_that_made_it(editor, tmp_path):
    planned(editor)
    editor.save(str(tmp_path / "p.json"), overwrite=False)
    edit = {"action": "keep", "storage": editor.page("", "bytes", True, 0, 1)["rows"][0]["storage"]}
    for change in (
        lambda: editor.edit("add", [edit], -1),
        lambda: editor.edit("undo", [], -1),
        lambda: editor.load(str(tmp_path / "p.json")),
    ):
        before = editor.poll()
        change()
        assert before < planned(editor)["news"] == editor.poll()


def swapped_rows(editor, query="swap"):
    return editor.page(query, "bytes", True, 0, MAX_ROWS)["rows"]


def test_an_untouched_draft_is_what_is_in_force(editor):
    state = editor.state()
    assert state["same"] and state["staged"] == 0 and state["exact"] and state["fits"]
    assert state["current"] == state["draft"]
    assert state["draft"]["peak_bytes"] <= CAPACITY
    assert {"keep", "swap", "never_touch"} <= set(state["actions"])
    assert not {"prefetch", "capacity", "link"} & set(state["actions"])
    assert "trace file" in state["why_not_enable"]
    json.dumps(state)


def test_rows_say_what_the_plan_does_with_each_storage(editor):
    page = editor.page("", "bytes", True, 0, MAX_ROWS)
    assert page["total"] == page["all"] == len(page["rows"]) == editor.state()["rows"]
    assert page["bytes"] == sum(row["bytes"] for row in page["rows"])
    sizes = [row["bytes"] for row in page["rows"]]
    assert sizes == sorted(sizes, reverse=True)
    rows = swapped_rows(editor)
    assert 0 < len(rows) < page["total"]
    for row in rows:
        assert (
            row["after"] == "swap" and row["swaps"] > 0 and row["moved_bytes"] > 0 and row["by"] == "planner"
        )
        assert row["idle_s"] > 0 and row["idle_ops"] > 0 and 0 <= row["life"][0] < row["life"][1] <= 1
    waited = sum(row["stall_s"] for row in page["rows"])
    assert waited == pytest.approx(editor.state()["draft"]["stall_s"])
    json.dumps(page)


@pytest.mark.parametrize(
    "sort", ["name", "module", "bytes", "idle_s", "decision", "hidden", "stall_s", "replay_s", "by"]
)
def test_every_column_sorts_both_ways_and_pages_join(editor, sort):
    up = [row["storage"] for row in editor.page("", sort, False, 0, MAX_ROWS)["rows"]]
    down = [row["storage"] for row in editor.page("", sort, True, 0, MAX_ROWS)["rows"]]
    assert sorted(up) == sorted(down) and len(set(up)) == len(up)
    parts = [editor.page("", sort, True, start, 7)["rows"] for start in range(0, len(up), 7)]
    assert [row["storage"] for part in parts for row in part] == down


@pytest.mark.parametrize(
    ("query", "fits"),
    [
        ("h.2", lambda row: row["module"] == "h.2"),
        ("layer.3", lambda row: row["module"] == "h.3"),
        (">2MiB", lambda row: row["bytes"] > 2 << 20),
        ("category:param", lambda row: row["storage"].startswith("parameter:")),
        ("keep", lambda row: row["after"] == "keep"),
        ("swap gelu", lambda row: row["after"] == "swap" and "gelu" in row["storage"]),
        ("by:you", lambda row: row["by"] == "you"),
        ("stall>0", lambda row: row["stall_s"] > 0),
        ("staged", lambda row: row["staged"]),
    ],
)
def test_filters_find_what_they_say(editor, query, fits):
    everything = editor.page("", "bytes", True, 0, MAX_ROWS)["rows"]
    found = editor.page(query, "bytes", True, 0, MAX_ROWS)["rows"]
    assert [row["storage"] for row in found] == [row["storage"] for row in everything if fits(row)]


@pytest.mark.parametrize("query", ["by:nobody", ">lots", "stage:sideways"])
def test_a_filter_that_cannot_be_read_is_said_to_be(editor, query):
    with pytest.raises(ProtocolError) as caught:
        editor.page(query, "bytes", True, 0, 10)
    assert caught.value.code == "query" and caught.value.hint


def test_an_edit_is_planned_for_and_others_follow(editor):
    row = swapped_rows(editor)[0]
    editor.edit("add", [{"action": "keep", "storage": row["storage"]}], -1)
    state = planned(editor)
    assert not state["same"] and state["staged"] == 1 and state["can_undo"]
    assert state["draft"]["peak_bytes"] <= CAPACITY
    (kept,) = [r for r in editor.page("by:you", "bytes", True, 0, 10)["rows"]]
    assert kept["storage"] == row["storage"]
    assert (kept["before"], kept["after"], kept["staged"], kept["edit"]) == ("swap", "keep", True, 0)
    assert state["follows"] == editor.page("by:follows", "bytes", True, 0, MAX_ROWS)["total"] > 0


def test_changes_are_undone_redone_and_discarded(editor):
    key = swapped_rows(editor)[0]["storage"]
    for change, edits in (
        ("add", [{"action": "keep", "storage": key}]),
        ("add", [{"action": "prefetch", "category": "activation", "ops_earlier": 1}]),
    ):
        editor.edit(change, edits, -1)
    assert len(editor.state()["edits"]) == 2
    editor.edit("undo", [], -1)
    assert [entry["edit"]["action"] for entry in editor.state()["edits"]] == ["keep"]
    editor.edit("redo", [], -1)
    assert len(editor.state()["edits"]) == 2 and not editor.state()["can_redo"]
    editor.edit("discard", [], -1)
    assert editor.state()["same"] and editor.state()["can_undo"]
    editor.edit("undo", [], -1)
    editor.edit("remove", [], 0)
    assert [entry["edit"]["action"] for entry in editor.state()["edits"]] == ["prefetch"]


def test_a_new_answer_to_the_same_question_replaces_the_old_one(editor):
    key = swapped_rows(editor)[0]["storage"]
    editor.edit("add", [{"action": "keep", "storage": key}], -1)
    editor.edit("add", [{"action": "swap", "storage": key}], -1)
    editor.edit("add", [{"action": "prefetch", "storage": key, "ops_earlier": 2}], -1)
    editor.edit("add", [{"action": "prefetch", "storage": key, "ops_earlier": 3}], -1)
    told = [(entry["edit"]["action"], entry["edit"].get("ops_earlier")) for entry in editor.state()["edits"]]
    assert told == [("swap", None), ("prefetch", 3)]


@pytest.mark.parametrize(
    ("change", "edits", "index"),
    [
        ("add", [{"action": "fly", "storage": "a"}], -1),
        ("add", [{"action": "keep"}], -1),
        ("add", [{"storage": "a"}], -1),
        ("add", [{"action": "keep", "storage": 7}], -1),
        ("add", [{"action": "capacity", "capacity_bytes": -1}], -1),
        ("add", [{"action": "link", "link": {"out_bytes_per_s": "fast", "in_bytes_per_s": 1}}], -1),
        ("add", [{"action": "keep", "color": "red"}], -1),
        ("remove", [], 3),
        ("replace", [{"action": "keep", "storage": "a"}], 0),
    ],
)
def test_edits_that_are_none_are_refused_and_change_nothing(editor, change, edits, index):
    with pytest.raises(ProtocolError) as caught:
        editor.edit(change, edits, index)
    assert caught.value.code == "bad_edit"
    assert editor.state()["same"] and not editor.state()["can_undo"]


def test_a_slow_plan_is_estimated_first_and_told_to_be(monkeypatch):
    told = []
    editor = draft_editor(news=lambda: told.append(1))
    opened(editor)
    monkeypatch.setattr(plan_worker, "_AT_ONCE_S", 0.0)
    plans = editor._worker.plan
    goes_on = threading.Event()
    monkeypatch.setattr(editor._worker, "plan", lambda edits: (goes_on.wait(HANGS_AFTER_S), plans(edits))[1])
    key = swapped_rows(editor)[0]["storage"]
    heard, news = len(told), editor.state()["news"]
    editor.edit("add", [{"action": "keep", "storage": key}], -1)
    first = editor.state()  # the plan is not waited for
    goes_on.set()
    assert not first["exact"] and first["fits"] and first["draft"]["peak_bytes"] > 0
    assert editor.page("by:you", "bytes", True, 0, 10)["rows"][0]["after"] == "keep"
    state = planned(editor)
    until(
        lambda: editor.state()["news"] != news and len(told) != heard
    )  # it is told right after the plan is there
    assert state["draft"]["peak_bytes"] <= CAPACITY


def test_nothing_of_a_draft_is_planned_where_the_training_goes_on(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("planned in the kernel")

    for name in ("planner.draft", "planner.sweep", "lab.panel.planned"):
        monkeypatch.setattr(import_module(f"chameleon_lab.{name}"), "plan", refuse)
    editor = draft_editor()
    opened(editor)
    storage = swapped_rows(editor)[0]["storage"]
    editor.edit("add", [{"action": "keep", "storage": storage}], -1)
    assert planned(editor)["fits"]
    assert effects(editor, storage)
    editor.curve(True)
    assert len(whole_curve(editor)["points"]) == POINTS


def test_where_no_process_can_be_started_a_draft_is_planned_all_the_same(editor, monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    other = draft_editor(planner=PlannerProcess())
    assert opened(other)["draft"] == editor.state()["draft"]
    edit = {"action": "keep", "storage": swapped_rows(editor)[0]["storage"]}
    for each in (editor, other):
        each.edit("add", [edit], -1)
    assert planned(other)["draft"] == planned(editor)["draft"]


def test_an_edit_is_answered_with_its_plan_where_that_comes_before_the_estimate(editor, monkeypatch):
    """The plan is taken in while the estimate is made, and whatever plans took before."""
    estimate = plan_worker.PlanWorker._estimated

    def slowly(worker, draft, edits, *others):
        until(lambda: worker.get(edits) is not None)
        return estimate(worker, draft, edits, *others)

    monkeypatch.setattr(plan_worker.PlanWorker, "_estimated", slowly)
    monkeypatch.setattr(plan_worker, "_AT_ONCE_S", 0.0)
    edit = {"action": "keep", "storage": swapped_rows(editor)[0]["storage"]}
    editor.edit("add", [edit], -1)
    assert editor.state()["exact"]


@pytest.fixture
def mixed():
    """A draft of a plan that swaps and rematerializes; a drop of its first activation was declined."""
    step, _ = dropped_step(layers=6)
    slow = {"link_out_bytes_per_s": 3e8, "link_in_bytes_per_s": 3e8, "replay_class": 2}
    editor = draft_editor(step, META | slow)
    opened(editor)
    return editor


def test_replays_stand_beside_swaps_in_rows_and_figures(mixed):
    state = mixed.state()
    figures = state["draft"]
    rows = swapped_rows(mixed, "remat")
    assert figures["drops"] == sum(row["drops"] for row in rows) > 0
    assert {row["after"] for row in rows} == {"rematerialize"}
    assert sum(row["replay_s"] for row in rows) == pytest.approx(figures["replay_s"])
    assert figures["step_s"] == pytest.approx(state["compute_s"] + figures["stall_s"] + figures["replay_s"])
    assert all(row["replay_cost_s"] > 0 for row in rows)
    choices = mixed.choices(rows[0]["storage"])
    assert choices["cost"]["replay_s"] == pytest.approx(rows[0]["replay_cost_s"])
    assert choices["cost"]["replay_ops"] and choices["cost"]["copy_s"] == pytest.approx(
        2 * rows[0]["bytes"] / 3e8
    )
    weight = swapped_rows(mixed, "category:param")[0]
    assert weight["replay_cost_s"] is None
    assert "no op of the step makes it" in mixed.choices(weight["storage"])["cost"]["why_not_replay"]


def test_the_first_plan_of_a_trace_knows_what_its_session_did_not_replay():
    step, _ = dropped_step(layers=6)
    slow = {"link_out_bytes_per_s": 3e8, "link_in_bytes_per_s": 3e8, "replay_class": 2}
    editor = draft_editor(step, META | slow | {"refused": ["aten::gelu"]})
    opened(editor)
    dropped = {row["storage"] for row in swapped_rows(editor, "remat")}
    (declined,) = (step.storage_keys[row] for row in step.declined.storage.tolist())
    assert dropped and declined not in dropped and not any("gelu" in key for key in dropped)


def test_a_storage_and_a_rule_are_rematerialized_or_never_are(mixed):
    dropped = swapped_rows(mixed, "remat")
    storage = dropped[0]["storage"]
    before = planned(mixed)["draft"]
    mixed.edit("add", [{"action": "never_rematerialize", "storage": storage}], -1)
    state = planned(mixed)
    row = next(row for row in swapped_rows(mixed, "") if row["storage"] == storage)
    assert row["never_rematerialize"] and row["drops"] == 0 and row["by"] == "you" and row["staged"]
    assert state["findings"] == [] and state["staged"] == 1
    # Of the two, one decides: the other edit takes its place, either way.
    mixed.edit("add", [{"action": "rematerialize", "storage": storage}], -1)
    assert [entry["edit"]["action"] for entry in planned(mixed)["edits"]] == ["rematerialize"]
    row = next(row for row in swapped_rows(mixed, "by:you"))
    assert row["storage"] == storage and row["after"] == "rematerialize" and not row["never_rematerialize"]
    mixed.edit("add", [{"action": "never_rematerialize", "category": "activation"}], -1)
    mixed.edit("remove", [], 0)
    state = planned(mixed)
    assert state["draft"]["drops"] == 0 and state["draft"]["replay_s"] == 0 < before["replay_s"]
    assert state["draft"]["stall_s"] > before["stall_s"]
    mixed.edit("discard", [], -1)
    kept = next(
        row for row in swapped_rows(mixed, "category:act") if row["after"] == "keep" and row["replay_cost_s"]
    )
    mixed.edit("add", [{"action": "rematerialize", "storage": kept["storage"]}], -1)
    assert planned(mixed)["draft"]["drops"] > 0
    assert next(row for row in swapped_rows(mixed, "by:you"))["drops"] == 1


def test_an_edit_that_replays_is_estimated_before_it_is_planned(mixed, monkeypatch):
    dropped = swapped_rows(mixed, "remat")[0]
    before = mixed.state()["draft"]
    monkeypatch.setattr(plan_worker, "_AT_ONCE_S", 0.0)
    mixed.edit("add", [{"action": "never_rematerialize", "storage": dropped["storage"]}], -1)
    state = mixed.state()
    assert not state["exact"] and state["draft"]["drops"] == before["drops"] - 1
    assert state["draft"]["replay_s"] < before["replay_s"]
    planned(mixed)


def test_what_the_runtime_declined_is_told_in_its_row(mixed):
    rows = swapped_rows(mixed, "declined")
    step, _ = dropped_step(layers=6)
    assert [row["storage"] for row in rows] == [step.storage_keys[int(step.declined.storage[0])]]
    assert rows[0]["declined"] == REASONS[1]


def test_the_curve_of_a_plan_with_replays_has_replays(mixed):
    mixed.curve(True)
    curve = whole_curve(mixed)
    here = min(curve["points"], key=lambda point: abs(point["capacity_bytes"] - CAPACITY))
    assert here["step_s"] < 1.5 * mixed.state()["draft"]["step_s"]


def effects(editor, storage):
    """The cards of a storage once all of them are known."""
    return {option["action"]: option for option in choices(editor, storage)["options"]}


def choices(editor, storage):
    def ready():
        found = editor.choices(storage)
        return all(option["ready"] for option in found["options"]) and found

    return until(ready)


def whole_curve(editor):
    return until(lambda: not (curve := editor.curve(False))["left"] and curve)


def test_what_an_edit_does_is_told_against_a_plan_made_anew_without_it(mixed):
    nothing = {"step_s": 0, "peak_bytes": 0, "others": 0}
    # What is in force was planned on other op times: planning anew changes it, whatever an edit says.
    draft, bench_ = mixed._drafted()
    other = draft.op_times * np.linspace(0.2, 3.0, len(draft.op_times))
    mixed._opening = draft.retimed(other)
    bench_.retime(mixed._opening)
    mixed._table = None
    anew = bench_.plan((plan_worker._ANEW,))
    in_force = bench_.in_force
    assert anew.prediction.step_s != in_force.prediction.step_s, "planning anew shows nothing here"
    rows = mixed.page("", "bytes", True, 0, MAX_ROWS)["rows"]
    checked = set()
    for row in rows:
        done = str(anew.rows.action[bench_.candidates.place[row["storage"]]])
        if done in checked:
            continue
        checked.add(done)
        options = effects(mixed, row["storage"])
        assert options[done]["effect"] == nothing, (row["storage"], done)
        if done == "keep":
            assert options["never_touch"]["effect"] == nothing
        for action, option in options.items():
            there = bench_.get((Edit(EditAction(action), row["storage"]),))
            if option["effect"] is not None and option["effect"] != nothing:
                apart = there.prediction.step_s - anew.prediction.step_s
                assert option["effect"]["step_s"] == pytest.approx(apart)
    assert checked == {"keep", "swap", "rematerialize"}


def test_figures_say_which_op_times_they_use_and_nothing_was_measured_of_a_file(editor):
    state = editor.state()
    assert state["clock"] == f"op times of step {STEP.index}"
    assert state["now"] is None


def test_figures_say_what_half_the_link_would_cost():
    editor = draft_editor(meta=META | {"link_out_bytes_per_s": 3e8, "link_in_bytes_per_s": 3e8})
    opened(editor)
    planned(editor)
    policy, step, op_times = editor.predicted()
    wanted = simulate(step, policy, link=policy.link.reduced(0.5), op_times=op_times).step_s
    figures = editor.state()["current"]
    assert figures["half_link_step_s"] == wanted > figures["step_s"]
    storage = editor.page("swap", "bytes", True, 0, 1)["rows"][0]["storage"]
    editor.edit("add", [{"action": "keep", "storage": storage}], -1)
    draft, bench_ = editor._drafted()
    asked = draft.edits, bench_.in_force, bench_.candidates, bench_.op_times
    assert bench_._estimated(draft, *asked).figures.half_link_step_s is None, "an estimate has to be quick"
    figures = planned(editor)["draft"]
    policy, step, op_times = editor.predicted()
    assert (
        figures["half_link_step_s"]
        == simulate(step, policy, link=policy.link.reduced(0.5), op_times=op_times).step_s
    )


def test_the_curve_is_planned_for_as_the_policy_was():
    """So the policy lies on it: with the margins and the reserve that it left."""
    asked = {"margin": 0.05, "link_margin": 0.2, "reserve_bytes": CAPACITY // 20}
    times = step_op_times(STEP)
    base = plan(STEP, CAPACITY, "200MB/s", op_times=times, **asked)
    draft = base.draft(STEP)
    worker = plan_worker.PlanWorker(draft, base, META, PLANNER, lambda: None, lambda: False)
    worker._sweep_left, worker._sweep_link = [CAPACITY], base.link
    worker._sweep_at(CAPACITY)
    (point,) = worker.curve(draft, False)["points"]
    assert point["step_s"] == pytest.approx(simulate(STEP, base, op_times=times).step_s)
    plain = plan(STEP, CAPACITY, "200MB/s", op_times=times)
    assert point["step_s"] > simulate(STEP, plain, op_times=times).step_s, "the margins cost nothing here"


def test_a_plan_that_moves_nothing_has_no_overlap():
    editor = draft_editor(meta=META | {"capacity_bytes": 2 * STEP.live_peak_bytes})
    assert opened(editor)["current"]["overlap"] is None


def test_where_replays_are_off_a_card_says_so(editor):
    storage = swapped_rows(editor)[0]["storage"]
    assert editor.choices(storage)["cost"]["why_not_replay"] == "replaying is switched off"
    option = choices(editor, storage)["options"][-1]
    assert option["action"] == "rematerialize"
    assert not option["possible"] and "switched off" in option["why"]


def test_findings_stand_beside_their_edits(editor):
    key = swapped_rows(editor)[0]["storage"]
    edits = [
        {"action": "keep", "storage": "parameter:nothing.weight"},
        {"action": "keep", "module": "h.1"},
        {"action": "swap", "storage": key, "gap": 99},
    ]
    editor.edit("add", edits, -1)
    found = {finding["index"]: finding for finding in planned(editor)["findings"]}
    assert found[0]["fault"] == "unmatched" and "mean" in found[0]["way_out"]
    assert found[2]["fault"] == "impossible"
    assert 1 not in found


def test_a_draft_that_does_not_fit_says_which_edits_are_to_blame(editor):
    editor.edit("add", [{"action": "keep", "category": "activation"}], -1)
    state = planned(editor)
    assert not state["fits"] and state["draft"] is None
    (finding,) = state["findings"]
    assert finding["is_error"] and finding["index"] == 0
    assert editor.page("", "bytes", True, 0, 10)["total"] == state["rows"]
    with pytest.raises(ProtocolError) as caught:
        editor.settled()
    assert caught.value.code == "below_floor"


def test_a_capacity_below_the_floor_is_an_edit_that_does_not_fit(editor):
    lowest = floor(STEP).bytes
    editor.edit("add", [{"action": "capacity", "capacity_bytes": lowest - 1}], -1)
    state = planned(editor)
    assert not state["fits"] and "below the floor" in state["error"]
    assert state["capacity_bytes"] == lowest - 1 and state["floor"]["bytes"] == lowest
    assert "measured on a CPU (AVX2)" in state["floor"]["measured_on"]
    storage = editor.page("", "bytes", True, 0, 1)["rows"][0]["storage"]
    options = choices(editor, storage)["options"]
    assert {(option["possible"], option["why"]) for option in options} == {(False, "")}, (
        "the draft says why, once"
    )
    editor.edit("add", [{"action": "capacity", "capacity_bytes": lowest}], -1)
    state = planned(editor)
    assert state["fits"] and state["draft"]["peak_bytes"] <= lowest and len(state["edits"]) == 1


def test_choices_foresee_what_each_would_change(editor):
    key = swapped_rows(editor)[0]["storage"]
    found = choices(editor, key)
    by_action = {option["action"]: option for option in found["options"]}
    assert by_action["swap"]["chosen"] and not by_action["keep"]["chosen"]
    assert (
        found["gaps"][0]["action"] == "swap" and found["gaps"][0]["seconds"] >= found["gaps"][-1]["seconds"]
    )
    effect = by_action["keep"]["effect"]
    before = editor.state()["draft"]["step_s"]
    editor.edit("add", [{"action": "keep", "storage": key}], -1)
    assert planned(editor)["draft"]["step_s"] - before == pytest.approx(effect["step_s"])
    json.dumps(found)


def test_what_cannot_leave_is_told_why(editor):
    small = [key for key in STEP.storage_keys if key not in editor._worker.candidates.place]
    assert editor.choices("no such thing")["why"].startswith("The step that is planned has no such storage")
    for key in small:
        found = editor.choices(key)
        assert found["row"] is None and found["why"] and not found["options"]


def test_a_rule_is_counted_before_it_is_made(editor):
    meant = editor.matching({"action": "keep", "category": "parameter"})
    assert meant["storages"] == 6 and 0 < meant["movable"] <= 6 and meant["bytes"] > 0
    with pytest.raises(ProtocolError):
        editor.matching({"action": "keep"})


def test_changes_list_what_differs_in_the_plan(editor):
    assert editor.changes()["counts"] == [0, 0, 0]
    row = swapped_rows(editor)[0]
    editor.edit("add", [{"action": "keep", "storage": row["storage"]}], -1)
    planned(editor)
    found = editor.changes()
    assert found["counts"][1] >= row["swaps"]
    assert any(r["kind"] == "removed" and r["storage"] == row["storage"] for r in found["rows"])
    json.dumps(found)


def test_the_curve_is_worked_out_in_the_background(editor):
    assert editor.curve(False)["points"] == []
    editor.curve(True)
    found = whole_curve(editor)
    capacities = [point["capacity_bytes"] for point in found["points"]]
    assert capacities == sorted(capacities) and len(capacities) == found["of"] > 5
    assert capacities[0] == floor(STEP).bytes and capacities[-1] == STEP.live_peak_bytes
    times = [point["step_s"] for point in found["points"]]
    assert times[0] >= times[-1] == pytest.approx(editor.state()["compute_s"])
    assert found["knee_bytes"] in capacities
    editor.edit("add", [{"action": "link", "link": {"out_bytes_per_s": 1e9, "in_bytes_per_s": 1e9}}], -1)
    assert editor.curve(False)["points"] == [], "the curve of another link"


def test_saving_asks_before_it_overwrites_and_loading_brings_the_edits_back(editor, tmp_path):
    path = tmp_path / "policy.json"
    key = swapped_rows(editor)[0]["storage"]
    editor.edit(
        "add", [{"action": "keep", "storage": key}, {"action": "capacity", "capacity_bytes": CAPACITY}], -1
    )
    saved = editor.save(str(path), False)
    assert saved == {"path": str(path.resolve()), "bytes": path.stat().st_size}
    assert [edit.action.value for edit in Policy.load(path).edits] == ["keep", "capacity"]
    with pytest.raises(ProtocolError) as caught:
        editor.save(str(path), False)
    assert caught.value.code == "exists"
    editor.edit("discard", [], -1)
    editor.save(str(path.with_name("plain.json")), False)
    editor.load(str(path))
    assert [entry["edit"]["action"] for entry in editor.state()["edits"]] == ["keep", "capacity"]
    editor.edit("undo", [], -1)
    assert editor.state()["edits"] == [], "loading is one change"
    editor.save(str(path), True)
    assert Policy.load(path).edits == ()


def test_a_file_for_another_capacity_brings_it_along(editor, tmp_path):
    path = tmp_path / "policy.json"
    other = draft_editor(meta=META | {"capacity_bytes": CAPACITY + (8 << 20)})
    opened(other)
    other.save(str(path), False)
    editor.load(str(path))
    assert editor.state()["capacity_bytes"] == CAPACITY + (8 << 20)


@pytest.mark.parametrize("text", ["", "{", '{"chameleon_lab_policy": 99}', "[]"])
def test_a_file_that_is_no_policy_changes_nothing(editor, tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_text(text)
    for bad in (path, tmp_path / "missing.json", tmp_path):
        with pytest.raises(ProtocolError) as caught:
            editor.load(str(bad))
        assert caught.value.code == "bad_file" and str(bad) in str(caught.value)
    assert not editor.state()["can_undo"]
    with pytest.raises(ProtocolError) as caught:
        editor.save(str(tmp_path / "no" / "folder" / "policy.json"), False)
    assert caught.value.code == "bad_file"


def test_nothing_of_a_file_can_run(editor):
    for ask in (editor.dry_run, editor.enable, editor.roll_back):
        with pytest.raises(ProtocolError) as caught:
            ask()
        assert caught.value.code == "not_now" and "trace file" in str(caught.value)


def test_a_trace_without_link_or_capacity_can_be_edited_all_the_same():
    editor = draft_editor(meta={})
    state = opened(editor)
    assert state["capacity_bytes"] == STEP.live_peak_bytes
    assert state["draft"]["swaps"] == 0


def test_a_step_that_lost_ops_says_why_it_cannot_be_planned():
    editor = draft_editor(replace(STEP, truncated_ops=3))
    editor._opened.wait(HANGS_AFTER_S)
    state = editor.state()
    assert not state["editable"] and "has lost 3 ops" in state["why"]


# ---------------------------------------------------------------------------------------------- over the protocol


def ask(sources, method, **params):
    message = {"version": VERSION, "type": "request", "id": 1, "method": method, "params": params}
    envelope, buffers = answer(sources, message)
    assert buffers == []
    return envelope


@pytest.fixture
def sources(tmp_path):
    path = tmp_path / "run.parquet"
    Trace([STEP], META).save(path)
    found = Sources()
    source = found.open_file(str(path))
    opened(found.editor(source))
    yield found, source
    found.close()


def test_the_panel_edits_over_the_protocol(sources):
    lab, source = sources
    draft = ask(lab, "draft", source=source)["result"]
    assert draft["editable"] and draft["source"] == source
    page = ask(lab, "decisions", source=source, query="", sort="bytes", down=True, first_row=0, count=5)[
        "result"
    ]
    key = page["rows"][0]["storage"]
    edit = {"action": "never_touch", "storage": key}
    changed = ask(lab, "edit", source=source, change="add", edits=[edit])["result"]
    assert changed["edits"] == [{"edit": edit, "text": f"never touch {key}", "staged": True}]
    uid = ask(lab, "locate", source=source, first=STEP.index, last=STEP.index, storage=key)["result"]["uid"]
    assert uid in STEP.storages.uid
    assert ask(lab, "locate", source=source, first=STEP.index, last=STEP.index, storage="x")["result"] == {
        "uid": None
    }
    assert lab.draft_news()[source] == ask(lab, "draft", source=source)["result"]["news"]


def test_a_draft_is_drawn_as_a_step_and_is_a_side_of_a_comparison(sources):
    lab, source = sources
    planned(lab.editor(source))
    steps = {"source": f"draft:{source}", "first": STEP.index, "last": STEP.index}
    measured, before = (
        ask(lab, "scene", **{**steps, "source": name})["result"] for name in (source, steps["source"])
    )
    assert measured["steps"][0]["stage"] == "Profile" and before["steps"][0]["stage"] == "Draft"
    assert before["peak_bytes"] <= CAPACITY < measured["peak_bytes"]
    assert before["capacity_bytes"] == CAPACITY and sum(before["moved_bytes"]) > 0

    (policy,) = lab.status()["policies"]
    assert policy["name"] == f"draft of {source.removeprefix('file:')}" and policy["swaps"] > 0
    mark = lab.mark()
    sides = {"a": {"source": source, "step": STEP.index}, "b": {"source": policy["source"]}}
    compared = ask(lab, "compare", **sides)["result"]
    assert compared["b"]["kind"] == "predicted"
    assert compared["b"]["figures"]["peak_bytes"] == before["peak_bytes"]

    less = int(0.9 * CAPACITY)
    ask(lab, "edit", source=source, change="add", edits=[{"action": "capacity", "capacity_bytes": less}])
    planned(lab.editor(source))
    assert lab.mark() != mark, "the panel hears of it"
    after = ask(lab, "scene", **steps)["result"]
    assert after["capacity_bytes"] == less and after["peak_bytes"] <= less < before["peak_bytes"]
    assert ask(lab, "compare", **sides)["result"]["b"]["figures"]["peak_bytes"] == after["peak_bytes"]
    tiny = {"action": "capacity", "capacity_bytes": 1}
    ask(lab, "edit", source=source, change="add", edits=[tiny])
    planned(lab.editor(source))
    assert lab.status()["policies"] == []
    assert ask(lab, "compare", **sides)["error"]["code"] == "gone"
    assert ask(lab, "scene", **steps)["result"]["peak_bytes"] == after["peak_bytes"], "the newest that fits"


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("draft", {"source": "session:9"}, "gone"),
        ("edit", {"change": "sideways"}, "malformed"),
        ("edit", {"change": "add", "edits": ["keep"]}, "malformed"),
        ("edit", {"change": "add", "edits": [{"action": "keep"}]}, "bad_edit"),
        ("decisions", {"query": "", "sort": "color", "down": True, "first_row": 0, "count": 5}, "malformed"),
        ("decisions", {"query": "", "sort": "by", "down": 1, "first_row": 0, "count": 5}, "malformed"),
        ("decisions", {"query": "", "sort": "by", "down": True, "first_row": -1, "count": 5}, "malformed"),
        ("decisions", {"query": "", "sort": "by", "down": True, "first_row": 0, "count": 9999}, "malformed"),
        ("decisions", {"query": ">x", "sort": "by", "down": True, "first_row": 0, "count": 5}, "query"),
        ("choices", {"storage": "x" * 3000}, "too_large"),
        ("matching", {"edit": []}, "malformed"),
        ("load", {"path": "/no/such/file"}, "bad_file"),
        ("load", {"path": "/tmp/a\0b"}, "bad_file"),
        ("save", {"path": "/tmp/a\0b"}, "bad_file"),
        ("save", {"path": "/tmp/" + "x" * 2000}, "bad_file"),
        ("save", {"path": "", "overwrite": True}, "bad_file"),
        (
            "edit",
            {"change": "add", "edits": [{"action": "capacity", "capacity_bytes": 10**400}]},
            "bad_edit",
        ),
        ("enable", {}, "not_now"),
    ],
)
def test_bad_requests_are_answered_with_what_is_wrong(sources, method, params, code):
    lab, source = sources
    envelope = ask(lab, method, **({"source": source} | params))
    assert envelope["type"] == "error" and envelope["error"]["code"] == code, envelope
    assert ask(lab, "draft", source=source)["result"]["same"]


def test_a_closed_file_has_no_draft(sources):
    lab, source = sources
    lab.close_file(source)
    assert ask(lab, "draft", source=source)["error"]["code"] == "gone"
    assert lab.draft_news() == {}
