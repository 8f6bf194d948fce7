"""A session's dashboard in the notebook: its figures in words, and a Bokeh drawing updated while a cell trains."""

from __future__ import annotations

import html
import threading
from contextvars import copy_context
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...errors import SessionError
from ...report.session_report import StepSummary
from ...util.units import format_bytes, format_percent, format_seconds
from .bokeh_view import BokehView, bokeh_widget, new_plot, show_bytes
from .packages import load, load_widgets
from .palette import INK, INK_2, LOST, REPLAY, SESSION_STAGES, STACK, TRANSFER, TRANSFER_FORCED

if TYPE_CHECKING:
    from ipywidgets import DOMWidget

    from ...session import Session

_PARTS = 16
"""Points a step in the curve of resident bytes."""
_KEPT_STEPS = 240
_SHOWN_STEPS = 30
_LOOKS_A_WHOLE = 8
"""The whole data is sent every so many looks, what is new every time."""
_RESIDENT = STACK[3][1]


class Dashboard(BokehView):
    """What a session does, as it goes. Made by :meth:`~chameleon_lab.Session.dashboard`.

    From the top: the bytes on the device, under the capacity; the bytes moved out and in, and those dropped and made
    again; the step time, and the stall and the replays in it. The x axis counts steps. A thread reads the session a few
    times a second and streams what is new; it ends with the session, or with :meth:`stop`.

    Args:
        session: what to watch.
        every_s: seconds between two looks.

    Raises:
        MissingPackageError: bokeh is not installed.
        SessionError: the session has not started.
        ValueError: ``every_s`` is not positive.
    """

    title = "Chameleon Lab dashboard"

    def __init__(self, session: Session, *, every_s: float = 0.25) -> None:
        if not every_s > 0:
            raise ValueError(f"every_s must be a number of seconds above 0, got {every_s!r}")
        models = load("bokeh.models", "bokeh", "figures")
        self.session, self.every_s = session, every_s
        shown = session.history[-_KEPT_STEPS:]
        begin = shown[0].index if shown else session.step_count
        # The curve rises from the ground. It is never empty: Bokeh draws an area of no points for ever.
        self.resident = models.ColumnDataSource({"step": [begin], "bytes": [0]})
        """The curve of resident bytes: places on the step axis, and the most bytes since the one before."""
        self.steps = models.ColumnDataSource({name: [] for name in _step_columns([])})
        """One row a finished step."""
        self.now = models.ColumnDataSource({"step": [], "bytes": []})
        """One row: where the running step is."""
        self._seen = 0
        self._text = ""
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._draw(models)
        self.update()

    # ------------------------------------------------------------------------------------------------ following

    def start(self) -> None:
        """Begin to follow the session, in a thread."""
        if self._thread is None and not self._ending.is_set():
            # What the thread sends belongs to the cell that made the dashboard.
            context = copy_context()
            thread = threading.Thread(
                target=context.run, args=(self._follow,), name="chameleon-lab-dashboard", daemon=True
            )
            thread.start()
            self._thread = thread

    def stop(self) -> None:
        """Bring everything up to date once more, and follow no longer. May be repeated."""
        self._ending.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
            self.update()
            self._send_all()

    def _follow(self) -> None:
        looks, sent = 0, -1
        while not self._ending.wait(self.every_s):
            self.update()
            looks += 1
            if looks % _LOOKS_A_WHOLE == 0 and self._seen != sent:
                self._send_all()
                sent = self._seen

    def update(self) -> None:
        """Read the session, and show what is new."""
        counters, history = self.session.counters(), self.session.history
        new = [step for step in history if step.index >= self._seen]
        if new:
            self._seen = new[-1].index + 1
            curve = [self._curve_of(step) for step in new[-_KEPT_STEPS:]]
            self.resident.stream(
                {"step": [x for xs, _ in curve for x in xs], "bytes": [y for _, ys in curve for y in ys]},
                _KEPT_STEPS * _PARTS,
            )
            self.steps.stream(_step_columns(new[-_KEPT_STEPS:]), _KEPT_STEPS)
        newest = history[-1] if history else None
        done = counters["ops_in_step"] / newest.ops if newest is not None and newest.ops else 0.0
        self.now.data = {"step": [self._seen + min(done, 1.0)], "bytes": [counters["resident_bytes"]]}
        self._show_capacity()
        self._text = self._said(counters, newest)
        if "widget" in self.__dict__:
            self._head.value = self._text

    def _send_all(self) -> None:
        """Send the whole data: a view that was made late, or anew, has missed what was streamed before."""
        for source in (self.resident, self.steps):
            source.data = dict(source.data)

    def _show_capacity(self) -> None:
        capacity_bytes = self.session.capacity_bytes
        if capacity_bytes is not None and self._capacity.location != capacity_bytes:
            self._capacity.location = capacity_bytes
            self._y_range.end = 1.12 * capacity_bytes

    def _curve_of(self, step: StepSummary) -> tuple[list[float], list[int]]:
        """Places on the step axis and bytes there; only the peak where the step is no longer recorded."""
        try:
            peaks = self.session.resident_peaks(step.index, _PARTS).tolist()
        except SessionError:
            peaks = []
        if not peaks:
            return [step.index, step.index + 1], [step.peak_bytes] * 2
        return [step.index + (part + 1) / len(peaks) for part in range(len(peaks))], peaks

    # ------------------------------------------------------------------------------------------------ showing

    @cached_property
    def widget(self) -> DOMWidget:
        """The figures over the drawing. Raises MissingPackageError without ipywidgets and jupyter_bokeh."""
        load_widgets("jupyter_bokeh")
        import ipywidgets

        self._head = ipywidgets.HTML(self._text)
        return ipywidgets.VBox([self._head, bokeh_widget(self.layout)])

    def summary_html(self) -> str:
        """The figures in words."""
        return self._text

    def __repr__(self) -> str:
        return f"<Dashboard of {self.session!r}>"

    def _said(self, counters: Any, newest: StepSummary | None) -> str:
        session = self.session
        capacity = session.capacity_bytes
        cells = [
            ("Capacity", "none, recording only" if capacity is None else format_bytes(capacity)),
            ("Stage", session.stage.value if session.is_open and not self._ending.is_set() else "ended"),
            ("Steps", f"{self._seen}, op {counters['ops_in_step']}"),
            ("On the device", format_bytes(counters["resident_bytes"])),
            ("Peak", format_bytes(counters["peak_resident_bytes"])),
            ("Away, on the host", format_bytes(counters["host_used_bytes"])),
        ]
        if newest is not None:
            stall = format_percent(newest.stall_s / newest.step_s) if newest.step_s else "0 %"
            cells += [
                ("Step", format_seconds(newest.step_s)),
                ("Stall", f"{format_seconds(newest.stall_s)}, {stall}"),
                (
                    "Moved",
                    f"{format_bytes(newest.swapped_out_bytes)} out, {format_bytes(newest.swapped_in_bytes)} in",
                ),
                *self._replays_said(newest),
                ("Evictions", str(newest.evictions)),
                ("Match rate", format_percent(newest.match_rate, 0)),
            ]
        style = f"display:inline-block;margin:0 20px 4px 0;font-family:system-ui,sans-serif;color:{INK}"
        return "".join(
            f"<span style='{style}'><span style='font-size:11px;color:{INK_2}'>{html.escape(name)}</span><br>"
            f"<b style='font-size:14px;font-weight:600'>{html.escape(value)}</b></span>"
            for name, value in cells
        )

    def _replays_said(self, newest: StepSummary) -> list[tuple[str, str]]:
        if not newest.replays and not newest.declined_drops:
            return []
        drops = newest.declined_drops
        declined = f"; {drops} {'drop' if drops == 1 else 'drops'} declined" if drops else ""
        made = f"{format_bytes(newest.dropped_bytes)} made again by {newest.replays} ops"
        return [("Replays", f"{format_seconds(newest.replay_s)}, {made}{declined}")]

    def _draw(self, models: Any) -> None:
        x_range = models.DataRange1d(
            follow="end",
            follow_interval=_SHOWN_STEPS,
            range_padding=0.15,  # of a step: room for the whole dot of the running one
            range_padding_units="absolute",
            min_interval=4,
        )
        # One width for the labels of all three, so that their axes are one.
        options = {"x_range": x_range, "tools": "xpan,xwheel_zoom,reset", "min_border_left": 70}
        limited = self.session.capacity_bytes is not None
        self._y_range = models.Range1d(0, 1) if limited else models.DataRange1d(start=0)
        device = new_plot(height=210, title="On the device", y_range=self._y_range, **options)
        show_bytes(device)
        device.varea_step(
            x="step",
            y1=0,
            y2="bytes",
            step_mode="before",
            source=self.resident,
            fill_color=_RESIDENT,
            fill_alpha=0.25,
        )
        device.step(
            x="step", y="bytes", mode="before", source=self.resident, line_color=_RESIDENT, line_width=1.5
        )
        device.scatter(x="step", y="bytes", size=7, fill_color=INK, line_color=None, source=self.now)
        self._capacity = models.Span(dimension="width", line_color=INK, line_width=2, visible=limited)
        device.add_layout(self._capacity)

        moved = new_plot(
            height=130,
            title="Moved: out (dark), in (light); dropped and made again (green)",
            y_range=models.DataRange1d(start=0),
            **options,
        )
        show_bytes(moved)
        for x, top, color in (
            ("left", "out_bytes", TRANSFER_FORCED),
            ("middle", "in_bytes", TRANSFER),
            ("right", "dropped_bytes", REPLAY),
        ):
            moved.vbar(x=x, top=top, width=0.25, fill_color=color, line_color=None, source=self.steps)

        time = new_plot(
            height=150,
            title="Step time, with stall (red) and replays (green)",
            y_range=models.DataRange1d(start=0),
            **options,
        )
        time.vbar(
            x="middle", top="step_s", width=0.76, fill_color="color", line_color=None, source=self.steps
        )
        time.vbar(x="middle", top="stall_s", width=0.76, fill_color=LOST, line_color=None, source=self.steps)
        time.vbar(
            x="middle",
            bottom="stall_s",
            top="lost_s",
            width=0.76,
            fill_color=REPLAY,
            line_color=None,
            source=self.steps,
        )
        time.yaxis.formatter = models.NumeralTickFormatter(format="0.[000]")
        time.yaxis.axis_label = "s"
        time.xaxis.axis_label = "Step"
        time.add_tools(
            models.HoverTool(
                tooltips=[("step", "@index, @stage"), ("", "@text")],
                mode="vline",
            )
        )
        for plot in (device, moved):
            plot.xaxis.visible = False
        self.layout = models.Column(device, moved, time, sizing_mode="stretch_width")


def _step_columns(steps: list[StepSummary]) -> dict[str, list[Any]]:
    """Finished steps as columns; step 3 lies between 3 and 4 on the axis."""
    return {
        "index": [step.index for step in steps],
        "stage": [step.stage for step in steps],
        "middle": [step.index + 0.5 for step in steps],
        "left": [step.index + 0.24 for step in steps],
        "right": [step.index + 0.76 for step in steps],
        "peak_bytes": [step.peak_bytes for step in steps],
        "out_bytes": [step.swapped_out_bytes for step in steps],
        "in_bytes": [step.swapped_in_bytes for step in steps],
        "step_s": [step.step_s for step in steps],
        "dropped_bytes": [step.dropped_bytes for step in steps],
        "stall_s": [step.stall_s for step in steps],
        "lost_s": [step.stall_s + step.replay_s for step in steps],
        "color": [SESSION_STAGES.get(step.stage, INK_2) for step in steps],
        "text": [
            f"{format_seconds(step.step_s)}, stall {format_seconds(step.stall_s)}, "
            f"{f'replays {format_seconds(step.replay_s)}, ' if step.replays else ''}"
            f"peak {format_bytes(step.peak_bytes)}"
            for step in steps
        ],
    }
