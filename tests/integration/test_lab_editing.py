"""The policy editor beside a session that trains: dry runs, enabling and rolling back from another thread."""

import os
import statistics
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hangs import until
from training import HANGS_AFTER_S, Gpt, adamw, raw, reference, state_bytes

import chameleon_lab as cl
from chameleon_lab.lab.panel import editing
from chameleon_lab.lab.panel.protocol import MAX_ROWS, ProtocolError, Side
from chameleon_lab.lab.panel.sources import Sources
from chameleon_lab.planner.memory import step_op_times
from chameleon_lab.runtime import core
from chameleon_lab.testing import modeled_time

STEPS = 10


class Loop:
    """A training loop, and a panel that asks from a thread of its own, as a kernel subshell does."""

    def __init__(self, session):
        torch.manual_seed(0)
        self.session = session
        self.model, self.generator = Gpt(), torch.Generator().manual_seed(0)
        self.optimizer = adamw(self.model.parameters())
        self.losses = []
        self.sources = Sources()
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="subshell")

    def step(self):
        loss = self.model(self.model.batch(self.generator))
        loss.backward()
        self.losses.append(raw(loss))
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.session.step()

    def panel(self, ask, *args):
        return self.thread.submit(ask, *args).result(timeout=HANGS_AFTER_S)

    def editor(self):
        editor = self.panel(self.sources.editor, self.sources.session()[0])
        self.exact(editor)
        return editor

    def exact(self, editor):
        def state():
            found = self.panel(editor.state)
            assert found["editable"] or found["why"] == "Preparing the draft", found
            return found["editable"] and found["exact"] and found

        return until(state)


@pytest.fixture(autouse=True)
def steady():
    """Plans that no clock decides."""
    with modeled_time():
        yield


