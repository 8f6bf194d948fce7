"""The C++ core without Python, under many threads (csrc/tests/stress.cpp); `make sanitize` does it for longer."""

from __future__ import annotations

import re
import subprocess

import pytest
from training import HANGS_AFTER_S, ROOT

pytestmark = pytest.mark.full

BUILD = ROOT / "build"


def test_the_core_alone_under_many_threads() -> None:
    """Storages are made, written, sent away, dropped, held and let die by four threads, while sessions come and go."""
    if not (BUILD / "build.ninja").exists():
        pytest.skip("the core has not been built here with CMake: run `make build`")
    built = subprocess.run(
        ["cmake", "--build", str(BUILD), "--target", "stress"], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stdout[-3000:] + built.stderr[-3000:]
    done = subprocess.run(
        [str(BUILD / "csrc" / "stress"), "3"], capture_output=True, text=True, timeout=HANGS_AFTER_S
    )
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    counts = {
        what: int(count) for count, what in re.findall(r"(\d+) (checks|wrong|planned copies)", done.stdout)
    }
    assert counts["checks"] > 100 and counts["wrong"] == 0 and counts["planned copies"] > 0, done.stdout
