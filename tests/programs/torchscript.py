"""A scripted model that trains, is saved, and loaded again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

NEEDS = ()
FIRST_DIFFERS = True
"""TorchScript optimizes what has run before: the first run in a process has other bits than the next, by itself."""


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(96, 96) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def run(folder: Path, steps: int) -> Any:
    torch.manual_seed(0)
    model = torch.jit.script(Residual())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    losses = []
    for _ in range(steps):
        x = torch.randn(128, 96)
        loss = nn.functional.mse_loss(model(x), -x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.save(str(folder / "model.pt"))
    loaded = torch.jit.load(str(folder / "model.pt"))
    return losses, loaded(torch.ones(4, 96)), model.state_dict()
