"""`policy.gantt()` and `draft.gantt()`: bars, edits by selection, and the page of HTML."""

from __future__ import annotations

import re
import sys
import types

import numpy as np
import pytest
from synthetic import gpt_step

from chameleon_lab.errors import PolicyError
from chameleon_lab.lab.figures.gantt import bars_of, gaps_of
from chameleon_lab.lab.figures.packages import MissingPackageError
from chameleon_lab.planner import floor, plan, simulate
from chameleon_lab.policy import Edit, EditAction, Link, Policy
from chameleon_lab.policy.model import NEVER, Action

STEP = gpt_step()
N = len(STEP.ops)
POLICY = plan(STEP, int(0.6 * STEP.live_peak_bytes), Link(4e8, 4e8), margin=0.02)


def away_ops(bars, storage, gap):
    """The ops at which a gap's bars say that it is away."""
    columns = zip(bars["storage"], bars["gap"], bars["part"], bars["left"], bars["right"], strict=True)
    return sorted(
        op
        for key, ordinal, part, left, right in columns
        if (key, ordinal, part) == (storage, gap, "away")
        for op in range(left, right)
    )


# ------------------------------------------------------------------------------------------------ bars


def test_bars_are_away_when_the_decisions_say_so():
    bars = POLICY.gantt().bars.data
    assert POLICY.swaps
    for decision in POLICY.swaps:
        end = decision.in_op if decision.in_op != NEVER else max(N, decision.free_op)
        expected = sorted(op % N for op in range(decision.free_op, end))
        assert away_ops(bars, decision.storage, decision.gap) == expected, decision
    assert any(decision.in_op > N for decision in POLICY.swaps), "none runs over the step's end"
    assert all(0 <= left < right <= N for left, right in zip(bars["left"], bars["right"], strict=True))


MIXED = plan(STEP, int(0.6 * STEP.live_peak_bytes), Link(1e8, 1e8), rematerialize=True)


def test_drops_have_dots_up_to_their_replay_and_are_told_from_swaps():
    chart = MIXED.gantt()
    bars = chart.bars.data
    assert MIXED.drops and MIXED.swaps
    for decision in MIXED.drops:
        own = {
            part: (left, right, hatch)
            for key, part, left, right, hatch in zip(
                *(bars[name] for name in ("storage", "part", "left", "right", "hatch")), strict=True
            )
            if key == decision.storage and part in ("dropped", "replayed", "away")
        }
        assert own["dropped"] == (decision.free_op, decision.in_op, "dot")
        assert own["replayed"][0] == decision.in_op and own["replayed"][2] == "blank"
        assert "away" not in own
    assert f"{len(MIXED.swaps)} swaps, {len(MIXED.drops)} drops" in chart._plot.title.text
    assert "made again by a replay" in " ".join(bars["decision"])


def test_a_legend_names_the_categories_and_the_shades_that_are_drawn():
    def named(chart):
        return {item.label.value for item in chart._legend.items}

    chart = POLICY.gantt()
    categories = set(chart.bars.data["category"])
    states = {"away, on the host", "its copy may run", "could leave, and stays"}
    assert categories and named(chart) == categories | states
    assert named(MIXED.gantt()) >= {"dropped", "made again by a replay"}
    dropped = MIXED.drops[0]
    draft = MIXED.draft().gantt()
    assert "decided by you" not in named(draft)
    draft.select((dropped.storage, dropped.gap)).rematerialize()
    assert "decided by you" in named(draft)
    for item in chart._legend.items:
        (sample,) = item.renderers
        assert np.isnan(sample.data_source.data["x"]).all(), "a sample is no bar"


def test_a_selected_gap_is_rematerialized_and_a_storage_never_is_any_more():
    dropped = MIXED.drops[0]
    chart = MIXED.draft().gantt().select((dropped.storage, dropped.gap))
    chart.keep()
    assert (dropped.storage, dropped.gap) not in [(d.storage, d.gap) for d in chart.policy.drops]
    chart.rematerialize()
    assert [edit.action for edit in chart.draft.edits] == [EditAction.REMATERIALIZE]
    assert (dropped.storage, dropped.gap) in [(d.storage, d.gap) for d in chart.policy.drops]
    assert "Replays" in chart.summary_html()
    chart.never_rematerialize()
    chart.never_rematerialize()
    assert chart.draft.edits == (Edit(EditAction.NEVER_REMATERIALIZE, dropped.storage),)
    assert dropped.storage not in [decision.storage for decision in chart.policy.drops]


