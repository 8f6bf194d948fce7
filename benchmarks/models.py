"""The models that the benchmarks train, all with random weights and torch's default AdamW.

A :class:`Case` builds a fresh :class:`Job` from a seed: the same seed gives the same weights and, with the same
generator, the same batches. Shapes are chosen so that a step takes a few tenths of a second on one core, most of the
peak is what the backward pass needs, and the floor lies below an eighth of the peak.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

TEXT = Path(__file__).parents[1] / "tutorials" / "data" / "gnu-licenses.txt"


@dataclass
class Job:
    """A model with its optimizer and its data; one call of ``train_step`` is one training step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    make_batch: Callable[[torch.Generator], tuple[Tensor, Tensor]]
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor]

    def train_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Forward, backward and optimizer, as everybody writes it. Gradients stay until the next step."""
        self.optimizer.zero_grad()
        loss = self.loss(self.model, *batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


@dataclass(frozen=True)
class Case:
    """A named model. ``build(seed, tiny)`` makes it; tiny shapes are for tests of the benchmarks alone."""

    name: str
    about: str
    make: Callable[[bool], Job]
    fractions: tuple[Fraction, ...] | None = None
    """The only fractions of its peak that it is for; None: those that the benchmark asks for."""

    def build(self, seed: int, tiny: bool = False) -> Job:
        """A fresh job. Seeds torch's global generator, which dropout goes on using."""
        torch.manual_seed(seed)
        return self.make(tiny)


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


# ------------------------------------------------------------------------------------------------------------- data


def character_text() -> np.ndarray:
    """The text shipped with the tutorials, uint8 (bytes,). No tensor: the data set is not on the device."""
    return np.frombuffer(TEXT.read_bytes(), dtype=np.uint8)


def _character_batches(
    batch: int, length: int
) -> tuple[int, Callable[[torch.Generator], tuple[Tensor, Tensor]]]:
    """The vocabulary's size, and a function that cuts random windows from the text."""
    letters, text = np.unique(character_text(), return_inverse=True)

    def make_batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(text) - length - 1, (batch,), generator=generator)
        windows = torch.tensor(text[starts.numpy()[:, None] + np.arange(length + 1)])
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    return len(letters), make_batch


def _token_batches(
    vocabulary: int, batch: int, length: int
) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    """Random tokens, which are their own labels: transformers' models shift them."""

    def make_batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(vocabulary, (batch, length), generator=generator)
        return tokens, tokens

    return make_batch


