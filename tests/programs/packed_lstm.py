"""A bidirectional LSTM over packed sequences of different lengths, with clipping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

NEEDS = ()


def run(folder: Path, steps: int) -> Any:
    torch.manual_seed(0)
    embedding, lstm = (
        nn.Embedding(200, 32),
        nn.LSTM(32, 48, 2, batch_first=True, bidirectional=True, dropout=0.1),
    )
    head = nn.Linear(96, 5)
    model = nn.ModuleList([embedding, lstm, head])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        lengths = torch.randint(16, 33, (16,)).sort(descending=True).values
        tokens, tags = torch.randint(0, 200, (16, 32)), torch.randint(0, 5, (16, 32))
        packed = pack_padded_sequence(embedding(tokens), lengths, batch_first=True)
        outputs, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=32)
        loss = nn.functional.cross_entropy(head(outputs).flatten(0, 1), tags.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()