def test_bytes_below_the_bars_are_those_of_the_prediction():
    chart = POLICY.gantt(STEP)
    found = simulate(STEP, POLICY)
    assert chart.resident.data["bytes"][:-1] == found.resident_bytes.tolist()
    assert chart.resident.data["op"] == list(range(N + 1))
    assert chart._capacity.location == POLICY.capacity_bytes


def test_too_many_swaps_leave_out_the_least():
    gaps = gaps_of(POLICY, STEP, most_swaps=2, most_kept=0)
    assert len(gaps.rows) == 2 and gaps.left_out == len(POLICY.swaps) - 2
    weights = sorted(
        gap.bytes * (gap.in_op - gap.free_op)
        for gap in gaps_of(POLICY, STEP).rows
        if gap.action is Action.SWAP
    )
    assert sorted(gap.bytes * (gap.in_op - gap.free_op) for gap in gaps.rows) == weights[-2:]


def test_kept_gaps_are_pale_and_below_the_swaps():
    rows = gaps_of(POLICY, STEP).rows
    kinds = [gap.action is Action.SWAP for gap in rows]
    assert kinds == sorted(kinds, reverse=True) and False in kinds
    swapped = {(gap.storage, gap.gap) for gap in rows if gap.action is Action.SWAP}
    assert not swapped & {(gap.storage, gap.gap) for gap in rows if gap.action is Action.KEEP}
    bars = bars_of(rows, N)
    alphas = {part: alpha for part, alpha in zip(bars["part"], bars["alpha"], strict=True)}
    assert alphas["kept"] < alphas["away"]


def test_a_policy_without_its_step_needs_one():
    bare = Policy(POLICY.capacity_bytes, POLICY.link, POLICY.decisions)
    with pytest.raises(PolicyError, match="has no step"):
        bare.gantt()
    assert bare.gantt(STEP).bars.data == POLICY.gantt().bars.data


# ------------------------------------------------------------------------------------------------ editing


@pytest.fixture
def chart():
    return POLICY.draft().gantt()


def test_keep_stages_an_edit_of_the_gap_and_redraws_with_the_new_prediction(chart):
    first = POLICY.swaps[0]
    peak, before = chart.prediction.peak_bytes, chart.bars.data
    chart.select((first.storage, first.gap))
    chart.keep()
    assert chart.draft.edits == (Edit(EditAction.KEEP, first.storage, gap=first.gap),)
    assert not away_ops(chart.bars.data, first.storage, first.gap) and chart.bars.data != before
    assert chart.prediction.stall_s == chart.draft.predict().stall_s
    assert chart.base_prediction.peak_bytes == peak
    assert chart.selected == ((first.storage, first.gap),), "the selection stays with the gap"
    assert POLICY.edits == ()
    chart.undo()
    assert chart.draft.edits == () and chart.bars.data == before
    chart.redo()
    assert not away_ops(chart.bars.data, first.storage, first.gap)


def test_swap_takes_the_place_of_keep():
    chart = plan(STEP, int(0.6 * STEP.live_peak_bytes), Link(1e11, 1e11)).draft().gantt()
    kept = next(gap for gap in chart.gaps.rows if gap.action is Action.KEEP and gap.category == "activation")
    chart.select((kept.storage, kept.gap))
    chart.keep()
    chart.swap()
    assert [edit.action for edit in chart.draft.edits] == [EditAction.SWAP]
    assert away_ops(chart.bars.data, kept.storage, kept.gap)
    data = chart.bars.data
    told = dict(zip(zip(data["storage"], data["gap"], strict=True), data["decision"], strict=True))
    assert told[kept.storage, kept.gap] == "swapped, as you said" and chart.message == ""


