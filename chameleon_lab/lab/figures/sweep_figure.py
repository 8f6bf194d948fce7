"""Step time against capacity as a Plotly figure, with the policy's own capacity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...planner import Floor, Sweep, floor, simulate, sweep
from ...planner.memory import MIN_SWAP_BYTES, step_op_times
from ...planner.sweep import POINTS, SweepPoint
from ...policy import Policy
from ...policy.model import fingerprint
from ...trace import StepTrace, Trace
from ...trace.trace import newest_step
from ...util.units import format_bytes, format_percent, format_seconds
from .palette import INK, INK_2, LINE, LOST, SESSION_STAGES
from .step_figures import byte_unit, load_plotly, style
from .worded import figure_in_words

if TYPE_CHECKING:
    import plotly.graph_objects as go

_LINE = 16  # pixels of a line under the title


def policy_sweep_figure(policy: Policy, trace: Trace | StepTrace) -> go.Figure:
    """:func:`sweep_figure` from the floor to the peak of a step, under the conditions of a policy, which is marked.

    Each capacity is planned for as the policy was: with its link, margins, reserve, edits and replays, and the op
    times that it was planned with. So the policy lies on the curve. One from a file, or drawn over other ops, has none:
    both are then predicted with the op times of the step, and the policy, made for others, may lie above. The figure
    says which they are. Raises what :func:`~chameleon_lab.planner.sweep` and :func:`sweep_figure` raise.
    """
    load_plotly()  # before the work
    step, op_times, clock = _basis(policy, newest_step(trace))
    seen = Trace([step], trace.meta if isinstance(trace, Trace) else {})
    options = policy.plan_options
    low = floor(seen, min_swap_bytes=options.get("min_swap_bytes", MIN_SWAP_BYTES)).bytes
    capacities = np.linspace(low, max(step.live_peak_bytes, low), POINTS).astype(np.int64).tolist()
    found = sweep(
        seen,
        [*capacities, policy.capacity_bytes],
        policy.link,
        op_times=op_times,
        edits=[edit for number, edit in enumerate(policy.edits) if number not in policy.disobeyed],
        **options,
    )
    now_s = simulate(step, policy, op_times=op_times).step_s
    return sweep_figure(found, capacity_bytes=policy.capacity_bytes, step_s=now_s, clock=clock)


def _basis(policy: Policy, step: StepTrace) -> tuple[StepTrace, np.ndarray, str]:
    """What a policy and its curve are predicted on: a step, its op times, float64 (ops,), and what those are.

    Where ``step`` is like the one that the policy was planned for, that one: what it knows of replays, planning has
    used too.
    """
    own, op_times = policy.source, policy.op_times
    if own is not None and op_times is not None:
        alike = len(own.ops) == len(step.ops) and own.live_peak_bytes == step.live_peak_bytes
        if own is step or (alike and fingerprint(own) == fingerprint(step)):
            return own, op_times, "the op times of the plan"
    times = step_op_times(step)
    if not step.ops.duration_s.any():
        return step, times, "every op taking as long, since no op times are known"
    return step, times, f"op times of step {step.index}"


def sweep_figure(
    found: Sweep, *, capacity_bytes: int | None = None, step_s: float | None = None, clock: str = ""
) -> go.Figure:
    """The predicted step time at each capacity of a sweep, with the floor and the knee.

    Args:
        found: what to draw.
        capacity_bytes: the capacity that is used now. None: not marked.
        step_s: predicted seconds of a step there. None: between those of the sweep's points.
        clock: what op times all of it was predicted with, in words.

    Raises:
        MissingPackageError: plotly is not installed.
        ValueError: no point of the sweep is above the floor.
    """
    go, _ = load_plotly()
    points = [point for point in found.points if point.feasible]
    if not points:
        raise ValueError(
            f"every capacity of the sweep is below the floor of {format_bytes(found.floor.bytes)} "
            f"({found.floor.measured_on}), so there is nothing to draw: sweep larger ones"
        )
    unit, scale = byte_unit(max(points[-1].capacity_bytes, found.live_peak_bytes, capacity_bytes or 0))
    x = [point.capacity_bytes / scale for point in points]
    figure = go.Figure()
    figure.add_trace(
        go.Scatter(
            x=x,
            y=[found.compute_s] * len(x),
            name="Without stalls",
            mode="lines",
            line={"color": SESSION_STAGES["Profile"], "width": 1.5, "dash": "dash"},
            hoverinfo="skip",
        )
    )
    figure.add_trace(
        go.Scatter(
            x=x,
            y=[point.step_s for point in points],
            name="Step, predicted",
            mode="lines+markers",
            line={"color": INK, "width": 2},
            marker={"size": 6},
            fill="tonexty",
            fillcolor=_faint(LOST),
            hovertext=[_hover(point, found) for point in points],
            hoverinfo="text",
        )
    )
    if found.knee is not None:
        knee = found.knee
        figure.add_trace(
            go.Scatter(
                x=[knee.capacity_bytes / scale],
                y=[knee.step_s],
                name=f"Knee {format_bytes(knee.capacity_bytes)}: at most {format_percent(found.within, 0)} longer",
                mode="markers",
                marker={
                    "symbol": "circle-open",
                    "size": 15,
                    "color": INK,
                    "line": {"width": 2, "color": INK},
                },
                hoverinfo="skip",
            )
        )
    if capacity_bytes is not None:
        figure.add_trace(
            go.Scatter(
                x=[capacity_bytes / scale],
                y=[_step_s_at(capacity_bytes, points) if step_s is None else step_s],
                name=f"Now {format_bytes(capacity_bytes)}",
                mode="markers",
                marker={"symbol": "diamond", "size": 12, "color": "#27438c"},
                hoverinfo="name+y",
            )
        )
    _mark(
        figure, found.floor.bytes / scale, f"Floor {format_bytes(found.floor.bytes)}", found.floor.measured_on
    )
    _mark(figure, found.live_peak_bytes / scale, f"Peak {format_bytes(found.live_peak_bytes)}")
    style(figure, "Step time against capacity", height=380, bottom=96)
    lines = [_floor_text(found.floor), *([f"Predicted with {clock}"] if clock else [])]
    figure.update_layout(
        title_subtitle={"text": "<br>".join(lines), "font": {"size": 11, "color": INK_2}},
        height=380 + _LINE * (len(lines) - 1),
        margin_t=66 + _LINE * (len(lines) - 1),
    )
    right = max(found.live_peak_bytes, capacity_bytes or 0, points[-1].capacity_bytes) / scale
    figure.add_vrect(x0=0, x1=found.floor.bytes / scale, fillcolor=LINE, opacity=0.6, line_width=0)
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(title_text=f"Capacity ({unit})", range=[0, 1.06 * right])
    figure.update_yaxes(tickformat="~s", ticksuffix="s", rangemode="tozero", title_text="Step")
    return figure_in_words(figure, lambda: "\n".join([str(found), *lines[1:]]))


def _hover(point: SweepPoint, found: Sweep) -> str:
    share = point.capacity_bytes / found.live_peak_bytes if found.live_peak_bytes else 1.0
    return (
        f"{format_bytes(point.capacity_bytes)}, {format_percent(share, 0)} of the peak<br>"
        f"step {format_seconds(point.step_s)}, stall {format_seconds(point.stall_s)}<br>"
        f"overlap {format_percent(point.overlap, 0)}, {format_bytes(point.swapped_out_bytes)} out, "
        f"{format_bytes(point.swapped_in_bytes)} in"
    )


def _step_s_at(capacity_bytes: int, points: list[SweepPoint]) -> float:
    """On the straight line between the points around a capacity."""
    known = [point.capacity_bytes for point in points]
    return float(np.interp(capacity_bytes, known, [point.step_s for point in points]))


def _floor_text(lowest: Floor) -> str:
    where = f" in {lowest.module}" if lowest.module else ""
    return f"Floor: set by {lowest.op_name}{where}; {lowest.measured_on}"


def _mark(figure: go.Figure, x: float, text: str, more: str | None = None) -> None:
    note = {
        "text": text,
        "font": {"size": 11, "color": INK_2},
        "yanchor": "bottom",
        "y": 1.0,
        "hovertext": more,
    }
    line = {"color": INK_2, "width": 1, "dash": "dot"}
    figure.add_vline(x=x, line=line, annotation=note, annotation_position="top")


def _faint(color: str) -> str:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"
