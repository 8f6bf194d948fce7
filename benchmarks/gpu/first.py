"""The first minute on a GPU: the core loads, a small model trains to the bit, and what an out-of-memory error is.

    python -m benchmarks.gpu.first [--json FILE] [--device cpu --tiny]

The exit code is 1 where bits differ, nothing was moved, or running out of memory raised what no session understands.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

import chameleon_lab as cl

from .common import (
    GIB,
    SHAPES,
    Gpu,
    Shape,
    build,
    deterministic,
    gpu_of,
    parser,
    tokens_of,
    train_step,
    write,
)

STEPS = 6
SMALL = Shape(256, 4, 4, 1024, 6, 4096)
BATCHES = {True: (8, 256), False: (4, 32)}
_PROBE_FRACTION = 0.02
_PROBE_TIMEOUT_S = 40


def _losses(gpu: Gpu, shape: Shape, session: cl.Session | None) -> tuple[list[str], list[torch.Tensor]]:
    model, optimizer = build(gpu, shape)
    losses = []
    for step in range(STEPS):
        tokens = tokens_of(gpu, shape, *BATCHES[gpu.real], step)
        losses.append(float(train_step(gpu, model, optimizer, tokens, gpu.real)).hex())
    del session
    return losses, [p.detach().cpu().clone() for p in model.parameters()]


def bits(gpu: Gpu) -> dict[str, Any]:
    """One small model without a session, recorded, and in half of what its step keeps alive."""
    shape = SMALL if gpu.real else SHAPES["tiny"]
    bare, weights = _losses(gpu, shape, None)
    again, _ = _losses(gpu, shape, None)
    with cl.Session("unlimited", device=gpu.device) as session:
        recorded, _ = _losses(gpu, shape, session)
    live_peak_bytes = session.report().live_peak_bytes
    with cl.Session(live_peak_bytes // 2, device=gpu.device, min_swap="2KiB") as session:
        planned, planned_weights = _losses(gpu, shape, session)
        report = session.report()
    same = all(torch.equal(a, b) for a, b in zip(weights, planned_weights, strict=True))
    return {
        "repeats": again == bare,
        "recorded_same": recorded == bare,
        "planned_same": planned == bare and same,
        "capacity_bytes": report.capacity_bytes,
        "peak_bytes": report.peak_bytes,
        "moved_bytes": max(s.swapped_out_bytes + s.evicted_bytes for s in report.history),
        "stage": report.stage,
    }


def provoke() -> torch.Tensor:
    """Ask for more than a small fraction of the GPU allows."""
    torch.cuda.set_per_process_memory_fraction(_PROBE_FRACTION)
    total_bytes = torch.cuda.mem_get_info()[1]
    return torch.empty(int(2 * _PROBE_FRACTION * total_bytes), dtype=torch.uint8, device="cuda")


def error_of(ask: Callable[[], object]) -> dict[str, Any]:
    """Type and first line of what it raises."""
    try:
        ask()
    except Exception as error:
        line = (str(error).splitlines() or [""])[0]
        kind = f"{type(error).__module__}.{type(error).__name__}"
        return {"type": kind, "text": line[:300], "out_of_memory": isinstance(error, torch.OutOfMemoryError)}
    return {"type": "", "text": "nothing was raised", "out_of_memory": False}


def out_of_memory(gpu: Gpu) -> dict[str, Any]:
    """What torch raises there, plain and in a session; a process of its own, since it may not survive it.

    Torch asks NVML before it raises OutOfMemoryError, and fails an assertion of its own where NVML is restricted. A
    session has to take that for out of memory too.
    """
    if not gpu.real:
        return {"why": "it needs a GPU"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.gpu.first", "--probe"],
            capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"why": f"the probe did not end within {_PROBE_TIMEOUT_S} s"}
    try:
        return json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {"why": f"the probe ended with {done.returncode}: {done.stderr[-500:]}"}


def probe() -> dict[str, Any]:
    """In a process of its own: the error of plain torch, then a session that has to make room all the same."""
    found: dict[str, Any] = {"plain": error_of(provoke)}
    torch.cuda.set_per_process_memory_fraction(1.0)
    size = 64 << 20
    with cl.Session(4 * size, device="cuda", planning=False) as session:
        held: list[torch.Tensor] = []

        def fill() -> None:
            held.extend(torch.full((size,), n, dtype=torch.uint8, device="cuda") for n in range(8))

        found["session"] = error_of(fill)
        found["right"] = [int(t[-1]) for t in held] == list(range(8))
        session.step()
        found["evictions"] = session.report().evictions
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Look, print and write; returns the exit code."""
    options = parser("gpu.first", __doc__.splitlines()[0])
    options.add_argument("--probe", action="store_true", help="only the out-of-memory errors, as JSON")
    options = options.parse_args(arguments)
    gpu = gpu_of(options)
    if options.probe:
        print(json.dumps(probe()))
        return 0
    result: dict[str, Any] = {"environment": gpu.environment(vars(options))}
    print(f"{result['environment']['device']}, torch {torch.__version__}, {gpu.total_bytes() / GIB:.1f} GiB")
    result["out_of_memory"] = found = out_of_memory(gpu)
    write(options, result)
    for name in ("plain", "session"):
        if name in found:
            raised = found[name]["type"] or "no error"
            print(f"out of memory, {name}: {raised}: {found[name]['text']}")
    if "why" in found:
        print(f"out of memory: {found['why']}")
    deterministic()
    result["bits"] = small = bits(gpu)
    write(options, result)
    print(
        f"a small model: repeats its bits {small['repeats']}, recorded the same {small['recorded_same']}, in half the "
        f"memory the same {small['planned_same']} ({small['moved_bytes'] >> 20} MiB moved in a step, {small['stage']})"
    )
    good = small["recorded_same"] and small["planned_same"] and small["moved_bytes"] > 0
    good = good or not small["repeats"]
    return 0 if good and (not gpu.real or found.get("right", False)) else 1


if __name__ == "__main__":
    sys.exit(main())
