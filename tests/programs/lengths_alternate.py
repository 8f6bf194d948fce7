"""Batches of two lengths in turn (PyTorch issue 82218: audio of lengths that differ a hundredfold)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

NEEDS = ()


def run(folder: Path, steps: int) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(128, 128), nn.GELU())))
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for step in range(steps):
        loss = model(torch.randn((1024, 64)[step % 2], 128)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()
