"""A report as one offline HTML file: the timeline, tables and figures, Plotly's code included."""

from __future__ import annotations

import html

from ..._version import __version__
from ...report.html_tables import steps_html, table_html
from ...report.session_report import Report
from ...report.trace_report import TraceReport
from ...trace import StepTrace, Trace
from ..page.html_page import PageNotBuiltError, timeline_page
from .step_figures import session_figure, step_figure

_STYLE = """
body { font: 14px/1.45 Inter, system-ui, sans-serif; color: #1f1f1f }
body { max-width: 1100px; margin: 32px auto; padding: 0 24px }
h1 { font-size: 22px; margin: 0 }
h2 { font-size: 16px; margin: 36px 0 8px }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: 3px 18px 3px 0; text-align: left; vertical-align: top; white-space: pre }
tr { border-bottom: 1px solid #e4e6ea }
th { font-weight: 600 }
td.remark { color: #575757; white-space: normal }
.steps { overflow-x: auto }
.steps :is(th, td):not(:nth-child(2)) { text-align: right }
p { color: #575757; margin: 4px 0 }
iframe { width: 100%; height: 820px; margin: 16px 0; border: 1px solid #e4e6ea }
p.lost { color: #a1260d; font-weight: 600 }
"""
_CONFIG = {"displaylogo": False, "responsive": True}


def html_report(trace: Trace, report: Report | None = None, step: StepTrace | None = None) -> str:
    """The text of an HTML file.

    Args:
        trace: what happened; the newest step is drawn.
        report: of the session, which knows all its steps and not just those of the trace. None: of the trace alone.
        step: the step to draw instead.

    Raises:
        MissingPackageError: plotly is not installed.
        ValueError: the trace is empty.
        TraceError: the step has no ops.
    """
    found = TraceReport.of(trace, step)
    parts = [
        f"<h1>Chameleon Lab</h1><p>{html.escape(_origin(trace))}</p>",
        *((f"<p class=lost>{html.escape(found.lost)}</p>",) if found.lost else ()),
        *(("<h2>Session</h2>", table_html(report.rows())) if report is not None else ()),
        _timeline(trace, step or trace.last),
        step_figure(step or trace, capacity_bytes=trace.meta.get("capacity_bytes")).to_html(
            full_html=False, include_plotlyjs=True, config=_CONFIG
        ),
        "<h2>Step</h2>",
        table_html(found.rows()),
        session_figure(report or found).to_html(full_html=False, include_plotlyjs=False, config=_CONFIG),
        steps_html(found),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Chameleon Lab report</title>'
        f"<style>{_STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _origin(trace: Trace) -> str:
    known = {
        "device": trace.meta.get("device"),
        "torch": trace.meta.get("torch"),
        "chameleon-lab": __version__,
    }
    return ", ".join(f"{name} {value}" for name, value in known.items() if value)


def _timeline(trace: Trace, step: StepTrace) -> str:
    """The panel's timeline in a frame, where its styles meet no others; nothing where the panel was not built."""
    try:
        page = timeline_page(trace, step)
    except PageNotBuiltError:
        return ""
    return f'<iframe title="Timeline" srcdoc="{html.escape(page)}"></iframe>'
