"""The pages that say how to do something: every snippet and every command in them, from top to bottom."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from training import HANGS_AFTER_S, ROOT

pytestmark = pytest.mark.full

PAGES = ("capacity.md", "inference.md", "kept-memory.md", "torchrun.md")
REPORTS = {"torchrun.md": 2}
"""Reports that the commands of a page print: of rank 0 of `chameleon run`, and of one process that shows its own."""
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_NAMED = re.compile(r"# (\w+\.py)\n")


def commands_in(folder: Path) -> dict[str, str]:
    """An environment in which ``python``, ``chameleon`` and ``torchrun`` are those of this test's Python."""
    programs = folder / "bin"
    programs.mkdir()
    for name, words in (
        ("python", ""),
        ("chameleon", "-m chameleon_lab"),
        ("torchrun", "-m torch.distributed.run"),
    ):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -W ignore {words} "$@"\n')
        (programs / name).chmod(stat.S_IRWXU)
    path = os.pathsep.join((str(programs), os.environ["PATH"]))
    return os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("page", PAGES)
def test_every_snippet_and_command_runs(page: str, tmp_path: Path) -> None:
    """In order, in one folder: a snippet that begins with a file's name is that file, the others are one program."""
    text = (ROOT / "docs" / page).read_text()
    assert text.count("```") % 2 == 0
    environment, program, ran, said = commands_in(tmp_path), "", 0, []
    work = tmp_path / "work"
    work.mkdir()

    def run(*command: str) -> None:
        done = subprocess.run(
            command, cwd=work, env=environment, capture_output=True, text=True, timeout=HANGS_AFTER_S
        )
        assert done.returncode == 0, f"{page}:\n{command[-1]}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        said.append(done.stdout + done.stderr)

    for language, code in [*_BLOCK.findall(text), ("sh", "")]:
        if language == "python" and (named := _NAMED.match(code)):
            (work / named[1]).write_text(code)
        elif language == "python":
            program += code
        else:
            assert language == "sh", f"{page}: a block of {language or 'no language'}: which test runs it?"
            if program:  # what stands before a command runs before it
                run(sys.executable, "-W", "ignore", "-c", program)
            if code:
                run("sh", "-e", "-c", code)
            program, ran = "", ran + 1
    assert ran
    reports = "".join(said).count("Peak resident")
    assert reports >= REPORTS.get(page, 0)
    assert "Not adopted" not in "".join(said), f"{page}: a session leaves a model where it is"


def test_the_index_and_the_readme_lead_to_every_page() -> None:
    """And no link of a page leads nowhere."""
    index, readme = (ROOT / "docs" / "README.md").read_text(), (ROOT / "README.md").read_text()
    assert "docs/README.md" in readme
    for page in sorted((ROOT / "docs").glob("*.md")):
        if page.name != "README.md":
            assert f"({page.name})" in index, f"docs/README.md does not name {page.name}"
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} leads to {link}, which is not there"
    for page in PAGES:
        assert f"docs/{page}" in readme, f"README.md does not lead to {page}"


@pytest.mark.gate
def test_the_tests_that_the_pages_name_are_there() -> None:
    named = [
        path
        for page in (ROOT / "docs").glob("*.md")
        for path in re.findall(r"`((?:tests|torture)/[\w/]+\.py)`", page.read_text())
    ]
    assert len(named) > 10 and [path for path in named if not (ROOT / path).is_file()] == []


@pytest.mark.gate
def test_each_memory_saver_has_its_test_or_has_not_been_run() -> None:
    rows = [line.split(" | ") for line in (ROOT / "docs" / "memory-savers.md").read_text().splitlines()]
    shown = {row[0].strip("| "): row[2] for row in rows if len(row) == 3 and row[0] != "| tool"}
    assert [tool for tool, by in shown.items() if ".py`" not in by and "not run" not in by] == []
    for tool in (
        "DeepSpeed ZeRO-3",
        "bitsandbytes: 4-bit",
        "torchao: 8-bit",
        "accelerate:",
        "diffusers:",
    ):
        assert any(name.startswith(tool) and "`tests/programs/" in by for name, by in shown.items()), tool
