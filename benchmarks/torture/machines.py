"""The test suite as on other machines: kernels of other CPUs, other numbers of threads, other programs, other orders.

A case is a setting; under it run the tests whose runs keep to a capacity, since what an op needs at once hangs on the
kernel that is chosen for it. Every one of them must pass.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import torch

from .outcome import Outcome
from .pool import ROOT, Options

_OLD_CPU = {
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
}
_AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
_TWO_THREADS = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}
"""On a busy machine op threads that spin while they wait for each other take twenty times as long."""
SETTINGS: dict[str, dict[str, str]] = {
    "AVX2, no bf16 instructions": _AVX2,
    "SSE 4.1": _OLD_CPU,
    "two op threads": _TWO_THREADS,
    "SSE 4.1, two op threads": _OLD_CPU | _TWO_THREADS,
    "busy": {},
    "random order": {},
}
"""What is set in the environment of each case; "busy" has two busy processes beside it."""
_TESTS = (
    *("test_bit_identity.py", "test_memory.py", "test_bad_input.py", "test_mixed_policies.py"),
    *("test_floor.py", "test_pauses.py", "test_trusting.py", "test_meta_matches_real.py"),
    *("test_policy_in_session.py", "test_adapting.py", "test_replay.py", "test_replay_training.py"),
)
_SHARE = ["AVX2, no bf16 instructions"]
_TESTS_OF_SHARE = ("test_bit_identity.py", "-k", "bf16 and tight")
_HANGS_AFTER_S = 14400.0  # a busy machine is no hang


def cases(options: Options) -> list[str]:
    """The settings."""
    return _SHARE if options.share else list(SETTINGS)


def check(case: str, options: Options) -> Outcome:
    """Run the tests under a setting, and count those that passed."""
    outcome = Outcome(case)
    tests = _TESTS_OF_SHARE if options.share else _TESTS
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    if case == "random order":
        command += ["--random-order-bucket=global", f"--random-order-seed={options.seed}"]
    with tempfile.TemporaryDirectory() as folder, _busy(2 if case == "busy" else 0):
        results = Path(folder) / "results.xml"
        command += [f"--junitxml={results}", *tests]
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | SETTINGS[case]
        if not torch.cpu._is_avx2_supported() and environment.get("ATEN_CPU_CAPABILITY") == "avx2":
            del environment["ATEN_CPU_CAPABILITY"]  # PyTorch would obey it, and crash
        problem = _run(command, environment)
        found = list(ET.parse(results).iter("testcase")) if results.exists() else []
    for test in found:
        if (skipped := test.find("skipped")) is not None:
            outcome.skipped[skipped.get("message", "")] += 1
            continue
        outcome.tried += 1
        failure = test.find("failure") if test.find("failure") is not None else test.find("error")
        if failure is not None:
            why = (failure.get("message") or "without a message").partition("\n")[0]
            outcome.wrong.append(f"{test.get('name')}: {why}")
    if problem and not outcome.wrong:
        outcome.wrong.append(problem)
    outcome.notes = {"tests": outcome.tried, "skipped": outcome.skipped.total()}
    return outcome


def _run(command: list[str], environment: dict[str, str]) -> str:
    """Run pytest in the folder of the tests. Returns how it ended and its last words, or "" if nothing failed."""
    folder = ROOT / "tests" / "integration"
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=_HANGS_AFTER_S)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            return f"pytest did not end within {_HANGS_AFTER_S:g} s: {said[-500:]}"
    return f"pytest ended with {process.returncode}: {said[-500:]}" if process.returncode else ""


@contextlib.contextmanager
def _busy(count: int) -> Iterator[None]:
    """Inside, so many processes do nothing but compute."""
    command = [sys.executable, "-c", f"import os\nwhile os.getppid() == {os.getpid()}: sum(range(10**6))"]
    others = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()
