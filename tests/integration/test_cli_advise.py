"""``chameleon advise``: from a script to a capacity, in one command."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

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


ROLLOUTS = """
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.Tanh(), torch.nn.Linear(512, 64))
{before}
optimizer = torch.optim.Adam(net.parameters())
{after}
for _ in range(4):
    net(torch.randn(1024, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ACT = """
with torch.no_grad():
    for _ in range(64):
        net(torch.randn(16, 64))
"""


def advised(*words: str) -> dict[str, Any]:
    done = python(
        Path.cwd(), "-m", "chameleon_lab", "advise", "--json", "--device", "cpu", *words, "script.py"
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_calls_before_the_training_are_not_taken_for_it(folder: Path) -> None:
    (folder / "script.py").write_text(ROLLOUTS.format(before="", after=ACT))
    found = advised()
    assert found["trains"] and found["steps"] == 4 and "--no-inference-steps" not in found["command"]
    assert found["capacity_bytes"] >= found["sweep"]["floor"]["bytes"] > 4 << 20
    done = python(folder, "-m", "chameleon_lab", *shlex.split(found["command"])[1:])
    assert done.returncode == 0, done.stderr


def test_calls_before_there_is_an_optimizer_are_said_to_be_what_was_seen(folder: Path, capfd) -> None:
    (folder / "script.py").write_text(ROLLOUTS.format(before=ACT, after=""))
    with pytest.raises(SystemExit):
        main(["advise", "--device", "cpu", "script.py"])
    assert "No step has a backward" in (said := capfd.readouterr().out) and "--no-inference-steps" in said
    found = advised("--no-inference-steps")
    assert found["trains"] and found["steps"] == 4 and "--no-inference-steps script.py" in found["command"]


LENGTHS = """
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(6)])
optimizer = torch.optim.AdamW(net.parameters())
for number in range(12):
    net(torch.randn((1024, 64)[number % 2], 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_the_advice_is_for_the_largest_of_steps_that_differ(folder: Path, capfd) -> None:
    (folder / "script.py").write_text(LENGTHS)
    found = advised("--save-trace", "t.parquet")
    peaks = found["live_peak_bytes"]
    assert peaks[-1] < 0.5 * max(peaks)
    assert found["sweep"]["live_peak_bytes"] == max(peaks)
    assert found["capacity_bytes"] >= found["sweep"]["floor"]["bytes"] == 3 << 20
    done = python(folder, "-m", "chameleon_lab", *shlex.split(found["command"])[1:])
    assert done.returncode == 0, done.stderr
    with pytest.raises(SystemExit):
        main(["advise", "--device", "cpu", "script.py"])
    assert "The steps differ" in capfd.readouterr().out
    # The commands that look at the newest step of a trace say that another one needs more.
    for words in (["sweep", "t.parquet"], ["plan", "t.parquet", "--capacity", "4MiB"]):
        with pytest.raises(SystemExit):
            main(words)
        assert "choose it with --step 4" in capfd.readouterr().err


ONCE = LENGTHS.replace("range(12)", "range(40)").replace(
    "(1024, 64)[number % 2]", "1024 if number == 2 else 64"
)


def test_a_step_long_past_counts_if_it_is_the_largest(folder: Path) -> None:
    (folder / "script.py").write_text(ONCE)
    found = advised("--steps", "20")
    assert (
        found["sweep"]["live_peak_bytes"] == max(found["live_peak_bytes"]) > 2 * found["live_peak_bytes"][-1]
    )
    assert found["capacity_bytes"] >= found["sweep"]["floor"]["bytes"] == 3 << 20


VALIDATES = """
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(6)])
optimizer = torch.optim.AdamW(net.parameters())
for number in range(24):
    if number == 3:
        with torch.no_grad():
            torch.nn.functional.relu(torch.randn(6000, 128))
    net(torch.randn(4096, 128)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_step_long_past_counts_if_its_floor_is_the_highest(folder: Path) -> None:
    """Another one keeps more alive."""
    (folder / "script.py").write_text(VALIDATES)
    found = advised("--steps", "20")
    assert found["capacity_bytes"] >= found["sweep"]["floor"]["bytes"] >= 2 * 6000 * 128 * 4
    assert found["sweep"]["live_peak_bytes"] == found["live_peak_bytes"][-1]
    done = python(folder, "-m", "chameleon_lab", *shlex.split(found["command"])[1:])
    assert done.returncode == 0, done.stderr


def test_the_time_is_that_of_steps_that_repeat(folder: Path, capfd) -> None:
    """The first one validates, and keeps more alive."""
    before = "with torch.no_grad():\n    torch.randn(1 << 20).relu().sum()"
    (folder / "script.py").write_text(ROLLOUTS.format(before=before, after=""))
    with pytest.raises(SystemExit):
        main(["advise", "--device", "cpu", "script.py"])
    assert "The first step, which runs once, keeps " in (said := capfd.readouterr().out)
    assert "The steps differ" not in said
    found = advised()
    assert found["sweep"]["live_peak_bytes"] == found["live_peak_bytes"][-1] < found["live_peak_bytes"][0]
    assert found["capacity_bytes"] >= found["sweep"]["floor"]["bytes"] == 8 << 20


def test_an_evaluation_with_the_script_of_a_training_is_told_what_to_give(folder: Path, capfd) -> None:
    script = ROLLOUTS.format(before="", after=ACT).replace("range(4)", "range(0)")
    (folder / "script.py").write_text(script)
    with pytest.raises(SystemExit) as ended:
        main(["advise", "--device", "cpu", "script.py"])
    assert ended.value.code == 4 and "give --inference-steps" in capfd.readouterr().err
    found = advised("--inference-steps")
    assert not found["trains"] and " --inference-steps script.py" in found["command"]


def test_one_step_is_enough_to_say_something(folder: Path, capfd) -> None:
    (folder / "script.py").write_text(TRAIN)
    with pytest.raises(SystemExit) as ended:
        main(["advise", "--device", "cpu", "--link", "1GiB/s", "script.py", "1"])
    captured = capfd.readouterr()
    assert ended.value.code == 0, captured.err
    assert (
        "Only the first step was recorded" in captured.out and "  chameleon run --capacity " in captured.out
    )
