"""The GPU benchmarks run on the embedded device, as far as that shows anything: what they print and write is whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from benchmarks import gpu_facts, gpu_overlap, gpu_peers, gpu_ready
from benchmarks.gpu import GIB, SHAPES, Gpu, build

TRIAL = ["--device", "cpu", "--tiny", "--json"]


def test_facts(tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    assert gpu_facts.main([*TRIAL, str(file)]) == 0
    found = json.loads(file.read_text())
    assert "no GPU figure" in found["environment"]["device"]
    assert all(row["out"] > 0 for row in found["link"]) and found["pinning"]
    assert found["blocks"]["left_bytes"] == found["blocks"]["bytes"], "one leaves for each"
    assert all(
        found["blocks"][name] > 0 for name in ("torch_s", "forwarded_s", "session_s", "no_room_s", "copy_s")
    )


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


def test_layers_leave_one_by_one_and_the_weights_stay_the_same() -> None:
    gpu, shape = Gpu("cpu", time.monotonic() + 60), SHAPES["tiny"]
    here, _ = build(gpu, shape)
    seen: list[torch.nn.Module] = []
    gone, optimizer = build(gpu, shape, prepare=seen.append, layers_on="meta")
    assert seen == [gone], "prepared before the optimizer takes hold of the parameters"
    assert all(p.device.type == "meta" for p in gone.layers.parameters())
    assert torch.equal(gone.embed.weight, here.embed.weight) and torch.equal(
        gone.head.weight, here.head.weight
    )
    (group,) = optimizer.param_groups
    assert {id(p) for p in group["params"]} == {id(p) for p in gone.parameters()}


def test_fsdp_holds_nothing_that_it_was_given() -> None:
    """What it shards has a copy on the host: with an optimizer of the old parameters, the device would keep both."""
    gpu, shape = Gpu("cpu", time.monotonic() + 60), SHAPES["tiny"]
    method = gpu_peers.METHODS["FSDP2 offload"]
    with gpu_peers._one_rank(gpu):
        model, optimizer = build(gpu, shape, prepare=method.prepare, layers_on="cpu")
        assert all(isinstance(p, DTensor) for p in model.parameters())
        assert {id(p) for p in optimizer.param_groups[0]["params"]} == {id(p) for p in model.parameters()}
        row = gpu_peers.attempt(gpu, method, shape, GIB, 2, 32, timed=True)
    plain = gpu_peers.attempt(gpu, gpu_peers.METHODS["nothing"], shape, GIB, 2, 32, timed=True)
    assert row["ok"] and row["losses"] == plain["losses"], row


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


@pytest.mark.parametrize(
    ("fits", "most", "calls", "found"),
    [
        (5, 64, 99, (5, True)),  # 1, 2, 4, 8, then 6, 5
        (0, 64, 99, (0, True)),
        (100, 64, 99, (64, False)),  # larger ones were not asked for
        (5, 64, 3, (4, False)),  # 8 was never tried
        (40, 64, 8, (32, False)),  # between 32 and 48
    ],
)
def test_a_search_that_was_cut_short_says_so(
    fits: int, most: int, calls: int, found: tuple[int, bool]
) -> None:
    tried: list[int] = []

    def runs(size: int) -> bool:
        tried.append(size)
        return size <= fits

    assert gpu_peers.largest(runs, most, lambda: calls - len(tried)) == found


ROOT = Path(__file__).parents[2]


def check(tmp_path: Path, *parts: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run gpu_check.sh."""
    settings = {"OUT": tmp_path / "out", "WORK": tmp_path / "work", "PYTHON": sys.executable} | environment
    return subprocess.run(
        [ROOT / "benchmarks" / "gpu_check.sh", *parts],
        capture_output=True, text=True, timeout=300, env={**os.environ, **{k: str(v) for k, v in settings.items()}},
    )  # fmt: skip


