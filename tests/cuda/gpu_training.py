"""A training loop on the GPU, and ways to compare two runs to the bit.

Where ``CHAMELEON_TEST_DEVICE`` is ``cpu``, the tests of this folder are rehearsed on the embedded device, with small
sizes, so that no slip in them costs time on a GPU: ``benchmarks/gpu_check.sh`` does so with ``DEVICE=cpu``. What needs
graphs, Triton, torch's CUDA allocator or CUDA's events is skipped there, and streams do nothing.
"""

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
from chameleon_lab.runtime import core

DEVICE = os.environ.get("CHAMELEON_TEST_DEVICE") or "cuda"
ON_GPU = DEVICE != "cpu"
backend: Any = torch.cuda if ON_GPU else torch.cpu
"""Streams, of which the CPU's do nothing, and what waits for them."""

MiB = 1 << (20 if ON_GPU else 14)
"""In a rehearsal a 64th of one."""

ROOT = Path(__file__).parents[2]


AMP = [pytest.param(False, id="fp32"), pytest.param(True, id="bf16")]
STREAMS = [pytest.param(False, id="one stream"), pytest.param(True, id="two streams")]
PARTS = [2, 4, 8]
if not ON_GPU:
    AMP, STREAMS, PARTS = AMP[1:], STREAMS[1:], PARTS[:1]
"""What trainings are tested with: in a rehearsal once, with what has the most code."""


def needs(what: str) -> pytest.MarkDecorator:
    """Skips a test in a rehearsal, and says what it is that the embedded device has not."""
    return pytest.mark.skipif(not ON_GPU, reason=f"a rehearsal on the embedded device, and this needs {what}")


def clean() -> None:
    """Nothing under way, nothing kept by torch's allocator for reuse, and its peaks forgotten."""
    backend.synchronize()
    if ON_GPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def reserved_bytes(most: bool = False) -> int:
    """What the process has taken through torch, now or at ``most``; of the embedded device, what its session has."""
    if ON_GPU:
        return torch.cuda.max_memory_reserved() if most else torch.cuda.memory_reserved()
    session = cl.current_session()
    if session is None:
        return 0
    counters = core.of(session.device).counters()
    now = counters["resident_bytes"] + counters["cached_bytes"] + counters["other_bytes"]
    return counters["peak_reserved_bytes"] if most else now


def allocated_bytes() -> int:
    """What tensors hold of that."""
    return torch.cuda.memory_allocated() if ON_GPU else core.of(DEVICE).counters()["resident_bytes"]


def _driver_bytes() -> int:
    if not ON_GPU:
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free


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

    def reserved_within(self, capacity: int) -> bool:
        """Has torch reserved no more than the session's capacity lets it?"""
        from benchmarks.measure import most_reserved_bytes

        assert self.report is not None
        return self.reserved_bytes <= most_reserved_bytes(capacity, self.report.allocator)


def digest(tensor: torch.Tensor) -> str:
    """Of the tensor's bytes."""
    from benchmarks.measure import digest

    return digest(tensor.detach().cpu())


VOCABULARY = 8192 if ON_GPU else 64
"""A fraction of the models' own: else the loss, which is one op, needs more than an eighth of the peak at once."""


SANITIZED_BYTES = 400 * MiB
"""The capacity under compute-sanitizer, with a GPT-2 of one layer."""


def gpt2(layers: int = 12) -> nn.Module:
    """GPT-2's shape: width 768, 12 heads, 512 tokens, made on the GPU."""
    from training import Gpt

    width, time, layers = (768, 512, layers) if ON_GPU else (48, 16, min(layers, 3))
    with torch.device(DEVICE):
        return Gpt(dim=width, layers=layers, heads=12, vocab=VOCABULARY, time=time, dropout=0.1)


def llama() -> nn.Module:
    """A Llama of 0.2 billion parameters, with grouped heads. Skips the test where there is no transformers."""
    transformers = pytest.importorskip("transformers")
    # With warn_only, torch warns of attention's backward and takes a kernel that does not repeat its bits.
    torch.use_deterministic_algorithms(True)
    width, inner, layers, time = (1024, 2816, 12, 512) if ON_GPU else (64, 176, 3, 24)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=16, num_key_value_heads=4, max_position_embeddings=1024, use_cache=False,
        attn_implementation="sdpa",
    )  # fmt: skip

    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = transformers.LlamaForCausalLM(config)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.net(input_ids=tokens, labels=tokens, use_cache=False).loss

        def batch(self, generator: torch.Generator, size: int = 4) -> torch.Tensor:
            return torch.randint(0, config.vocab_size, (size, time), generator=generator)

    with torch.device(DEVICE):
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
    clean()
    before = reserved_bytes()
    side = backend.Stream()
    losses, report, driver = [], None, 0
    smallest = {} if ON_GPU else {"min_swap": 512}
    opened = None if session is None else cl.Session(device=DEVICE, **smallest, **session)
    with opened or nullcontext():
        model = make().train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **adamw)
        for number in range(steps):
            tokens = model.batch(generator).to(DEVICE)
            other = streams and number % 2
            if other:
                side.wait_stream(backend.current_stream())
            with backend.stream(side) if other else nullcontext():
                with torch.autocast(DEVICE, torch.bfloat16, enabled=amp):
                    loss = model(tokens)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            if other:
                backend.current_stream().wait_stream(side)
                if ON_GPU:
                    tokens.record_stream(side)
            losses.append(loss.detach().float().cpu().item().hex())
            del loss, tokens
            driver = max(driver, _driver_bytes())
        report = opened.report() if opened else None
        reserved = reserved_bytes(most=True) - before
    state = {name: digest(value) for name, value in model.state_dict().items()}
    for number, values in optimizer.state_dict()["state"].items():
        state |= {f"{number}.{key}": digest(value) for key, value in values.items() if torch.is_tensor(value)}
    return GpuRun(tuple(losses), state, reserved, driver, report)


def child(code: str, *, timeout_s: float = 240.0, **environment: str) -> str:
    """Run code in a process of its own; returns what it printed when it has exited with 0."""
    prelude = f"""
        import os, sys
        sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}, {str(ROOT / "tests" / "integration")!r}]
        import torch
        import chameleon_lab as cl
        from chameleon_lab.runtime import core
        from gpu_training import *
        if os.environ.get("CHAMELEON_WITHOUT_HOOK"):  # see tests/conftest.py
            core.pretend_no_hook(True)
            core.SEES_RAW_ACCESS = False
        torch.use_deterministic_algorithms(True, warn_only=True)
    """
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "ignore", "-c", textwrap.dedent(prelude) + textwrap.dedent(code)],
        capture_output=True, text=True, timeout=timeout_s, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, (
        f"the child exited with {done.returncode}:\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
    )
    return done.stdout
