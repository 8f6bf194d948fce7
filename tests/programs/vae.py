"""A variational autoencoder with a schedule of its loss's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

NEEDS = ()


def run(folder: Path, steps: int) -> Any:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(256, 192), nn.ELU(), nn.Linear(192, 128), nn.ELU(), nn.Linear(128, 64))
    decoder = nn.Sequential(nn.Linear(32, 128), nn.ELU(), nn.Linear(128, 192), nn.ELU(), nn.Linear(192, 256))
    optimizer = torch.optim.RMSprop([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    losses = []
    for number in range(steps):
        x = torch.rand(256, 256)
        mean, log_variance = encoder(x).chunk(2, 1)
        sampled = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        rebuilt = nn.functional.binary_cross_entropy_with_logits(decoder(sampled), x, reduction="sum")
        distance = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum()
        loss = rebuilt + min(1.0, number / 4) * distance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, encoder.state_dict(), decoder.state_dict()
