"""Figures of a step and of a session, for notebooks: static Plotly figures that also work as offline HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...report.session_report import Report, StepSummary
from ...report.trace_report import RecordedStep, TraceReport
from ...trace import Cause, Direction, Pause, StepTrace, Trace
from ...trace.occupancy import resident_by_category
from ...util.units import format_bytes, format_seconds
from .packages import load
from .palette import INK, INK_2, LINE, LOST, REPLAY, SESSION_STAGES, STACK, TRANSFER, TRANSFER_FORCED
from .stage_runs import stage_runs
from .worded import figure_in_words, step_in_words

if TYPE_CHECKING:
    import plotly.graph_objects as go

# Plotly stays fluent up to about 5000 points a figure: five stacked areas, the ghost, the bars of three lanes.
_AREA_POINTS = 600
_GHOST_POINTS = 600
_LANE_BARS = 400
_SESSION_BARS = 1000


def step_figure(
    trace_or_step: Trace | StepTrace, *, title: str | None = None, capacity_bytes: int | None = None
) -> go.Figure:
    """What one step held on the device, what it moved, and where it waited; over the seconds of the step.

    From the top: the resident bytes by category, under the capacity (solid line) and under what would be alive
    without swapping (dashes); the transfers, out and in; the stalls, and the replays of what was dropped, if there are
    any. Long steps are thinned to what a browser draws at ease; the highest total in each thinned stretch stays.

    Args:
        trace_or_step: a step, or a trace, of which the newest step is drawn.
        title: replaces the title that names the step and its figures.
        capacity_bytes: where the capacity line is drawn; a trace knows its own. None: no line.

    Raises:
        MissingPackageError: plotly is not installed.
        ValueError: the trace is empty, or the step has no ops.
        TypeError: it is neither a trace nor a step.
    """
    go, make_subplots = load_plotly()
    if isinstance(trace_or_step, Trace):
        step = trace_or_step.last
        if capacity_bytes is None:
            capacity_bytes = trace_or_step.meta.get("capacity_bytes")
    elif isinstance(trace_or_step, StepTrace):
        step = trace_or_step
    else:
        raise TypeError(
            f"step_figure draws a Trace or a StepTrace, not {type(trace_or_step).__name__}: pass session.trace()"
        )
    if not len(step.ops):
        raise ValueError(
            f"step {step.index} has no ops, so there is nothing to draw: train inside the session"
        )

    unit, scale = byte_unit(max(step.live_peak_bytes, step.peak_bytes, capacity_bytes or 0))
    heights = [0.66, 0.17, 0.17] if len(step.replays) else [0.72, 0.18, 0.10]
    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.035, row_heights=heights)
    draw_resident(go, figure, step, unit, scale)
    draw_ghost(go, figure, step, unit, scale)
    if capacity_bytes is not None:
        draw_capacity(go, figure, step, capacity_bytes, scale)
    _draw_transfers(go, figure, step)
    _draw_stalls(go, figure, step)
    if len(step.replays):
        _draw_replays(go, figure, step)
    draw_stages(figure, step)
    draw_pauses(figure, step)
    headline = _step_title(step) if title is None else title
    style(figure, headline, height=560, bottom=90)
    figure.update_yaxes(title_text=f"On the device ({unit})", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(showgrid=False, range=[1.6, -0.6], row=2, col=1)
    figure.update_yaxes(showgrid=False, row=3, col=1)
    figure.update_xaxes(range=[0, step.duration_s], tickformat="~s", hoverformat=".4~s", ticksuffix="s")
    figure.update_layout(barmode="overlay", bargap=0.3)
    return figure_in_words(figure, lambda: step_in_words(step, headline))


PAUSES = {Pause.IDLE: "no op ran", Pause.LOADING: "data loading", Pause.CELLS: "between cells"}
"""What pauses are called."""

_MOST_PAUSES = 8
_LEAST_PAUSE = 0.02


def draw_pauses(figure: go.Figure, step: StepTrace) -> None:
    """A mark where the longest pauses of a step lie, with what they were: the axis stands still meanwhile."""
    rows = step.pauses
    longest = np.argsort(-rows.duration_s, kind="stable")[:_MOST_PAUSES]
    for row in longest[rows.duration_s[longest] >= _LEAST_PAUSE * step.duration_s].tolist():
        figure.add_vline(
            x=float(rows.at_s[row]),
            line={"color": INK_2, "width": 1, "dash": "dashdot"},
            annotation={
                "text": f"⏸ {format_seconds(float(rows.duration_s[row]))} {PAUSES[Pause(int(rows.kind[row]))]}",
                "font": {"size": 10, "color": INK_2},
                "textangle": -90,
                "yanchor": "top",
            },
            annotation_position="top right",
            row=1,
            col=1,
        )


def history_figure(trace: Trace) -> go.Figure:
    """The same as :func:`session_figure`, of the steps that a trace holds."""
    return session_figure(TraceReport.of(trace))


def session_figure(report: Report | TraceReport) -> go.Figure:
    """The time of each step of a session or a trace, by the session's stage, with the stall and the replays in it.

    Of long sessions each bar stands for several steps, and shows the slowest of them.

    Raises:
        MissingPackageError: plotly is not installed.
        ValueError: no step has ended yet.
    """
    go, _ = load_plotly()
    history: Sequence[StepSummary | RecordedStep] = report.history
    if not history:
        raise ValueError("no step has ended yet, so there is nothing to draw: train at least one whole step")
    per_bar = -(-len(history) // _SESSION_BARS)
    groups = [history[i : i + per_bar] for i in range(0, len(history), per_bar)]
    shown = [max(group, key=lambda step: step.step_s) for group in groups]
    figure = go.Figure()
    for stage, color in SESSION_STAGES.items():
        bars = [step for step in shown if step.stage == stage]
        if bars:
            figure.add_trace(
                go.Bar(
                    x=[step.index for step in bars],
                    y=[step.step_s - step.stall_s - step.replay_s for step in bars],
                    width=per_bar if per_bar > 1 else 0.8,
                    name=stage,
                    marker={"color": color, "line": {"width": 0}},
                    hovertext=[
                        f"Step {step.index}, {step.stage}<br>{format_seconds(step.step_s)}, of which stall "
                        f"{format_seconds(step.stall_s)}, replays {format_seconds(step.replay_s)}<br>peak resident "
                        f"{format_bytes(step.peak_bytes)}<br>moved "
                        f"{format_bytes(step.swapped_out_bytes)} out, {format_bytes(step.swapped_in_bytes)} in"
                        for step in bars
                    ],
                    hoverinfo="text",
                )
            )
    parts = [("Stall", LOST, [step.stall_s for step in shown])]
    if any(step.replay_s for step in shown):
        parts.insert(0, ("Replays", REPLAY, [step.replay_s for step in shown]))
    for name, color, seconds in parts:
        figure.add_trace(
            go.Bar(
                x=[step.index for step in shown],
                y=seconds,
                width=per_bar if per_bar > 1 else 0.8,
                name=name,
                marker={"color": color, "line": {"width": 0}},
                hovertext=[
                    f"Step {step.index}<br>{name.lower()} {format_seconds(value)}"
                    for step, value in zip(shown, seconds, strict=True)
                ],
                hoverinfo="text",
            )
        )
    slowest = "" if per_bar == 1 else f", the slowest of every {per_bar}"
    style(figure, f"Step time over the session{slowest}", height=320, bottom=76)
    figure.update_layout(barmode="stack", hovermode="closest")
    figure.update_xaxes(title_text="Step", tickformat="d")
    figure.update_yaxes(tickformat="~s", ticksuffix="s", rangemode="tozero")
    return figure_in_words(figure, lambda: _history_in_words(report))


def _history_in_words(report: Report | TraceReport) -> str:
    lines = ["Step time over the session:"]
    for stage in SESSION_STAGES:
        steps = [step for step in report.history if step.stage == stage]
        if steps:
            slowest = max(steps, key=lambda step: step.step_s)
            lost = f"stall {format_seconds(sum(step.stall_s for step in steps) / len(steps))} on average"
            lines.append(
                f"  {stage}: {len(steps)} steps, median {format_seconds(float(np.median([s.step_s for s in steps])))}, "
                f"slowest {format_seconds(slowest.step_s)} (step {slowest.index}); {lost}"
            )
    return "\n".join(lines)


def thin(times: np.ndarray, values: np.ndarray, most: int) -> np.ndarray:
    """Which of many points to draw: in each of equally long stretches the highest, the lowest and the last.

    Args:
        times: shape (T,), ascending.
        values: shape (T,).
        most: how many points may stay, at least 4.

    Returns:
        Ascending indices, at most ``most`` of them; all where there are no more.
    """
    if len(times) <= most:
        return np.arange(len(times))
    edges = np.linspace(times[0], times[-1], (most - 1) // 3 + 1)[1:-1]
    bounds = np.unique(np.concatenate([[0], np.searchsorted(times, edges), [len(times)]]))
    keep = {0}
    for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
        piece = values[start:stop]
        keep |= {start + int(piece.argmax()), start + int(piece.argmin()), int(stop) - 1}
    return np.array(sorted(keep))


def draw_resident(go: Any, figure: go.Figure, step: StepTrace, unit: str, scale: int) -> None:
    """The resident bytes by category, stacked, in the first row."""
    times, levels = resident_by_category(step)
    total = levels.sum(axis=1)
    kept = thin(times, total, _AREA_POINTS)
    # The last level holds until the step ends.
    x = np.append(times[kept], step.duration_s).tolist()
    for name, color, categories in STACK:
        level = levels[kept][:, [int(category) for category in categories]].sum(axis=1) / scale
        if not level.any():
            continue
        figure.add_trace(
            go.Scatter(
                x=x,
                y=np.append(level, level[-1]).tolist(),
                name=name,
                mode="lines",
                stackgroup="resident",
                line={"shape": "hv", "width": 0, "color": color},
                fillcolor=color,
                hovertemplate=f"%{{y:.3~f}} {unit}",
            ),
            row=1,
            col=1,
        )


def draw_capacity(go: Any, figure: go.Figure, step: StepTrace, capacity_bytes: int, scale: int) -> None:
    """A line over the whole step, in the first row."""
    figure.add_trace(
        go.Scatter(
            x=[0.0, step.duration_s],
            y=[capacity_bytes / scale] * 2,
            mode="lines",
            name=f"Capacity {format_bytes(capacity_bytes)}",
            line={"color": INK, "width": 2},
            hoverinfo="skip",
        ),
        row=1,
        col=1,
    )


def draw_ghost(go: Any, figure: go.Figure, step: StepTrace, unit: str, scale: int) -> None:
    """What would be alive without swapping, in dashes, in the first row."""
    alive = step.ops.live_peak_bytes
    kept = thin(step.ops.start_s, alive, _GHOST_POINTS)
    x = np.append(step.ops.start_s[kept], step.duration_s)
    y = np.append(alive[kept], alive[-1]) / scale
    figure.add_trace(
        go.Scatter(
            x=x.tolist(),
            y=y.tolist(),
            name="Alive, without swapping",
            mode="lines",
            line={"shape": "hv", "width": 1.2, "dash": "dash", "color": INK_2},
            hovertemplate=f"%{{y:.3~f}} {unit}",
        ),
        row=1,
        col=1,
    )


def _draw_transfers(go: Any, figure: go.Figure, step: StepTrace) -> None:
    rows = step.transfers
    done = ~np.isnan(rows.end_s)
    planned = rows.cause == Cause.PLANNED
    kinds = (("Planned transfer", TRANSFER, planned), ("Forced transfer", TRANSFER_FORCED, ~planned))
    for name, color, of_kind in kinds:
        lanes = {}
        for direction, label in ((Direction.OUT, "Out"), (Direction.IN, "In")):
            chosen = np.flatnonzero(done & of_kind & (rows.direction == direction))
            lanes[label] = _bars(chosen, rows.start_s[chosen], rows.end_s[chosen], step.duration_s)

        def say(bar: _Bar, lane: str) -> str:
            first = int(bar.rows[0])
            what = (
                f"{_key(step, int(rows.storage[first]))}<br>{Cause(int(rows.cause[first])).name.lower()}"
                if len(bar.rows) == 1
                else f"{len(bar.rows)} transfers"
            )
            moved = format_bytes(int(rows.bytes[bar.rows].sum()))
            return f"{lane}: {moved} in {format_seconds(bar.end_s - bar.start_s)}<br>{what}"

        # An empty trace keeps both lanes on the axis of a step that moved nothing.
        if any(lanes.values()) or of_kind is planned:
            _add_bars(go, figure, 2, name, color, lanes, say)
    figure.update_yaxes(categoryorder="array", categoryarray=["Out", "In"], row=2, col=1)


def _draw_stalls(go: Any, figure: go.Figure, step: StepTrace) -> None:
    rows = step.stalls
    every = np.arange(len(rows.start_s))

    def say(bar: _Bar, lane: str) -> str:
        first = int(bar.rows[0])
        what = (
            f"{step.op_name(int(rows.op[first]))} waited for {_key(step, int(rows.storage[first]))}"
            if len(bar.rows) == 1 and 0 <= rows.op[first] < len(step.ops)
            else f"{len(bar.rows)} waits"
        )
        return f"{lane}: {format_seconds(float(rows.duration_s[bar.rows].sum()))}<br>{what}"

    bars = _bars(every, rows.start_s, rows.start_s + rows.duration_s, step.duration_s)
    _add_bars(go, figure, 3, "Stall", LOST, {"Stall": bars}, say)
    figure.update_yaxes(
        type="category", categoryorder="array", categoryarray=["Stall"], range=[-0.6, 0.6], row=3, col=1
    )
    if not len(every):
        figure.add_annotation(
            text="none",
            x=0,
            y="Stall",
            xanchor="left",
            xshift=4,
            showarrow=False,
            font={"color": INK_2},
            row=3,
            col=1,
        )


def _draw_replays(go: Any, figure: go.Figure, step: StepTrace) -> None:
    """A lane of their own, below the stalls."""
    rows = step.replays
    every = np.arange(len(rows.start_s))

    def say(bar: _Bar, lane: str) -> str:
        first = int(bar.rows[0])
        what = (
            f"{step.names[rows.name[first]]} made {_key(step, int(rows.storage[first]))} again, "
            f"for {step.op_name(int(rows.op[first]))} ({Cause(int(rows.cause[first])).name.lower()})"
            if len(bar.rows) == 1
            else f"{len(bar.rows)} ops ran again"
        )
        took = format_seconds(float(rows.duration_s[bar.rows].sum()))
        return f"{lane}: {format_bytes(int(rows.bytes[bar.rows].sum()))} in {took}<br>{what}"

    bars = _bars(every, rows.start_s, rows.start_s + rows.duration_s, step.duration_s)
    _add_bars(go, figure, 3, "Replay", REPLAY, {"Replay": bars}, say)
    figure.update_yaxes(categoryarray=["Stall", "Replay"], range=[1.6, -0.6], row=3, col=1)


class _Bar(NamedTuple):
    """One bar of a lane, and the rows of the table that share it."""

    rows: np.ndarray
    start_s: float
    end_s: float


def _bars(rows: np.ndarray, starts: np.ndarray, ends: np.ndarray, duration_s: float) -> list[_Bar]:
    """The bars of one lane: one a row while they are few, else neighbors too close to be told apart share one."""
    order = np.argsort(starts, kind="stable")
    rows, starts, ends = rows[order], starts[order], ends[order]
    bounds = np.arange(len(rows) + 1)
    if len(rows) > _LANE_BARS:
        slot = np.minimum((starts / (duration_s or 1.0) * _LANE_BARS).astype(np.int64), _LANE_BARS - 1)
        bounds = np.concatenate([[0], np.flatnonzero(np.diff(slot)) + 1, [len(rows)]])
    return [
        _Bar(rows[a:b], float(starts[a:b].min()), float(ends[a:b].max()))
        for a, b in zip(bounds[:-1], bounds[1:], strict=True)
    ]


def _add_bars(
    go: Any,
    figure: go.Figure,
    row: int,
    name: str,
    color: str,
    lanes: dict[str, list[_Bar]],
    say: Callable[[_Bar, str], str],
) -> None:
    """Draw the bars of these lanes in one of the figure's rows; ``say`` tells of one at the pointer."""
    drawn = [(lane, bar) for lane, bars in lanes.items() for bar in bars]
    lengths: list[float | None] = [bar.end_s - bar.start_s for _, bar in drawn]
    # Lanes without a bar have one that is not drawn: an axis without any would be one of numbers.
    figure.add_trace(
        go.Bar(
            x=lengths or [None] * len(lanes),
            y=[lane for lane, _ in drawn] or list(lanes),
            base=[bar.start_s for _, bar in drawn] or None,
            orientation="h",
            name=name,
            marker={"color": color, "line": {"width": 0}},
            hovertext=[say(bar, lane) for lane, bar in drawn],
            hoverinfo="text",
            showlegend=bool(drawn),
        ),
        row=row,
        col=1,
    )


