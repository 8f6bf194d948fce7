"""A second witness of overlap: one step as torch.profiler's records of kernels and copies show it (CUPTI's times)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch.profiler import ProfilerActivity, profile

import chameleon_lab as cl
from chameleon_lab.trace import Direction, StepTrace
from chameleon_lab.trace.overlap import overlap_of

from .common import Gpu


def profiled(gpu: Gpu, run: Callable[[], object]) -> profile:
    """Run a step under the profiler. Ops are not recorded beside a GPU's work: that would take the host longer."""
    with profile(activities=[ProfilerActivity.CUDA if gpu.real else ProfilerActivity.CPU]) as made:
        run()
        gpu.sync()
    return made


def testimony(made: profile) -> dict[str, Any]:
    """What the profiler saw, in :func:`figures`; or why it saw nothing, as where CUPTI may not be used."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "step.json"
        made.export_chrome_trace(str(file))
        try:
            return of_file(file)
        except cl.TraceError as error:
            return {"error": str(error).partition(": ")[2]}


def of_file(file: str | os.PathLike[str]) -> dict[str, Any]:
    """Of a Chrome trace of one step."""
    return figures(cl.Trace.open(file).steps[-1])


def figures(step: StepTrace) -> dict[str, Any]:
    """Of a recorded step, ours or a profiler's: overlap, seconds and bytes of the copies, stalls, time of kernels.

    The profiler's stalls are the time in which a copy runs and no kernel does, ours the time for which compute waited.
    """
    copies = step.transfers
    taken_s = copies.end_s - copies.start_s
    return {
        "hidden": overlap_of(step),
        "copies": len(taken_s),
        "copy_s": float(np.nansum(taken_s)),
        "out_bytes": int(copies.bytes[copies.direction == Direction.OUT].sum()),
        "in_bytes": int(copies.bytes[copies.direction == Direction.IN].sum()),
        "stall_s": float(step.stalls.duration_s.sum()),
        "kernel_s": float(step.kernels.duration_s.sum()),
    }
