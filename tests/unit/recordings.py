"""Recordings of a small training: by torch.profiler, its execution trace observer, and Chameleon Lab itself."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, record_function, schedule

STEPS = 2


def trainer() -> Callable[[], None]:
    """A step of a small training; the first one has been made."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(96, 96) for _ in range(3)])
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        with record_function("my forward"):
            loss = model(torch.ones(64, 96)).pow(2).mean()
        loss.backward()
        optimizer.step()

    step()
    return step


def record(folder: Path, steps: bool = True) -> tuple[Path, Path]:
    """A Chrome trace and an execution trace of two steps. ``steps``: the profiler is told where they end."""
    step = trainer()
    chrome, execution = folder / "chrome.json", folder / "execution.json"
    observer = ExecutionTraceObserver()
    observer.register_callback(str(execution))
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=STEPS, repeat=1) if steps else None,
        profile_memory=True,
        record_shapes=True,
        with_stack=True,
        execution_trace_observer=observer,
        on_trace_ready=lambda each: each.export_chrome_trace(str(chrome)),
    ) as profiler:
        for _ in range(STEPS + steps):
            step()
            if steps:
                profiler.step()
    return chrome, execution


def gzipped(path: Path) -> Path:
    made = path.with_suffix(".json.gz")
    made.write_bytes(gzip.compress(path.read_bytes()))
    return made


# ------------------------------------------------------------------------------- a GPU's trace, by hand


def _slice(category: str, name: str, start: float, length: float, **more: Any) -> dict[str, Any]:
    arguments = more.pop("args", {})
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": more.pop("pid", 100),
        "tid": more.pop("tid", 100),
        "ts": start,
        "dur": length,
        "args": arguments,
    } | more


def launch(correlation: int, start: float, name: str = "cudaLaunchKernel") -> dict[str, Any]:
    return _slice(
        "cuda_runtime", name, start, 2.0, args={"correlation": correlation, "External id": correlation}
    )


def on_gpu(
    category: str, name: str, start: float, length: float, correlation: int, **args: Any
) -> dict[str, Any]:
    arguments = {"device": 0, "stream": 7, "correlation": correlation, "External id": correlation} | args
    return _slice(category, name, start, length, pid=0, tid=arguments["stream"], args=arguments)


def allocated(start: float, address: int, size: int, total: int) -> dict[str, Any]:
    return {
        "ph": "i",
        "cat": "cpu_instant_event",
        "s": "t",
        "name": "[memory]",
        "pid": 100,
        "tid": 100,
        "ts": start,
        "args": {
            "Total Reserved": 1 << 21,
            "Total Allocated": total,
            "Bytes": size,
            "Device Id": 0,
            "Device Type": 1,
            "Addr": address,
        },
    }


def gpu_trace() -> dict[str, Any]:
    """Two matmuls and a copy each way; by the schema of torch.profiler's traces, times in microseconds.

    Compute runs at 100 to 150 and 180 to 220, the copy in at 140 to 190 (half a microsecond in five is not hidden:
    150 to 180), the copy out at 200 to 240 (220 to 240 is not).
    """
    events = [
        _slice("cpu_op", "aten::mm", 10.0, 10.0, args={"External id": 1, "Record function id": 1}),
        _slice("cpu_op", "aten::to", 30.0, 10.0, args={"External id": 2, "Record function id": 2}),
        _slice("cpu_op", "aten::copy_", 32.0, 6.0, args={"External id": 3, "Record function id": 3}),
        _slice("cpu_op", "aten::mm", 50.0, 10.0, args={"External id": 4, "Record function id": 4}),
        _slice("cpu_op", "aten::copy_", 70.0, 10.0, args={"External id": 5, "Record function id": 5}),
        launch(1, 12.0),
        launch(3, 33.0, "cudaMemcpyAsync"),
        launch(4, 52.0),
        launch(5, 72.0, "cudaMemcpyAsync"),
        on_gpu("kernel", "gemm_a", 100.0, 50.0, 1),
        on_gpu("kernel", "gemm_b", 180.0, 40.0, 4),
        on_gpu("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 140.0, 50.0, 3, stream=20, bytes=4096),
        on_gpu("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 200.0, 40.0, 5, stream=21, bytes=8192),
        {"ph": "s", "id": 1, "pid": 100, "tid": 100, "ts": 12.0, "cat": "ac2g", "name": "ac2g"},
        {"ph": "f", "id": 1, "pid": 0, "tid": 7, "ts": 100.0, "cat": "ac2g", "name": "ac2g", "bp": "e"},
        allocated(11.0, 0x7F0000000000, 1024, 5120),
        allocated(51.0, 0x7F0000000400, 2048, 7168),
        allocated(75.0, 0x7F0000000000, -1024, 6144),
        {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "ts": 0, "args": {"name": "python"}},
    ]
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "traceEvents": events,
    }


def written(values: Any, path: Path) -> Path:
    path.write_text(json.dumps(values))
    return path
