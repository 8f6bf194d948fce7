"""Tables of a report as HTML."""

from __future__ import annotations

import html
from collections.abc import Iterable

from .trace_report import STEP_COLUMNS, TraceReport, followed, step_cells

TABLE_STYLE = """
h2 { font-size: 16px; margin: 36px 0 8px }
.report table { border-collapse: collapse; font-variant-numeric: tabular-nums }
.report :is(th, td) { padding: 3px 18px 3px 0; text-align: left; vertical-align: top; white-space: pre }
.report tr { border-bottom: 1px solid color-mix(in srgb, currentcolor 14%, transparent) }
.report th { font-weight: 600 }
.report td.remark { opacity: 0.75; white-space: normal }
.steps { overflow-x: auto }
.report .steps :is(th, td):not(:nth-child(2)) { text-align: right }
"""
_MOST_STEPS = 64


def table_html(rows: Iterable[tuple[str, str, str]]) -> str:
    """Rows of a name, a value and a remark."""
    cells = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td><td class=remark>{html.escape(remark)}</td></tr>"
        if remark or value
        else f"<tr><th>{html.escape(name)}</th></tr>"
        for name, value, remark in rows
    )
    return f"<table>{cells}</table>"


def steps_html(found: TraceReport) -> str:
    """The newest steps, and what plans they followed."""
    newest = found.history[-_MOST_STEPS:]
    head = "".join(f"<th>{column}</th>" for column in STEP_COLUMNS)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in step_cells(step)) + "</tr>"
        for step in newest
    )
    plans = "".join(f"<br>{html.escape(followed(step))}" for step in newest)
    return f"<h2>Steps</h2><div class=steps><table><tr>{head}</tr>{body}</table></div><p>{plans[4:]}</p>"
