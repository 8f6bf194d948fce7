"""Momentum contrast: an encoder that follows another, and a queue of keys in a buffer."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

NEEDS = ()


def run(folder: Path, steps: int) -> Any:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    encoder = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 64))
    follower = copy.deepcopy(encoder).requires_grad_(False)
    queue = F.normalize(torch.randn(64, 512), dim=0)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.03, momentum=0.9)
    losses = []
    for number in range(steps):
        images = torch.randn(8, 3, 16, 16)
        asked = F.normalize(encoder(images + 0.1 * torch.randn_like(images)))
        with torch.no_grad():
            for slow, fast in zip(follower.parameters(), encoder.parameters(), strict=True):
                slow.mul_(0.99).add_(fast, alpha=0.01)
            keys = F.normalize(follower(images.flip(3)))
        likeness = torch.cat([(asked * keys).sum(1, keepdim=True), asked @ queue.clone()], 1)
        loss = F.cross_entropy(likeness / 0.07, torch.zeros(8, dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        queue[:, 8 * number % 512 : 8 * number % 512 + 8] = keys.T
        losses.append(loss.item())
    return losses, encoder.state_dict(), queue
