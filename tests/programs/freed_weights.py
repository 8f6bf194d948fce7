"""Weights gathered for each layer and freed behind it by ``resize_(0)``, as FSDP does (Megatron-LM issue 3641)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

NEEDS = ()


class Gathered(nn.Module):
    """A linear layer; its weight is filled from a sharded master copy in float64 before it is used."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.master = torch.randn(dim, dim, dtype=torch.float64) / dim**0.5
        self.weight = nn.Parameter(torch.empty(dim, dim))
        self.free()
        self.register_full_backward_pre_hook(lambda module, _: module.gather())

    def gather(self) -> None:
        storage = self.weight.untyped_storage()
        if storage.nbytes() == 0:
            storage.resize_(4 * self.master.numel())
            self.weight.data.copy_(self.master)

    def free(self) -> None:
        self.weight.untyped_storage().resize_(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.gather()
        y = torch.tanh(x @ self.weight.t())
        with torch.no_grad():
            self.free()
        return y

    @torch.no_grad()
    def update(self) -> None:
        assert self.weight.grad is not None
        self.master.add_(self.weight.grad, alpha=-0.1)
        self.weight.grad.zero_()
        self.free()


def run(folder: Path, steps: int) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(*(Gathered(128) for _ in range(6)))
    hook = torch.optim.SGD(model.parameters(), lr=0.0)  # its step marks where a step ends
    losses = []
    for _ in range(steps):
        loss = model(torch.randn(256, 128)).square().mean()
        loss.backward()
        for layer in model:
            layer.update()
        for layer in model:
            layer.gather()
        hook.step()
        for layer in model:
            layer.free()
        losses.append(loss.item())
    return losses, [layer.master for layer in model]
