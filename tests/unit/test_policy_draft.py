"""Drafts: changing, undoing, and looking before anything runs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from synthetic import declining, gpt_step

from chameleon_lab.errors import BelowFloorError, PolicyError
from chameleon_lab.planner import floor, plan, simulate
from chameleon_lab.planner.memory import step_op_times
from chameleon_lab.policy import Edit, EditAction, Fault, Link, Policy
from chameleon_lab.trace import Trace

STEP = gpt_step(layers=4)
BASE = plan(STEP, int(0.6 * STEP.live_peak_bytes), Link(4e9, 4e9), margin=0.02)
FIRST = BASE.swaps[0].storage


def test_an_unchanged_draft_is_its_base() -> None:
    draft = BASE.draft()
    assert draft.policy() is BASE and not draft.diff() and draft.validate() == ()
    assert draft.predict().stall_s == simulate(STEP, BASE).stall_s


def test_changes_show_in_policy_prediction_and_diff_and_leave_the_base_alone() -> None:
    draft = BASE.draft().keep(FIRST)
    assert FIRST not in {decision.storage for decision in draft.policy().swaps}
    assert FIRST in {decision.storage for decision in BASE.swaps} and BASE.edits == ()
    assert FIRST in {decision.storage for decision in draft.diff().removed}
    assert draft.predict().fits and draft.policy().edits == (Edit(EditAction.KEEP, FIRST),)
    assert draft.policy().assumed["margin"] == 0.02


def test_a_draft_is_planned_as_its_base_was() -> None:
    capacity = int(0.7 * STEP.live_peak_bytes)
    asked = {
        "min_swap_bytes": 4096,
        "margin": 0.03,
        "link_margin": 0.2,
        "reserve_bytes": capacity // 10,
        "host_capacity_bytes": STEP.live_peak_bytes,
    }
    base = plan(STEP, capacity, Link(4e9, 4e9), **asked)
    draft = base.draft().keep(base.swaps[0].storage)
    made = draft.policy()
    times = step_op_times(STEP)  # which a draft plans with
    assert made == plan(STEP, capacity, base.link, op_times=times, edits=draft.edits, **asked)
    assert {name: made.assumed[name] for name in asked} == asked
    assert made.plan_options == base.plan_options == asked | {"rematerialize": 0, "refused": ()}


def test_undo_and_redo_walk_through_every_change() -> None:
    draft = BASE.draft()
    seen = [draft.edits]
    for change in (
        lambda: draft.keep(FIRST),
        lambda: draft.never_touch(category="parameter"),
        lambda: draft.prefetch(module="h.0", ops_earlier=2),
        lambda: draft.replace(2, Edit(EditAction.PREFETCH, module="h.0", ops_earlier=1)),
        lambda: draft.set_capacity(STEP.live_peak_bytes),
        lambda: draft.remove(0),
        lambda: draft.set_capacity(str(STEP.live_peak_bytes - 1)),
        lambda: draft.set_link("2GB/s"),
        lambda: draft.remove(Edit(EditAction.NEVER_TOUCH, category="parameter")),
    ):
        change()
        seen.append(draft.edits)
    assert len(set(seen)) == len(seen)
    for edits in reversed(seen[:-1]):
        assert draft.can_undo and draft.undo() and draft.edits == edits
    assert not draft.can_undo and not draft.undo() and draft.edits == ()
    for edits in seen[1:]:
        assert draft.can_redo and draft.redo() and draft.edits == edits
    assert not draft.redo()
    draft.undo()
    draft.swap(FIRST)
    assert not draft.can_redo, "a new change ends what was undone"


def test_a_second_capacity_takes_the_place_of_the_first() -> None:
    draft = BASE.draft().set_capacity(STEP.live_peak_bytes).set_capacity(STEP.live_peak_bytes - 9)
    assert draft.edits == (Edit(EditAction.CAPACITY, capacity_bytes=STEP.live_peak_bytes - 9),)
    draft.set_link(("2GB/s", "1GB/s"))
    assert draft.policy().link == Link(2e9, 1e9) and draft.policy().capacity_bytes == STEP.live_peak_bytes - 9


def test_taking_back_a_capacity_brings_back_the_one_before_even_in_a_new_draft() -> None:
    kept = BASE.draft().set_capacity(STEP.live_peak_bytes).set_link("1GB/s").policy()
    draft = Policy.from_json(kept.to_json()).draft()
    draft.edits = ()
    assert (draft.policy().capacity_bytes, draft.policy().link) == (BASE.capacity_bytes, BASE.link)
    assert [d for d in draft.policy().decisions] == [d for d in BASE.decisions]


def test_validate_reports_and_never_raises_for_what_edits_did() -> None:
    draft = BASE.draft().keep("nothing").keep(FIRST)
    assert [(f.fault, f.index) for f in draft.validate()] == [(Fault.UNMATCHED, 0)]
    draft.set_capacity(floor(STEP).bytes - 1)
    assert [(f.fault, f.index) for f in draft.validate()] == [(Fault.UNMATCHED, 0), (Fault.UNREACHABLE, 2)]
    with pytest.raises(BelowFloorError):
        draft.predict()
    assert "unreachable" in str(draft) and "unreachable" in draft._repr_html_()


def test_an_edit_that_leaves_no_room_hides_no_other_finding() -> None:
    draft = BASE.draft().keep("nothing").keep(FIRST).swap(FIRST)
    before = [(f.fault, f.index) for f in draft.validate()]
    assert before == [(Fault.UNMATCHED, 0), (Fault.CONTRADICTED, 1)]
    draft.keep(min_bytes=1)
    assert [(f.fault, f.index) for f in draft.validate()] == [*before, (Fault.UNREACHABLE, 3)]


def test_findings_of_a_policy_from_a_file_are_found_again() -> None:
    policy = Policy.from_json(BASE.draft().keep("nothing").policy().to_json())
    assert policy.findings == () and [f.fault for f in policy.draft().validate()] == [Fault.UNMATCHED]


def test_a_draft_needs_a_step() -> None:
    lost = dataclasses.replace(BASE, source=None)
    with pytest.raises(PolicyError, match=r"give one, draft\(session\.trace\(\)\)"):
        lost.draft()
    assert lost.draft(STEP).predict().fits
    with pytest.raises(PolicyError, match="none at 5"):
        BASE.draft().replace(5, Edit(EditAction.KEEP, FIRST))
    with pytest.raises(PolicyError, match="0 edits, and not 0"):
        BASE.draft().remove(0)
    with pytest.raises(TypeError, match="not str"):
        BASE.draft().edits = ["keep"]  # type: ignore[list-item]


def test_a_draft_for_another_step_plans_for_it() -> None:
    longer = gpt_step(layers=4, tokens=5)
    draft = BASE.draft(longer).keep(FIRST)
    assert draft.policy().assumed["live_peak_bytes"] == longer.live_peak_bytes and draft.validate() == ()


def test_op_times_are_those_of_the_plan_and_of_the_prediction() -> None:
    times = np.full(len(STEP.ops), 2e-3)
    assert BASE.draft(op_times=times).predict().step_s == pytest.approx(
        simulate(STEP, BASE, op_times=times).step_s
    )


def test_a_draft_plans_with_the_replays_of_its_base() -> None:
    step = gpt_step(layers=8)
    capacity, link = int(0.5 * step.live_peak_bytes), Link(5e8, 5e8)
    base = plan(step, capacity, link, rematerialize=True, refused=("h.5/aten::mm.0#0",))
    dropped = {decision.storage for decision in base.drops}
    assert "h.2/aten::gelu.0#0" in dropped
    draft = base.draft().never_rematerialize("h.2/aten::gelu.0#0")
    made = draft.policy()
    assert "h.2/aten::gelu.0#0" not in {decision.storage for decision in made.drops} and made.drops
    assert draft.validate() == () and made.assumed["refused"] == ["h.5/aten::mm.0#0"]
    assert made.assumed["rematerialize"] == base.assumed["rematerialize"] == 2
    draft.rematerialize("h.2/aten::gelu.0#0")
    (drop,) = [d for d in draft.policy().drops if d.storage == "h.2/aten::gelu.0#0"]
    assert drop.decided_by == "user" and draft.validate()[0].fault is Fault.CONTRADICTED


def test_a_draft_for_another_step_knows_what_that_one_declined() -> None:
    step = gpt_step(layers=8)
    capacity, link = int(0.5 * step.live_peak_bytes), Link(5e8, 5e8)
    base = plan(step, capacity, link, rematerialize=True, refused=("h.5/aten::mm.0#0",))
    declined = "h.3/aten::gelu.0#0"
    newer = Trace([declining(step, declined)], {"replay_class": 2, "refused": ["aten::tanh"]})
    made = base.draft(newer).policy()
    assert made.assumed["refused"] == ["aten::tanh", declined, "h.5/aten::mm.0#0"]
    assert made.drops and declined not in {decision.storage for decision in made.drops}
    again = base.draft(declining(step, declined)).policy()
    assert again.assumed["refused"] == [declined, "h.5/aten::mm.0#0"]


def test_a_draft_of_a_plan_with_refusals_of_its_own_keeps_to_them() -> None:
    step = declining(gpt_step(layers=8), "h.3/aten::gelu.0#0")
    capacity, link = int(0.5 * step.live_peak_bytes), Link(5e8, 5e8)
    base = plan(step, capacity, link, rematerialize=True, refused=())
    for draft in (base.draft(), base.draft(step)):
        assert draft.keep(category="parameter").policy().assumed["refused"] == []


def test_without_replays_a_draft_says_that_it_cannot_rematerialize() -> None:
    (finding,) = BASE.draft().rematerialize("h.1/aten::gelu.0#0").validate()
    assert finding.fault is Fault.IMPOSSIBLE and "switched off" in finding.why
