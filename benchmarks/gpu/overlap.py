"""How much of the traffic a GPU hides behind compute, and what watching costs.

For each model a step without a session, one with a session that only records, and one planned step for each part of the
peak: share of the transfer time hidden, stall predicted and measured, peak, and whether the losses are the same bits.

    python -m benchmarks.gpu.overlap [--json FILE] [--models gpt2,llama-1b] [--device cpu --tiny]
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import torch

import chameleon_lab as cl

from .. import measure
from .common import (
    SHAPES,
    Gpu,
    Shape,
    build,
    deterministic,
    gpu_of,
    link_rates,
    parser,
    tokens_of,
    train_step,
    with_allocator,
    write,
)

SETTLING_STEPS = 4  # warm-up, the profiled step, and the first two under the plan
BATCHES = {"gpt2": (16, 1024), "llama-1b": (4, 2048), "tiny": (4, 32)}


def run(
    gpu: Gpu, name: str, shape: Shape, steps: int, opened: cl.Session | None, amp: bool
) -> dict[str, Any]:
    """Train a fresh model; figures over the steps after the settling ones."""
    gpu.clean()
    before = torch.cuda.memory_reserved() if gpu.real else 0
    times, losses = [], []
    with opened or nullcontext():
        model, optimizer = build(gpu, shape)
        for step in range(SETTLING_STEPS + steps):
            tokens = tokens_of(gpu, shape, *BATCHES[name], step)
            gpu.sync()
            one_step = partial(train_step, gpu, model, optimizer, tokens, amp)
            times.append(gpu.seconds(lambda run=one_step: losses.append(run())))
        result: dict[str, Any] = {
            "step_s": statistics.median(times[SETTLING_STEPS:]),
            "steps_s": times,
            "reserved_bytes": gpu.reserved_peak_bytes() - before,
            "losses": [float(loss).hex() for loss in losses],
        }
        if opened is not None:
            report = opened.report()
            newest = opened.trace().steps[-1]
            # Of a copy that is still under way (the embedded device's) there is no end yet.
            moved_s = float(np.nansum(newest.transfers.end_s - newest.transfers.start_s))
            stall_s = statistics.median([s.stall_s for s in report.history[SETTLING_STEPS:]])
            result |= {
                "peak_bytes": report.peak_bytes,
                "live_peak_bytes": report.live_peak_bytes,
                "out_bytes": report.swapped_out_bytes,
                "in_bytes": report.swapped_in_bytes,
                "transfer_s": moved_s,
                "stall_s": stall_s,
                "hidden": 1.0 - stall_s / moved_s if moved_s else None,
                "evictions": report.evictions,
                "ops": report.ops,
                "link_out_bytes_per_s": opened.link.out_bytes_per_s,
                "link_in_bytes_per_s": opened.link.in_bytes_per_s,
                "notes": list(report.notes),
            }
            if opened.policy is not None:
                predicted = cl.simulate(opened.trace(), opened.policy, link=opened.link)
                result["predicted_stall_s"] = predicted.stall_s
    del model, optimizer, one_step
    gpu.clean()
    return result


def measure_model(
    gpu: Gpu, name: str, steps: int, fractions: Sequence[Fraction], amp: bool
) -> Iterator[dict[str, Any]]:
    """The rows of one model, each beside the first."""
    shape = SHAPES[name]
    bare = run(gpu, name, shape, steps, None, amp)

    def beside(row: dict[str, Any]) -> dict[str, Any]:
        same = row["losses"] == bare["losses"]
        return row | {"ratio": row["step_s"] / bare["step_s"], "losses_identical": same}

    yield beside({"model": name, "variant": "no session", **bare})
    session: cl.Session | None = cl.Session("unlimited", device=gpu.device)
    recorded = run(gpu, name, shape, steps, session, amp)
    yield beside(with_allocator({"model": name, "variant": "recorded", **recorded}, session))
    for fraction in fractions:
        if gpu.left_s() < 3 * bare["step_s"] * (SETTLING_STEPS + steps) + 5:
            yield {"model": name, "variant": f"planned {fraction}", "error": "no time left"}
            continue
        capacity = int(recorded["live_peak_bytes"] * fraction)
        row: dict[str, Any] = {"model": name, "variant": f"planned {fraction}", "capacity_bytes": capacity}
        session = None
        try:
            session = cl.Session(capacity, device=gpu.device)
            row |= run(gpu, name, shape, steps, session, amp)
            row["within"] = row["peak_bytes"] <= capacity and row["reserved_bytes"] <= capacity
        except (
            Exception
        ) as error:  # a library that finds no memory raises its own; the other rows still count
            row["error"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        row = with_allocator(row, session)
        yield row if "error" in row else beside(row)


HEADERS = (
    *("model", "variant", "capacity MiB", "reserved MiB", "step ms", "ratio"),
    *("hidden", "stall foretold ms", "stall ms", "refusals", "flushes", "losses ="),
)


def _of_timed_steps(row: dict[str, Any], name: str) -> str:
    """A count of torch's allocator, all timed steps together."""
    return str(sum(row["allocator"]["steps"][name][SETTLING_STEPS:])) if "allocator" in row else "-"


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    if "error" in row:
        return [row["model"], row["variant"], row["error"], *[""] * (len(HEADERS) - 3)]

    def maybe(key: str, show: Any) -> str:
        return "-" if row.get(key) is None else show(row[key])

    return [
        row["model"],
        row["variant"],
        maybe("capacity_bytes", measure.mib),
        measure.mib(row["reserved_bytes"]),
        measure.milliseconds(row["step_s"]),
        f"{row['ratio']:.3f}",
        maybe("hidden", lambda share: f"{share:.1%}"),
        maybe("predicted_stall_s", measure.milliseconds),
        maybe("stall_s", measure.milliseconds),
        _of_timed_steps(row, "refusals"),
        _of_timed_steps(row, "alloc_retries"),
        measure.yes(row["losses_identical"]),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; the exit code is 1 if a loss differs or a capacity was exceeded."""
    options = parser("gpu.overlap", __doc__.splitlines()[0])
    options.add_argument("--models", default="gpt2,llama-1b")
    options.add_argument("--fractions", default="1/2,1/4,1/8")
    options.add_argument("--steps", type=measure.count, default=5)
    options.add_argument("--fp32", action="store_true", help="without bf16 autocast")
    options = options.parse_args(arguments)
    gpu = gpu_of(options)
    deterministic()
    names = ["tiny"] if options.tiny else options.models.split(",")
    rates = link_rates(gpu, 1 << 20 if options.tiny else 256 << 20)
    rows: list[dict[str, Any]] = []
    result = {"environment": gpu.environment(vars(options)), "link_bytes_per_s": rates, "rows": rows}
    fractions = [Fraction(text) for text in options.fractions.split(",")][: 1 if options.tiny else None]
    for name in names:
        measure.progress(f"{name} ...")
        for row in measure_model(gpu, name, options.steps, fractions, not options.fp32):
            rows.append(row)
            print(" | ".join(cells(row)), flush=True)
            write(options, result)
    print(
        f"{result['environment']['device']}: GB/s "
        + ", ".join(f"{k} {v / 1e9:.1f}" for k, v in rates.items())
    )
    print(measure.table(HEADERS, [cells(row) for row in rows], left=2))
    wrong = [row for row in rows if row.get("losses_identical") is False or row.get("within") is False]
    return 1 if wrong and gpu.real else 0


if __name__ == "__main__":
    sys.exit(main())
