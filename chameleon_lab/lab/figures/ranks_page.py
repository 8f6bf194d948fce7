"""The ranks of a job as one offline HTML file: a bar and a row of figures each, and who waits for whom."""

from __future__ import annotations

import html

from ...ranks.side_by_side import COLUMNS, MergedReport, RankRow
from ...util.units import NOTHING, format_seconds

_STYLE = """
body { font: 14px/1.45 Inter, system-ui, sans-serif; color: #1f1f1f; max-width: 1200px; margin: 32px auto }
body { padding: 0 24px }
h1 { font-size: 22px; margin: 0 }
h2 { font-size: 16px; margin: 36px 0 8px }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: 3px 18px 3px 0; text-align: left; white-space: pre }
tr { border-bottom: 1px solid #e4e6ea }
p { color: #575757; margin: 4px 0 }
.bar { display: flex; width: 420px; height: 14px }
.compute { background: #4269d0 } .moving { background: #97bbf5 }
.waited { background: #efb118 } .stall { background: #ff725c }
.key { display: inline-block; width: 12px; height: 12px; margin: 0 4px 0 16px }
"""
_PARTS = (
    ("compute", "compute", "compute_s"),
    ("stall", "stall", "stall_s"),
    ("moving", "collectives", "moving_s"),
    ("waited", "waits for other ranks", "waited_s"),
)


def ranks_page(report: MergedReport) -> str:
    """The text of an HTML file."""
    most_s = max((row.step_s for row in report.rows), default=0.0)
    keys = "".join(f'<span class="key {kind}"></span>{name}' for kind, name, _ in _PARTS)
    bars = "".join(
        f"<tr><th>{html.escape(row.name)}</th><td>{_bar(row, most_s)}</td>"
        f"<td>{html.escape(format_seconds(row.step_s))}</td></tr>"
        for row in report.rows
    )
    parts = [
        f"<h1>Chameleon Lab</h1><p>{html.escape(report.title)}</p>",
        *(f"<p>{html.escape(note)}</p>" for note in report.notes),
        f"<h2>A step of each rank</h2><p>{keys}</p><table>{bars}</table>",
        f"<h2>Figures</h2><div class=wide>{_table(COLUMNS, [row.cells() for row in report.rows])}</div>",
    ]
    if any(any(row) for row in report.waited_s):
        rows = [
            (name, *(format_seconds(value) if value else NOTHING for value in values))
            for name, values in zip(report.ranks, report.waited_s, strict=True)
        ]
        table = _table(("", *report.ranks), rows)
        parts.append(f"<h2>Waits of each rank (down) for each (across)</h2><div class=wide>{table}</div>")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Chameleon Lab: ranks</title>'
        f"<style>{_STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _bar(row: RankRow, most_s: float) -> str:
    """A stretch for each part of the step; 100 % is the longest rank's step."""
    stretches = []
    for kind, name, figure in _PARTS:
        seconds = getattr(row, figure) or 0.0
        if seconds > 0 and most_s > 0:
            share = 100 * seconds / most_s
            title = html.escape(f"{name}: {format_seconds(seconds)}")
            stretches.append(f'<span class="{kind}" style="width:{share:.2f}%" title="{title}"></span>')
    return f"<div class=bar>{''.join(stretches)}</div>"


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{html.escape(each)}</th>" for each in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"
