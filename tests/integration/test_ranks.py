"""``chameleon run`` with several ranks: real processes over gloo, few and short."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from training import HANGS_AFTER_S, ROOT

import chameleon_lab as cl
from chameleon_lab.ranks.identity import Identity

pytestmark = pytest.mark.full

TRAIN = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def main(steps):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    several = "RANK" in __import__("os").environ
    if several:
        dist.init_process_group("gloo")
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(6)])
    if several:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.randn(128, 256)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        print("step", flush=True)
    if several:
        dist.destroy_process_group()

if __name__ == "__main__":
    main(int(sys.argv[1]))
"""


def environment(**more: str) -> dict[str, str]:
    ours = {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "OMP_NUM_THREADS": "1", **more}
    launched = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return {name: value for name, value in os.environ.items() if name not in launched} | ours


def chameleon(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "chameleon_lab", *words],
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=HANGS_AFTER_S,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def test_each_rank_of_torchrun_has_files_of_its_own_and_a_policy_serves_them_all(folder):
    """Started by chameleon run. Then a run of one rank, and of a longer name, takes the policies of two."""
    files = ("--save-policy", "p.json", "--save-trace", "t.{rank}.parquet", "--report", "r.json")
    job = ("torchrun", "--standalone", "--nproc-per-node", "2", "train.py", "5")
    host = ("--host-capacity", "64MiB")
    done = chameleon(folder, "run", "--device", "cpu", "--capacity", "12MiB", *host, *files, *job)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step") == 10
    assert done.stderr.count("Host pool") == 1, "more than one rank printed its report"
    assert "p.rank0.json: saved the policy" in done.stderr and "p.rank1.json" not in done.stderr
    names = {each.name for each in folder.iterdir() if each.suffix in (".json", ".parquet")}
    own = {
        name for rank in "01" for name in (f"p.rank{rank}.json", f"t.{rank}.parquet", f"r.rank{rank}.json")
    }
    assert names >= own, sorted(names)
    for rank in range(2):
        trace = cl.Trace.load(folder / f"t.{rank}.parquet")
        who = Identity.of_meta(trace.meta)
        assert who is not None and (who.rank, who.world_size, who.local_rank) == (rank, 2, rank)
        assert who.host and list(trace.meta["groups"].values()) == [[0, 1]]
        assert trace.meta["host_capacity_bytes"] == 32 << 20, "the machine's, and two ranks share it"
        report = json.loads((folder / f"r.rank{rank}.json").read_text())
        assert report["rank"]["rank"] == rank and report["host_capacity_bytes"] == 32 << 20

    merged = json.loads((folder / "r.json").read_text())
    assert sorted(row["rank"] for row in merged["rows"]) == [0, 1] and merged["collectives"] > 0
    assert "2 of 2 ranks" in done.stderr and not list(folder.glob(".*"))
    shown = chameleon(folder, "report", ".", "--html", "ranks.html")
    assert shown.returncode == 0, shown.stderr
    assert "rank 0" in shown.stdout and "rank 1" in shown.stdout
    assert "Made others wait" in (folder / "ranks.html").read_text()

    # DDP's buckets are no part of a plain model's step: another program, which is said with its first op.
    other = chameleon(folder, "run", "-q", "--policy", "p.json", "--report", "o.json", "train.py", "5")
    assert other.returncode == 0, other.stderr
    (note, *_) = [n for n in json.loads((folder / "o.json").read_text())["notes"] if "does not fit" in n]
    assert "none of 2 policies fits" in note and "rank0.json" in note and " op " in note


def test_a_killed_rank_leaves_its_newest_steps_and_sigterm_leaves_the_files(folder):
    def start() -> subprocess.Popen[str]:
        (folder / "train.py").write_text(TRAIN.replace("several = ", "several = False and "))
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "chameleon_lab", "run", "--device", "cpu", "--capacity", "4MiB"),
                *("--save-trace", "t.parquet", "train.py", "100000000"),
            ],
            cwd=folder,
            env=environment(RANK="1", WORLD_SIZE="2"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    part = folder / "t.rank1.unfinished.parquet"
    process = start()
    try:
        deadline = time.monotonic() + HANGS_AFTER_S
        while not part.exists() and time.monotonic() < deadline and process.poll() is None:
            process.stdout.readline()
    finally:
        process.kill()
        process.communicate()
    trace = cl.Trace.load(part)
    assert len(trace) and Identity.of_meta(trace.meta).rank == 1
    assert not (folder / "t.rank1.parquet").exists()

    process = start()
    try:
        for _ in range(4):
            assert process.stdout.readline() == "step\n"
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=HANGS_AFTER_S)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGTERM, stderr
    assert "saved" not in stderr and "Host pool" not in stderr, "rank 1 has nothing to say"
    assert len(cl.Trace.load(folder / "t.rank1.parquet")) >= 3
    assert len(cl.Trace.load(folder / "t.rank1.killed.parquet")) == len(trace)
    assert not part.exists()


def test_an_error_says_which_rank_has_it(folder):
    done = chameleon(folder, "run", "--capacity", "lots", "train.py", "1", RANK="1", WORLD_SIZE="2")
    assert done.returncode == 2 and done.stderr.startswith("chameleon run, rank 1: capacity 'lots'")
