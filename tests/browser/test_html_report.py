"""Pages that are kept as files draw themselves in a browser that reaches no network."""

import re
from pathlib import Path

from hangs import HANGS_AFTER_S
from synthetic import gpt_step

from benchmarks.lab.server import bounded
from chameleon_lab.lab.figures.html_report import html_report
from chameleon_lab.planner import plan
from chameleon_lab.policy import Link
from chameleon_lab.trace import Trace


def test_an_html_report_draws_its_figures_without_a_network(tmp_path):
    page = tmp_path / "report.html"
    page.write_text(html_report(Trace([gpt_step()], {"device": "cpu", "capacity_bytes": 8 << 20})))
    drawn = opened(page)
    assert drawn.count('class="main-svg"') >= 2, drawn
    assert "Alive, without swapping" in without_scripts(drawn)


def test_a_chart_draws_itself_without_a_network(tmp_path):
    step = gpt_step()
    page = tmp_path / "gantt.html"
    plan(step, int(0.6 * step.live_peak_bytes), Link(1e9, 1e9)).draft().gantt().save(page)
    # Bokeh's elements, whose drawings are in shadow roots.
    assert without_scripts(opened(page)).count('class="bk-Column"') == 1


def opened(page: Path) -> str:
    """The document after Chromium has run the page's scripts, with what went wrong behind it."""
    done = bounded(
        [
            *("/usr/bin/chromium", "--headless", "--no-sandbox", "--disable-gpu"),
            f"--user-data-dir={page.parent}/profile",
            *("--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=10000"),
            *("--dump-dom", page.as_uri()),
        ],
        HANGS_AFTER_S,
    )
    return done.stdout + done.stderr


def without_scripts(document: str) -> str:
    return re.sub(r"<script.*?</script>", "", document, flags=re.S)