def test_the_check_runs_without_a_gpu_what_can_run(tmp_path: Path) -> None:
    done = check(tmp_path, "build", "facts", "replay", DEVICE="cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    for line in ("ready: done in", "facts: done in", "build: left out", "replay: left out"):
        assert f"\n{line}" in done.stdout
    assert "copy of MiB" in done.stdout.partition("--- facts")[2], "the table comes last"
    # What comes back from a machine that is lent: few files, and nothing that was built.
    assert sorted(file.name for file in (tmp_path / "out").rglob("*")) == ["facts.json", "log.txt"]


def test_a_part_that_fails_fails_the_check_and_not_the_others(tmp_path: Path) -> None:
    done = check(tmp_path, "peers", "facts", DEVICE="cpu", BUDGETS="none")
    assert done.returncode == 1
    assert "\npeers-none: FAILED" in done.stdout and "\nfacts: done in" in done.stdout
    assert "could not convert" in (tmp_path / "out" / "log.txt").read_text()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_what_is_missing_is_said_before_anything_is_built(tmp_path: Path) -> None:
    done = check(tmp_path, CXX="no-such-compiler")
    assert done.returncode == 1 and "ready: FAILED (1)" in done.stdout
    assert "a C++20 compiler: there is no no-such-compiler" in done.stdout
    assert "built with CUDA" in done.stdout or "torch finds none" in done.stdout
    assert not (tmp_path / "work" / "cmake").exists()


def test_what_is_needed_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_ready.missing("cpu") == []
    monkeypatch.setattr(gpu_ready, "find_spec", lambda name: None)
    monkeypatch.setattr(gpu_ready.shutil, "which", lambda name: None)
    said = "\n".join(gpu_ready._tools_missing())
    assert "cmake 3.25" in said and "ninja" in said and "compiler" in said
    assert gpu_ready.missing("cuda")[0] == "torch 2.11 or newer with CUDA"


def test_what_is_done_without_is_a_note_and_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_ready.shutil, "which", lambda name: None)
    assert gpu_ready.main(["--device", "cpu"]) == 0
    assert "not here: compute-sanitizer: its run" in capsys.readouterr().out
    monkeypatch.setattr(gpu_ready.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert gpu_ready.main(["--device", "cpu"]) == 0
    assert "compute-sanitizer" not in capsys.readouterr().out


@pytest.mark.parametrize(("installed", "theirs"), [("5.23.0", True), ("5.16.4", False), (None, False)])
def test_peers_take_transformers_own_offloading_where_it_is(
    monkeypatch: pytest.MonkeyPatch, installed: str | None, theirs: bool
) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise gpu_peers.metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(gpu_peers.metadata, "version", version)
    names = gpu_peers.usual_methods()
    assert ("transformers offload" in names, "checkpoint in save_on_cpu" in names) == (theirs, not theirs)
    assert len(names) == len(gpu_peers.METHODS) - 1


def test_slow_peers_do_not_outlast_their_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """gpu_check.sh stops a part 40 s after its time, and what was not printed by then is lost."""
    clock, stopped = [0.0], []

    def never_ends(command: list[str], timeout: float, **kwargs: Any) -> None:
        clock[0] += timeout
        stopped.append(clock[0])
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(gpu_peers.subprocess, "run", never_ends)
    gpu = Gpu("cpu", 0.0)
    monkeypatch.setattr(Gpu, "left_s", lambda self: 100.0 - clock[0])
    options = gpu_peers.argparse.Namespace(
        methods="", budgets="1", device="cpu", batch=2, length=32, tiny=True
    )
    rows = list(gpu_peers.run_trials(options, gpu))
    assert [row["method"] for row in rows] == [gpu_peers.ALL_MEMORY, *gpu_peers.usual_methods()]
    assert 1 < len(stopped) < len(rows) and stopped[-1] <= 130
    assert rows[-1]["error"] == "no time left"


@pytest.mark.parametrize(
    ("text", "version"), [("2.11.0+cu130", (2, 11)), ("4.0.2\n\nCMake suite", (4, 0)), ("3.25-rc1", (3, 25))]
)
def test_versions(text: str, version: tuple[int, int]) -> None:
    assert gpu_ready.version_of(text) == version
