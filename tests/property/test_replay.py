"""Whatever is written, viewed, dropped, evicted, deleted and used in between, every tensor keeps its bytes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import chameleon_lab as cl
from chameleon_lab.runtime import core

pytestmark = [
    pytest.mark.bits,
    pytest.mark.skipif(not core.SEES_RAW_ACCESS, reason="nothing is replayed before torch 2.13"),
]

SIDE = 48  # 9 KiB in float32

UNARY = (
    lambda t: F.gelu(t),
    lambda t: t * 0.7,
    lambda t: torch.softmax(t, -1),
    lambda t: F.layer_norm(t, (t.shape[-1],)),
    lambda t: t.t().contiguous(),
    lambda t: t.to(torch.bfloat16).to(torch.float32),
    lambda t: F.relu(t + 0.1, inplace=True),
    lambda t: torch.cumsum(t, -1) * 0.1,  # cannot be replayed
    lambda t: F.dropout(t, 0.3),
    lambda t: torch.bernoulli(torch.sigmoid(t)),
    lambda t: torch.empty_like(t).bernoulli_(0.4),
    lambda t: torch.empty_like(t).normal_(),
    lambda t: F.pad(torch.empty_like(t)[: SIDE // 2].bernoulli_(0.4).add_(t[0, 0]), (0, 0, 0, SIDE // 2)),
)
BINARY = (
    lambda a, b: a + b,
    lambda a, b: a @ b * 0.1,
    lambda a, b: torch.where(a > 0, a, b),
    lambda a, b: torch.cat([a, b])[:SIDE].clone(),
)
WRITES = (
    lambda t: t.mul_(0.5),
    lambda t: t[3:9].zero_(),
    lambda t: t.t().add_(1),
    lambda t: t.copy_(torch.ones_like(t)),
    lambda t: torch.tanh(t, out=t),
    lambda t: t.mul_(t),
    lambda t: t[1:].add_(t[0].clone()),
    lambda t: t.bernoulli_(0.5),
    lambda t: t[2].bernoulli_(0.5),
    lambda t: t[1].uniform_(-1.0, 1.0),
    lambda t: t.cumsum_(-1),
    lambda t: t.masked_fill_(t > 0.5, 0.25),
)

step = st.one_of(
    st.tuples(st.just("unary"), st.integers(0, len(UNARY) - 1), st.integers(0, 99)),
    st.tuples(st.just("binary"), st.integers(0, len(BINARY) - 1), st.integers(0, 99), st.integers(0, 99)),
    st.tuples(st.just("write"), st.integers(0, len(WRITES) - 1), st.integers(0, 99)),
    st.tuples(
        st.sampled_from(["drop", "drop", "drop", "evict", "view", "delete", "check", "raw", "seed"]),
        st.integers(0, 99),
    ),
    st.tuples(st.just("step")),
)


def run(steps: list[tuple], managed: bool) -> list[bytes]:
    """The bytes that every check sees, and those of every tensor at the end."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    pool = [torch.randn(SIDE, SIDE, generator=generator) for _ in range(3)]
    seen = []

    def bytes_of(tensor: torch.Tensor) -> bytes:
        return (
            tensor.detach().clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy().tobytes()
        )

    for what, *rest in steps:
        if what == "step":
            if managed:
                core.of().end_step()
            continue
        at = rest[-1] % len(pool)
        if what == "unary":
            pool.append(UNARY[rest[0]](pool[at]))
        elif what == "binary":
            pool.append(BINARY[rest[0]](pool[rest[1] % len(pool)], pool[at]))
        elif what == "write":
            WRITES[rest[0]](pool[at])
        elif what == "view":
            pool.append(pool[at].t() if rest[0] % 2 else pool[at].view(SIDE, SIDE))
        elif what == "delete" and len(pool) > 1:
            del pool[at]
        elif what == "check":
            seen.append(bytes_of(pool[at]))
        elif what == "raw":
            pool[at].data_ptr()
        elif what == "seed":
            torch.manual_seed(rest[0])
        elif managed and what == "drop":
            core.drop(pool[at])
        elif managed and what == "evict":
            core.evict(pool[at])
    seen.append(bytes_of(torch.get_rng_state()))
    return seen + [bytes_of(tensor) for tensor in pool]


@settings(examples(150), suppress_health_check=list(HealthCheck))
@given(st.lists(step, min_size=8, max_size=60), st.sampled_from(["64MiB", "200KiB"]))
def test_a_random_life_leaves_the_same_bytes(steps: list[tuple], capacity: str) -> None:
    expected = run(steps, managed=False)
    try:
        with cl.Session(capacity, min_swap="1KiB", planning=False):
            core.of().keep_producers(True)
            got = run(steps, managed=True)
            counters = core.of().counters()
    except (torch.OutOfMemoryError, cl.BelowFloorError):
        return  # raw pointers pin what they point to: a small capacity may not suffice
    assert got == expected
    assert counters["ghosts"] == 0 or counters["dropped"] > 0
    assert core.of().counters()["producers"] == 0
