"""A short training under compute-sanitizer. Slow: a part of its own of benchmarks/gpu_check.sh."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from gpu_training import ON_GPU, ROOT

SECONDS = int(os.environ.get("CHECK_SECONDS", "500")) - 20
"""Less than the part has, so that the result is written."""


def test_compute_sanitizer_finds_nothing() -> None:
    if ON_GPU and shutil.which("compute-sanitizer") is None:
        pytest.skip("compute-sanitizer is not installed")
    code = (
        "import sys; sys.path[:0] = ['tests/cuda', 'tests/integration', '.']\n"
        "from gpu_training import *\n"
        "train(lambda: gpt2(1), 3, {'capacity': SANITIZED_BYTES})\n"
    )
    if not ON_GPU:
        exec(code, {})  # a rehearsal
        return
    # That a copy is not over yet is no error of the program (cudaErrorNotReady).
    done = subprocess.run(
        ["compute-sanitizer", "--report-api-errors", "no", "--error-exitcode", "9", sys.executable, "-c", code],
        capture_output=True, text=True, cwd=ROOT, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode != 9, done.stdout[-3000:]
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
