"""``chameleon advise``: from a script to a capacity, in one command."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from training import HANGS_AFTER_S, ROOT

import chameleon_lab as cl
from chameleon_lab.cli import main

pytestmark = pytest.mark.full

TRAIN = """
import sys
import torch

def main(steps):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(6)])
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for _ in range(steps):
        loss = net(torch.randn(128, 256)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item().hex(), flush=True)

if __name__ == "__main__":
    try:
        main(int(sys.argv[1]))
    finally:
        open("last.pt", "w").close()
"""


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=HANGS_AFTER_S,
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def test_what_it_advises_runs_and_no_number_changes(folder: Path) -> None:
    bare = python(folder, "train.py", "9")
    done = python(
        *(folder, "-m", "chameleon_lab", "advise", "--run", "--device", "cpu", "--link", "1GiB/s"),
        *("train.py", "9"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == bare.stdout and bare.stdout.count("0x") == 9
    (start,) = [line for line in done.stderr.splitlines() if line.startswith("Start with ")]
    (command,) = [line.strip() for line in done.stderr.splitlines() if line.startswith("  chameleon run")]
    size = start.split()[2].rstrip(",")
    assert shlex.split(command) == (
        ["chameleon", "run", "--capacity", size, "--device", "cpu", "--link", "1GiB/s", "train.py", "9"]
    )
    (ran,) = [line for line in done.stderr.splitlines() if line.startswith("  Capacity")]
    assert ran.split()[1] + ran.split()[2] == size  # the run was in it, and to its end
    assert "9 steps on cpu" in done.stderr


def test_the_recording_ends_as_if_killed_and_is_kept(folder: Path) -> None:
    """The script runs no further, neither on nor through its ``finally``; stdout is the advice."""
    words = ("--json", "--steps", "3", "--save-trace", "t.parquet", "--device", "cpu", "--link", "1GiB/s")
    done = python(folder, "-m", "chameleon_lab", "advise", *words, "-m", "train", "1000000")
    assert done.returncode == 0, done.stderr
    assert not (folder / "last.pt").exists() and done.stderr.count("0x") == 2
    values, trace = json.loads(done.stdout), cl.Trace.load(folder / "t.parquet")
    assert values["steps"] == len(trace) == 3
    assert trace.last.live_peak_bytes == values["sweep"]["live_peak_bytes"]
    lowest = cl.policy.floor(trace).bytes
    assert values["sweep"]["floor"]["bytes"] == lowest
    assert values["capacity_bytes"] >= max(values["sweep"]["knee"]["capacity_bytes"], 1.25 * lowest)
    assert values["command"].endswith("--device cpu --link 1GiB/s -m train 1000000")
    # It is planned for, and the plan keeps what the advice promises.
    policy = cl.policy.plan(trace, values["capacity_bytes"], "1GiB/s", margin="2%")
    assert cl.policy.simulate(trace, policy).fits
    assert not list(folder.glob("chameleon-*"))


def test_run_stops_after_as_many_steps_as_it_is_told(folder: Path) -> None:
    done = python(
        *(folder, "-m", "chameleon_lab", "run", "--device", "cpu", "--capacity", "4MiB", "--stop-after", "3"),
        *("--save-policy", "p.json", "train.py", "1000000"),
    )
    assert done.returncode == 0, done.stderr
    assert cl.Policy.load(folder / "p.json").swaps and not (folder / "last.pt").exists()
    assert "3 steps on cpu" in done.stderr and done.stdout.count("0x") == 2
    (folder / "p.json").unlink()
    done = python(
        *(folder, "-m", "chameleon_lab", "run", "-q", "--device", "cpu", "--capacity", "4MiB"),
        *("--stop-after", "1", "--save-policy", "p.json", "train.py", "1000000"),
    )
    assert done.returncode == 4 and "it comes after 2 whole steps, and this session had 1" in done.stderr


@pytest.mark.parametrize(
    ("code", "words", "status", "error"),
    [
        ("print('nothing')", (), 4, "chameleon advise: script.py: no step has ended. An optimizer's step()"),
        ("raise ValueError('bad data')", (), 1, "ValueError: bad data"),
        ("import sys; sys.exit(7)", (), 7, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", (), 1, "was ended by SIGKILL"),
        (None, (), 2, "chameleon advise: script.py: there is no such script"),
        ("", ("--link", "fast"), 2, "--link 'fast' is not a bandwidth"),
        ("", ("--within", "-20%"), 2, "--within '-20%' is no fraction"),
        ("", ("--within", "lots"), 2, "--within 'lots' is no fraction"),
        ("", ("--steps", "1"), 2, "--steps"),
        ("", ("--steps", "many"), 2, "--steps"),
        ("", ("--device", "tpu"), 2, "'tpu'"),
        ("", ("--save-trace", "gone/t.parquet"), 4, "gone: there is no such folder"),
        ("", ("--json", "--run"), 2, "--json and --run"),
        ("", ("--capacity", "1MiB"), 2, "--capacity"),
    ],
)
def test_what_is_wrong_is_an_exit_code_and_its_reason(folder, code, words, status, error, capfd) -> None:
    if code is not None:
        (folder / "script.py").write_text(code)
    with pytest.raises(SystemExit) as ended:
        main(["advise", *words, "script.py"])
    captured = capfd.readouterr()
    assert ended.value.code == status, captured.err
    assert error in captured.err and captured.out == ""
    if status in (2, 4):
        assert [line for line in captured.err.splitlines() if line.startswith("chameleon")] == (
            [captured.err.splitlines()[-1]]
        )


def test_one_step_is_enough_to_say_something(folder: Path, capfd) -> None:
    (folder / "script.py").write_text(TRAIN)
    with pytest.raises(SystemExit) as ended:
        main(["advise", "--device", "cpu", "--link", "1GiB/s", "script.py", "1"])
    captured = capfd.readouterr()
    assert ended.value.code == 0, captured.err
    assert (
        "Only the first step was recorded" in captured.out and "  chameleon run --capacity " in captured.out
    )
