"""accelerate's offloading: a frozen teacher has weights in host memory and on disk, and a student trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

NEEDS = ("accelerate",)

DIM = 256


def net() -> nn.Sequential:
    return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(DIM, DIM), nn.GELU())))


def run(folder: Path, steps: int) -> Any:
    from accelerate import dispatch_model

    torch.manual_seed(0)
    device = torch.device("cpu")
    where = {"0": "cpu", "2": "disk", "4": "cpu", "6": "disk", "1": 0, "3": 0, "5": 0, "7": 0}
    places = {name: device if place == 0 else place for name, place in where.items()}
    teacher = dispatch_model(
        net().eval(), places, main_device=device, offload_dir=str(folder / "weights"), force_hooks=True
    )
    student = net()
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        x = torch.randn(64, DIM)
        with torch.no_grad():
            wanted = teacher(x)
        assert all(parameter.is_meta for parameter in teacher.parameters()), "the weights are here"
        loss = nn.functional.mse_loss(student(x), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, student.state_dict()
