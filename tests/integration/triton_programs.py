"""Programs with Triton's kernels, each run in a process of its own: Triton may be installed apart from the rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from training import HANGS_AFTER_S, ROOT

APART = ROOT / "build" / "packages" / "triton"
INSTALLED_AT = [str(APART)] if find_spec("triton") is None else []  # PyTorch's CUDA build brings one
NEEDS_TRITON = pytest.mark.skipif(bool(INSTALLED_AT) and not APART.is_dir(), reason="Triton is not installed")
"""``scripts/setup.sh apart`` brings it."""


def printed(tmp_path: Path, program: str, **environment: str) -> Any:
    """What a program prints last, as JSON."""
    script = tmp_path / "program.py"  # Triton reads the sources of its kernels
    script.write_text(textwrap.dedent(program))
    path = os.pathsep.join([*INSTALLED_AT, str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, script],
        env=os.environ | {"PYTHONPATH": path, "TRITON_CACHE_DIR": str(tmp_path / "cache")} | environment,
        capture_output=True,
        text=True,
        timeout=HANGS_AFTER_S,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