def draw_stages(figure: go.Figure, step: StepTrace) -> None:
    """Forward, backward, optimizer: a hairline where each begins, and its name where it has room."""
    runs = stage_runs(step)
    times = [0.0, *step.ops.start_s[[begin for _, begin in runs[1:]]].tolist(), step.duration_s]
    for number, (stage, _) in enumerate(runs):
        start, end = times[number], times[number + 1]
        if number:
            figure.add_shape(
                type="line",
                x0=start,
                x1=start,
                xref="x",
                y0=0,
                y1=1,
                yref="paper",
                line={"color": INK_2, "width": 0.6},
                opacity=0.45,
            )
        if end - start > 0.07 * step.duration_s:
            figure.add_annotation(
                x=(start + end) / 2,
                xref="x",
                y=1,
                yref="paper",
                yanchor="bottom",
                text=stage.name.capitalize(),
                showarrow=False,
                font={"size": 11, "color": INK_2},
            )


def _step_title(step: StepTrace) -> str:
    stall_s = float(step.stalls.duration_s.sum())
    share = f" ({stall_s / step.duration_s:.1%})" if step.duration_s and stall_s else ""
    return (
        f"Step {step.index}, {step.session_stage}: {format_seconds(step.duration_s)}, "
        f"peak resident {format_bytes(step.peak_bytes)} of {format_bytes(step.live_peak_bytes)} alive, "
        f"stall {format_seconds(stall_s)}{share}{replays_text(step)}"
    )


