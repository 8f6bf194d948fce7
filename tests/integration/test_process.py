"""What a session changes in the process: docs/process.md names it, and it is put back where the page says so."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from training import HANGS_AFTER_S, ROOT

from chameleon_lab.runtime import core

pytestmark = pytest.mark.full

PAGE = ROOT / "docs" / "process.md"
SEGV = 1 << 10
"""The signal's bit in /proc/self/status."""
OF_KERNEL = (1 << 31) - 1
"""The bits of the signals that programs handle; glibc uses some above for its threads."""


@cache
def walked(end: str) -> dict[str, Any]:
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            Path(__file__).with_name("process_walk.py"),
            end,
            str(HANGS_AFTER_S),
        ],
        capture_output=True,
        text=True,
        timeout=HANGS_AFTER_S,
        check=True,
    )
    return json.loads(done.stdout)


def named(text: str) -> list[str]:
    """The full names of what belongs to other packages."""
    return re.findall(r"`((?:torch|numpy|nvtx|safetensors)\.[\w.*]+)`", text)


@pytest.mark.parametrize("end", ["stop", "error", "interrupt"])
def test_what_is_said_to_be_put_back_is_put_back(end: str) -> None:
    walk = walked(end)
    before, inside, after = walk["before"], walk["inside"], walk["after"]
    assert walk["left"] == []
    assert inside["hooks"] != before["hooks"] and inside["ops_are_watched"]  # there was something to put back
    assert not walk["session_drew"], "opening and closing draw no random numbers"
    caught, expected = (int(one.pop("caught_signals"), 16) & OF_KERNEL for one in (after, before))
    assert caught == expected | SEGV
    copying = ["chameleon-copy"] * after["threads"].count("chameleon-copy")
    assert len(copying) == 2 and after.pop("threads") == sorted(copying + before.pop("threads"))
    assert after.pop("warning_filters") == before.pop("warning_filters") + 1  # Dynamo is imported
    assert after == before


def test_every_function_that_is_replaced_is_named_on_the_page() -> None:
    walk, on_page = walked("stop"), named(PAGE.read_text(encoding="utf-8"))
    assert len(walk["replaced"]) > 20 and (walk["at_import"] or find_spec("nvtx") is None)
    unnamed = [
        name
        for name in walk["replaced"] + walk["at_import"]
        if not any(fnmatchcase(name, pattern) for pattern in on_page)
    ]
    assert unnamed == []


@pytest.mark.skipif(not core.SEES_RAW_ACCESS, reason="other functions hand out pointers there")
def test_every_function_of_torch_in_the_pages_table_is_replaced() -> None:
    table = PAGE.read_text(encoding="utf-8").split("Where other packages are installed")[0]
    replaced = walked("stop")["replaced"]
    stale = [
        pattern
        for pattern in named(table)
        if pattern.startswith("torch.") and not any(fnmatchcase(name, pattern) for name in replaced)
    ]
    assert stale == []


def test_the_page_links_to_files_that_are_there() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", PAGE.read_text(encoding="utf-8"))
    assert len(links) > 20
    assert [link for link in links if not (PAGE.parent / link).is_file()] == []
    assert "(process.md)" in (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
