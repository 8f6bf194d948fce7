"""Lets the tests of this folder import ``training``, and fails those that leave a session open or settings changed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True, scope="module")
def op_threads() -> None:
    """Another number gives other sums: what a module's tests compare with is made before the first of them begins."""
    from training import OP_THREADS

    torch.set_num_threads(OP_THREADS)


def settings() -> dict[str, Any]:
    """Of torch, for the whole process: the next tests would run under them."""
    return {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "gradients": torch.is_grad_enabled(),
    }


@pytest.fixture(autouse=True)
def clean_slate() -> Iterator[None]:
    """A test that leaves a session open, or settings changed, fails, and does not take the next ones with it."""
    from training import OP_THREADS

    from chameleon_lab import current_session

    torch.set_num_threads(OP_THREADS)
    before = settings()
    yield
    torch.set_num_threads(OP_THREADS)
    after = settings()
    torch.use_deterministic_algorithms(before["deterministic"])
    torch.set_default_dtype(before["default dtype"])
    torch.set_default_device(None)
    torch.set_float32_matmul_precision(before["matmul precision"])
    torch.set_grad_enabled(before["gradients"])
    left = current_session()
    if left is not None:
        left.stop()
    assert left is None, f"the test left {left!r} open"
    assert after == before, "the test left these settings changed"
