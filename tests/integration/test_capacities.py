"""The capacities that tests ask for: far above the floor, whichever kernels this CPU has.

A kernel of another CPU asks for another work space, and a capacity near the floor would be below it there. A share of
the live peak is no such capacity; what is meant to be tight comes from the floor (training.tight_bytes).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn
from training import ConvNet, Gpt, Moe, child, floor_bytes, of_the_gate, reference

pytestmark = pytest.mark.full

SMALLEST_SHARE = 4
"""Of the live peak: one quarter."""
_SHARE = re.compile(r"(?:capacity\W+|Session\()[\w.]*peak\w* // (\d+)")


@pytest.mark.gate
@pytest.mark.parametrize("model", [Gpt, ConvNet, Moe])
def test_the_smallest_share_is_twice_the_floor(model: Callable[[], nn.Module]) -> None:
    _, live_peak = reference(model)
    assert live_peak // SMALLEST_SHARE > 2 * floor_bytes(model)


@pytest.mark.parametrize("isa", of_the_gate(all_of=["AVX2", "SSE41"]))
def test_it_is_so_with_the_kernels_of_other_cpus(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", isa)
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", {"SSE41": "default"}.get(isa, isa.lower()))
    child(f"""
        for model in (Gpt, ConvNet, Moe):
            _, live_peak = reference(model)
            assert live_peak // {SMALLEST_SHARE} > 2 * floor_bytes(model), model
    """)


@pytest.mark.gate
def test_no_test_asks_for_a_smaller_share() -> None:
    smaller = [
        f"{file.name}: {line.strip()}"
        for file in Path(__file__).parent.glob("*.py")
        if file.name != Path(__file__).name
        for line in file.read_text().splitlines()
        for share in _SHARE.findall(line)
        if int(share) > SMALLEST_SHARE
    ]
    assert smaller == []
    assert _SHARE.findall('Session(live_peak // 8, {"capacity": run.live_peak_bytes // 6}') == ["8", "6"]
