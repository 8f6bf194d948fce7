"""What traces say of the kernels that ran."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

import chameleon_lab as cl
from chameleon_lab.planner import floor
from chameleon_lab.runtime.kernels import _LIMITS, kernels_of

ROOT = Path(__file__).parents[2]


def test_a_recorded_floor_names_the_kernels_that_ran() -> None:
    with cl.Session() as session:
        torch.nn.Linear(8, 8)(torch.ones(8)).sum().backward()
        session.step()
    kernels = session.trace().meta["kernels"]
    assert kernels == kernels_of(torch.device("cpu")) and torch.backends.cpu.get_cpu_capability() in kernels
    assert f"measured on {kernels}" in floor(session.trace()).measured_on


def test_settings_that_choose_other_kernels_are_named() -> None:
    code = "import torch; from chameleon_lab.runtime.kernels import kernels_of; print(kernels_of(torch.device('cpu')))"
    limits = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-W", "ignore", "-c", code]
    environment = {name: value for name, value in os.environ.items() if name not in _LIMITS} | limits
    printed = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert printed.endswith("2 op threads, ATEN_CPU_CAPABILITY=default, ONEDNN_MAX_CPU_ISA=SSE41)")
    assert "AVX" not in printed.partition("(")[2]
