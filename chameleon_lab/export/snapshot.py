"""A memory snapshot as ``torch.cuda.memory._dump_snapshot`` writes it: PyTorch's MemoryViz.js draws it.

What leaves the device is freed and what comes back is allocated, so that the drawing shows what was resident. Drawings
by category need a ``category`` on every event, and one event at least whose category is unknown.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from ..trace import Category, StepTrace, Trace
from .block_events import BlockEvent, block_events

CATEGORIES = {
    Category.PARAMETER: "parameter",
    Category.GRADIENT: "gradient",
    Category.OPTIMIZER_STATE: "optimizer_state",
    Category.ACTIVATION: "activation",
    Category.INPUT: "input",
    Category.OTHER: "unknown",
}
"""PyTorch's names."""

_PROTOCOL = 4
"""Of pickle: the newest that MemoryViz.js reads."""


def write_snapshot(trace: Trace, path: Path, compressed: bool = False) -> None:
    """Write a trace's steps as a snapshot."""
    with open(path, "wb") as file:
        pickle.dump(snapshot_of(trace), file, protocol=_PROTOCOL)


def snapshot_of(trace: Trace) -> dict[str, Any]:
    """The snapshot: what came and went, and what was there at the end."""
    number = str(trace.meta.get("device") or "cpu").partition(":")[2]
    device = int(number) if number.isdigit() else 0
    base_us = round(trace.steps[0].start_s * 1e6)
    frames = _Frames()
    events: list[dict[str, Any]] = []
    there: dict[int, BlockEvent] = {}
    low, high = -1, 0
    for event in block_events(trace):
        size = abs(event.bytes)
        low = event.address if low < 0 else min(low, event.address)
        high = max(high, event.address + size)
        comes = event.bytes > 0
        if comes:
            there[event.address] = event
        else:
            event = there.pop(event.address)._replace(time_ns=event.time_ns)  # what made it, and for what
        for action in ("alloc",) if comes else ("free_requested", "free_completed"):
            events.append(
                {
                    "action": action,
                    "addr": event.address,
                    "size": size,
                    "stream": 0,
                    "frames": frames.of(event),
                    "time_us": base_us + event.time_ns // 1000,
                    "category": CATEGORIES[Category(int(event.step.storages.category[event.storage]))],
                }
            )
    if all(event["category"] != "unknown" for event in events):
        last = events[-1]["time_us"] if events else base_us
        events.append(
            {
                "action": "snapshot",
                "addr": 0,
                "size": 0,
                "stream": 0,
                "frames": [],
                "time_us": last,
                "category": "unknown",
            }
        )
    traces: list[list[dict[str, Any]]] = [[] for _ in range(device + 1)]
    traces[device] = events
    segments = [_segment(device, low, high, there, frames)] if events and low >= 0 else []
    return {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": {},
        "external_annotations": [],
    }


def _segment(
    device: int, low: int, high: int, there: dict[int, BlockEvent], frames: _Frames
) -> dict[str, Any]:
    """One stretch of addresses: readers add up the blocks' sizes, so that what is free between them is a block too."""
    blocks: list[dict[str, Any]] = []
    at = low
    for address in sorted(there):
        if address > at:
            blocks.append(_free(at, address - at))
        event = there[address]
        blocks.append(
            {
                "address": address,
                "size": event.bytes,
                "requested_size": min(int(event.step.storages.bytes[event.storage]), event.bytes),
                "state": "active_allocated",
                "frames": frames.of(event),
            }
        )
        at = address + event.bytes
    if at < high:
        blocks.append(_free(at, high - at))
    active = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
    return {
        "device": device,
        "address": low,
        "total_size": high - low,
        "allocated_size": active,
        "active_size": active,
        "requested_size": sum(block["requested_size"] for block in blocks if block["state"] != "inactive"),
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def _free(address: int, size: int) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": 0, "state": "inactive", "frames": []}


class _Frames:
    """The frames of storages: its name and the op that made it, then the Python stack. Equal ones are one list."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], list[dict[str, Any]]] = {}

    def of(self, event: BlockEvent) -> list[dict[str, Any]]:
        key = (event.step.index, event.storage)
        if key not in self._known:
            self._known[key] = _frames(event.step, event.storage)
        return self._known[key]


def _frames(step: StepTrace, storage: int) -> list[dict[str, Any]]:
    op = int(step.storages.birth_op[storage])
    made = step.op_name(op) if op >= 0 else "before the step"
    frames = [{"name": step.storage_keys[storage], "filename": made, "line": 0}]
    stack = int(step.ops.stack[op]) if op >= 0 else -1
    for text in step.stacks[stack].splitlines() if stack >= 0 else ():
        where, _, name = text.partition(" ")
        filename, _, line = where.rpartition(":")
        number = int(line) if line.isdigit() else 0
        frames.append({"name": name, "filename": filename or where, "line": number})
    return frames
