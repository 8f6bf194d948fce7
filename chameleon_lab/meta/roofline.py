"""Op times on an absent device: arithmetic or memory traffic, whichever takes longer."""

from __future__ import annotations

from ..runtime import core  # first: where torch is missing or another one, this says so

# isort: split
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from ..util.units import parse_bandwidth, parse_bytes, parse_fraction

_aten = torch.ops.aten

_FREE = {
    _aten.empty.memory_format,
    _aten.empty_like.default,
    _aten.empty_strided.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
    _aten._unsafe_view.default,
    _aten.detach.default,
    _aten.detach_.default,
    _aten.lift_fresh.default,
    _aten._local_scalar_dense.default,
}
"""Ops that start no kernel, beside the views."""

_GATHERS = {
    _aten.embedding.default,
    _aten.index.Tensor,
    _aten.index_select.default,
    _aten.gather.default,
}
"""Ops that read as much of their first argument as they write."""


@dataclass(frozen=True)
class Roofline:
    """A device as far as op times and plans need it.

    An op takes ``launch_s`` plus the longer of its floating-point operations over ``flops_per_s`` and its bytes read
    and written over ``bandwidth_bytes_per_s``, each times its efficiency. Williams, Waterman and Patterson, "Roofline:
    an insightful visual performance model" (2009).
    """

    name: str
    memory_bytes: int
    bandwidth_bytes_per_s: float
    flops_per_s: Mapping[torch.dtype, float]
    """Peak, without sparsity. A dtype that is missing runs as float32 does."""
    tf32_flops_per_s: float | None = None
    """Of float32 matmuls where ``torch.get_float32_matmul_precision()`` allows TensorFloat32."""
    link_out_bytes_per_s: float = 25e9
    link_in_bytes_per_s: float = 25e9
    """Between device and host, each way."""
    flops_efficiency: float = 0.6
    bandwidth_efficiency: float = 0.8
    """Shares of the peaks that kernels reach: what large bf16 matmuls and element-wise kernels usually get."""
    launch_s: float = 3e-6
    """From the end of one kernel to the start of the next."""
    is_gpu: bool = True
    """Do ops run as on CUDA? False: as torch's CPU kernels do."""

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "memory_bytes", parse_bytes(self.memory_bytes, f"memory_bytes of {self.name}")
        )
        for what in ("bandwidth_bytes_per_s", "link_out_bytes_per_s", "link_in_bytes_per_s"):
            object.__setattr__(self, what, parse_bandwidth(getattr(self, what), f"{what} of {self.name}"))
        for what in ("flops_efficiency", "bandwidth_efficiency"):
            object.__setattr__(self, what, parse_fraction(getattr(self, what), f"{what} of {self.name}"))
            if getattr(self, what) == 0:
                raise ValueError(
                    f"{what} of {self.name} must be a share above 0, up to 1, got {getattr(self, what)!r}"
                )
        if not 0 <= self.launch_s < math.inf:
            raise ValueError(f"launch_s of {self.name} must be seconds from 0 up, got {self.launch_s!r}")
        if not isinstance(self.flops_per_s, Mapping) or torch.float32 not in self.flops_per_s:
            raise ValueError(
                f"flops_per_s of {self.name} needs a figure for torch.float32: give {{torch.float32: 67e12, ...}}"
            )
        figures = {f"flops_per_s[{dtype}]": figure for dtype, figure in self.flops_per_s.items()}
        if self.tf32_flops_per_s is not None:
            figures["tf32_flops_per_s"] = self.tf32_flops_per_s
        for what, figure in figures.items():
            if not isinstance(figure, int | float) or not 0 < figure < math.inf:
                raise ValueError(f"{what} of {self.name} must be a positive number, got {figure!r}")

    def seconds(self, call: core.LeafCall) -> float:
        """Time of one op that has a kernel of its own, from the shapes and dtypes of what it got and gave."""
        # A kernel launched by hand (csrc/regions.h): it reads or writes each of its tensors once.
        if call.overload == "region":
            moved = sum(t.bytes for t in _tensors(call.arguments))
            return self.launch_s + moved / (self.bandwidth_bytes_per_s * self.bandwidth_efficiency)
        func = _overload(call.name, call.overload)
        if func is None or func.is_view or func in _FREE:
            return 0.0
        inputs, written = _tensors(call.arguments), _tensors(call.results)
        if not written:  # an in-place op of lists returns nothing
            written = _tensors(call.arguments[:1])
        moved = sum(t.bytes for t in written)
        moved += sum(t.bytes for t in (inputs[1:] + written[:1] if func in _GATHERS else inputs))
        floating = [t.dtype for t in inputs if t.dtype in _DTYPES]
        flops_per_s = self._peak_flops(_DTYPES[floating[0]] if floating else torch.float32)
        return self.launch_s + max(
            _flops(func, call) / (flops_per_s * self.flops_efficiency),
            moved / (self.bandwidth_bytes_per_s * self.bandwidth_efficiency),
        )

    def _peak_flops(self, dtype: torch.dtype) -> float:
        tf32 = self.tf32_flops_per_s
        if dtype is torch.float32 and tf32 and torch.get_float32_matmul_precision() != "highest":
            return tf32
        return self.flops_per_s.get(dtype, self.flops_per_s[torch.float32])


