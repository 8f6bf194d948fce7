"""A small Llama of Liger's modules: every norm, rotation, gated product and the loss is a Triton kernel or several."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

NEEDS = ("triton", "liger_kernel")
APART = "liger-kernel"

DIM, HEADS, TOKENS, TIME = 64, 2, 96, 12


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def model() -> nn.Module:
    from _triton import interpret_liger

    interpret_liger()
    from liger_kernel.transformers import (
        LigerFusedLinearCrossEntropyLoss,
        LigerRMSNorm,
        LigerSwiGLUMLP,
        liger_rotary_pos_emb,
    )

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            shape = SimpleNamespace(hidden_size=DIM, intermediate_size=3 * DIM, hidden_act="silu")
            self.first, self.second = LigerRMSNorm(DIM), LigerRMSNorm(DIM)
            self.qkv, self.out = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
            self.mlp = LigerSwiGLUMLP(shape)

        def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
            batch, time, dim = x.shape
            q, k, v = (
                part.view(batch, time, HEADS, dim // HEADS).transpose(1, 2)
                for part in self.qkv(self.first(x)).split(dim, dim=2)
            )
            q, k = liger_rotary_pos_emb(q, k, cos, sin)
            x = x + self.out(attention(q, k, v).transpose(1, 2).reshape(batch, time, dim))
            return x + self.mlp(self.second(x))

    class Llama(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(TOKENS, DIM)
            self.blocks = nn.ModuleList(Block() for _ in range(4))
            self.norm, self.head = LigerRMSNorm(DIM), nn.Linear(DIM, TOKENS, bias=False)
            self.loss = LigerFusedLinearCrossEntropyLoss()
            turns = torch.outer(torch.arange(TIME), 1e4 ** -torch.arange(0, 1, 2 * HEADS / DIM)).repeat(1, 2)
            self.register_buffer("cos", turns.cos()[None])
            self.register_buffer("sin", turns.sin()[None])

        def forward(self, index: torch.Tensor) -> torch.Tensor:
            x = self.tokens(index[:, :-1])
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            return self.loss(self.head.weight, self.norm(x).flatten(0, 1), index[:, 1:].flatten())

    return Llama()


def run(folder: Path, steps: int) -> Any:
    torch.manual_seed(0)
    llama = model()
    optimizer = torch.optim.AdamW(llama.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        loss = llama(torch.randint(0, TOKENS, (2, TIME + 1)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, llama.state_dict()