def replays_text(step: StepTrace) -> str:
    """What a title says of the replays of a step; empty without any."""
    rows = step.replays
    if not len(rows):
        return ""
    return f", {len(rows)} replay{'s' * (len(rows) > 1)} {format_seconds(float(rows.duration_s.sum()))}"


def style(figure: go.Figure, title: str, height: int, bottom: int) -> None:
    """The look that all Plotly figures share; ``bottom`` is the room for the legend, in pixels."""
    figure.update_layout(
        template="none",
        title={"text": title, "x": 0, "xref": "paper", "y": 0.97, "font": {"size": 14, "color": INK}},
        font={"family": "Inter, system-ui, sans-serif", "size": 12, "color": INK},
        height=height,
        margin={"l": 76, "r": 44, "t": 66, "b": bottom},
        paper_bgcolor="white",
        plot_bgcolor="white",
        legend={
            "orientation": "h",
            "traceorder": "normal",
            "x": 0,
            "y": 0.01,
            "yref": "container",
            "yanchor": "bottom",
            "font": {"size": 11},
        },
        modebar={"orientation": "v", "remove": ["select2d", "lasso2d", "autoScale2d"]},
        hovermode="x unified",
        hoverlabel={"font": {"size": 11}, "namelength": -1},
    )
    axis = {"gridcolor": LINE, "zeroline": False, "linecolor": LINE, "tickfont": {"color": INK_2}}
    figure.update_xaxes(axis, title_standoff=6, title_font_size=12)
    figure.update_yaxes(axis, title_standoff=6, title_font_size=12)


def _key(step: StepTrace, storage: int) -> str:
    return step.storage_keys[storage] if storage >= 0 else "a storage that died before the step"


def byte_unit(most: int) -> tuple[str, int]:
    """The unit for an axis that reaches ``most`` bytes, and how many bytes it is."""
    for unit, scale in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if most >= scale:
            return unit, scale
    return "B", 1


def load_plotly() -> tuple[Any, Any]:
    """``plotly.graph_objects`` and ``make_subplots``. Raises MissingPackageError."""
    go = load("plotly.graph_objects", "plotly", "figures")
    return go, load("plotly.subplots", "plotly", "figures").make_subplots
