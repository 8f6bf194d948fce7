"""torchao: LoRA on a body of int8 weights, a head trained in int8, and Adam with states of eight and of four bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

NEEDS = ("torchao",)
APART = "torchao"

DIM = 192


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(DIM, DIM)
        self.down, self.up = nn.Linear(DIM, 32, bias=False), nn.Linear(32, DIM, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(self.base(x) + self.up(self.down(x)))


def model() -> nn.Sequential:
    from torchao.prototype.quantized_training import int8_weight_only_quantized_training
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    body = nn.Sequential(*(Adapted() for _ in range(8)))
    for block in body:
        quantize_(block.base, Int8WeightOnlyConfig(), filter_fn=lambda module, path: True)
        block.base.requires_grad_(False)
    head = nn.Sequential(nn.Linear(DIM, 8, bias=False))
    quantize_(head, int8_weight_only_quantized_training())
    return nn.Sequential(body, head)


def run(folder: Path, steps: int) -> Any:
    from torchao.optim import AdamW4bit, AdamW8bit, _AdamW

    torch.manual_seed(0)
    net = model()
    adapters = [parameter for parameter in net[0].parameters() if parameter.requires_grad]
    half = len(adapters) // 2
    optimizers = [
        AdamW8bit(adapters[:half], lr=1e-3),
        AdamW4bit(adapters[half:], lr=1e-3),
        _AdamW(net[1].parameters(), lr=1e-3),
    ]
    losses = []
    for _ in range(steps):
        loss = nn.functional.mse_loss(net(torch.randn(128, DIM)), torch.randn(128, 8))
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    kinds = {type(state["exp_avg"]).__name__ for one in optimizers[:2] for state in one.state.values()}
    assert kinds == {"OptimState8bit", "OptimState4bit"}
    weight = net[1][0].weight
    states = [
        state.dequantize() if hasattr(state, "dequantize") else state
        for optimizer in optimizers[:2]
        for parameter in adapters
        if parameter in optimizer.state
        for state in optimizer.state[parameter].values()
        if isinstance(state, torch.Tensor)
    ]
    return losses, [weight.int_data, weight.scale], adapters, states
