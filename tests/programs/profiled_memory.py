"""A training that torch.profiler watches, memory too, by its schedule (PyTorch issues 120171, 166121)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

NEEDS = ()


def run(folder: Path, steps: int) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(128, 128), nn.GELU())))
    optimizer = torch.optim.AdamW(model.parameters())
    losses, seen = [], []

    def look(profiler: profile) -> None:
        totals = {event.key: event.self_cpu_memory_usage for event in profiler.key_averages()}
        seen.append(totals["aten::mm"] > 0 and totals["aten::gelu"] > 0)

    with profile(
        activities=[ProfilerActivity.CPU],
        profile_memory=True,
        record_shapes=True,
        schedule=schedule(wait=1, warmup=1, active=2),
        on_trace_ready=look,
    ) as profiler:
        for _ in range(steps):
            loss = model(torch.randn(256, 128)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            profiler.step()
    return losses, seen, model.state_dict()
