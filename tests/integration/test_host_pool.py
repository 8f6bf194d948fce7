"""Host buffers are used again from step to step, whether or not the sizes are the same to the byte."""

from __future__ import annotations

import random
import resource

import torch
from training import MiB

import chameleon_lab as cl
from chameleon_lab.runtime import core

PAGE_BYTES = 4096


def touched_bytes(session: cl.Session, *tensors: torch.Tensor) -> int:
    """Send tensors out together, and back: how much memory was touched for the first time on their way out."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for tensor in tensors:
        assert session.evict(tensor)
    while any(session.where(tensor) != "away" for tensor in tensors):
        pass
    touched = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    for tensor in tensors:
        session.restore(tensor)
        tensor.add_(1.0)  # the host's copy is of no use any more
    return touched * PAGE_BYTES


def test_storages_of_slightly_different_sizes_share_a_buffer() -> None:
    rng = random.Random(0)
    with cl.Session("64MiB", planning=False) as session:
        sizes = [MiB - rng.randrange(1, 16) * PAGE_BYTES // 4 for _ in range(20)]  # floats
        touched = [touched_bytes(session, torch.ones(size)) for size in sizes]
        counters = core.of().counters()
    assert touched[0] > 3 * MiB
    assert max(touched[1:]) < MiB, touched
    assert counters["host_reserved_bytes"] == counters["host_peak_bytes"] <= 4.5 * MiB
    assert counters["host_pinned_bytes"] == counters["host_pins"] == counters["host_pinning_s"] == 0


def test_a_new_size_takes_the_place_of_the_oldest_buffers_only() -> None:
    with cl.Session("64MiB", planning=False) as session:
        same = [torch.ones(MiB) for _ in range(3)]
        assert touched_bytes(session, *same) > 11 * MiB
        other = torch.ones(3 * MiB // 2)
        assert touched_bytes(session, other) > 5 * MiB
        assert core.of().counters()["host_reserved_bytes"] <= 12 * MiB, "no more than was ever in use at once"
        assert touched_bytes(session, same[0]) < MiB, "one of the three is still there"