def next_token_loss(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of logits and targets, a scalar."""
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def _transformers_loss(model: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    return model(input_ids=tokens, labels=labels, use_cache=False).loss


# ------------------------------------------------------------------------------------------- GPT, and one with experts


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same."""
        batch, length, width = x.shape
        q, k, v = (
            self.qkv(x)
            .view(batch, length, 3, self.heads, width // self.heads)
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


def _mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Experts(nn.Module):
    """A mixture of MLPs: every token goes to the two that the router likes best, as many tokens as come.

    Which ops run depends on the data: an expert that no token has chosen runs none.
    """

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(_mlp(width) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same."""
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(-1).topk(2, -1)
        result = torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            rows, slot = (chosen == index).nonzero(as_tuple=True)
            if len(rows):
                result = result.index_add(0, rows, expert(tokens[rows]) * weights[rows, slot, None])
        return result.view_as(x)


class Block(nn.Module):
    """One layer of a transformer."""

    def __init__(
        self, width: int, heads: int, mlp: nn.Module, dropout: float = 0.1, attention_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, attention_dropout)
        self.norm2, self.mlp = nn.LayerNorm(width), mlp
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same."""
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    """A decoder-only transformer, with experts in place of every second MLP where asked for."""

    def __init__(
        self,
        vocabulary: int,
        length: int,
        width: int,
        heads: int,
        layers: int,
        experts: int = 0,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(
            *(
                Block(
                    width,
                    heads,
                    Experts(width, experts) if experts and i % 2 else _mlp(width),
                    dropout,
                    attention_dropout,
                )
                for i in range(layers)
            )
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (batch, length) to logits (batch, length, vocabulary)."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def next_token_job(model: nn.Module, vocabulary: int, batch: int, length: int) -> Job:
    """Train a model that maps tokens to logits on random tokens."""
    make_tokens = _token_batches(vocabulary, batch, length)
    return Job(model, _adamw(model), make_tokens, next_token_loss)


def gpt_job(
    batch: int, length: int, width: int, heads: int, layers: int, experts: int = 0, **dropout: float
) -> Job:
    """Train a GPT on the text's characters; ``dropout`` is for :class:`GPT`."""
    vocabulary, make_batch = _character_batches(batch, length)
    model = GPT(vocabulary, length, width, heads, layers, experts, **dropout)
    return Job(model, _adamw(model), make_batch, next_token_loss)


def _char_gpt(tiny: bool) -> Job:
    return gpt_job(4, 32, 64, 2, 3) if tiny else gpt_job(8, 128, 192, 6, 8)


def _deep(tiny: bool) -> Job:
    return gpt_job(4, 32, 64, 2, 6) if tiny else gpt_job(8, 128, 128, 4, 24)


def _moe(tiny: bool) -> Job:
    return gpt_job(4, 32, 64, 2, 2, experts=4) if tiny else gpt_job(8, 128, 160, 5, 8, experts=4)


# ------------------------------------------------------------------------------------------------------ transformers


def _gpt2(tiny: bool) -> Job:
    from transformers import GPT2Config, GPT2LMHeadModel, logging

    logging.set_verbosity_error()
    width, layers, batch, length, vocabulary = (64, 2, 4, 32, 128) if tiny else (256, 6, 8, 128, 1024)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocabulary, n_positions=length, n_embd=width, n_layer=layers, n_head=width // 32,
            bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip
    return Job(model, _adamw(model), _token_batches(vocabulary, batch, length), _transformers_loss)


def _llama(tiny: bool) -> Job:
    return llama_job(4, 32, 64, 2, 128) if tiny else llama_job(8, 128, 192, 6, 1024)


def llama_job(batch: int, length: int, width: int, layers: int, vocabulary: int) -> Job:
    """Train transformers' Llama on random tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM, logging

    logging.set_verbosity_error()
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary, hidden_size=width, intermediate_size=width * 8 // 3, num_hidden_layers=layers,
            num_attention_heads=width // 32, num_key_value_heads=width // 64, max_position_embeddings=length,
            bos_token_id=0, eos_token_id=0, pad_token_id=None,
        )
    )  # fmt: skip
    return Job(model, _adamw(model), _token_batches(vocabulary, batch, length), _transformers_loss)


# ----------------------------------------------------------------------------------------------------------- images


class Residual(nn.Module):
    """Two convolutions with batch norm, and the way around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) to the same."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(y)))


def _convnet(tiny: bool) -> Job:
    return convnet_job(16, 2, 4, 16) if tiny else convnet_job(24, 8, 16, 32)


def convnet_job(channels: int, blocks: int, batch: int, side: int, classes: int = 10) -> Job:
    """Train a residual network with batch norm on random images of ``side`` x ``side``; 2 x ``blocks`` blocks."""
    model = nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        *(Residual(channels) for _ in range(blocks)),
        nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1, bias=False),
        *(Residual(2 * channels) for _ in range(blocks)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * channels, classes),
    )

    def make_batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        images = torch.randn(batch, 3, side, side, generator=generator)
        return images, torch.randint(classes, (batch,), generator=generator)

    return Job(model, _adamw(model), make_batch, lambda model, x, y: F.cross_entropy(model(x), y))


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case("char-gpt", "character GPT of 8 layers and width 192 on 8 x 128 characters", _char_gpt),
        Case("gpt2", "transformers' GPT-2: 6 layers of width 256, 8 x 128 tokens", _gpt2),
        Case("llama", "transformers' Llama: 6 layers of width 192, 8 x 128 tokens", _llama),
        Case("convnet", "residual network with batch norm: 16 blocks, 16 images of 32 x 32", _convnet),
        Case("moe", "character GPT with 4 experts in every second layer, routed by the data", _moe),
        Case(
            "deep",
            "character GPT of 24 layers of width 128, in an eighth of its peak",
            _deep,
            (Fraction(1, 8),),
        ),
    )
}
