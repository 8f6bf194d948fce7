from __future__ import annotations

import pytest
import torch

import chameleon_lab as cl
from chameleon_lab.meta.roofline import DEVICES, find_device

MINE = cl.Roofline(
    name="mine",
    memory_bytes=2**30,
    bandwidth_bytes_per_s=1e9,
    flops_per_s={torch.float32: 1e9, torch.bfloat16: 4e9},
    flops_efficiency=0.5,
    bandwidth_efficiency=0.5,
    launch_s=1e-6,
)


def op_times(step: object, device: cl.Roofline = MINE) -> dict[str, float]:
    last = cl.trace_meta(step, device=device).last  # type: ignore[arg-type]
    return {last.op_name(op): float(last.ops.duration_s[op]) for op in range(len(last.ops))}


@pytest.mark.parametrize(("dtype", "flops_per_s"), [(torch.float32, 1e9), (torch.bfloat16, 4e9)])
def test_a_matmul_takes_its_operations_and_an_elementwise_op_its_bytes(
    dtype: torch.dtype, flops_per_s: float
) -> None:
    def step() -> None:
        a = torch.empty(512, 256, dtype=dtype)
        a.mm(torch.empty(256, 512, dtype=dtype)).exp()

    times = op_times(step)
    size = dtype.itemsize
    assert times["aten::empty"] == 0.0
    assert times["aten::mm"] == pytest.approx(1e-6 + 2 * 512 * 256 * 512 / (flops_per_s * 0.5))
    assert times["aten::exp"] == pytest.approx(1e-6 + 2 * 512 * 512 * size / (1e9 * 0.5))


@pytest.mark.parametrize(
    ("a", "b", "ends", "products"),
    [
        ((64, 32), (4, 32, 48), 4, 64 * 32 * 48),  # groups of rows
        ((16, 64), (64, 48), 4, 16 * 64 * 48),  # of what is summed
        ((4, 16, 32), (32, 64), 4, 16 * 32 * 64),  # of columns
        ((4, 16, 32), (4, 32, 48), None, 4 * 16 * 32 * 48),  # a batch
    ],
)
def test_grouped_matmuls_take_the_operations_of_their_groups(
    a: tuple[int, ...], b: tuple[int, ...], ends: int | None, products: int
) -> None:
    def step() -> None:
        at = None if ends is None else torch.empty(ends, dtype=torch.int32)
        torch._grouped_mm(torch.empty(a, dtype=torch.bfloat16), torch.empty(b, dtype=torch.bfloat16), at)

    slow = cl.Roofline("slow", 2**30, 1e15, {torch.float32: 1e6}, flops_efficiency=1.0, launch_s=0.0)
    assert op_times(step, slow)["aten::_grouped_mm"] == pytest.approx(2 * products / 1e6)


def test_views_are_free_and_lookups_read_what_they_take() -> None:
    def step() -> None:
        rows = torch.empty(16, dtype=torch.long)
        torch.nn.functional.embedding(rows, torch.empty(10_000, 64)).view(-1)

    times = op_times(step)
    assert times["aten::embedding"] == pytest.approx(1e-6 + (16 * 8 + 2 * 16 * 64 * 4) / (1e9 * 0.5))
    assert "aten::view" not in times


def test_lists_count_once_each() -> None:
    def step() -> None:
        torch._foreach_add_([torch.empty(1000), torch.empty(1000)], 1.0)

    assert op_times(step)["aten::_foreach_add_"] == pytest.approx(1e-6 + 2 * 8000 / (1e9 * 0.5))


def test_float32_matmuls_use_tensor_cores_only_where_torch_does() -> None:
    def step() -> None:
        torch.empty(4096, 4096).mm(torch.empty(4096, 4096))

    plain = op_times(step, DEVICES["H100"])["aten::mm"]
    torch.set_float32_matmul_precision("high")
    try:
        fast = op_times(step, DEVICES["H100"])["aten::mm"]
    finally:
        torch.set_float32_matmul_precision("highest")
    assert plain / fast == pytest.approx(494 / 67, rel=0.2)


@pytest.mark.parametrize("name", ["H100", "h100", "rtx 4090", "RTX4090", "4090", "cpu"])
def test_devices_are_found_by_name(name: str) -> None:
    assert find_device(name).name.lower().endswith(name.lower()[-4:])


def test_unknown_devices_and_bad_figures_are_named() -> None:
    with pytest.raises(ValueError, match="no device 'B300': give one of H100, H200, A100, RTX 4090"):
        find_device("B300")
    with pytest.raises(TypeError, match="a name or a Roofline"):
        find_device(80)  # type: ignore[arg-type]
    good = dict(memory_bytes=2**30, bandwidth_bytes_per_s=1e9, flops_per_s={torch.float32: 1e9})
    for bad, what in (
        ({"bandwidth_bytes_per_s": 0.0}, "bandwidth_bytes_per_s of x"),
        ({"memory_bytes": 0}, "memory_bytes of x"),
        ({"flops_per_s": {torch.bfloat16: 1e9}}, "float32"),
        ({"flops_efficiency": 1.5}, "flops_efficiency of x"),
        ({"launch_s": -1.0}, "launch_s of x"),
        ({"launch_s": float("nan")}, "launch_s of x"),
        ({"flops_per_s": 2e13}, "needs a figure for torch.float32"),
        ({"flops_per_s": {torch.float32: 1e9, torch.bfloat16: 0}}, r"flops_per_s\[torch.bfloat16\] of x"),
        ({"flops_per_s": {torch.float32: float("nan")}}, r"flops_per_s\[torch.float32\] of x"),
        ({"tf32_flops_per_s": -1}, "tf32_flops_per_s of x"),
    ):
        with pytest.raises(ValueError, match=what):
            cl.Roofline("x", **(good | bad))  # type: ignore[arg-type]
    text = cl.Roofline("x", **(good | {"memory_bytes": "8GiB", "bandwidth_bytes_per_s": "1GB/s"}))  # type: ignore[arg-type]
    assert (text.memory_bytes, text.bandwidth_bytes_per_s) == (2**33, 1e9)
