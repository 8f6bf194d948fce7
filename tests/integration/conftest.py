"""Lets the tests of this folder import ``training``, and fails those that leave a session open."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True, scope="module")
def op_threads() -> None:
    """Another number gives other sums: what a module's tests compare with is made before the first of them begins."""
    from training import OP_THREADS

    torch.set_num_threads(OP_THREADS)


@pytest.fixture(autouse=True)
def clean_slate() -> Iterator[None]:
    """A test that leaves a session open fails, and does not take the next ones with it."""
    from training import OP_THREADS

    from chameleon_lab import current_session

    torch.set_num_threads(OP_THREADS)
    yield
    torch.set_num_threads(OP_THREADS)
    left = current_session()
    if left is not None:
        left.stop()
    assert left is None, f"the test left {left!r} open"