_DTYPES = {
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Float": torch.float32,
    "Double": torch.float64,
}
"""Floating-point dtypes by c10's names."""


@cache
def _overload(name: str, overload: str) -> Any:
    """``torch.ops``' object for an op; None if it has none."""
    namespace, _, plain = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), plain, None)
    return getattr(packet, overload or "default", None)


def _tensors(values: list[Any]) -> list[core.TensorShape]:
    found = []
    for value in values:
        parts = value if isinstance(value, list) else [value]
        found += [part for part in parts if isinstance(part, core.TensorShape)]
    return found


def _flops(func: Any, call: core.LeafCall) -> int:
    # Not at the top: where torch has CUDA this loads Triton, and `import chameleon_lab` should load nothing else.
    from torch.utils.flop_counter import flop_registry

    formula = flop_registry.get(func._overloadpacket, _FORMULAS.get(func._overloadpacket))
    if formula is None:
        return 0

    def shape(value: Any) -> Any:
        return value.sizes if isinstance(value, core.TensorShape) else value

    results = tuple(map(shape, call.results))
    named = {"out_val": results[0] if len(results) == 1 else results}
    plain = []
    for argument, value in zip(func._schema.arguments, call.arguments, strict=True):
        if argument.kwarg_only:
            named[argument.name] = shape(value)
        else:
            plain.append(shape(value))
    flops: int = formula(*plain, **named)
    return flops


def _grouped_mm_flops(a: Sequence[int], b: Sequence[int], *_: Any, **__: Any) -> int:
    """Of matrix products whose groups are ranges of the rows, the columns or what is summed, as the shapes say."""
    rows = a[-2] if len(a) == 2 or len(b) == 2 else a[0] * a[-2]
    return 2 * rows * a[-1] * b[-1]


_FORMULAS = {_aten._grouped_mm: _grouped_mm_flops}
"""Of ops that torch's registry lacks."""


def _gpu(
    name: str, memory: str, bandwidth: float, half: float, tf32: float, single: float, link: float
) -> Roofline:
    return Roofline(
        name=name,
        memory_bytes=parse_bytes(memory),
        bandwidth_bytes_per_s=bandwidth,
        flops_per_s={torch.bfloat16: half, torch.float16: half, torch.float32: single},
        tf32_flops_per_s=tf32,
        link_out_bytes_per_s=link,
        link_in_bytes_per_s=link,
    )


DEVICES: dict[str, Roofline] = {
    device.name: device
    for device in (
        _gpu("H100", "80GB", 3.35e12, 989e12, 494e12, 67e12, 55e9),
        _gpu("H200", "141GB", 4.8e12, 989e12, 494e12, 67e12, 55e9),
        _gpu("A100", "80GB", 2.04e12, 312e12, 156e12, 19.5e12, 25e9),
        _gpu("RTX 4090", "24GB", 1.01e12, 165e12, 82.6e12, 82.6e12, 25e9),
        Roofline(
            "cpu",
            2**34,
            20e9,
            {torch.float32: 1e11},
            link_out_bytes_per_s=8e9,
            link_in_bytes_per_s=8e9,
            is_gpu=False,
        ),
    )
}
"""Devices by name. Peaks are the vendor's, without sparsity: NVIDIA's data sheets of the H100 SXM (2023), the H200 SXM
(2024) and the A100 80GB SXM (2021), and its Ada architecture white paper for the RTX 4090 (bf16 with float32
accumulation). Links are what pinned copies reach of PCIe 5.0 x16 (64 GB/s) and 4.0 x16 (32 GB/s). ``cpu`` is the
embedded device: its ops and blocks are true, its times are a guess at a laptop."""


def find_device(device: str | Roofline) -> Roofline:
    """A device by name, in any case and with or without spaces, or the user's own.

    Raises ValueError for a name that is not in :data:`DEVICES`, TypeError for anything else.
    """
    if isinstance(device, Roofline):
        return device
    if not isinstance(device, str):
        raise TypeError(f"device must be a name or a Roofline, not {device!r}")

    def plain(name: str) -> str:
        return "".join(name.lower().split()).replace("-", "").removeprefix("rtx")

    for name, roofline in DEVICES.items():
        if plain(name) == plain(device):
            return roofline
    raise ValueError(
        f"there is no device {device!r}: give one of {', '.join(DEVICES)}, or a Roofline with its figures"
    )
