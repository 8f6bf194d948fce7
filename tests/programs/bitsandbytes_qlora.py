"""bitsandbytes: LoRA on weights of four and eight bits, and Adam with states of eight bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

NEEDS = ("bitsandbytes",)
APART = "bitsandbytes"

DIM = 192


class Adapted(nn.Module):
    def __init__(self, number: int) -> None:
        import bitsandbytes as bnb

        super().__init__()
        plain = nn.Linear(DIM, DIM)
        if number % 3 == 2:
            base: nn.Module = bnb.nn.Linear8bitLt(DIM, DIM, has_fp16_weights=False)
        else:  # the scales of the second kind are quantized, too
            base = bnb.nn.Linear4bit(
                DIM,
                DIM,
                compute_dtype=torch.float32,
                compress_statistics=number % 3 == 1,
                quant_type=("nf4", "fp4")[number % 2],
            )
        base.load_state_dict(plain.state_dict())
        self.base = base.to("cpu").requires_grad_(False)  # quantizes
        self.down, self.up = nn.Linear(DIM, 32, bias=False), nn.Linear(32, DIM, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(self.base(x) + self.up(self.down(x)))


def model() -> nn.Sequential:
    return nn.Sequential(*(Adapted(number) for number in range(9)), nn.Linear(DIM, 8))


def run(folder: Path, steps: int) -> Any:
    import bitsandbytes as bnb

    torch.manual_seed(0)
    net = model()
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimizer = bnb.optim.AdamW8bit(trained, lr=1e-3, min_8bit_size=1024)
    losses = []
    for _ in range(steps):
        loss = nn.functional.mse_loss(net(torch.randn(128, DIM)), torch.randn(128, 8))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert {state["state1"].dtype for state in optimizer.state.values()} == {torch.float32, torch.uint8}
    weights = [value for value in net.state_dict().values() if isinstance(value, torch.Tensor)]
    return losses, weights, [optimizer.state[parameter] for parameter in trained]
