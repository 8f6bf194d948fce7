"""One HTML file that holds the panel's timeline and the steps that it draws: no network, no kernel."""

from __future__ import annotations

import base64
import gzip
import html
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from ...report.html_tables import TABLE_STYLE, steps_html, table_html
from ...report.trace_report import TraceReport
from ...trace import StepTrace, Trace
from .columns import packed

_CODE = Path(__file__).parent
"""Where a build puts ``page.js`` and ``page.css``."""

_MOST_STEPS = 8
"""Steps that a page holds: the newest."""

_VARIABLES = """
:root { --jp-layout-color1: #fff; --jp-layout-color2: #f5f5f5; --jp-border-color1: #bdbdbd }
:root { --jp-ui-font-color0: #111; --jp-ui-font-color1: #1f1f1f }
:root { --jp-ui-font-family: Inter, system-ui, sans-serif; --jp-code-font-family: ui-monospace, monospace }
body[data-jp-theme-light="false"] { --jp-layout-color1: #111; --jp-layout-color2: #1e1e1e; --jp-border-color1: #616161 }
body[data-jp-theme-light="false"] { --jp-ui-font-color0: #fff; --jp-ui-font-color1: #f0f0f0 }
.cl-panel { box-sizing: border-box }
.cl-panel *, .cl-panel *::before { box-sizing: border-box }
.cl-panel .cl-follow { display: none }
.cl-page-keys table { border-collapse: collapse; margin-bottom: 12px }
.cl-page-keys :is(th, td) { padding: 2px 16px 2px 0; text-align: left; font-weight: normal }
"""
_STYLE = """
body { margin: 0; background: var(--jp-layout-color1); color: var(--jp-ui-font-color1) }
body { font: 13px/1.45 var(--jp-ui-font-family) }
.cl-panel { height: 100vh; min-height: 480px }
.report { max-width: 1100px; margin: 24px auto; padding: 0 24px }
"""


class PageNotBuiltError(ImportError):
    """The panel's code is not in this installation."""


def html_page(trace: Trace, title: str = "trace") -> str:
    """The text of the file: the newest steps of a trace that have ops, to be zoomed, searched and selected from.

    Raises:
        PageNotBuiltError: the panel was not built.
        TraceError: no step has ops.
    """
    steps = [step for step in trace.steps if len(step.ops)][-_MOST_STEPS:]
    found = TraceReport.of(trace)
    tables = f"<h2>Step</h2>{table_html(found.rows())}{steps_html(found)}"
    return _page(trace, steps, title, f'<div class="report">{tables}</div>')


def timeline_page(trace: Trace, step: StepTrace, title: str = "trace") -> str:
    """The same with one step, and without tables below. Raises PageNotBuiltError if the panel was not built."""
    return _page(trace, [step], title, "")


def _page(trace: Trace, steps: Sequence[StepTrace], title: str, below: str) -> str:
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        '<meta name="viewport" content="width=device-width">'
        f"<style>{_STYLE}{TABLE_STYLE}{_VARIABLES}{_built('page.css')}</style></head><body>\n"
        f"{_timeline_html(trace, steps, title)}\n{below}\n{_timeline_code()}\n</body></html>\n"
    )


def _timeline_html(trace: Trace, steps: Sequence[StepTrace], title: str) -> str:
    """The place of the timeline in a page, and its data."""
    data = gzip.compress(packed(steps, trace.meta, title, trace.lost), mtime=0)
    coded = base64.b64encode(data).decode()
    return f'<div class="cl-panel"></div>\n<script type="text/plain" id="chameleon-data">{coded}</script>'


def _timeline_code() -> str:
    """The code of the timeline, for the end of a page."""
    # Within a script, the end of one in a text would end it.
    return "<script>{}</script>".format(_built("page.js").replace("</script", "<\\/script"))


@cache
def _built(name: str) -> str:
    try:
        return (_CODE / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PageNotBuiltError(
            "the page needs the panel's code, which this installation was built without: install a wheel, or run "
            "`make build`"
        ) from None
