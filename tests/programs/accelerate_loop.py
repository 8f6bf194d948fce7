"""A loop with Accelerate: accumulation, clipping, bfloat16, and a state that is saved and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

NEEDS = ("accelerate",)


def run(folder: Path, steps: int) -> Any:
    from accelerate import Accelerator

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision="bf16")
    layer = nn.TransformerEncoderLayer(64, 2, 256, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 5, enable_nested_tensor=False), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.utils.data.TensorDataset(torch.randn(128, 48, 64), torch.randn(128, 48, 8))
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses: list[float] = []
    for number, (x, y) in enumerate(loader):
        if number == 2 * steps:
            break
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        if number == steps:
            accelerator.save_state(str(folder))
            accelerator.load_state(str(folder))
    return losses, accelerator.unwrap_model(model).state_dict()
