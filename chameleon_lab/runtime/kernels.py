"""The kernels of a session's ops: work spaces, and so the floor, depend on them."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch

_LIMITS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
"""Settings of the environment that keep libraries from a CPU's newest instructions."""


def kernels_of(device: torch.device) -> str:
    """What chooses the kernels of ``device``, in words: the GPU's name; of a CPU its name, instructions and threads."""
    if device.type != "cpu":
        name: str = torch.get_device_module(device).get_device_name(device)
        return name
    seen: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    parts = [torch.backends.cpu.get_cpu_capability()]
    if seen.get("avx512_bf16") or seen.get("amx_bf16"):
        parts.append("bf16 instructions")
    threads = torch.get_num_threads()
    parts.append(f"{threads} op thread{'s' * (threads != 1)}")
    parts += [f"{name}={os.environ[name]}" for name in _LIMITS if os.environ.get(name)]
    return f"{seen.get('cpu_name') or platform.processor() or platform.machine()} ({', '.join(parts)})"
