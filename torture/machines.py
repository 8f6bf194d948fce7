"""The test suite as on other machines: kernels of other CPUs, other numbers of threads, other programs, other orders.

A case is a setting. Under each the whole suite is run, but for what needs a browser: what an op needs at once hangs on
the kernel that is chosen for it, and what comes first on who else computes. Every test must pass.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

import torch

from benchmarks.measure import busy

from .outcome import Outcome
from .pool import ROOT, Options

_AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
_SSE41 = {
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
}
_TWO_THREADS = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}
"""On a busy machine op threads that spin while they wait for each other take twenty times as long."""


@dataclass(frozen=True)
class Setting:
    """What another machine is: its environment, how many processes compute beside the tests, and the tests' order."""

    environment: dict[str, str] = field(default_factory=dict)
    busy: int = 0
    random_order: bool = False


SETTINGS = {
    "AVX2, no bf16 instructions": Setting(_AVX2),
    "AVX2, two op threads, random order": Setting(_AVX2 | _TWO_THREADS, random_order=True),
    "SSE 4.1, random order": Setting(_SSE41, random_order=True),
    "SSE 4.1, two op threads, busy": Setting(_SSE41 | _TWO_THREADS, busy=2),
}
WORKERS = 2
"""Test processes of a setting, as in the gate. Settings are not run at once: they would be each other's load."""
_WHOLE = ("-n", str(WORKERS), "--dist", "loadfile", "--ignore=tests/browser", "tests")
_SHARE = ["AVX2, no bf16 instructions"]
_TESTS_OF_SHARE = ("-p", "no:xdist", "tests/integration/test_bit_identity.py", "-k", "bf16 and tight")
_HANGS_AFTER_S = 14400.0  # a busy machine is no hang
KEPT = ROOT / "build" / "torture"
"""What each setting's tests say: output and results."""


def cases(options: Options) -> list[str]:
    """The settings."""
    return _SHARE if options.share else list(SETTINGS)


def check(case: str, options: Options) -> Outcome:
    """Run the tests under a setting, and count those that passed."""
    outcome, setting = Outcome(case), SETTINGS[case]
    folder = KEPT / ("share" if options.share else "".join(c if c.isalnum() else "-" for c in case))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    results = folder / "results.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={results}"]
    if setting.random_order:
        command += ["--random-order-bucket=module", f"--random-order-seed={options.seed}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | setting.environment
    if not torch.cpu._is_avx2_supported() and environment.get("ATEN_CPU_CAPABILITY") == "avx2":
        del environment["ATEN_CPU_CAPABILITY"]  # PyTorch would obey it, and crash
    with busy(setting.busy):
        tests = _TESTS_OF_SHARE if options.share else _WHOLE
        problem = _run([*command, *tests], environment, folder / "output.txt")
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


def _run(command: list[str], environment: dict[str, str], output: Path) -> str:
    """Run pytest, and keep what it says in a file. Returns how it ended and its last words, or "" if nothing failed."""
    with (
        output.open("w") as said,
        subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=said, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            process.wait(_HANGS_AFTER_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return f"pytest did not end within {_HANGS_AFTER_S:g} s: {_end_of(output)}"
    return f"pytest ended with {process.returncode}: {_end_of(output)}" if process.returncode else ""


def _end_of(output: Path) -> str:
    return output.read_text(errors="replace")[-500:]
