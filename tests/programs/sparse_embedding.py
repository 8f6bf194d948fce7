"""Embeddings with sparse gradients and SparseAdam beside a dense optimizer: short steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

NEEDS = ()


def run(folder: Path, steps: int) -> Any:
    torch.manual_seed(0)
    users, items = nn.Embedding(2000, 32, sparse=True), nn.Embedding(4000, 32, sparse=True)
    tower = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))
    sparse = torch.optim.SparseAdam([*users.parameters(), *items.parameters()], lr=1e-2)
    dense = torch.optim.Adam(tower.parameters(), lr=1e-2)
    losses = []
    for _ in range(2 * steps):
        user, item = torch.randint(0, 2000, (256,)), torch.randint(0, 4000, (256,))
        clicked = torch.randint(0, 2, (256,)).float()
        score = tower(torch.cat([users(user), items(item)], 1)).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(score, clicked)
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()
        losses.append(loss.item())
    return losses, users.state_dict(), items.state_dict(), tower.state_dict()
