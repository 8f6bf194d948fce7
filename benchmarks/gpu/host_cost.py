"""What watching and planning take of the host, per op: beside tiny kernels, which show it, beside kernels of 10 us,
which should hide it, and where the capacity is nearly full. A part of ``benchmarks.gpu.facts``.
"""

from __future__ import annotations

import time
from typing import Any

import torch

import chameleon_lab as cl

from .common import GIB, Gpu, spread
from .steps import TIMED_STEPS, pinned

KERNEL_S = 10e-6
_SMALL_BYTES = 16 << 10
_SETTLING_STEPS = 4
_LIMIT_BYTES = 2 << 20  # of torch's large blocks, among which it looks for one
_LIMIT_BLOCKS, _LIMIT_SHARE = 2000, 1.05
_QUEUED = 100  # kernels that the host queues while the GPU is still busy


def _kernel_s(gpu: Gpu, x: torch.Tensor) -> float:
    """Of one op on ``x``, queued behind others: the host has no part in it."""
    if not gpu.real:
        return gpu.seconds(lambda: x * 2.0, 3)
    busy = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(2):  # the first time loads kernels
        for _ in range(3):
            busy @ busy  # noqa: B018
        first.record()
        for _ in range(_QUEUED):
            x * 2.0  # noqa: B018
        last.record()
        gpu.sync()
    return first.elapsed_time(last) * 1e-3 / _QUEUED


def of_ten_us(gpu: Gpu) -> torch.Tensor:
    """A tensor whose elementwise op takes the GPU about :data:`KERNEL_S`."""
    size = _SMALL_BYTES // 4
    x = torch.ones(size, device=gpu.device)
    while gpu.real and _kernel_s(gpu, x) < KERNEL_S and size < 1 << 28:
        size = size * 5 // 4
        x = torch.ones(size, device=gpu.device)
    return x


def _loop(x: torch.Tensor, ops: int) -> None:
    y = x
    for _ in range(ops):
        y = y * 1.0


def _per_op(gpu: Gpu, x: torch.Tensor, ops: int, session: cl.Session | None) -> dict[str, Any]:
    """Seconds an op, until the host has given them all and until they are done: median, least and most of the steps.

    And what the GPU says of its clocks and power before and after, its memory by the driver's count (others' too), and
    what was pinned.
    """
    host, done, before, driver_bytes = [], [], gpu.state(), gpu.driver_bytes()
    for _ in range(_SETTLING_STEPS + TIMED_STEPS):
        gpu.sync()
        start = time.perf_counter()
        _loop(x, ops)
        host.append(time.perf_counter() - start)
        gpu.sync()
        done.append(time.perf_counter() - start)
        if session is not None:
            session.step()
        driver_bytes = max(driver_bytes, gpu.driver_bytes())
    found: dict[str, Any] = {"before": before, "after": gpu.state(), "timed_steps": TIMED_STEPS}
    for name, steps_s in (("host", host[_SETTLING_STEPS:]), ("done", done[_SETTLING_STEPS:])):
        found |= spread(name, [one / ops for one in steps_s], "_s")
    return found | {"driver_peak_bytes": driver_bytes} | pinned(gpu, session)


def host_cost(gpu: Gpu, ops: int) -> list[dict[str, Any]]:
    """Rows of a kernel size and a variant: without a session, recorded, and under a plan that has nothing to move."""
    small, long = torch.ones(_SMALL_BYTES // 4, device=gpu.device), of_ten_us(gpu)
    rows = []
    for name, x in (("tiny", small), ("10 us", long)):
        kernel_s = _kernel_s(gpu, x)
        for variant, capacity in (("no session", None), ("recorded", "unlimited"), ("planned", GIB)):
            row: dict[str, Any] = {
                "kernel": name,
                "kernel_s": kernel_s,
                "variant": variant,
                "bytes": x.nbytes,
            }
            if capacity is None:
                rows.append(row | _per_op(gpu, x, ops, None))
                continue
            with cl.Session(capacity, device=gpu.device) as session:
                row |= _per_op(gpu, x, ops, session)
                row["stage"], row["moved_bytes"] = str(session.stage), session.report().swapped_out_bytes
            rows.append(row)
    return rows + _at_the_limit(gpu, ops)


def _at_the_limit(gpu: Gpu, ops: int) -> list[dict[str, Any]]:
    """Where the capacity is nearly full, and torch's allocator keeps a thousand free blocks between those in use: what
    asking it before an allocation takes.
    """
    count = _LIMIT_BLOCKS if gpu.real else _LIMIT_BLOCKS // 20
    blocks = [torch.ones(_LIMIT_BYTES // 4, device=gpu.device) for _ in range(count)]
    kept = blocks[::2]
    del blocks
    x = kept[0]
    both: dict[str, Any] = {"kernel": "2 MiB", "kernel_s": _kernel_s(gpu, x), "bytes": x.nbytes}
    bare = both | {"variant": "no session"} | _per_op(gpu, x, ops, None)
    capacity = int(_LIMIT_SHARE * (len(kept) + 2) * _LIMIT_BYTES)
    limited = both | {"variant": "planned, at the limit", "capacity_bytes": capacity}
    with cl.Session(capacity, device=gpu.device) as session:
        session.adopt(*kept)
        limited |= _per_op(gpu, x, ops, session)
        limited["stage"], limited["moved_bytes"] = str(session.stage), session.report().swapped_out_bytes
    return [bare, limited | {"reserved_bytes": gpu.reserved_peak_bytes()}]


HEADERS = ("kernels", "kernel us", "variant", "steps", "host us/op", "from to", "done us/op", "from to")


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    times = []
    for name in ("host", "done"):
        least_us, most_us = (row[f"{name}_{end}_s"] * 1e6 for end in ("min", "max"))
        times += [f"{row[f'{name}_s'] * 1e6:.2f}", f"{least_us:.2f} to {most_us:.2f}"]
    steps = str(row["timed_steps"])
    return [row["kernel"], f"{row['kernel_s'] * 1e6:.1f}", row["variant"], steps, *times]
