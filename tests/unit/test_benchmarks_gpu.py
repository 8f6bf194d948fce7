"""The GPU benchmarks run on the embedded device, as far as that shows anything: what they print and write is whole."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import gpu_facts, gpu_overlap, gpu_peers

TRIAL = ["--device", "cpu", "--tiny", "--json"]


def test_facts(tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    assert gpu_facts.main([*TRIAL, str(file)]) == 0
    found = json.loads(file.read_text())
    assert "no GPU figure" in found["environment"]["device"]
    assert all(row["out"] > 0 for row in found["link"]) and found["pinning"]


def test_overlap(tmp_path: Path) -> None:
    file = tmp_path / "overlap.json"
    assert gpu_overlap.main([*TRIAL, str(file), "--steps", "1", "--fractions", "1/2"]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert [row["variant"] for row in rows] == ["no session", "recorded", "planned 1/2"]
    assert "error" not in rows[-1], rows[-1]
    assert all(row["losses_identical"] for row in rows)
    assert rows[-1]["out_bytes"] > 0 and rows[-1]["within"]


def test_peers(tmp_path: Path) -> None:
    file = tmp_path / "peers.json"
    assert gpu_peers.main([*TRIAL, str(file), "--methods", "nothing,ours", "--budgets", "0.01"]) == 0
    plain, ours = json.loads(file.read_text())["rows"]
    assert plain["common"]["ok"] and ours["common"]["ok"], (plain, ours)
    assert ours["losses_identical"] is True
    assert ours["largest_batch"] >= 1 and ours["deepest"] >= 1
