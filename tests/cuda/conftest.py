"""These tests need a GPU, and a core that was built with the CUDA device; elsewhere they are skipped, and say why.

Most can be rehearsed without one: see gpu_training.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "integration")]

_replay_counts: list[Any] = []


def _missing() -> str:
    from gpu_training import ON_GPU

    if not ON_GPU:
        return ""  # a rehearsal
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no GPU here"
    from chameleon_lab.runtime import core

    return core.missing_device("cuda:0")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", metavar="FILE", help="write there how each test ended, as they end")
    parser.addoption("--part", metavar="NAME", help="as that part of the file, whose other parts stay")


class Results:
    """How each test ended: written after each, since what runs into its time limit is stopped."""

    def __init__(self, file: Path, part: str | None) -> None:
        from gpu_training import ON_GPU

        from benchmarks.gpu.common import Gpu

        self.file, self.part = file, part
        on_gpu = ON_GPU and torch.cuda.is_available()
        self.environment = Gpu("cuda" if on_gpu else "cpu", 0.0).environment({})
        self.tests: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        why = str(report.longrepr[2]) if report.skipped and isinstance(report.longrepr, tuple) else None
        if report.failed:
            why = report.longreprtext[-2000:]
        self.tests.append(
            {"test": report.nodeid, "outcome": report.outcome, "s": report.duration, "why": why}
        )
        self.write()

    def write(self) -> None:
        from benchmarks.gpu.common import write_part

        found: dict[str, Any] = {"environment": self.environment, "tests": self.tests}
        if _replay_counts:
            found["replays"] = sum(_replay_counts[1:], _replay_counts[0]).lines()
        write_part(self.file, self.part, found)


def pytest_configure(config: pytest.Config) -> None:
    if file := config.getoption("--results"):
        config.pluginmanager.register(Results(Path(file), config.getoption("--part")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mine = [item for item in items if HERE in item.path.parents]
    if mine and (reason := _missing()):
        for item in mine:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def replay_counts() -> list[Any]:
    """Counts of replays that are printed when all tests have run."""
    return _replay_counts


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _replay_counts:
        terminalreporter.section("replays")
        for line in sum(_replay_counts[1:], _replay_counts[0]).lines():
            terminalreporter.write_line(line)


@pytest.fixture(autouse=True)
def clean_gpu():  # noqa: ANN201
    """A test begins with an empty cache and no session, and runs its kernels in a fixed order of additions."""
    from gpu_training import clean

    from chameleon_lab import current_session

    torch.use_deterministic_algorithms(True, warn_only=True)
    clean()
    yield
    left = current_session()
    if left is not None:
        left.stop()
    torch.use_deterministic_algorithms(False)
    assert left is None, f"the test left {left!r} open"
