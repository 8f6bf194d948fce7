"""Deep Q-learning: a replay buffer in a tensor, a target network that follows, acting between the updates."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

NEEDS = ()


def run(folder: Path, steps: int) -> Any:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(16, 128),
        nn.ReLU(),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, 4),
    )
    target = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    states, rewards = torch.zeros(512, 16), torch.zeros(512)
    actions = torch.zeros(512, dtype=torch.long)
    place, losses, state = 0, [], torch.randn(8, 16)
    for _ in range(3 * steps):
        with torch.no_grad():
            action = network(state).argmax(1)
        rows = torch.arange(place, place + 8) % 512
        states[rows], actions[rows], rewards[rows] = state, action, torch.randn(8)
        place, state = place + 8, torch.randn(8, 16)
        chosen = torch.randint(0, min(place, 512), (128,))
        with torch.no_grad():
            wanted = rewards[chosen] + 0.9 * target(states[chosen]).max(1).values
        valued = network(states[chosen]).gather(1, actions[chosen, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(valued, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), network.parameters(), strict=True):
                slow.lerp_(fast, 0.05)
        losses.append(loss.item())
    return losses, network.state_dict(), target.state_dict(), states
