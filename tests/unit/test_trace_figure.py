"""`trace.figure()`: what is drawn, and what is predicted beside it."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from synthetic import dropped_step, gpt_step

from chameleon_lab.lab.figures.packages import MissingPackageError
from chameleon_lab.lab.figures.trace_figure import largest_at
from chameleon_lab.planner import plan, simulate
from chameleon_lab.policy import Link
from chameleon_lab.trace import Trace

MIB = 1 << 20
STEP = gpt_step()
CAPACITY = int(0.6 * STEP.live_peak_bytes)
TRACE = Trace([replace(STEP, index=3), replace(STEP, index=4)], {"capacity_bytes": CAPACITY})
POLICY = plan(STEP, CAPACITY, Link(2e8, 2e8))


def drawn(figure, name):
    found = [trace for trace in figure.data if trace.name == name]
    assert len(found) == 1, [trace.name for trace in figure.data]
    return found[0]


def test_without_a_policy_it_stacks_what_was_resident_under_the_capacity():
    figure = TRACE.figure()
    assert type(figure).__name__ == "FigureWidget"
    stack = [trace for trace in figure.data if trace.stackgroup]
    highest = np.sum([np.array(trace.y) for trace in stack], axis=0).max()
    assert highest == STEP.peak_bytes / MIB
    assert list(drawn(figure, f"Capacity {CAPACITY / MIB:.1f} MiB").y) == [CAPACITY / MIB] * 2
    assert "Predicted" not in [trace.name for trace in figure.data]
    assert figure.layout.title.text.startswith("Step 4, Profile: peak")


def test_with_a_policy_the_prediction_is_drawn_at_the_measured_times():
    found = simulate(STEP, POLICY)
    figure = TRACE.figure(POLICY)
    predicted = drawn(figure, "Predicted")
    assert list(predicted.x) == [*STEP.ops.start_s.tolist(), STEP.duration_s]
    assert list(predicted.y)[:-1] == [size / MIB for size in found.resident_bytes.tolist()]
    stall = drawn(figure, "Stall, predicted")
    assert found.stall_s > 0 and list(stall.y)[-1] == pytest.approx(found.stall_s)
    assert list(drawn(figure, "Stall, measured").y) == [0.0, 0.0]
    assert f"Predicted: peak {found.peak_bytes / MIB:.1f} MiB" in figure.layout.title.text


def test_its_plain_text_is_words_and_its_widget_follows_its_room():
    found = TRACE.figure(POLICY)._repr_mimebundle_()
    text = found["text/plain"]
    assert "application/vnd.jupyter.widget-view+json" in found
    assert text.startswith("Step 4, Profile: peak") and "\nPredicted: peak" in text and "<br>" not in text
    assert "storages alive at op" in text and "activation" in text and len(text) < 3000
    module = str(TRACE.figure()._esm)
    assert "new ResizeObserver" in module[-2000:] and "as default" not in module[-1200:]


@pytest.mark.parametrize("name", ["step", "history", "sweep"])
def test_the_plain_text_of_static_figures_is_words(name, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    figure = POLICY.sweep_figure() if name == "sweep" else getattr(TRACE, f"{name}_figure")()
    monkeypatch.setattr(type(figure), "_repr_mimebundle_", lambda self: {"text/html": "<div>"})
    figure._ipython_display_()
    ((kinds, text),) = [(set(each), each["text/plain"]) for each in shown]
    assert kinds == {"text/html", "text/plain"}
    assert {"step": "Step 4", "history": "Profile: 2 steps", "sweep": "Floor:"}[name] in text
    assert "{" not in text and len(text) < 3000


def test_replays_are_drawn_beside_stalls_predicted_and_measured():
    step = dropped_step()[0]
    mixed = plan(step, CAPACITY, Link(1e8, 1e8), rematerialize=True)
    found = simulate(step, mixed)
    figure = Trace([step], {}).figure(mixed)
    measured = drawn(figure, "Replays, measured")
    assert measured.y[-1] == pytest.approx(float(step.replays.duration_s.sum()))
    predicted = drawn(figure, "Replays, predicted")
    assert found.replay_s > 0 and predicted.y[-1] == pytest.approx(found.replay_s)
    before = [op for op in range(len(step.ops)) if found.replay_op_s[op] > 0]
    assert list(predicted.x)[1:-1] == step.ops.start_s[before].tolist()
    assert figure.layout.yaxis2.title.text == "Stall, replays so far"
    assert ", 1 replay " in figure.layout.title.text and ", replays" in figure.layout.title.text


def test_a_draft_is_predicted_with_its_edits():
    draft = POLICY.draft(STEP).set_capacity(STEP.live_peak_bytes)
    figure = TRACE.figure(draft)
    assert max(drawn(figure, "Predicted").y) == STEP.live_peak_bytes / MIB
    assert drawn(figure, "Stall, predicted").y[-1] == 0


def test_a_step_of_the_trace_is_chosen_by_its_number():
    assert TRACE.figure(step=3).layout.title.text.startswith("Step 3,")
    with pytest.raises(ValueError, match="no step 9: it has 3 to 4"):
        TRACE.figure(step=9)
    with pytest.raises(ValueError, match="empty"):
        Trace([]).figure()


def test_a_click_names_the_largest_storages_of_that_instant():
    figure = TRACE.figure()
    second = float(STEP.ops.start_s[5])
    there = largest_at(STEP, second)
    assert sum(size for _, size in there) == sum(
        int(size)
        for size, start, end in zip(
            STEP.storages.block_bytes[STEP.residencies.storage],
            STEP.residencies.from_s,
            STEP.residencies.to_s,
            strict=True,
        )
        if start <= second < end
    )
    assert [size for _, size in there] == sorted((size for _, size in there), reverse=True)

    class Points:
        xs = [second]

    alive = drawn(figure, "Alive, without swapping")
    for callback in alive._click_callbacks:
        callback(alive, Points, None)
    assert there[0][0] in figure.layout.title.text and f"{len(there)} storages" in figure.layout.title.text


def test_as_html_it_is_one_page_with_its_data():
    page = TRACE.figure(POLICY).to_html(include_plotlyjs=False)
    assert "Predicted" in page and "Activations" in page


@pytest.mark.parametrize("package", ["anywidget", "ipywidgets"])
def test_what_is_missing_is_named(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=f"pip install {package}"):
        TRACE.figure()
