"""Lets the tests of this folder use ``training`` of the integration tests; one that leaves a session open fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))


@pytest.fixture(autouse=True)
def clean_slate() -> Iterator[None]:
    """A test that leaves a session open fails, and does not take the next ones with it."""
    from chameleon_lab import current_session
    from chameleon_lab.runtime import core

    yield
    core.set_faults()
    left = current_session()
    if left is not None:
        left.stop()
    assert left is None, f"the test left {left!r} open"
