"""Runs pytest, and notes in a file which test begins, ends and fails as it does: what ends pytest at once loses none.

    python scripts/noted_pytest.py FILE [ARGUMENT ...]

The watchdog of a test that hangs, for one, leaves pytest no time to say anything.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BEGAN, ENDED, FAILED = "began", "ended", "failed"


class Notes:
    """A line for each, in the process that the tests are told to; their own processes may crash."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", buffering=1, encoding="utf-8")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Before a test."""
        self._note(BEGAN, nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """After it."""
        self._note(ENDED, nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of its setup, itself and its teardown. A worker that crashes is a report too."""
        if report.failed:
            self._note(FAILED, report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Of a file that cannot be imported, say."""
        if report.failed:
            self._note(FAILED, report.nodeid)

    def _note(self, what: str, nodeid: str) -> None:
        self._file.write(f"{what} {nodeid.encode('unicode_escape').decode()}\n")


def read(path: Path) -> tuple[list[str], list[str]]:
    """Which tests failed, and which neither failed nor ended."""
    failed: dict[str, None] = {}
    running: dict[str, None] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        what, _, name = line.partition(" ")
        nodeid = name.encode().decode("unicode_escape")
        if what == BEGAN:
            running[nodeid] = None
        else:
            running.pop(nodeid, None)
        if what == FAILED:
            failed[nodeid] = None
    return list(failed), list(running)


if __name__ == "__main__":
    sys.path[0] = ""  # as `python -m pytest` has it
    sys.exit(pytest.main(sys.argv[2:], plugins=[Notes(Path(sys.argv[1]))]))
