"""The C++ core without Python, under many threads (csrc/tests/stress.cpp); `make sanitize` does it for longer."""

from __future__ import annotations

import re
import subprocess

import pytest
from training import HANGS_AFTER_S, built

pytestmark = pytest.mark.full


def test_the_core_alone_under_many_threads() -> None:
    """Storages are made, written, sent away, dropped, held and let die by four threads, while sessions come and go."""
    program = built("stress") / "csrc" / "stress"
    done = subprocess.run([str(program), "3"], capture_output=True, text=True, timeout=HANGS_AFTER_S)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    counts = {
        what: int(count) for count, what in re.findall(r"(\d+) (checks|wrong|planned copies)", done.stdout)
    }
    assert counts["checks"] > 100 and counts["wrong"] == 0 and counts["planned copies"] > 0, done.stdout
