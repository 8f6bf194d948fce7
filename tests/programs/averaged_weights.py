"""swa_utils: an average of all weights, its learning rate, and batch norm that is fitted to it at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

NEEDS = ()


def run(folder: Path, steps: int) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(layer for _ in range(7) for layer in (nn.Linear(96, 96), nn.BatchNorm1d(96), nn.ReLU())),
        nn.Linear(96, 10),
    )
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = SWALR(optimizer, swa_lr=0.01)
    losses = []
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(torch.randn(128, 96)), torch.randint(0, 10, (128,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        scheduler.step()
        losses.append(loss.item())
    update_bn([torch.randn(64, 96) for _ in range(2)], average)
    return losses, model.state_dict(), average.state_dict()
