"""How much of the traffic a GPU hides behind compute, and what watching costs.

For each model steps without a session, in a session that only records, and planned for each part of the peak, in both
modes of a session that differ on this torch: share of the transfer time hidden (ours, and torch.profiler's of the same
step), stall predicted and measured, peaks, and whether the losses are the same bits.

    python -m benchmarks.gpu.overlap [--json FILE] [--models gpt2,llama-1b] [--device cpu --tiny]
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from fractions import Fraction
from typing import Any, Literal

from torch import Tensor

import chameleon_lab as cl
from chameleon_lab.runtime import core
from chameleon_lab.trace.overlap import overlap_of

from .. import measure
from .common import (
    LINK_RATES,
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
from .steps import SAMPLED_STEPS, TIMED_STEPS, Steps, pinned
from .witness import figures, profiled, testimony

SETTLING_STEPS = 4  # warm-up, the profiled step, and the first two under the plan
BATCHES = {"gpt2": (16, 1024), "llama-1b": (4, 2048), "tiny": (4, 32)}

Rematerialize = Literal[True, "trusting"]


def modes() -> tuple[Rematerialize, ...]:
    """What sessions are asked for: before torch 2.13 one that may trust keeps host copies and replays, and others do
    not.
    """
    return (True,) if core.SEES_RAW_ACCESS else (True, "trusting")


def run(
    gpu: Gpu, name: str, shape: Shape, timed: int, opened: cl.Session | None, amp: bool
) -> dict[str, Any]:
    """Train a fresh model: timed steps, some with a look at the driver, and one under torch.profiler."""
    steps = Steps(gpu, SETTLING_STEPS)
    losses: list[Tensor] = []
    with opened or nullcontext():
        model, optimizer = build(gpu, shape)

        def prepare(number: int) -> Callable[[], object]:
            tokens = tokens_of(gpu, shape, *BATCHES[name], number)
            return lambda: losses.append(train_step(gpu, model, optimizer, tokens, amp))

        steps.run(prepare, timed)
        ours = {} if opened is None else _of_session(opened)
        steps.sample(prepare)
        seen = profiled(gpu, prepare(len(losses)))
        same_step = {} if opened is None else figures(opened.trace().steps[-1])
        pins = pinned(gpu, opened)
        result = steps.figures()
    result |= {"losses": [float(loss).hex() for loss in losses], **ours, **pins}
    return result | {"profiled": same_step, "profiler": testimony(seen)}


def _of_session(session: cl.Session) -> dict[str, Any]:
    """Its figures after the timed steps."""
    report = session.report()
    newest = session.trace().steps[-1]
    found = {
        "peak_bytes": report.peak_bytes,
        "live_peak_bytes": report.live_peak_bytes,
        "out_bytes": report.swapped_out_bytes,
        "in_bytes": report.swapped_in_bytes,
        "dropped_bytes": report.dropped_bytes,
        "stall_s": statistics.median([s.stall_s for s in report.history[SETTLING_STEPS:]]),
        "hidden": overlap_of(newest),
        "evictions": report.evictions,
        "ops": report.ops,
        "link_out_bytes_per_s": session.link.out_bytes_per_s,
        "link_in_bytes_per_s": session.link.in_bytes_per_s,
        "notes": list(report.notes),
    }
    if session.policy is not None:
        predicted = cl.simulate(session.trace(), session.policy, link=session.link)
        found["predicted_stall_s"] = predicted.stall_s
    return found


def measure_model(
    gpu: Gpu, name: str, timed: int, fractions: Sequence[Fraction], amp: bool
) -> Iterator[dict[str, Any]]:
    """The rows of one model, each beside the first."""
    shape = SHAPES[name]
    bare = run(gpu, name, shape, timed, None, amp)

    def beside(row: dict[str, Any]) -> dict[str, Any]:
        same = row["losses"] == bare["losses"]
        return row | {"ratio": row["step_s"] / bare["step_s"], "losses_identical": same}

    yield beside({"model": name, "variant": "no session", **bare})
    session: cl.Session | None = cl.Session("unlimited", device=gpu.device)
    recorded = run(gpu, name, shape, timed, session, amp)
    yield beside(with_allocator({"model": name, "variant": "recorded", **recorded}, session))
    slowest_s = bare["step_s"]
    for fraction, mode in itertools.product(fractions, modes()):
        variant = f"planned {fraction}" + (", trusting" if mode == "trusting" else "")
        if gpu.left_s() < 1.5 * slowest_s * (SETTLING_STEPS + timed + SAMPLED_STEPS + 1) + 5:
            yield {"model": name, "variant": variant, "error": "no time left"}
            continue
        capacity = int(recorded["live_peak_bytes"] * fraction)
        row: dict[str, Any] = {"model": name, "variant": variant, "capacity_bytes": capacity}
        session = None
        try:
            session = cl.Session(capacity, device=gpu.device, rematerialize=mode)
            row |= run(gpu, name, shape, timed, session, amp)
            reserved = measure.most_reserved_bytes(capacity, session.report().allocator)
            row["within"] = row["peak_bytes"] <= capacity and row["reserved_bytes"] <= reserved
            slowest_s = max(slowest_s, row["step_s"])
        except (
            Exception
        ) as error:  # a library that finds no memory raises its own; the other rows still count
            row["error"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        row = with_allocator(row, session)
        yield row if "error" in row else beside(row)


HEADERS = (
    *(
        "model",
        "variant",
        "capacity MiB",
        "reserved MiB",
        "driver MiB",
        "steps",
        "step ms",
        "from to",
        "ratio",
    ),
    *("hidden", "profiled", "by profiler", "stall foretold ms", "stall ms"),
    *("pinned MiB", "pinning s", "refusals", "flushes", "losses ="),
)


def _of_timed_steps(row: dict[str, Any], name: str) -> str:
    """A count of torch's allocator, all timed steps together."""
    if "allocator" not in row:
        return "-"
    steps = slice(SETTLING_STEPS, SETTLING_STEPS + row["timed_steps"])
    return str(sum(row["allocator"]["steps"][name][steps]))


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    if "error" in row:
        return [row["model"], row["variant"], row["error"], *[""] * (len(HEADERS) - 3)]

    def maybe(key: str, show: Callable[[Any], str], among: dict[str, Any] = row) -> str:
        return "-" if among.get(key) is None else show(among[key])

    percent = "{:.1%}".format
    return [
        row["model"],
        row["variant"],
        maybe("capacity_bytes", measure.mib),
        measure.mib(row["reserved_bytes"]),
        measure.mib(row["driver_bytes"]),
        str(row["timed_steps"]),
        measure.milliseconds(row["step_s"]),
        f"{row['step_min_s'] * 1e3:.1f} to {row['step_max_s'] * 1e3:.1f}",
        f"{row['ratio']:.3f}",
        maybe("hidden", percent),
        maybe("hidden", percent, row["profiled"]),
        maybe("hidden", percent, row["profiler"]),
        maybe("predicted_stall_s", measure.milliseconds),
        maybe("stall_s", measure.milliseconds),
        measure.mib(row["pinned_bytes"]),
        f"{row['pinning_s']:.2f}",
        _of_timed_steps(row, "refusals"),
        _of_timed_steps(row, "alloc_retries"),
        measure.yes(row["losses_identical"]),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; the exit code is 1 if a row failed, a loss differs, or a capacity was exceeded."""
    options = parser("gpu.overlap", __doc__.splitlines()[0])
    options.add_argument("--models", default="gpt2,llama-1b")
    options.add_argument("--fractions", default="1/2,1/4,1/8")
    options.add_argument("--steps", type=measure.count, default=TIMED_STEPS)
    options.add_argument("--fp32", action="store_true", help="without bf16 autocast")
    options = options.parse_args(arguments)
    gpu = gpu_of(options)
    deterministic()
    names = ["tiny"] if options.tiny else options.models.split(",")
    rates = link_rates(gpu, 1 << 20 if options.tiny else 256 << 20)
    rows: list[dict[str, Any]] = []
    result = {"environment": gpu.environment(vars(options)), "link_bytes_per_s": rates, "rows": rows}
    fractions = [Fraction(text) for text in options.fractions.split(",")][: 1 if options.tiny else None]
    # The profiler stays in the process (CUPTI): the first row should have it, as the others have.
    profiled(gpu, lambda: None)
    for name in names:
        measure.progress(f"{name} ...")
        for row in measure_model(gpu, name, options.steps, fractions, not options.fp32):
            rows.append(row)
            print(" | ".join(cells(row)), flush=True)
            write(options, result)
    print(
        f"{result['environment']['device']}: GB/s "
        + ", ".join(f"{name} {rates[name] / 1e9:.1f}" for name in LINK_RATES)
    )
    print(measure.table(HEADERS, [cells(row) for row in rows], left=2))
    return int(
        any("error" in row or not (row["losses_identical"] and row.get("within", True)) for row in rows)
    )


if __name__ == "__main__":
    sys.exit(main())
