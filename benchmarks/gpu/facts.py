"""First facts of a GPU machine: the link, pinning, what copies cost compute, what blocks and ops cost the host.

python -m benchmarks.gpu.facts [--json FILE] [--device cpu --tiny]
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch

import chameleon_lab as cl
from chameleon_lab.runtime import core

from .. import measure
from .common import GIB, LINK_RATES, SAMPLES, Gpu, gpu_of, link_rates, parser, spread, write
from .host_cost import HEADERS, cells, host_cost

MIB = 1 << 20
_PINNING_ROW_S = 8.0  # of which a row of ways_to_pin takes no more samples
_ROOM = SAMPLES  # blocks that fit at once where storages have to leave


def link(gpu: Gpu, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Rates by size of a copy."""
    return [{"bytes": size, **link_rates(gpu, size)} for size in sizes if gpu.left_s() > 5]


def pinning(gpu: Gpu, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Seconds that pinning host memory takes, by size. torch's own pinned cache is emptied in between."""
    rows: list[dict[str, Any]] = []
    for size in sizes:
        taken_s: list[float] = []
        while len(taken_s) < SAMPLES and gpu.left_s() > 10 + sum(taken_s):  # as much is left to the others
            start = time.perf_counter()
            block = torch.empty(size, dtype=torch.uint8, pin_memory=gpu.real)
            taken_s.append(time.perf_counter() - start)
            del block
            if gpu.real:
                torch._C._host_emptyCache()
        if taken_s:
            per_gib_s = spread("per_gib", [one / size * GIB for one in taken_s], "_s")
            rows.append({"bytes": size, "samples": len(taken_s)} | per_gib_s)
    return rows


def _pin(device: str, way: str, size: int, took: list[float]) -> None:
    took.extend(core.measure_pinning(device, way, size))


def ways_to_pin(gpu: Gpu, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Seconds of the session's two ways to pin, by size, and the longest that a short kernel takes meanwhile."""
    rows: list[dict[str, Any]] = []
    x = torch.ones(1 << 16, device=gpu.device)
    for way in ("register", "alloc"):
        for size in sizes:
            held_s, samples, row_began_s = 0.0, list[list[float]](), time.monotonic()
            while (
                len(samples) < SAMPLES
                and time.monotonic() - row_began_s < _PINNING_ROW_S
                and gpu.left_s() > 20
            ):
                took: list[float] = []
                pinning = threading.Thread(target=_pin, args=(gpu.device, way, size, took))
                gpu.sync()
                pinning.start()
                while pinning.is_alive():
                    start = time.perf_counter()
                    x.add_(1.0)
                    gpu.sync()
                    held_s = max(held_s, time.perf_counter() - start)
                if not took:  # the embedded device pins nothing
                    break
                samples.append(took)
            if samples:
                row = {"way": way, "bytes": size, "samples": len(samples), "longest_kernel_s": held_s}
                for name, taken_s in zip(("touch", "pin", "unpin"), zip(*samples, strict=True), strict=True):
                    row |= spread(name, taken_s, "_s")
                rows.append(row)
    return rows


def disturbance(gpu: Gpu, width: int, copy_bytes: int) -> dict[str, float]:
    """How much longer matrix products and adds take while copies run both ways."""
    x = torch.randn(width, width, device=gpu.device, dtype=torch.bfloat16 if gpu.real else torch.float32)
    long = torch.randn(width * width * 4, device=gpu.device)
    runs = {"matmul": lambda: x @ x, "add": lambda: long.add_(1.0)}
    found: dict[str, float] = {}
    for name, run in runs.items():
        times = max(1, int(0.2 / max(gpu.seconds(run, 3), 1e-6))) if gpu.real else 3
        alone = statistics.median(gpu.seconds(run, times) for _ in range(SAMPLES))
        if not gpu.real:
            found |= spread(f"{name}_slower", [0.0] * SAMPLES)
            continue
        host = [torch.empty(copy_bytes, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        here = [torch.empty(copy_bytes, dtype=torch.uint8, device="cuda") for _ in range(2)]
        streams = [torch.cuda.Stream() for _ in range(2)]
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        copies = 2 + int(alone * times * 100e9 / copy_bytes)  # longer than the products, on any link
        slower = []
        for _ in range(SAMPLES):
            gpu.sync()
            for _ in range(copies):
                with torch.cuda.stream(streams[0]):
                    host[0].copy_(here[0], non_blocking=True)
                with torch.cuda.stream(streams[1]):
                    here[1].copy_(host[1], non_blocking=True)
            first.record()
            for _ in range(times):
                run()
            last.record()
            gpu.sync()
            slower.append(first.elapsed_time(last) * 1e-3 / times / alone - 1.0)
        found |= spread(f"{name}_slower", slower)
    return found


def blocks(gpu: Gpu, size: int, times: int) -> dict[str, float]:
    """Seconds of the host that a block of ``size`` bytes takes: taken and given back, ``times`` in all, and taken
    where a storage has to leave for it.

    Call it before the process has its first session: from then on the forwarding allocator stays in front of torch's.
    """

    def block() -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=gpu.device)

    def taken(name: str) -> dict[str, float]:
        gpu.seconds(block)  # from then on it comes from what the allocator keeps
        return spread(name, [gpu.seconds(block, times // SAMPLES) for _ in range(SAMPLES)], "_s")

    gpu.clean()
    found = {"bytes": size} | taken("torch")
    with cl.Session("unlimited", device=gpu.device):
        found |= taken("session")
    found |= taken("forwarded")
    gpu.clean()
    with cl.Session(_ROOM * size, device=gpu.device, planning=False) as session:
        held = [block().zero_() for _ in range(2 * _ROOM)]  # the second half warms the host's memory
        session.step()
        found |= spread(
            "no_room", [gpu.seconds(lambda: held.append(block().zero_())) for _ in range(_ROOM)], "_s"
        )
        session.step()
        found["left_bytes"] = session.report().evicted_bytes // _ROOM
        held.clear()
    rates = link_rates(gpu, size)
    found |= {"copy_s": size / rates["out"], "copy_min_s": size / rates["out_max"]}
    found["copy_max_s"] = size / rates["out_min"]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; returns the exit code."""
    options = parser("gpu.facts", __doc__.splitlines()[0]).parse_args(arguments)
    gpu = gpu_of(options)
    sizes = (
        [64 << 10, MIB]
        if options.tiny
        else [64 << 10, 256 << 10, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 512 * MIB]
    )
    result: dict[str, Any] = {"environment": gpu.environment(vars(options)), "before": gpu.state()}
    print(f"{result['environment']['device']}: the link, GB/s", flush=True)
    result["link"] = link(gpu, sizes)
    rows = [
        [
            measure.mib(row["bytes"]),
            *(
                f"{row[name] / 1e9:.1f} ({row[f'{name}_min'] / 1e9:.1f} to {row[f'{name}_max'] / 1e9:.1f})"
                for name in LINK_RATES
            ),
        ]
        for row in result["link"]
    ]
    print(measure.table(["copy of MiB", *(name.replace("_", " ") for name in LINK_RATES)], rows), flush=True)
    write(options, result)
    result["pinning"] = pinning(gpu, [MIB] if options.tiny else [64 * MIB, 256 * MIB, GIB, 4 * GIB])
    for row in result["pinning"]:
        print(
            f"pinning {measure.mib(row['bytes'])} MiB takes {row['per_gib_s']:.2f} s a GiB "
            f"({row['per_gib_min_s']:.2f} to {row['per_gib_max_s']:.2f}, {row['samples']} times)",
            flush=True,
        )
    write(options, result)
    result["ways_to_pin"] = ways_to_pin(gpu, [MIB] if options.tiny else [GIB, 4 * GIB])
    for row in result["ways_to_pin"]:
        gib = row["bytes"] / GIB
        print(
            f"{row['way']} {gib:.0f} GiB: {row['touch_s'] / gib:.2f} s a GiB to touch, "
            f"{row['pin_s'] / gib:.2f} ({row['pin_min_s'] / gib:.2f} to {row['pin_max_s'] / gib:.2f}, "
            f"{row['samples']} times) to pin, {row['unpin_s'] / gib:.2f} to unpin; "
            f"a short kernel meanwhile {row['longest_kernel_s'] * 1e3:.0f} ms at most",
            flush=True,
        )
    write(options, result)
    width, size = (64, MIB) if options.tiny else (8192, 64 * MIB)
    result["disturbance"] = disturbance(gpu, width, size)
    for name in ("matmul", "add"):
        middle, least, most = (result["disturbance"][f"{name}_slower{end}"] for end in ("", "_min", "_max"))
        print(f"{name} beside copies both ways: {middle:+.1%} ({least:+.1%} to {most:+.1%})", flush=True)
    write(options, result)
    # From here on there are sessions.
    result["blocks"] = taken = blocks(gpu, MIB if options.tiny else 32 * MIB, 50 if options.tiny else 1000)
    print(
        f"a block of {measure.mib(taken['bytes'])} MiB takes the host {taken['torch_s'] * 1e6:.1f} us;",
        end=" ",
    )
    print(f"behind the forwarding allocator {taken['forwarded_s'] * 1e6:.1f} us, in a session", end=" ")
    print(
        f"{taken['session_s'] * 1e6:.1f} us; where {measure.mib(taken['left_bytes'])} MiB leave for it",
        end=" ",
    )
    print(f"{taken['no_room_s'] * 1e6:.0f} us, their copy alone {taken['copy_s'] * 1e6:.0f} us", flush=True)
    write(options, result)
    result["host_cost"] = costs = host_cost(gpu, 200 if options.tiny else 20_000)
    print("what an op takes the host")
    print(measure.table(HEADERS, [cells(row) for row in costs]), flush=True)
    result["after"] = gpu.state()
    write(options, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
