"""A step's occupancy as a Plotly widget: the policy's prediction beside the measurement."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import numpy as np

from ...planner import Draft, Prediction, simulate
from ...policy import Policy
from ...trace import Replays, Stalls, StepTrace, Trace
from ...util.units import format_bytes, format_seconds
from .packages import load, load_widgets
from .palette import LOST, PREDICTED, REPLAY
from .step_figures import (
    byte_unit,
    draw_capacity,
    draw_ghost,
    draw_pauses,
    draw_resident,
    draw_stages,
    load_plotly,
    replays_text,
    style,
    thin,
)
from .worded import step_in_words, widget_in_words

if TYPE_CHECKING:
    import plotly.graph_objects as go

_LINE_POINTS = 1200
_NAMED_STORAGES = 4


def trace_figure(
    trace: Trace | StepTrace, policy: Policy | Draft | None = None, *, step: int | None = None
) -> go.FigureWidget:
    """The resident bytes by category over a step, under the capacity; with a policy, predicted against measured.

    A click at an instant names the largest storages that were on the device then. With a policy there is a second
    row: the stall so far, predicted and measured, and the time of replays likewise, where something is dropped.

    Args:
        trace: a trace, or one step of it.
        policy: what the step is predicted under, with the op times that were recorded.
        step: the session's number of the step to draw. None: the newest.

    Raises:
        MissingPackageError: plotly or anywidget is not installed.
        ValueError: the trace is empty, has no step of that number, or the step has no ops.
    """
    go, make_subplots = load_plotly()
    load("anywidget", "anywidget", "Plotly's widgets")
    load_widgets()
    chosen = _chosen(trace, step)
    prediction = _prediction(chosen, policy)
    capacity_bytes = trace.meta.get("capacity_bytes") if isinstance(trace, Trace) else None
    if capacity_bytes is None and prediction is not None:
        capacity_bytes = prediction.capacity_bytes
    most = max(chosen.live_peak_bytes, chosen.peak_bytes, capacity_bytes or 0)
    if prediction is not None:
        most = max(most, prediction.peak_bytes)
    unit, scale = byte_unit(most)

    rows = 1 if prediction is None else 2
    headline = _title(chosen, prediction)
    figure = widget_in_words(
        make_subplots(
            rows=rows,
            cols=1,
            shared_xaxes=True,
            vertical_spacing=0.06,
            row_heights=[1.0] if rows == 1 else [0.74, 0.26],
        ),
        lambda: step_in_words(chosen, headline),
    )
    draw_resident(go, figure, chosen, unit, scale)
    draw_ghost(go, figure, chosen, unit, scale)
    if prediction is not None:
        _draw_predicted(go, figure, chosen, prediction, unit, scale)
        _draw_stall(go, figure, chosen, prediction)
        lost = "Stall, replays" if prediction.replay_s or len(chosen.replays) else "Stall"
        figure.update_yaxes(title_text=f"{lost} so far", tickformat="~s", ticksuffix="s", row=2, col=1)
        figure.update_yaxes(rangemode="tozero", row=2, col=1)
    if capacity_bytes is not None:
        draw_capacity(go, figure, chosen, capacity_bytes, scale)
    draw_stages(figure, chosen)
    if policy is None:
        draw_pauses(figure, chosen)
    style(figure, headline, height=420 if rows == 1 else 570, bottom=90 if rows == 1 else 120)
    figure.update_layout(margin_t=104)
    figure.update_yaxes(title_text=f"On the device ({unit})", rangemode="tozero", row=1, col=1)
    figure.update_xaxes(range=[0, chosen.duration_s], tickformat="~s", hoverformat=".4~s", ticksuffix="s")
    _name_what_is_there_on_click(figure, chosen)
    _fit_to_output(figure)
    return figure


def largest_at(step: StepTrace, second: float) -> list[tuple[str, int]]:
    """The storages on the device at a second of the step: key and bytes, largest first."""
    rows = step.residencies
    # What is there when the step ends stays.
    there = (rows.from_s <= second) & ((second < rows.to_s) | (rows.to_op >= len(step.ops)))
    storages = rows.storage[there]
    sizes = step.storages.block_bytes[storages]
    order = np.argsort(-sizes, kind="stable")
    return [(step.storage_keys[storages[k]], int(sizes[k])) for k in order.tolist()]


def _chosen(trace: Trace | StepTrace, index: int | None) -> StepTrace:
    if isinstance(trace, Trace):
        chosen = trace.last
        if index is not None:
            found = [step for step in trace if step.index == index]
            if not found:
                known = f"{trace.steps[0].index} to {trace.last.index}"
                raise ValueError(f"the trace has no step {index}: it has {known}")
            chosen = found[0]
    elif isinstance(trace, StepTrace):
        chosen = trace
    else:
        raise TypeError(f"trace_figure draws a Trace or a StepTrace, not {type(trace).__name__}")
    if not len(chosen.ops):
        raise ValueError(
            f"step {chosen.index} has no ops, so there is nothing to draw: train inside the session"
        )
    return chosen


def _prediction(step: StepTrace, policy: Policy | Draft | None) -> Prediction | None:
    if policy is None:
        return None
    return simulate(step, policy.policy() if isinstance(policy, Draft) else policy)


def _draw_predicted(
    go: Any, figure: go.FigureWidget, step: StepTrace, prediction: Prediction, unit: str, scale: int
) -> None:
    """At the measured time of each op, so that the two curves differ in bytes alone."""
    resident = prediction.resident_bytes
    kept = thin(step.ops.start_s, resident, _LINE_POINTS)
    figure.add_trace(
        go.Scatter(
            x=[*step.ops.start_s[kept].tolist(), step.duration_s],
            y=[*(resident[kept] / scale).tolist(), resident[-1] / scale],
            name="Predicted",
            mode="lines",
            line={"shape": "hv", "width": 1.6, "color": PREDICTED},
            hovertemplate=f"%{{y:.3~f}} {unit}",
        ),
        row=1,
        col=1,
    )


def _draw_stall(go: Any, figure: go.FigureWidget, step: StepTrace, prediction: Prediction) -> None:
    series = [
        ("Stall, measured", LOST, "solid", *_so_far(step.stalls)),
        ("Stall, predicted", PREDICTED, "solid", *_at_ops(step, prediction.stall_op_s)),
    ]
    if prediction.replay_s or len(step.replays):
        series += [
            ("Replays, measured", REPLAY, "dot", *_so_far(step.replays)),
            ("Replays, predicted", PREDICTED, "dot", *_at_ops(step, prediction.replay_op_s)),
        ]
    for name, color, dash, times, values in series:
        kept = thin(times, values, _LINE_POINTS) if len(times) else np.empty(0, dtype=np.int64)
        total = float(values[-1]) if len(values) else 0.0
        figure.add_trace(
            go.Scatter(
                x=[0.0, *times[kept].tolist(), step.duration_s],
                y=[0.0, *values[kept].tolist(), total],
                name=name,
                mode="lines",
                line={"shape": "hv", "width": 1.6, "color": color, "dash": dash},
                hovertemplate="%{y:.3~s}s",
            ),
            row=2,
            col=1,
        )


def _so_far(rows: Stalls | Replays) -> tuple[np.ndarray, np.ndarray]:
    """When each of these ended, and the seconds that they had taken together by then."""
    order = np.argsort(rows.start_s, kind="stable")
    return (rows.start_s + rows.duration_s)[order], np.cumsum(rows.duration_s[order])


def _at_ops(step: StepTrace, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ops that take any of these predicted seconds, by their measured start, and the sum by then."""
    some = np.flatnonzero(seconds > 0.0)
    return step.ops.start_s[some], np.cumsum(seconds)[some]


