"""A policy over the ops of its step, drawn by Bokeh: when each storage leaves, is away and comes back."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...planner import Prediction, simulate
from ...planner.memory import MIN_SWAP_BYTES, step_memory
from ...policy import Policy
from ...policy.model import NEVER, USER, Action
from ...trace import Category, StepTrace
from ...util.units import format_bytes, format_percent, format_seconds
from .bokeh_view import BokehView, new_plot, show_bytes
from .packages import load
from .palette import CATEGORIES, INK, INK_2, PREDICTED
from .stage_runs import stage_runs
from .step_figures import thin

MOST_SWAPS = 400
"""Swaps drawn. Bokeh stays fluent up to a few thousand bars, and a swap is up to six."""
MOST_KEPT = 80
"""Gaps drawn in which a storage could leave and does not."""
_LINE_POINTS = 1500

_ALPHA = {"leaving": 0.45, "away": 0.95, "returning": 0.45, "dropped": 0.3, "replayed": 0.95, "kept": 0.16}
_STATES = {
    "away": "away, on the host",
    "leaving": "its copy may run",
    "dropped": "dropped",
    "replayed": "made again by a replay",
    "kept": "could leave, and stays",
}
"""What the shades of bars are called in the legend; that of a copy stands for both ways."""
_STAGE_PX, _LEGEND_PX = 18, 52
_HATCH = {"dropped": "dot"}
"""Dots are what is dropped, as in the panel; all else is plain."""


_DECISIONS = {
    Action.KEEP: "kept",
    Action.SWAP: "swapped",
    Action.REMATERIALIZE: "dropped, and made again by a replay",
}


@dataclass(frozen=True)
class Gap:
    """One bar row: a gap of a storage, and what the policy does in it. Op indices as in a Decision."""

    storage: str
    gap: int
    category: str
    bytes: int
    out_op: int
    free_op: int
    in_op: int
    end_op: int
    """The use that ends the gap; of dead time, and of what never returns, where the step ends or it dies."""
    action: Action
    by_user: bool
    returns: bool


@dataclass
class Gaps:
    """What is drawn, and how much is not."""

    rows: list[Gap] = field(default_factory=list)
    left_out: int = 0
    """Swaps and drops that are too many to be drawn, the least of them."""


def gaps_of(
    policy: Policy, step: StepTrace, most_swaps: int = MOST_SWAPS, most_kept: int = MOST_KEPT
) -> Gaps:
    """The swaps and drops of a policy, in the order in which they leave, then the largest gaps that it keeps.

    Where there are too many, those that are large and away for long stay.
    """
    n = len(step.ops)
    away = [
        Gap(
            storage=decision.storage,
            gap=decision.gap,
            category=decision.category,
            bytes=decision.bytes,
            out_op=decision.out_op,
            free_op=decision.free_op,
            in_op=decision.in_op if decision.in_op != NEVER else max(n, decision.free_op),
            end_op=decision.use_op if decision.in_op != NEVER else max(n, decision.free_op),
            action=decision.action,
            by_user=decision.decided_by == USER,
            returns=decision.in_op != NEVER,
        )
        for decision in (*policy.swaps, *policy.drops)
    ]
    drawn = sorted(away, key=lambda gap: gap.bytes * (gap.in_op - gap.free_op), reverse=True)[:most_swaps]
    kept = _kept(policy, step, {(gap.storage, gap.gap) for gap in away}, most_kept)
    rows = sorted(drawn, key=lambda gap: (gap.out_op, gap.storage)) + kept
    return Gaps(rows, len(away) - len(drawn))


def _kept(policy: Policy, step: StepTrace, away: set[tuple[str, int]], most: int) -> list[Gap]:
    memory = step_memory(step, int(policy.assumed.get("min_swap_bytes", MIN_SWAP_BYTES)))
    weight = memory.gap_bytes * (memory.gap_use - memory.gap_out)
    rows: list[Gap] = []
    for k in np.argsort(-weight, kind="stable").tolist():
        row = int(memory.row[memory.gap_storage[k]])
        storage, ordinal = step.storage_keys[row], int(memory.gap_ordinal[k])
        if len(rows) == most:
            break
        if (storage, ordinal) in away:
            continue
        out_op, use_op = int(memory.gap_out[k]), int(memory.gap_use[k])
        rows.append(
            Gap(
                storage=storage,
                gap=ordinal,
                category=Category(int(step.storages.category[row])).name.lower(),
                bytes=int(memory.gap_bytes[k]),
                out_op=out_op,
                free_op=out_op + 1,
                in_op=use_op,
                end_op=use_op,
                action=Action.KEEP,
                by_user=False,
                returns=bool(memory.gap_returns[k]),
            )
        )
    return sorted(rows, key=lambda gap: (gap.out_op, gap.storage))


def bars_of(rows: list[Gap], ops: int) -> dict[str, list[Any]]:
    """The columns of the bars: each gap in up to three parts, cut where it runs over the step's end."""
    columns: dict[str, list[Any]] = {
        name: []
        for name in (
            *("row", "left", "right", "part", "color", "alpha", "hatch", "edge"),
            *("storage", "gap", "category", "size", "decision", "ops"),
        )
    }
    for row, gap in enumerate(rows):
        if gap.action is Action.REMATERIALIZE:
            parts = [
                ("dropped", gap.free_op, gap.in_op),
                ("replayed", gap.in_op, max(gap.end_op, gap.in_op + 1)),
            ]
        elif gap.action is Action.SWAP:
            parts = [
                ("leaving", gap.out_op + 1, gap.free_op),
                ("away", gap.free_op, gap.in_op),
                ("returning", gap.in_op, gap.end_op if gap.returns else gap.in_op),
            ]
        else:
            parts = [("kept", gap.free_op, gap.end_op)]
        decision = _DECISIONS[gap.action] + (", as you said" if gap.by_user else "")
        for part, begin, end in parts:
            for left, right in _within_step(begin, end, ops):
                values = {
                    "row": row,
                    "left": left,
                    "right": right,
                    "part": part,
                    "color": CATEGORIES[gap.category],
                    "alpha": _ALPHA[part],
                    "hatch": _HATCH.get(part, "blank"),
                    "edge": INK if gap.by_user else CATEGORIES[gap.category],
                    "storage": gap.storage,
                    "gap": gap.gap,
                    "category": gap.category.replace("_", " "),
                    "size": format_bytes(gap.bytes),
                    "decision": decision,
                    "ops": "on the device" if gap.action is Action.KEEP else f"{gap.free_op} to {gap.in_op}",
                }
                for name, value in values.items():
                    columns[name].append(value)
    return columns


