"""The core's types are those of the module that was built, and come with the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_stub_says_what_the_core_has() -> None:
    """Stale: run ``python scripts/stub.py``, and commit what it writes."""
    script = [sys.executable, ROOT / "scripts" / "stub.py", "--check"]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}: run `python scripts/stub.py`"


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "chameleon_lab" / "py.typed").exists()
