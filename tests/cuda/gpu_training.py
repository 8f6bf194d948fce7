"""A training loop on the GPU, and ways to compare two runs to the bit."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import chameleon_lab as cl

MiB = 1 << 20
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class GpuRun:
    """What a run leaves behind, and what it took from the GPU."""

    losses: tuple[str, ...]
    state: dict[str, str]
    reserved_bytes: int
    driver_bytes: int
    report: cl.Report | None

    def same(self, other: GpuRun) -> bool:
        """Are both runs the same to the bit?"""
        return self.losses == other.losses and self.state == other.state


def digest(tensor: torch.Tensor) -> str:
    """Of the tensor's bytes."""
    from benchmarks.measure import digest

    return digest(tensor.detach().cpu())


VOCABULARY = 8192
"""A fraction of the models' own: else the loss, which is one op, needs more than an eighth of the peak at once."""


SANITIZED_BYTES = 400 * MiB
"""The capacity under compute-sanitizer, with a GPT-2 of one layer."""


def gpt2(layers: int = 12) -> nn.Module:
    """GPT-2's shape: width 768, 12 heads, 512 tokens, made on the GPU."""
    from training import Gpt

    with torch.device("cuda"):
        return Gpt(dim=768, layers=layers, heads=12, vocab=VOCABULARY, time=512, dropout=0.1)


def llama() -> nn.Module:
    """A Llama of 0.2 billion parameters, with grouped heads. Skips the test where there is no transformers."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16,
        num_key_value_heads=4, max_position_embeddings=1024, use_cache=False, attn_implementation="sdpa",
    )  # fmt: skip

    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = transformers.LlamaForCausalLM(config)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.net(input_ids=tokens, labels=tokens, use_cache=False).loss

        def batch(self, generator: torch.Generator, size: int = 4) -> torch.Tensor:
            return torch.randint(0, config.vocab_size, (size, 512), generator=generator)

    with torch.device("cuda"):
        return Causal()


def train(
    make: Callable[[], nn.Module],
    steps: int = 6,
    session: dict[str, Any] | None = None,
    *,
    amp: bool = False,
    streams: bool = False,
    **adamw: Any,
) -> GpuRun:
    """Train from a fixed seed with AdamW, default but for ``adamw``. The model is made inside the session.

    ``streams``: every other step computes on a stream of its own.
    """
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    side = torch.cuda.Stream()
    losses, report, driver = [], None, 0
    opened = None if session is None else cl.Session(device="cuda", **session)
    with opened or nullcontext():
        model = make().train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **adamw)
        for number in range(steps):
            tokens = model.batch(generator).cuda()
            other = streams and number % 2
            if other:
                side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side) if other else nullcontext():
                with torch.autocast("cuda", torch.bfloat16, enabled=amp):
                    loss = model(tokens)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            if other:
                torch.cuda.current_stream().wait_stream(side)
                tokens.record_stream(side)
            losses.append(loss.detach().float().cpu().item().hex())
            del loss, tokens
            free, total = torch.cuda.mem_get_info()
            driver = max(driver, total - free)
        report = opened.report() if opened else None
        reserved = torch.cuda.max_memory_reserved() - before
    state = {name: digest(value) for name, value in model.state_dict().items()}
    for number, values in optimizer.state_dict()["state"].items():
        state |= {f"{number}.{key}": digest(value) for key, value in values.items() if torch.is_tensor(value)}
    return GpuRun(tuple(losses), state, reserved, driver, report)


def child(code: str, *, timeout_s: float = 240.0, **environment: str) -> str:
    """Run code in a process of its own; returns what it printed when it has exited with 0."""
    prelude = f"""
        import sys
        sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}, {str(ROOT / "tests" / "integration")!r}]
        import torch
        import chameleon_lab as cl
        from chameleon_lab.runtime import core
        from gpu_training import *
    """
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "ignore", "-c", textwrap.dedent(prelude) + textwrap.dedent(code)],
        capture_output=True, text=True, timeout=timeout_s, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, (
        f"the child exited with {done.returncode}:\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
    )
    return done.stdout
