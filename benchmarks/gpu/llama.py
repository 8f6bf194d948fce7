"""Llama-3-8B's shape in a part of the memory that it needs, beside the best that is published: an unmodified model.

Full training in bfloat16 (weights, gradients, AdamW's states), sequences of 8192 tokens, transformers' own model from
its config with random weights, each capacity in a process of its own. Prints tokens per second, and the share of the
speed of the largest capacity that each smaller one keeps, beside the same of :data:`ANCHOR`.

    python -m benchmarks.gpu.llama [--json FILE] [--capacities 24,76,40,30] [--device cpu --tiny]
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import Any

import torch

import chameleon_lab as cl
from chameleon_lab.runtime import core

from .. import measure
from ..host_memory import available_bytes, guarded
from ..shapes import SHAPES, Shape, tiny_llama
from .common import GIB, Gpu, gpu_of, parser, with_allocator, write
from .steps import SAMPLED_STEPS, TIMED_STEPS, Steps, pinned, same_losses

SETTLING_STEPS = 4  # warm-up, the profiled step, and two under the plan
LEAST_TIMED_STEPS = 2  # where the time is not enough for all
CAPACITIES = (24, 76, 40, 30)
"""GiB, in order of interest. The second leaves what a GPU of 80 GB needs for its context, its modules and page tables
for pinned memory."""

HOST_SHARE = 0.88
"""Of the host's memory that is left, what the session may take: before there is a plan, eviction keeps all there that
does not fit. The guard comes at a third of the rest."""

_LEAST_S = 60.0  # what a capacity needs at least, most of it to begin


@dataclasses.dataclass(frozen=True)
class Anchor:
    """What others have published of this shape, and under which conditions."""

    source: str
    gpu: str
    conditions: str
    tokens_per_s: dict[int, float]
    """By GiB of device memory."""

    def beside(self, capacity: float) -> int | None:
        """The published size to compare with: the same, or at most 2 GiB more."""
        return min((size for size in self.tokens_per_s if 0 <= size - capacity <= 2), default=None)

    def kept(self, size: int) -> float:
        """Share of the speed of the largest memory."""
        return self.tokens_per_s[size] / self.tokens_per_s[max(self.tokens_per_s)]


ANCHOR = Anchor(
    "als244/ml_dataflow, bench/reproduce_results/recorded_data (read in November 2026)",
    "H100 SXM5, PCIe 5 x16",
    "full training in bfloat16 with AdamW (8 bytes a parameter), sequences of 8192, its own models alone; gradients "
    "are accumulated until the optimizer takes less than 2 % of a round",
    {24: 9781.0, 30: 10187.0, 40: 10325.0, 50: 10711.0, 60: 11017.0, 70: 11384.0, 78: 11406.0},
)


LLMQ = Anchor(
    "IST-DASLab/llmq (arXiv 2512.15306), its README (read in November 2026)",
    "RTX 4090",
    "a model of 7 B parameters, its own models alone, in bfloat16 with AdamW's states in bfloat16 too, sequences of "
    "1024, 524288 tokens a step, CUDA graphs; by its own count 72 % of what the GPU could do. In fp8 4300 tokens/s "
    "(61 %). On an RTX 5090 3100 (66 %) and 4400, on an H100 14000 (60 %) and 19000",
    {24: 2800.0},
)
"""Of another shape and sequence, and so no column of the table."""


def session_of(gpu: Gpu, capacity_bytes: int) -> cl.Session:
    """The promise that "trusting" asks for holds here: nothing outside of ops writes to tensors."""
    replays = True if core.SEES_RAW_ACCESS else "trusting"
    host_bytes = int(HOST_SHARE * available_bytes())
    return cl.Session(capacity_bytes, device=gpu.device, host_capacity=host_bytes, rematerialize=replays)


def train(gpu: Gpu, shape: Shape, session: cl.Session) -> dict[str, Any]:
    """Train a fresh model in a session; what it took."""
    steps = Steps(gpu, SETTLING_STEPS)
    losses: list[torch.Tensor] = []
    with session:
        torch.manual_seed(measure.SEED)
        with torch.device(gpu.device):
            step = shape.build(tokens_of=lambda: _tokens(gpu, shape, len(losses)))

        def prepare(number: int) -> Callable[[], object]:
            measure.progress(f"  step {number} ...")
            return lambda: losses.append(step())

        steps.run(prepare, TIMED_STEPS, LEAST_TIMED_STEPS)
        report, pins = session.report(), pinned(gpu, session)
        found: dict[str, Any] = {}
        if session.policy is not None:
            predicted = cl.simulate(session.trace(), session.policy, link=session.link)
            found = {"predicted_step_s": predicted.step_s, "predicted_stall_s": predicted.stall_s}
        if gpu.left_s() > 2 * SAMPLED_STEPS * steps.times_s[-1]:
            steps.sample(prepare)
        found |= steps.figures()
    names = ("live_peak_bytes", "peak_bytes", "stall_s", "swapped_out_bytes", "swapped_in_bytes")
    names += ("dropped_bytes", "replays", "replay_s", "ops", "evictions")
    return found | {
        "tokens_per_s": shape.accumulated * shape.batch * shape.length / found["step_s"],
        "losses": [float(loss).hex() for loss in losses],
        **pins,
        "link": str(session.link),
        "notes": list(report.notes),
        **{name: report[name] for name in names},
    }


def _tokens(gpu: Gpu, shape: Shape, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(measure.SEED + step)
    return torch.randint(0, shape.vocabulary, (shape.batch, shape.length), generator=generator).to(gpu.device)


def row_of(gpu: Gpu, shape: Shape, capacity: float) -> dict[str, Any]:
    """One capacity, in this process. What does not run is a row too."""
    row: dict[str, Any] = {"capacity_gib": capacity}
    session = None
    try:
        session = session_of(gpu, int(capacity * GIB))
        row |= train(gpu, shape, session)
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return with_allocator(row, session)


def rows_of(options: argparse.Namespace, gpu: Gpu) -> Iterator[dict[str, Any]]:
    """Each capacity in a process of its own: pinned memory and what torch holds go back."""
    capacities = [float(text) for text in options.capacities.split(",")]
    for number, capacity in enumerate(capacities):
        others = len(capacities) - 1 - number
        seconds = max(gpu.left_s() - others * _LEAST_S, gpu.left_s() / 2) if others else gpu.left_s()
        least_s = _LEAST_S if gpu.real else 1.0
        if gpu.left_s() < least_s:
            yield {"capacity_gib": capacity, "error": "no time left"}
            continue
        measure.progress(f"{capacity:g} GiB ({max(seconds, least_s):.0f} s) ...")
        command = [sys.executable, "-m", "benchmarks.gpu.llama", "--device", options.device]
        command += ["--one", str(capacity), *(["--tiny"] if options.tiny else [])]
        command += ["--seconds", str(0.8 * seconds)]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=max(seconds, least_s))
            yield json.loads(done.stdout.strip().splitlines()[-1])
        except subprocess.TimeoutExpired:
            yield {"capacity_gib": capacity, "error": f"stopped after {seconds:.0f} s"}
        except (ValueError, IndexError):
            yield {"capacity_gib": capacity, "error": f"its process ended with {done.returncode}"}


def judge(rows: list[dict[str, Any]]) -> None:
    """Set each capacity beside the largest one that ran: its speed, and its losses."""
    ran = [row for row in rows if "error" not in row]
    if not ran:
        return
    largest = max(ran, key=lambda row: row["capacity_gib"])
    for row in ran:
        row["kept"] = row["tokens_per_s"] / largest["tokens_per_s"]
        row["losses_identical"] = same_losses(row["losses"], largest["losses"])


HEADERS = (
    *("GiB", "tokens/s", "kept", "theirs", "kept", "steps", "from to s"),
    *(
        "reserved GiB",
        "driver GiB",
        "pinned GiB",
        "pinning s",
        "stall s",
        "out GiB",
        "dropped GiB",
        "losses =",
    ),
)


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    capacity = row["capacity_gib"]
    at = ANCHOR.beside(capacity)
    anchor = ["-", "-"]
    if at is not None:
        where = "" if at == capacity else f" in {at}"
        anchor = [f"{ANCHOR.tokens_per_s[at]:.0f}{where}", f"{ANCHOR.kept(at):.0%}"]
    if "error" in row:
        return [f"{capacity:g}", row["error"][:60], "-", *anchor, *["-"] * (len(HEADERS) - 5)]
    sizes = (row[name] / GIB for name in ("swapped_out_bytes", "dropped_bytes"))
    return [
        f"{capacity:g}",
        f"{row['tokens_per_s']:.0f}",
        f"{row['kept']:.0%}" if "kept" in row else "-",
        *anchor,
        str(row["timed_steps"]),
        f"{row['step_min_s']:.2f} to {row['step_max_s']:.2f}",
        f"{row['reserved_bytes'] / GIB:.1f}",
        f"{row['driver_bytes'] / GIB:.1f}",
        f"{row['pinned_bytes'] / GIB:.1f}",
        f"{row['pinning_s']:.1f}",
        f"{row['stall_s']:.2f}",
        *(f"{size:.1f}" for size in sizes),
        measure.yes(row["losses_identical"]) if "losses_identical" in row else "-",
    ]


def _apart(anchor: dict[str, Any]) -> str:
    """A line under the table. In JSON the gibibytes are text."""
    speeds = ", ".join(f"{speed:.0f} tokens/s in {gib} GiB" for gib, speed in anchor["tokens_per_s"].items())
    return f"another shape: {anchor['source']}; {anchor['gpu']}: {speeds}; {anchor['conditions']}"


def table(result: dict[str, Any]) -> str:
    """As it is printed, and as it goes into the docs."""
    anchor = result["anchor"]
    rows = sorted(result["rows"], key=lambda row: row["capacity_gib"])
    return "\n".join(
        [
            f"{result['environment']['device']}: {result['model']}, full training in bfloat16 with AdamW",
            measure.table(HEADERS, [cells(row) for row in rows]),
            f"theirs: {anchor['source']}; {anchor['gpu']}; {anchor['conditions']}",
            *(_apart(other) for other in result["anchors_of_other_shapes"]),
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; the exit code is 1 if a row failed or a loss differs."""
    options = parser("gpu.llama", __doc__.splitlines()[0])
    options.add_argument(
        "--capacities", default=",".join(map(str, CAPACITIES)), help="GiB, in order of interest"
    )
    options.add_argument("--one", type=float, help=argparse.SUPPRESS)
    options.add_argument("--table", metavar="FILE", help="only print the table of a file, or of its part")
    options = options.parse_args(arguments)
    if options.table:
        with open(options.table) as file:
            found = json.load(file)
        print(table(found[options.part] if options.part else found))
        return 0
    gpu = gpu_of(options)
    shape = tiny_llama() if options.tiny else SHAPES["llama-3-8b"]
    if options.tiny and options.one is None:
        options.capacities = "0.0015"
    if options.one is not None:
        if not gpu.real:
            torch.set_num_threads(1)

        def end(left_bytes: int) -> None:
            error = f"host memory guard: {left_bytes / GIB:.1f} GiB were left"
            print(json.dumps({"capacity_gib": options.one, "error": error}), flush=True)
            os._exit(1)

        with guarded(int((1 - HOST_SHARE) / 3 * available_bytes()), end):
            row = row_of(gpu, shape, options.one)
        print(json.dumps(row))
        return 0
    rows: list[dict[str, Any]] = []
    result = {
        "environment": gpu.environment(vars(options)),
        "model": shape.about,
        "anchor": dataclasses.asdict(ANCHOR),
        "anchors_of_other_shapes": [dataclasses.asdict(LLMQ)],
        "rows": rows,
    }
    with contextlib.suppress(metadata.PackageNotFoundError):
        result["environment"]["transformers"] = metadata.version("transformers")
    for row in rows_of(options, gpu):
        rows.append(row)
        judge(rows)
        print(" | ".join(cells(row)), flush=True)
        write(options, result)
    print(table(result))
    return int(any("error" in row or not row["losses_identical"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