@pytest.fixture
def loop(steady):
    _, live_peak = reference(Gpt, steps=STEPS)
    with cl.Session(capacity=live_peak // 2) as session:
        loop = Loop(session)
        yield loop
        loop.sources.close()


def kept_in_force(session):
    return {edit.storage for edit in session.policy.edits}


def test_before_there_is_a_policy_the_reason_is_told(loop):
    name = loop.sources.session()[0]
    loop.step()
    state = loop.panel(loop.sources.draft, name)
    assert not state["editable"] and "Profile" in state["why"]


@pytest.mark.bits
def test_a_draft_is_tried_enabled_and_rolled_back_at_step_borders_and_no_number_changes(loop):
    bare, _ = reference(Gpt, steps=STEPS)
    for _ in range(3):
        loop.step()
    first, editor = loop.session.policy, loop.editor()
    key = loop.panel(editor.page, "swap", "bytes", True, 0, MAX_ROWS)["rows"][0]["storage"]
    loop.panel(editor.edit, "add", [{"action": "keep", "storage": key}], -1)
    state = loop.exact(editor)
    assert state["why_not_enable"] == "" and not state["same"] and state["dry_run"] is None
    assert loop.session.policy is first, "nothing runs before it is asked for"

    loop.panel(editor.dry_run)
    assert loop.session.policy is first, "another thread does not switch between steps"
    assert loop.exact(editor)["dry_run"]["started"] is False
    loop.step()  # ends under the first policy
    assert key in kept_in_force(loop.session)
    loop.step()  # settles
    loop.step()  # is measured
    tried = loop.exact(editor)["dry_run"]
    assert tried["done"] and tried["of_draft"] and tried["note"] == ""
    assert tried["measured"]["peak_bytes"] <= state["draft"]["capacity_bytes"]
    assert loop.session.policy is first

    loop.panel(editor.enable)
    state = loop.exact(editor)
    assert state["waiting"] and state["same"] and state["staged"] == 0 and state["can_roll_back"]
    loop.step()
    loop.step()
    assert key in kept_in_force(loop.session) and not loop.exact(editor)["waiting"]

    loop.panel(editor.edit, "undo", [], -1)
    state = loop.exact(editor)
    assert state["staged"] == 1 and not state["same"], "what is in force is taken back in the draft alone"
    loop.panel(editor.roll_back)
    loop.step()
    assert loop.session.policy is first and loop.exact(editor)["same"]
    loop.step()
    assert (tuple(loop.losses), state_bytes(loop.model, loop.optimizer)) == (bare.losses, bare.state)


def test_a_capacity_edit_moves_the_peak_that_is_measured(loop):
    for _ in range(3):
        loop.step()
    editor = loop.editor()
    before = loop.exact(editor)
    less = int(0.8 * before["capacity_bytes"])
    loop.panel(editor.edit, "add", [{"action": "capacity", "capacity_bytes": less}], -1)
    assert loop.exact(editor)["draft"]["peak_bytes"] <= less
    loop.panel(editor.enable)
    for _ in range(4):
        loop.step()
    history = loop.session.report().history
    assert history[2].peak_bytes > less >= history[-1].peak_bytes


@pytest.mark.bits
@pytest.mark.skipif(not core.SEES_RAW_ACCESS, reason="nothing is replayed before torch 2.13")
def test_a_storage_is_rematerialized_tried_and_enabled_and_no_number_changes(loop):
    bare, _ = reference(Gpt, steps=STEPS)
    for _ in range(3):
        loop.step()
    editor = loop.editor()
    # What the planner swaps although its op could be replayed: a person may know better.
    rows = loop.panel(editor.page, "category:act", "bytes", True, 0, MAX_ROWS)["rows"]
    key = next(row["storage"] for row in rows if row["replay_cost_s"] and row["after"] != "rematerialize")
    loop.panel(editor.edit, "add", [{"action": "rematerialize", "storage": key}], -1)
    state = loop.exact(editor)
    assert state["findings"] == [] and state["draft"]["drops"] > state["current"]["drops"]
    assert state["draft"]["replay_s"] > 0

    loop.panel(editor.dry_run)
    for _ in range(3):
        loop.step()
    tried = loop.exact(editor)["dry_run"]
    assert tried["done"] and tried["note"] == "" and tried["measured"]["replay_s"] > 0
    assert tried["measured"]["replayed_bytes"] > 0 and editor.trial.prediction.replay_s > 0

    loop.panel(editor.enable)
    for _ in range(3):
        loop.step()
    step = loop.session.recorded_step(loop.session.recorded_steps()[-1])
    assert key in [step.storage_keys[row] for row in step.replays.storage.tolist()]
    status = loop.panel(loop.sources.status)["session"]
    assert status["drops"] == len(loop.session.policy.drops)
    assert loop.session.report().replays >= len(step.replays) > 0
    loop.step()
    assert (tuple(loop.losses), state_bytes(loop.model, loop.optimizer)) == (bare.losses, bare.state)


@pytest.mark.bits
def test_a_dry_run_is_judged_against_what_was_measured_before_it(loop):
    for _ in range(5):
        loop.step()
    editor = loop.editor()
    alike = [step for step in loop.session.history if step.plan == loop.session.history[-1].plan]
    now = loop.panel(editor.state)["now"]
    assert now["step_s"] == statistics.median(step.step_s for step in alike[-8:])
    assert now["stall_s"] == statistics.median(step.stall_s for step in alike[-8:])
    key = loop.panel(editor.page, "swap", "bytes", True, 0, MAX_ROWS)["rows"][0]["storage"]
    loop.panel(editor.edit, "add", [{"action": "keep", "storage": key}], -1)
    loop.exact(editor)
    loop.panel(editor.dry_run)
    for _ in range(4):
        loop.step()
    state = loop.exact(editor)
    assert state["dry_run"]["done"] and state["dry_run"]["before"] == state["now"] == now
    assert {"before", "measured", "change", "predicted"} <= set(str(editor.trial).split())
    assert f"{100 * (state['dry_run']['measured']['step_s'] / now['step_s'] - 1):+.1f} %" in str(editor.trial)


@pytest.mark.bits
def test_predictions_move_on_with_the_run_and_all_use_the_same_op_times(loop, monkeypatch):
    monkeypatch.setattr(editing, "_REST_S", 0.0)
    monkeypatch.setattr(editing, "_REST_SHARE", 0.0)
    for _ in range(3):
        loop.step()
    editor = loop.editor()
    first = loop.panel(editor.state)
    news = loop.panel(loop.sources.draft_news)[loop.sources.session()[0]]
    key = loop.panel(editor.page, "swap", "bytes", True, 0, MAX_ROWS)["rows"][0]["storage"]
    loop.panel(editor.edit, "add", [{"action": "keep", "storage": key}], -1)
    loop.exact(editor)
    for _ in range(4):
        loop.step()
    assert loop.panel(loop.sources.draft_news)[loop.sources.session()[0]] > news
    recorded = loop.session.recorded_steps()
    until(lambda: loop.panel(editor.state)["clock"].endswith(f"to {recorded[-1]}"))
    state = loop.exact(editor)
    assert state["clock"] != first["clock"]
    assert state["staged"] == 1 and state["can_undo"], "the draft stays what it was"
    times = [step_op_times(loop.session.recorded_step(index)) for index in recorded]
    assert state["compute_s"] == pytest.approx(float(np.median(times, axis=0).sum()))
    for source, figures in (("policy:in force", state["current"]), ("policy:draft", state["draft"])):
        side = loop.panel(loop.sources.side, Side(source, 0))
        assert side.says == state["clock"]
        for name in ("step_s", "stall_s", "overlap"):
            assert side.figures[name] == pytest.approx(figures[name])


def test_no_answer_waits_for_what_the_planner_is_doing(loop, monkeypatch, tmp_path):
    """For a plan of another draft, say, or for figures on newer op times: both follow."""
    monkeypatch.setattr(editing, "_REST_S", 0.0)
    monkeypatch.setattr(editing, "_REST_SHARE", 0.0)
    for _ in range(3):
        loop.step()
    editor = loop.editor()
    key = loop.panel(editor.page, "swap", "bytes", True, 0, MAX_ROWS)["rows"][0]["storage"]
    until(lambda: not editor._worker.is_at_work)
    first, pipe = loop.panel(editor.state), tmp_path / "pipe"
    os.mkfifo(pipe)
    busy = threading.Thread(target=loop.sources._planner.call, args=(Path.read_text, pipe))
    busy.start()
    writes = pipe.open("w")  # the process reads by now
    loop.step()
    assert loop.panel(editor.state)["clock"] == first["clock"]
    loop.panel(editor.edit, "add", [{"action": "keep", "storage": key}], -1)
    state = loop.panel(editor.state)
    assert not state["exact"] and state["fits"] and state["clock"] == first["clock"]
    writes.close()
    busy.join(HANGS_AFTER_S)
    assert loop.exact(editor)["staged"] == 1
    until(lambda: loop.panel(editor.state)["clock"] != first["clock"])


def test_a_draft_that_has_got_another_plan_is_planned_for_once(loop):
    for _ in range(3):
        loop.step()
    editor = loop.editor()
    old = editor._worker
    loop.panel(editor.rebase)
    assert editor._worker is not old
    old.want(())
    old.curve(editor._opening, True)
    old.wake()
    assert not old.is_at_work


def test_a_dry_run_that_waits_for_steps_can_be_stopped(loop):
    for _ in range(3):
        loop.step()
    editor, first = loop.editor(), loop.session.policy
    loop.panel(editor.edit, "add", [{"action": "keep", "category": "parameter"}], -1)
    loop.exact(editor)
    loop.panel(editor.dry_run)
    loop.panel(editor.end_dry_run)
    tried = loop.exact(editor)["dry_run"]
    assert tried["done"] and tried["note"] == "stopped" and tried["measured"] is None
    loop.step()
    assert loop.session.policy is first


def test_after_the_session_the_draft_can_be_saved_and_not_enabled(loop, tmp_path):
    for _ in range(3):
        loop.step()
    editor = loop.editor()
    loop.session.stop()
    loop.panel(editor.edit, "add", [{"action": "keep", "category": "parameter"}], -1)
    assert "has ended" in loop.exact(editor)["why_not_enable"]
    with pytest.raises(ProtocolError) as caught:
        loop.panel(editor.enable)
    assert caught.value.code == "not_now"
    assert loop.panel(editor.save, str(tmp_path / "policy.json"), False)["bytes"] > 0


@pytest.mark.bits
def test_many_switches_from_a_thread_while_steps_run_lose_nothing(loop):
    bare, _ = reference(Gpt, steps=STEPS)
    for _ in range(3):
        loop.step()
    editor = loop.editor()
    stop, failed = threading.Event(), []

    def worry():
        try:
            while not stop.is_set():
                editor.edit("add", [{"action": "keep", "category": "parameter"}], -1)
                editor.enable()
                editor.edit("discard", [], -1)
                editor.dry_run()
                editor.roll_back()
                editor.poll()
        except Exception as error:
            failed.append(error)

    panel = threading.Thread(target=worry)
    panel.start()
    for _ in range(STEPS - 3):
        loop.step()
    stop.set()
    panel.join(HANGS_AFTER_S)
    assert not failed and not panel.is_alive()
    assert (tuple(loop.losses), state_bytes(loop.model, loop.optimizer)) == (bare.losses, bare.state)
