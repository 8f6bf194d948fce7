"""Train a small GPT to predict the next byte of the licenses in data/: a script like any other.

python train_gpt.py --steps 40 --losses losses.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TEXT = Path(__file__).parent / "data" / "gnu-licenses.txt"


class Block(nn.Module):
    """One transformer layer: attention, then a two-layer network, each on a normalized input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, context, width) to the same."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    """Predicts the next byte of a text."""

    def __init__(self, width: int = 128, layers: int = 4, heads: int = 4, context: int = 128) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(context, width)
        self.layers = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The loss of predicting ``targets`` from ``tokens``, both (batch, context)."""
        x = self.bytes(tokens) + self.places.weight[: tokens.shape[1]]
        logits = self.head(self.norm(self.layers(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batches(steps: int, batch: int, context: int, seed: int = 0) -> Iterator[Tensor]:
    """Random windows of the text, (batch, context + 1) bytes each. The same for the same seed."""
    text = torch.frombuffer(bytearray(TEXT.read_bytes()), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(len(text) - context, (batch, 1), generator=generator)
        yield text[starts + torch.arange(context + 1)]


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, window: Tensor) -> float:
    """One training step on one batch; its loss."""
    optimizer.zero_grad()
    loss = model(window[:, :-1], window[:, 1:])
    loss.backward()
    value = loss.item()
    optimizer.step()
    return value


def main() -> None:
    """Train, and print the loss now and then."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--losses", help="write the losses there, as JSON")
    options = parser.parse_args()

    torch.set_num_threads(1)  # with two, a busy machine can change the order of a sum, and its last bit
    torch.manual_seed(0)
    model = GPT(options.width, options.layers, context=options.context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for step, window in enumerate(batches(options.steps, options.batch, options.context)):
        losses.append(train_step(model, optimizer, window))
        if step % 10 == 0:
            print(f"step {step:4}  loss {losses[-1]:.3f}", flush=True)
    if options.losses:
        Path(options.losses).write_text(json.dumps(losses))


if __name__ == "__main__":
    main()
