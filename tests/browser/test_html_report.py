import re
import subprocess

from synthetic import gpt_step

from chameleon_lab.lab.html_report import html_report
from chameleon_lab.trace import Trace


def test_an_html_report_draws_its_figures_without_a_network(tmp_path):
    page = tmp_path / "report.html"
    page.write_text(html_report(Trace([gpt_step()], {"device": "cpu", "capacity_bytes": 8 << 20})))
    done = subprocess.run(
        [
            *(
                "/usr/bin/chromium",
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                f"--user-data-dir={tmp_path}/profile",
            ),
            *(
                "--host-resolver-rules=MAP * ~NOTFOUND",
                "--virtual-time-budget=10000",
                "--dump-dom",
                page.as_uri(),
            ),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    drawn = done.stdout
    assert drawn.count('class="main-svg"') >= 2, done.stderr
    assert "Alive, without swapping" in re.sub(r"<script.*?</script>", "", drawn, flags=re.S)
