"""Two networks and two optimizers, one against the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

NEEDS = ()


def run(folder: Path, steps: int) -> Any:
    torch.manual_seed(0)
    maker = nn.Sequential(
        nn.ConvTranspose2d(16, 32, 4),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, 2, 1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 3, 4, 2, 1),
        nn.Tanh(),
    )
    judge = nn.Sequential(
        nn.Conv2d(3, 16, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(16, 32, 4, 2, 1),
        nn.BatchNorm2d(32),
        nn.LeakyReLU(0.2),
        nn.Conv2d(32, 1, 4),
    )
    maker_optimizer = torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.5, 0.999))
    judge_optimizer = torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.5, 0.999))
    losses = []
    for _ in range(steps):
        real, noise = torch.randn(32, 3, 16, 16), torch.randn(32, 16, 1, 1)
        made = maker(noise)
        judge_optimizer.zero_grad()
        on_real, on_made = judge(real).flatten(), judge(made.detach()).flatten()
        judge_loss = F.softplus(-on_real).mean() + F.softplus(on_made).mean()
        judge_loss.backward()
        judge_optimizer.step()
        maker_optimizer.zero_grad()
        maker_loss = F.softplus(-judge(made).flatten()).mean()
        maker_loss.backward()
        maker_optimizer.step()
        losses += [judge_loss.item(), maker_loss.item()]
    return losses, maker.state_dict(), judge.state_dict()
