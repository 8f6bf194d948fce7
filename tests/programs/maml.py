"""MAML with torch.func: an inner loop whose steps are differentiated, over a batch of tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad

NEEDS = ()


def run(folder: Path, steps: int) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of(weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(functional_call(model, weights, (x,)), y)

    losses = []
    for _ in range(steps):
        total = torch.zeros(())
        for _ in range(4):
            x, y = torch.randn(64, 8), torch.randn(64, 4)
            weights = dict(model.named_parameters())
            for _ in range(2):
                slopes = grad(loss_of)(weights, x[:32], y[:32])
                weights = {name: weight - 0.1 * slopes[name] for name, weight in weights.items()}
            total = total + loss_of(weights, x[32:], y[32:])
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        losses.append(total.item())
    return losses, model.state_dict()
