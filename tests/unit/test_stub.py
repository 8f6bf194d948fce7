"""The core's types are those of the module that was built, and come with the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
import torch

import chameleon_lab as cl
from chameleon_lab.runtime import core

ROOT = Path(__file__).parents[2]


def test_the_stub_says_what_the_core_has() -> None:
    """Stale: run ``python scripts/stub.py``, and commit what it writes."""
    script = [sys.executable, ROOT / "scripts" / "stub.py", "--check"]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}: run `python scripts/stub.py`"


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "chameleon_lab" / "py.typed").exists()


def test_the_counters_are_those_that_the_core_counts() -> None:
    assert core.of().counters().keys() == get_type_hints(core.Counters).keys()


def test_a_failure_says_what_the_core_says() -> None:
    with cl.Session("8MiB"), pytest.raises(torch.OutOfMemoryError) as raised:
        torch.zeros(4 << 20)
    failure = core.of().failure_of(str(raised.value))
    assert failure is not None
    wanted = get_type_hints(core.Failure)
    assert {name: type(value) for name, value in failure.items()} == wanted
