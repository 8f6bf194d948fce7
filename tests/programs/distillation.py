"""A teacher without gradients, a student with checkpointed blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

NEEDS = ()


def run(folder: Path, steps: int) -> Any:
    torch.manual_seed(0)

    def block() -> nn.Module:
        return nn.TransformerEncoderLayer(64, 2, 192, dropout=0.1, batch_first=True, norm_first=True)

    teacher = nn.Sequential(*(block() for _ in range(4)), nn.Linear(64, 32)).eval()
    student, head = nn.ModuleList(block() for _ in range(3)), nn.Linear(64, 32)
    optimizer = torch.optim.AdamW([*student.parameters(), *head.parameters()], lr=1e-3)
    losses = []
    for _ in range(steps):
        x = torch.randn(4, 48, 64)
        with torch.no_grad():
            wanted = (teacher(x) / 2).softmax(-1)
        hidden = x
        for layer in student:
            hidden = checkpoint(layer, hidden, use_reentrant=False)
        loss = F.kl_div((head(hidden) / 2).log_softmax(-1), wanted, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, student.state_dict(), head.state_dict()
