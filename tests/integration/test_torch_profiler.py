"""What torch's profiler sees of memory beside a session: what it sees without one, and what leaves and comes back."""

from __future__ import annotations

import gc
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from training import MiB

import chameleon_lab as cl
from chameleon_lab.runtime import core


def profiled(**options: Any) -> profile:
    return profile(activities=[ProfilerActivity.CPU], profile_memory=True, **options)


def events(profiler: profile, folder: Path, name: str) -> list[dict[str, Any]]:
    """What is told about each event of a kind."""
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    found = json.loads(path.read_text())["traceEvents"]
    return [event["args"] for event in found if event.get("name") == name]


def training() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Sizes of whole pages, which is how the embedded device rounds them up."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 1024, bias=False), nn.Tanh(), nn.Linear(1024, 256, bias=False))
    return net, torch.optim.AdamW(net.parameters(), foreach=False)


def step(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    net(torch.ones(512, 256)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def memory_by_op(session: cl.Session | None) -> dict[str, int]:
    with session or nullcontext():
        net, optimizer = training()
        step(net, optimizer)
        with profiled() as profiler:
            step(net, optimizer)
    return {event.key: event.self_cpu_memory_usage for event in profiler.key_averages()}


def test_each_op_has_the_memory_that_it_has_without_a_session() -> None:
    expected = memory_by_op(None)
    assert expected["aten::mm"] > MiB
    assert memory_by_op(cl.Session(device="cpu")) == expected


def test_what_leaves_is_freed_and_what_comes_back_is_allocated(tmp_path: Path) -> None:
    gc.collect()  # what earlier tests have left in cycles is not to be freed meanwhile
    with cl.Session("9MiB", device="cpu") as session, profiled() as profiler:
        net, optimizer = training()
        for _ in range(5):
            step(net, optimizer)
        here = session.counters()["resident_bytes"]
    found = events(profiler, tmp_path, "[memory]")
    leaving = sum(one.swapped_out_bytes for one in session.history)
    assert leaving > 4 * MiB and -sum(min(event["Bytes"], 0) for event in found) > leaving
    # Beside what the session leaves to torch's own allocator, which is small. "Total Allocated" is no use here: torch
    # goes on counting what an earlier profile saw being allocated and not being freed.
    assert sum(event["Bytes"] for event in found) == pytest.approx(here, abs=0.1 * MiB)


def test_the_timeline_of_memory_is_written(tmp_path: Path) -> None:
    # With record_shapes the profiler asks each input for its address: before torch 2.13 it must not be away.
    with cl.Session("9MiB" if core.SEES_RAW_ACCESS else None, device="cpu"):
        net, optimizer = training()
        step(net, optimizer)
        with profiled(record_shapes=True, with_stack=True) as profiler:
            step(net, optimizer)
        path = tmp_path / "timeline.json"
        with pytest.warns(FutureWarning, match="export_memory_timeline"):
            profiler.export_memory_timeline(str(path), device="cpu")
    times, sizes = json.loads(path.read_text())
    assert len(times) == len(sizes) > 10 and max(map(sum, sizes)) > MiB


def test_memory_that_is_refused_is_an_event(tmp_path: Path) -> None:
    with cl.Session("2MiB", device="cpu"), profiled() as profiler, pytest.raises(torch.OutOfMemoryError):
        torch.ones(MiB)
    (refused,) = events(profiler, tmp_path, "[OutOfMemory]")
    assert refused["Bytes"] == 4 * MiB
