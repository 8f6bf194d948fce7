"""Programs with Triton's kernels, each run in a process of its own."""

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
from training import HANGS_AFTER_S

NEEDS_TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
"""PyTorch's CUDA build brings it."""


def printed(tmp_path: Path, program: str, **environment: str) -> Any:
    """What a program prints last, as JSON. Its kernels are compiled, unless it asks for Triton's interpreter."""
    script = tmp_path / "program.py"  # Triton reads the sources of its kernels
    script.write_text(textwrap.dedent(program))
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, script],
        env=os.environ
        | {"PYTHONPATH": path, "TRITON_CACHE_DIR": str(tmp_path / "cache"), "TRITON_INTERPRET": "0"}
        | environment,
        capture_output=True,
        text=True,
        timeout=HANGS_AFTER_S,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
