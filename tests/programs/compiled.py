"""torch.compile of the model's blocks, in an ordinary loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

NEEDS = ()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(192, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def run(folder: Path, steps: int) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(6)))
    for block in model:
        block.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        x = torch.randn(128, 64)
        loss = nn.functional.mse_loss(model(x), -x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: value.clone() for name, value in model.state_dict().items()}
