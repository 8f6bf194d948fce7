"""What the GPU benchmarks share: the device or its stand-in, models in the shape of GPT-2 and Llama, links, tables.

With ``--device cpu --tiny`` everything runs on the embedded device, to see that a program works. Its figures mean
nothing, and every table and file says so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import chameleon_lab as cl

from .. import measure

GIB = 1 << 30


def parser(program: str, about: str) -> argparse.ArgumentParser:
    """With the arguments that all of them have."""
    made = argparse.ArgumentParser(prog=f"python -m benchmarks.{program}", description=about)
    made.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: only to see that it works"
    )
    made.add_argument("--tiny", action="store_true", help="models of no interest, in seconds")
    made.add_argument("--json", metavar="FILE", help="write the figures there")
    made.add_argument("--part", metavar="NAME", help="as that part of the file, whose other parts stay")
    made.add_argument("--seconds", type=float, default=500.0, help="begin nothing new after so many")
    return made


def write(options: argparse.Namespace, result: Mapping[str, Any]) -> None:
    """Write the figures there are so far, if a file was asked for: who is stopped later has these."""
    if options.json:
        write_part(options.json, options.part, result)


def write_part(file: str | os.PathLike[str], part: str | None, result: Mapping[str, Any]) -> None:
    """The whole file, or one part of it: few files hold what many calls find."""
    if part is None:
        measure.write_json(file, result)
        return
    before: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        before = json.loads(Path(file).read_text())
    measure.write_json(file, before | {part: result})


def deterministic() -> None:
    """Kernels in a fixed order of additions, since losses are compared to the bit. New memory is not filled for that:
    users do not fill it either.
    """
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False


@dataclass
class Gpu:
    """The device that is measured, or the CPU in its place."""

    device: str
    end_s: float
    """Of :func:`time.monotonic`: nothing new begins after it."""

    @property
    def real(self) -> bool:
        """Is it a GPU?"""
        return self.device == "cuda"

    def sync(self) -> None:
        """Wait until everything has been done."""
        if self.real:
            torch.cuda.synchronize()

    def left_s(self) -> float:
        """Seconds until nothing new should begin."""
        return self.end_s - time.monotonic()

    def clean(self) -> None:
        """Give back what torch's allocator keeps, and forget its peaks."""
        import gc

        gc.collect()
        if self.real:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def reserved_peak_bytes(self) -> int:
        """The most that torch's allocator took from the device since :meth:`clean`."""
        return torch.cuda.max_memory_reserved() if self.real else 0

    def driver_bytes(self) -> int:
        """What is in use on the device by the driver's count, contexts and other processes included."""
        if not self.real:
            return 0
        free, total = torch.cuda.mem_get_info()
        return total - free

    def state(self) -> dict[str, float | None]:
        """Clocks, power, temperature and the link's width now, as nvidia-smi tells them; empty where it does not."""
        return state_of(str(torch.cuda.get_device_properties(0).uuid)) if self.real else {}

    def total_bytes(self) -> int:
        """Of the device."""
        return torch.cuda.mem_get_info()[1] if self.real else 4 * GIB

    def seconds(self, run: Callable[[], object], times: int = 1) -> float:
        """Of one run, mean over several, from an idle device to an idle device."""
        self.sync()
        start = time.perf_counter()
        for _ in range(times):
            run()
        self.sync()
        return (time.perf_counter() - start) / times

    def environment(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What a figure needs beside it."""
        found = measure.environment(arguments)
        if self.real:
            properties = torch.cuda.get_device_properties(0)
            found["device"] = properties.name
            found["device_bytes"] = properties.total_memory
            found["cuda"] = torch.version.cuda
            found["driver"] = (_nvidia_smi("driver_version") or [["unknown"]])[0][0]
            names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
            found["allocator"] = next((os.environ[name] for name in names if os.environ.get(name)), "default")
        else:
            found["device"] = "cpu: a trial run, no GPU figure"
        return found


def gpu_of(arguments: argparse.Namespace) -> Gpu:
    """The device asked for. Raises SystemExit where it is not there."""
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            "torch finds no GPU here: run this on a machine with one, or try --device cpu --tiny"
        )
    return Gpu(arguments.device, time.monotonic() + arguments.seconds)


ALLOCATOR_COUNTS = (
    *("refusals", "soft_ooms", "alloc_retries", "device_allocs"),
    *("device_frees", "device_syncs", "useless_bytes"),
)
"""Of each step: what :class:`chameleon_lab.report.StepSummary` has of torch's allocator."""


def allocator_of(report: cl.Report) -> dict[str, Any]:
    """What torch's allocator did in a session: its setting, what plans left it, and its counts step by step.

    Lists, since where they fall matters: the first steps may be refused memory, those of a settled plan should not be.
    """
    steps = {name: [getattr(step, name) for step in report.history] for name in ("index", *ALLOCATOR_COUNTS)}
    return {
        "setting": report.allocator,
        "reserve_bytes": report.reserve_bytes,
        "split_bytes": report.split_bytes,
        "steps": steps,
    }


def with_allocator(row: dict[str, Any], session: cl.Session | None) -> dict[str, Any]:
    """The row, with the :func:`allocator_of` its session. A row that failed has it too: it may tell why."""
    if session is None:
        return row
    try:
        return row | {"allocator": allocator_of(session.report())}
    except Exception:  # what never began has no report, and no row is worth losing for one
        return row


STATE = {
    "clocks.sm": "sm_mhz",
    "clocks.mem": "memory_mhz",
    "power.draw": "power_w",
    "power.limit": "power_limit_w",
    "temperature.gpu": "celsius",
    "pcie.link.gen.current": "pcie_generation",
    "pcie.link.gen.max": "pcie_generation_most",
    "pcie.link.width.current": "pcie_width",
    "pcie.link.width.max": "pcie_width_most",
}
"""What nvidia-smi is asked, and what it is called here. An idle GPU lowers its clocks and its link's generation."""


def state_of(uuid: str) -> dict[str, float | None]:
    """Of the GPU with that UUID, or of the first one; None for what nvidia-smi does not know of it."""
    gpus = _nvidia_smi("uuid", *STATE)
    if not gpus:
        return {}
    _, *values = next((gpu for gpu in gpus if gpu[0].endswith(uuid)), gpus[0])
    return {name: _number(value) for name, value in zip(STATE.values(), values, strict=True)}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None  # [N/A]


def _nvidia_smi(*fields: str) -> list[list[str]]:
    """The values of the fields, GPU by GPU; empty where there is no nvidia-smi, or it fails."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[value.strip() for value in line.split(",")] for line in said.strip().splitlines()]
    return [row for row in rows if len(row) == len(fields)]


# -------------------------------------------------------------------------------------------------------------- models


class Layer(nn.Module):
    """A decoder layer with grouped heads, RMS norms and a gated MLP: Llama's."""

    def __init__(self, width: int, heads: int, kv_heads: int, inner: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, size = heads, kv_heads, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * kv_heads * size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same."""
        batch, length, width = x.shape
        h = self.norm1(x)
        q = self.q(h).view(batch, length, self.heads, -1).transpose(1, 2)
        k, v = self.kv(h).view(batch, length, 2, self.kv_heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


@dataclass(frozen=True)
class Shape:
    """Of a :class:`Decoder`."""

    width: int
    heads: int
    kv_heads: int
    inner: int
    layers: int
    vocabulary: int


SHAPES = {
    "gpt2": Shape(768, 12, 12, 2048, 12, 50304),
    "llama-1b": Shape(2048, 32, 8, 8192, 16, 32000),
    "tiny": Shape(64, 4, 2, 128, 3, 256),
}


LOSS_TOKENS = 1024
"""The loss is computed for so many at a time: all logits at once would be half of what GPT-2 has alive."""


class Decoder(nn.Module):
    """A language model; ``run_layer`` says how a layer is run (checkpointing, offloading).

    ``layers_on``: the device to which each layer goes before the next one is made; None: it stays where it was made.
    """

    def __init__(self, shape: Shape, layers_on: str | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(
            Layer(shape.width, shape.heads, shape.kv_heads, shape.inner).to(layers_on)
            for _ in range(shape.layers)
        )
        self.norm, self.head = nn.RMSNorm(shape.width), nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.run_layer: Callable[[nn.Module, Tensor], Tensor] = lambda layer, x: layer(x)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (batch, length) to the loss of predicting the next one."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = self.run_layer(layer, x)
        hidden, targets = self.norm(x)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
        parts = zip(hidden.split(LOSS_TOKENS), targets.split(LOSS_TOKENS), strict=True)
        losses = [F.cross_entropy(self.head(h).float(), t, reduction="sum") for h, t in parts]
        return torch.stack(losses).sum() / targets.numel()


def build(
    gpu: Gpu,
    shape: Shape,
    dtype: torch.dtype = torch.float32,
    *,
    prepare: Callable[[Decoder], object] = lambda model: None,
    layers_on: str | None = None,
) -> tuple[Decoder, torch.optim.Optimizer]:
    """A model with random weights from a fixed seed, and torch's default AdamW of what ``prepare`` leaves of it.

    The weights are the same wherever the layers go (see :class:`Decoder`).
    """
    torch.manual_seed(measure.SEED)
    with torch.device(gpu.device):
        model = Decoder(shape, layers_on).to(dtype).train()
    prepare(model)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


def tokens_of(gpu: Gpu, shape: Shape, batch: int, length: int, step: int) -> Tensor:
    """Random tokens (batch, length), the same for the same step."""
    generator = torch.Generator().manual_seed(measure.SEED + step)
    return torch.randint(0, shape.vocabulary, (batch, length), generator=generator).to(gpu.device)


def train_step(
    gpu: Gpu, model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor, amp: bool
) -> Tensor:
    """Forward, backward and optimizer, as everybody writes it."""
    with torch.autocast(gpu.device, torch.bfloat16, enabled=amp):
        loss = model(tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


# --------------------------------------------------------------------------------------------------------------- links


SAMPLES = 10
LINK_RATES = ("out", "in", "out_together", "in_together")
"""What :func:`link_rates` gives."""


def spread(name: str, values: Sequence[float], unit: str = "") -> dict[str, float]:
    """Median, least and most of the values, as ``name``, ``name_min`` and ``name_max``, each before the unit."""
    return {
        name + unit: statistics.median(values),
        f"{name}_min{unit}": min(values),
        f"{name}_max{unit}": max(values),
    }


def link_rates(gpu: Gpu, size: int, times: int = 5) -> dict[str, float]:
    """Bytes per second of copies of ``size`` bytes between pinned memory and the device: each way alone, and together.

    Each is the :func:`spread` of :data:`SAMPLES`, of so many copies each. Together counts each direction's bytes over
    the time of both.
    """

    def rates(name: str, run: Callable[[], object]) -> dict[str, float]:
        return spread(name, [size / gpu.seconds(run, times) for _ in range(SAMPLES)])

    if not gpu.real:
        a, b = torch.ones(size, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8)
        found: dict[str, float] = {}
        for name in LINK_RATES:
            found |= rates(name, lambda: b.copy_(a))
        return found
    host = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    here = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]

    def out() -> None:
        with torch.cuda.stream(streams[0]):
            host[0].copy_(here[0], non_blocking=True)

    def back() -> None:
        with torch.cuda.stream(streams[1]):
            here[1].copy_(host[1], non_blocking=True)

    def both() -> None:
        out()
        back()

    for run in (out, back, both):
        gpu.seconds(run)  # the first use of a buffer and a stream costs more
    together = rates("together", both)
    found = rates("out", out) | rates("in", back)
    for way in ("out", "in"):
        found |= {f"{way}_{name}": rate for name, rate in together.items()}
    return found