def _title(step: StepTrace, prediction: Prediction | None) -> str:
    measured_stall_s = float(step.stalls.duration_s.sum())
    measured = (
        f"Step {step.index}, {step.session_stage}: peak {format_bytes(step.peak_bytes)} of "
        f"{format_bytes(step.live_peak_bytes)} alive, {format_seconds(step.duration_s)}, "
        f"stall {format_seconds(measured_stall_s)}{replays_text(step)}"
    )
    if prediction is None:
        return measured
    return (
        f"{measured}<br>Predicted: peak {format_bytes(prediction.peak_bytes)}, "
        f"{format_seconds(prediction.step_s)}, stall {format_seconds(prediction.stall_s)}"
        + (f", replays {format_seconds(prediction.replay_s)}" if prediction.replay_s else "")
    )


def _fit_to_output(figure: go.FigureWidget) -> None:
    """Let it be as wide as its output, and not Plotly's 700 pixels, and follow when that changes.

    A widget is drawn before it is on the page, where it has no room yet: it takes its width once it is seen.
    """
    figure._config = {"responsive": True}  # what worded.py calls; there is no public way to say so

    def seen(change: dict[str, Any]) -> None:
        if change["new"]:
            figure.layout.autosize = None
            figure.layout.autosize = True

    figure.observe(seen, "_view_count")


def _name_what_is_there_on_click(figure: go.FigureWidget, step: StepTrace) -> None:
    title = figure.layout.title.text

    def clicked(trace: Any, points: Any, state: Any) -> None:
        if not points.xs:
            return
        second = float(points.xs[0])
        there = largest_at(step, second)
        named = ", ".join(f"{html.escape(key)} {format_bytes(size)}" for key, size in there[:_NAMED_STORAGES])
        figure.layout.title.text = (
            f"{title}<br><sub>At {format_seconds(second)}, {len(there)} storages; the largest: {named}</sub>"
        )

    for trace in figure.data:
        trace.on_click(clicked)
