"""Memory snapshots made by hand, as ``torch.cuda.memory._dump_snapshot`` writes them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

BASE = 0x7F0000000000
BEGIN_US = 1_700_000_000_000_000
FRAMES = [
    {"filename": "/venv/site-packages/torch/nn/functional.py", "line": 9, "name": "linear"},
    {"filename": "/home/me/train.py", "line": 12, "name": "forward"},
]


def event(action: str, address: int, size: int, after_us: int, **more: Any) -> dict[str, Any]:
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": BEGIN_US + after_us,
        "frames": FRAMES,
        "pool_id": (0, 0),
        **more,
    }


def oom(size: int, free: int, after_us: int) -> dict[str, Any]:
    return {
        "action": "oom",
        "device_free": free,
        "size": size,
        "stream": 0,
        "time_us": BEGIN_US + after_us,
        "frames": [],
    }


def block(address: int, size: int, state: str, frames: list[Any] = FRAMES) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": frames}


def snapshot(device: int = 0) -> dict[str, Any]:
    """Two megabytes reserved; a block from before the history, one that is freed, one that stays, and an OOM."""
    at = BASE + (device << 32)
    events = [
        event("segment_alloc", at, 2 << 20, 0),
        event("alloc", at, 1000, 10),
        event("alloc", at + 1024, 512 << 10, 20),
        event("free_requested", at, 1000, 25),
        event("free_completed", at, 1000, 30),
        event("free_completed", at + (1 << 20), 4096, 31),
        oom(64 << 20, 16 << 20, 40),
    ]
    rest = (2 << 20) - 1024 - (512 << 10) - 1536
    segment = {
        "device": device,
        "address": at,
        "total_size": 2 << 20,
        "allocated_size": (512 << 10) + 1536,
        "active_size": (512 << 10) + 1536,
        "requested_size": (512 << 10) + 1536,
        "stream": 0,
        "segment_type": "small",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": FRAMES,
        "blocks": [
            block(at, 1024, "inactive", []),
            block(at + 1024, 512 << 10, "active_allocated"),
            block(at + 1024 + (512 << 10), 1536, "active_allocated"),
            block(at + 1024 + (512 << 10) + 1536, rest, "inactive", []),
        ],
    }
    return {
        "segments": [segment],
        "device_traces": [*([[]] * device), events],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""},
        "external_annotations": [],
    }


def saved(values: Any, path: Path, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(values, protocol=protocol))
    return path
