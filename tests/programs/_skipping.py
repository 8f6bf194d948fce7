"""What tests do about a program that needs a library which is not installed."""

from __future__ import annotations

import pytest
import runner


def skip_without(name: str) -> None:
    """Skip the test by the names of what its program cannot import (``scripts/setup.sh apart`` brings most of them)."""
    if lacking := runner.missing(name):
        pytest.skip(f"{name} needs {', '.join(lacking)}, which cannot be imported here")
