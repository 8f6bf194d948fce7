"""WGAN-GP: the gradient of a gradient, several critic steps for one of the generator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

NEEDS = ()


def layers(*widths: int) -> nn.Sequential:
    made: list[nn.Module] = []
    for before, after in zip(widths, widths[1:], strict=False):
        made += [nn.Linear(before, after), nn.SiLU()]
    return nn.Sequential(*made[:-1])


def run(folder: Path, steps: int) -> Any:
    torch.manual_seed(0)
    maker, critic = layers(32, 128, 128, 128, 64), layers(64, 128, 128, 128, 1)
    maker_optimizer = torch.optim.Adam(maker.parameters(), lr=1e-3)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    losses = []
    for number in range(2 * steps):
        real, made = torch.randn(128, 64), maker(torch.randn(128, 32)).detach()
        mixed = torch.lerp(real, made, torch.rand(128, 1)).requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        penalty = (slope.norm(2, dim=1) - 1).pow(2).mean()
        loss = critic(made).mean() - critic(real).mean() + 10 * penalty
        critic_optimizer.zero_grad()
        loss.backward()
        critic_optimizer.step()
        losses.append(loss.item())
        if number % 2:
            loss = -critic(maker(torch.randn(128, 32))).mean()
            maker_optimizer.zero_grad()
            loss.backward()
            maker_optimizer.step()
            losses.append(loss.item())
    return losses, maker.state_dict(), critic.state_dict()
