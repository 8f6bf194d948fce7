"""A convolutional classifier with autocast, GradScaler, accumulation, a warm-up and evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

NEEDS = ()


def run(folder: Path, steps: int) -> Any:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1)]
    for _ in range(8):
        layers += [nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 16, 3, padding=1)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    losses = []
    for number in range(steps):
        for _ in range(2):
            images, targets = torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,))
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(images), targets) / 2
            scaler.scale(loss).backward()
            losses.append(loss.item())
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scheduler.step()
        if number % 4 == 3:
            model.eval()
            with torch.no_grad():
                losses.append(model(torch.ones(8, 3, 16, 16)).sum().item())
            model.train()
    return losses, model.state_dict()