def test_never_touch_is_for_the_whole_storage_and_ends_what_was_said_of_its_gaps(chart):
    first = POLICY.swaps[0]
    chart.select(first.storage)
    chart.swap()
    chart.never_touch()
    assert chart.draft.edits == (Edit(EditAction.NEVER_TOUCH, first.storage),)
    assert first.storage not in {decision.storage for decision in chart.policy.swaps}


def test_earlier_and_later_add_up(chart):
    swap = next(d for d in POLICY.swaps if d.in_op != NEVER and d.use_op - d.free_op > 6)
    chart.select((swap.storage, swap.gap))
    chart.shift(-2)
    edit = Edit(EditAction.PREFETCH, swap.storage, gap=swap.gap, ops_earlier=-2)
    assert chart.draft.edits == (edit,)
    chart.shift(5)
    assert [edit.ops_earlier for edit in chart.draft.edits] == [3]
    chart.shift(-3)
    assert chart.draft.edits == ()


def test_a_bar_selected_in_the_browser_stands_for_its_whole_gap(chart):
    data = chart.bars.data
    swap = next(d for d in POLICY.swaps if d.in_op > N)
    parts = [
        k
        for k, key in enumerate(zip(data["storage"], data["gap"], strict=True))
        if key == (swap.storage, swap.gap)
    ]
    assert len(parts) > 1
    chart.bars.selected.indices = parts[:1]
    assert chart.selected == ((swap.storage, swap.gap),)
    assert chart.bars.selected.indices == parts


def test_buttons_do_the_same(chart):
    box = chart.widget
    first = POLICY.swaps[0]
    assert chart._buttons["Keep"].disabled and chart._buttons["Undo"].disabled
    chart.select((first.storage, first.gap))
    assert not chart._buttons["Keep"].disabled and first.storage in chart._selection.value
    chart._buttons["Keep"].click()
    assert chart.draft.edits[0].action is EditAction.KEEP and "keep" in chart._summary.value
    chart._ops.value = 3
    chart._buttons["Undo"].click()
    chart._buttons["Earlier"].click()
    assert [edit.ops_earlier for edit in chart.draft.edits] == [3]
    assert type(box.children[2]).__name__ == "BokehModel"


def test_an_edit_that_no_plan_fits_is_told_and_the_drawing_stays(chart):
    before = chart.bars.data
    chart.draft.set_capacity(floor(STEP).bytes - 1)
    chart.refresh()
    assert "below the floor" in chart.message and "Undo" in chart.message
    assert chart.bars.data is before
    chart.undo()
    assert chart.message == "" and chart.draft.edits == ()


def test_what_cannot_be_selected_is_told(chart):
    with pytest.raises(ValueError, match="'nothing' is not drawn"):
        chart.select("nothing")
    chart.select()
    chart.keep()
    assert "Nothing is selected" in chart.message and chart.draft.edits == ()


# ------------------------------------------------------------------------------------------------ showing


def test_a_page_holds_bars_and_figures_without_a_network(tmp_path, chart, caplog):
    chart.select(POLICY.swaps[0].storage)
    chart.keep()
    chart.save(tmp_path / "draft.html")
    page = (tmp_path / "draft.html").read_text()
    assert POLICY.swaps[-1].storage in page
    assert "<th>draft</th>" in page and "keep " + POLICY.swaps[0].storage in page
    assert not re.search(r"<(script|link)[^>]+(src|href)=", page)
    assert caplog.text == ""  # Bokeh warns of callbacks that a page cannot have


def test_a_notebook_gets_the_widget_and_words_for_where_there_are_none(chart):
    bundle = chart._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert "<th>draft</th>" in bundle["text/html"] and "swaps" in bundle["text/plain"]


@pytest.mark.parametrize(
    ("module", "package"), [("bokeh.models", "bokeh"), ("jupyter_bokeh", "jupyter_bokeh")]
)
def test_what_is_missing_is_named(monkeypatch, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingPackageError, match=f"pip install {package}"):
        _ = POLICY.gantt().widget


def test_colab_is_told_to_show_widgets(monkeypatch):
    asked = []
    output = types.ModuleType("google.colab.output")
    output.enable_custom_widget_manager = lambda: asked.append(True)
    monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    monkeypatch.setitem(sys.modules, "google.colab.output", output)
    _ = POLICY.gantt().widget
    assert asked
