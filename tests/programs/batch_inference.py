"""Features of many batches from a frozen network, under inference_mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

NEEDS = ()


def run(folder: Path, steps: int) -> Any:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(96, 4, 256, batch_first=True)
    model = nn.Sequential(
        nn.Linear(32, 96), nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
    ).eval()
    features = []
    with torch.inference_mode():
        for _ in range(3 * steps):
            features.append(model(torch.randn(8, 24, 32)).mean(1))
    return torch.cat(features)
