"""Weights that are tensor subclasses, swapped by ``Module.to`` between steps (PyTorch issues 187008, 186796)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

NEEDS = ()


def run(folder: Path, steps: int) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(128, 128), nn.Tanh())))
    model[0].weight = nn.Parameter(TwoTensor(torch.randn(128, 128), torch.randn(128, 128)))
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    losses = []
    try:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        for step in range(steps):
            if step in (steps // 3, 2 * steps // 3):  # it goes on in the other precision
                optimizer.state.clear()
                model.to((torch.float64, torch.float32)[step == 2 * steps // 3])
            x = torch.randn(256, 128, dtype=model[2].weight.dtype)
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.a.item())
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swaps)
    return losses, model[0].weight.a, model[0].weight.b, list(model.parameters())[1:]
