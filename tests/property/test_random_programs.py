"""Random programs of ops with random branches, at random capacities: the numbers stay, and the capacity holds.

The two examples are programs like any other, which every run tries first; a seed that fails is to be added to them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from examples import examples
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import chameleon_lab as cl

pytestmark = pytest.mark.bits

DIM = 96
ROWS = (256, 384, 640)
STEPS = 10

OPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "linear": lambda x, w: x @ w,
    "addmm": lambda x, w: torch.addmm(x, x, w, beta=0.5, alpha=0.1),
    "gelu": lambda x, _: F.gelu(x),
    "in place": lambda x, _: (x * 1.5).sub_(0.1).clamp_(-3, 3),
    "norm": lambda x, w: F.layer_norm(x, (DIM,), w[0], w[1]),
    "softmax": lambda x, _: x.softmax(-1) + x,
    "dropout": lambda x, _: F.dropout(x, 0.3),
    "split and cat": lambda x, _: torch.cat([part.sin() for part in x.chunk(3, 1)], 1),
    "transposed": lambda x, w: (w.t() @ x.t()).t(),
    "gather": lambda x, _: x[torch.arange(x.shape[0] - 1, -1, -1)],
    "view written": lambda x, _: _write_rows(x),
    "low precision": lambda x, w: (x.bfloat16() @ w.bfloat16()).float(),
}


def _write_rows(x: Tensor) -> Tensor:
    copy = x.clone()
    copy[: len(copy) // 2] *= 0.5
    return copy


@dataclass(frozen=True)
class Node:
    """A piece of a program."""

    kind: str
    weight: int = 0
    chance: float = 1.0
    inside: tuple[Node, ...] = ()
    otherwise: tuple[Node, ...] = ()


def random_nodes(rng: random.Random, weights: int, depth: int = 0) -> tuple[Node, ...]:
    """What runs one after the other."""
    nodes = []
    for _ in range(rng.randint(2, 6) if depth else rng.randint(5, 12)):
        kind = rng.choice(["op"] * (4 + 4 * depth) + ["branch", "loop", "checkpoint", "residual", "no grad"])
        if kind == "op" or depth > 2:
            nodes.append(Node(rng.choice(list(OPS)), rng.randrange(weights)))
            continue
        inside = random_nodes(rng, weights, depth + 1)
        chance = rng.choice([0.1, 0.5, 0.9])
        otherwise = random_nodes(rng, weights, depth + 1) if rng.random() < 0.5 else ()
        nodes.append(Node(kind, rng.randint(1, 4), chance, inside, otherwise if kind == "branch" else ()))
    return tuple(nodes)


class RandomNet(nn.Module):
    """The program of a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = random.Random(seed)
        count = rng.randint(3, 10)
        self.weights = nn.ParameterList(torch.randn(DIM, DIM) / DIM**0.5 for _ in range(count))
        self.program = random_nodes(rng, count)

    def forward(self, x: Tensor, chance: random.Random) -> Tensor:
        """(rows, DIM) to a loss. ``chance`` takes the branches."""
        out = self._run(self.program, x, chance)
        for weight in self.weights:  # whatever the branches, every parameter has a gradient
            out = out + weight.mean()
        return out.square().mean()

    def _run(self, nodes: tuple[Node, ...], x: Tensor, chance: random.Random) -> Tensor:
        for node in nodes:
            x = self._one(node, x, chance)
        return x

    def _one(self, node: Node, x: Tensor, chance: random.Random) -> Tensor:
        match node.kind:
            case "branch":
                taken = node.inside if chance.random() < node.chance else node.otherwise
                return self._run(taken, x, chance)
            case "loop":
                for _ in range(chance.randint(0, node.weight)):
                    x = self._run(node.inside, x, chance)
                return x
            case "residual":
                return x + self._run(node.inside, x, chance)
            case "no grad":
                with torch.no_grad():
                    scale = self._run(node.inside, x, chance).abs().mean()
                return x / (1 + scale)
            case "checkpoint":
                seed = chance.random()  # both runs of the piece have to take the same branches
                return checkpoint(
                    lambda y: self._run(node.inside, y, random.Random(seed)), x, use_reentrant=False
                )
            case op:
                return OPS[op](x, self.weights[node.weight])


def run(seed: int, capacity: int | None, plain: bool = False) -> tuple[list[bytes], int, int]:
    """Losses and parameters as bytes; the highest floor of the steps and the session's peak, in bytes."""
    torch.manual_seed(seed)
    chance = random.Random(seed)
    net = RandomNet(seed)
    session = None if plain else cl.Session(capacity)
    bits, floor = [], 0
    with session or nullcontext():
        optimizer = (torch.optim.AdamW if seed % 2 else torch.optim.SGD)(net.parameters(), lr=1e-2)
        for _ in range(STEPS):
            loss = net(torch.randn(chance.choice(ROWS), DIM), chance)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            bits.append(loss.detach().clone().numpy().tobytes())
            del loss
            if session and capacity is None:
                floor = max(floor, cl.floor(session.trace().last).bytes)
    bits += [weight.detach().numpy().tobytes() for weight in net.weights]
    return bits, floor, session.report().peak_bytes if session else 0


@cache
def reference(seed: int) -> tuple[list[bytes], int, int]:
    """Bits without Chameleon Lab, and the floor and live peak of the steps that were recorded."""
    bits, floor, peak = run(seed, None)
    assert bits == run(seed, None, plain=True)[0], "recording alone changed the numbers"
    return bits, floor, peak


@examples(12)
@given(seed=st.integers(0, 10**6), share=st.floats(0, 1))
@example(seed=1, share=0.0)
@example(seed=2, share=0.3)
def test_random_programs_keep_their_numbers_and_their_capacity(seed: int, share: float) -> None:
    bits, floor, peak = reference(seed)
    capacity = int(floor + share * max(0, peak - floor))
    found, _, reached = run(seed, capacity)
    assert found == bits
    assert reached <= capacity