def _within_step(begin: int, end: int, ops: int) -> list[tuple[int, int]]:
    """A stretch of ops that may reach into the next step, as stretches of one step."""
    pieces = [(begin, min(end, ops)), (0 if begin < ops else begin - ops, end - ops)]
    return [(left, right) for left, right in pieces if left < right]


def line_of(prediction: Prediction) -> dict[str, list[float]]:
    """The columns of the predicted bytes over the ops, thinned to what a browser draws at ease."""
    resident = prediction.resident_bytes
    kept = thin(np.arange(len(resident), dtype=np.float64), resident, _LINE_POINTS)
    return {"op": [*kept.tolist(), len(resident)], "bytes": [*resident[kept].tolist(), int(resident[-1])]}


class Gantt(BokehView):
    """The decisions of a policy as bars over the ops of the step, above the bytes that they leave on the device.

    A bar is dark while the storage is away, and lighter while its copy out or back may run. One with dots is dropped,
    until the dark end where a replay has made it again. The pale ones below are the largest gaps in which nothing
    leaves. What runs over the step's end goes on at its beginning. Bars that an edit
    decided have a dark edge.

    Args:
        policy: what to draw.
        step: the step to draw it over.
        prediction: what the policy should do. None: simulated.

    Raises:
        MissingPackageError: bokeh is not installed.
    """

    title = "Policy"

    def __init__(self, policy: Policy, step: StepTrace, prediction: Prediction | None = None) -> None:
        models = load("bokeh.models", "bokeh", "figures")
        self.policy, self.step = policy, step
        self.prediction = simulate(step, policy) if prediction is None else prediction
        self.gaps = Gaps()
        self.bars = models.ColumnDataSource()
        self.resident = models.ColumnDataSource()
        self._samples: dict[str, Any] = {}
        self._plot = self._draw_bars(models)
        self._bytes = self._draw_bytes(models)
        self.layout = models.Column(self._plot, self._bytes, sizing_mode="stretch_width")
        self.redraw(policy, self.prediction)

    def redraw(self, policy: Policy, prediction: Prediction) -> None:
        """Show another policy for the same step."""
        self.policy, self.prediction = policy, prediction
        self.gaps = gaps_of(policy, self.step)
        count = len(self.gaps.rows)
        self.bars.data = bars_of(self.gaps.rows, len(self.step.ops))
        self._name_bars()
        self.resident.data = line_of(prediction)
        self._plot.title.text = self._headline()
        self._plot.height = min(max(220, 90 + 7 * count), 560) + _LEGEND_PX
        # Below the bars there is room for the names of the stages.
        names = _STAGE_PX * max(count, 1) / (self._plot.height - 90 - _LEGEND_PX - _STAGE_PX)
        self._plot.y_range.start, self._plot.y_range.end = max(count, 1) - 0.4 + names, -0.6
        self._capacity.location = policy.capacity_bytes
        self._bytes.y_range.end = 1.08 * max(
            prediction.peak_bytes, policy.capacity_bytes, self.step.live_peak_bytes
        )

    def summary_html(self) -> str:
        """The headline, and the policy's own table."""
        return f"<p>{html.escape(self._headline())}</p>{self.policy._repr_html_()}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._headline()}>"

    def _headline(self) -> str:
        found, count = self.prediction, len(self.policy.drops)
        drops = f", {count} drops" if count else ""
        replays = f", replays {format_seconds(found.replay_s)}" if count else ""
        text = (
            f"{len(self.policy.swaps)} swaps{drops}: peak {format_bytes(found.peak_bytes)} of "
            f"{format_bytes(self.policy.capacity_bytes)}, step {format_seconds(found.step_s)}, stall "
            f"{format_seconds(found.stall_s)} ({format_percent(found.stall_share)} of compute){replays}"
        )
        return text + (f"; {self.gaps.left_out} small ones are not drawn" if self.gaps.left_out else "")

    def _draw_bars(self, models: Any) -> Any:
        n = len(self.step.ops)
        plot = new_plot(
            title="",
            x_range=models.Range1d(0, n, bounds=(0, n)),
            y_range=models.Range1d(1, 0),
            tools="tap,box_select,xpan,xwheel_zoom,reset",
            output_backend="canvas",
        )
        bars = plot.hbar(
            y="row",
            left="left",
            right="right",
            height=0.78,
            source=self.bars,
            fill_color="color",
            fill_alpha="alpha",
            hatch_pattern="hatch",
            hatch_color="color",
            hatch_scale=6,
            hatch_alpha=0.9,
            line_color="edge",
            line_width=1,
            line_alpha="alpha",
            nonselection_fill_alpha="alpha",
            nonselection_line_alpha="alpha",
            selection_fill_alpha=1.0,
            selection_line_color=INK,
            selection_line_alpha=1.0,
            selection_line_width=2,  # type: ignore[call-arg]  # Bokeh's stub leaves it out
        )
        plot.add_tools(
            models.HoverTool(
                renderers=[bars],
                tooltips=[
                    ("storage", "@storage"),
                    ("", "@category, @size, @decision"),
                    ("away", "@ops"),
                    ("gap", "@gap"),
                ],
            )
        )
        plot.yaxis.visible = False
        plot.ygrid.visible = False
        self._draw_stages(models, plot)
        self._legend = models.Legend(
            orientation="horizontal",
            ncols=6,
            spacing=4,
            margin=4,
            padding=0,
            location="top_left",
            border_line_color=None,
            label_text_font_size="11px",
            label_text_color=INK,
        )
        plot.add_layout(self._legend, "below")
        return plot

    def _name_bars(self) -> None:
        """Fill the legend: the categories and the shades of the bars that are drawn, and what a dark edge says."""
        models = load("bokeh.models", "bokeh", "figures")
        data = self.bars.data
        parts, categories = set(data["part"]), set(data["category"])
        shown = [
            (name.replace("_", " "), name, "away")
            for name in CATEGORIES
            if name.replace("_", " ") in categories
        ]
        shown += [
            (text, "", part)
            for part, text in _STATES.items()
            if part in parts or (part == "leaving" and "returning" in parts)
        ]
        if any(gap.by_user for gap in self.gaps.rows):
            shown.append(("decided by you", "", "user"))
        self._legend.items = [
            models.LegendItem(label=label, renderers=[self._sample(category, part)])
            for label, category, part in shown
        ]

    def _sample(self, category: str, part: str) -> Any:
        """A bar for the legend, drawn nowhere else."""
        key = f"{category}/{part}"
        if key not in self._samples:
            color = CATEGORIES.get(category, INK_2)
            self._samples[key] = self._plot.scatter(
                x=[np.nan],
                y=[np.nan],
                marker="square",
                size=12,
                fill_color=color,
                fill_alpha=_ALPHA.get(part, 0.0),
                hatch_pattern=_HATCH.get(part, "blank"),
                hatch_color=color,
                hatch_scale=6,
                line_color=INK if part == "user" else color,
                line_alpha=1.0 if part == "user" else _ALPHA[part],
            )
        return self._samples[key]

    def _draw_stages(self, models: Any, plot: Any) -> None:
        runs = stage_runs(self.step)
        begins = [begin for _, begin in runs]
        for (stage, begin), end in zip(runs, [*begins[1:], len(self.step.ops)], strict=True):
            if begin != begins[0]:
                plot.add_layout(
                    models.Span(location=begin, dimension="height", line_color=INK_2, line_alpha=0.4)
                )
            if end - begin > 0.07 * len(self.step.ops):
                plot.add_layout(
                    models.Label(
                        x=(begin + end) / 2,
                        y=2,
                        y_units="screen",
                        text=stage.name.capitalize(),
                        text_align="center",
                        text_color=INK_2,
                        text_font_size="11px",
                    )
                )

    def _draw_bytes(self, models: Any) -> Any:
        plot = new_plot(
            height=170,
            x_range=self._plot.x_range,
            y_range=models.Range1d(0, 1),
            tools="xpan,xwheel_zoom,reset",
        )
        show_bytes(plot)
        plot.xaxis.axis_label = "Op of the step"
        alive = self.step.ops.live_peak_bytes
        kept = thin(np.arange(len(alive), dtype=np.float64), alive, _LINE_POINTS)
        without = models.ColumnDataSource({"op": kept, "bytes": alive[kept]})
        for source, color, dash, label in (
            (without, INK_2, "dashed", "Alive, without swapping"),
            (self.resident, PREDICTED, "solid", "On the device, predicted"),
        ):
            plot.step(
                x="op",
                y="bytes",
                mode="after",
                source=source,
                line_color=color,
                line_dash=dash,
                line_width=1.6 if dash == "solid" else 1,
                legend_label=label,
            )
        self._capacity = models.Span(dimension="width", line_color=INK, line_width=2)
        plot.add_layout(self._capacity)
        plot.add_layout(plot.legend[0], "below")
        plot.legend.orientation = "horizontal"
        plot.legend.border_line_color = None
        plot.legend.label_text_font_size = "11px"
        plot.legend.spacing = 24
        plot.legend.location = "top_left"
        return plot
