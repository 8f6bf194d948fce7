"""The GPU benchmarks run on the embedded device, as far as that shows anything: what they print and write is whole."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu_facts, gpu_overlap, gpu_peers
from benchmarks.gpu import GIB, SHAPES, Gpu

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


BUDGET = 0.0025  # GiB: a little less than the tiny model's step keeps


def test_peers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "peers.json"
    assert (
        gpu_peers.main([*TRIAL, str(file), "--methods", "ours, replay only", "--budgets", str(BUDGET)]) == 0
    )
    plain, ours = json.loads(file.read_text())["rows"]
    assert plain["method"] == gpu_peers.ALL_MEMORY
    assert plain["common"]["ok"] and ours["common"]["ok"], (plain, ours)
    assert ours["losses_identical"] is True
    assert ours["largest_batch"] >= 1 and ours["deepest"] >= 1
    assert ours["common"]["dropped_bytes"] > 0 == ours["common"]["swapped_out_bytes"]
    printed = capsys.readouterr().out
    assert gpu_peers.ALL_MEMORY in printed and "ours, replay only" in printed


def test_peers_of_ours_do_what_their_names_say() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        gpu, shape = Gpu("cpu", time.monotonic() + 60), SHAPES["tiny"]

        def run(name: str, budget_gib: float) -> dict[str, Any]:
            budget = int(budget_gib * GIB)
            return gpu_peers.attempt(gpu, gpu_peers.METHODS[name], shape, budget, 2, 32, timed=True)

        plain = run("nothing", 1.0)
        for name in ("ours", "ours, swap only"):
            row = run(name, BUDGET)
            assert row["ok"] and row["losses"] == plain["losses"], row
            assert row["swapped_out_bytes"] + row["dropped_bytes"] > 0
            assert bool(row["replays_off"]) == (name == "ours, swap only")
        assert row["dropped_bytes"] == 0
        states_alone = run("ours, replay only", 0.0015)
        assert not states_alone["ok"] and "would have to be copied" in states_alone["why"]
    finally:
        torch.set_num_threads(threads)


def test_rows_are_judged_by_the_losses_of_plain_training() -> None:
    def row(method: str, losses: list[str], tokens_per_s: float = 1.0) -> dict[str, Any]:
        common = {"ok": True, "losses": losses, "tokens_per_s": tokens_per_s}
        return {"method": method, "budget_bytes": 8, "common": common}

    rows = [
        row(gpu_peers.ALL_MEMORY, ["1", "2"]),
        row("checkpoint", ["1", "2"], 2.0),
        row("ours", ["1", "3"], 3.0),
        row("ours, replay only", ["1", "2", "5"]),
    ]
    gpu_peers.judge(rows)
    assert [r["losses_identical"] for r in rows] == [True, True, False, True]
    assert rows[2]["speed_to_checkpoint"] == 1.5
