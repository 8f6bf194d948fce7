"""LBFGS with a strong Wolfe line search: a step evaluates its closure a few times, and never the same number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

NEEDS = ()


def run(folder: Path, steps: int) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(32, 96),
        nn.Tanh(),
        nn.Linear(96, 96),
        nn.Tanh(),
        nn.Linear(96, 96),
        nn.Tanh(),
        nn.Linear(96, 4),
    )
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=4, history_size=5, line_search_fn="strong_wolfe"
    )
    x, y = torch.randn(512, 32), torch.randn(512, 4)
    losses: list[float] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        losses.append(loss.item())
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    return losses, model.state_dict()
