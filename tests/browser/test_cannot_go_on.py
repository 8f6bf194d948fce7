"""A check of the browser that cannot go on ends, says what it waited for, and leaves nothing behind."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hangs import HANGS_AFTER_S

from benchmarks.lab.server import bounded, browser_check

CHECK = Path(__file__).with_name("cannot_go_on.mjs")
# As much of JupyterLab as the checks wait for before they begin.
PAGE = (
    "data:text/html,<body data-jp-theme-light=true><div id=jp-main-dock-panel>here</div>"
    "<script>window.jupyterapp={restored:true}</script>"
)


def running(profile: Path) -> list[str]:
    """The commands of processes that have to do with a browser's profile."""
    commands = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            commands.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it has ended
            continue
    return [command for command in commands if str(profile) in command]


def all_end(profile: Path) -> None:
    until = time.monotonic() + HANGS_AFTER_S
    while running(profile) and time.monotonic() < until:
        time.sleep(0.1)  # those that are killed take a moment
    assert running(profile) == []


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("a promise of the page", "await page.evaluate(() => new Promise(() => undefined));"),
        ("an element", "await page.locator('.never').waitFor();"),
        ("a busy page", "await page.evaluate(() => {"),
        ("a loop", "while (!(await page.locator('.never').count())) {"),
        ("a promise of the check", "nothing of the browser"),
    ],
)
def test_a_check_that_cannot_go_on_says_what_it_waits_for(tmp_path, kind, said):
    profile = tmp_path / "profile"
    done = browser_check(CHECK, PAGE, tmp_path / "shot.png", profile, kind, timeout_s=HANGS_AFTER_S)
    assert done.returncode == 1, done.stderr
    assert "does not end within 5 s" in done.stderr
    if "await" in said:
        lines = CHECK.read_text().splitlines()
        line = 1 + next(i for i, text in enumerate(lines) if said in text)
        near = range(line, line + 3)  # a loop's body and its condition wait in turn
        assert any(f"cannot_go_on.mjs:{number}:" in done.stderr for number in near), done.stderr
    else:
        assert said in done.stderr
    all_end(profile)


def test_a_check_that_does_not_even_say_so_is_ended_with_its_browser(tmp_path):
    profile = tmp_path / "profile"
    with pytest.raises(TimeoutError, match=r"cannot_go_on\.mjs.* did not end within 20 s"):
        bounded(["node", str(CHECK), PAGE, str(tmp_path / "shot.png"), str(profile), "a busy check"], 20)
    all_end(profile)
