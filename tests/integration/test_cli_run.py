"""``chameleon run``: real scripts in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from training import HANGS_AFTER_S, ROOT

import chameleon_lab as cl
from chameleon_lab.runtime import core

pytestmark = pytest.mark.full

TRAIN = """
import argparse, sys
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(6)])

    def forward(self, x):
        return self.layers(x).square().mean()

def main(steps):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for _ in range(steps):
        loss = net(torch.randn(128, 256))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item().hex(), flush=True)
    print(sum(float(p.double().sum()) for p in net.parameters()).hex())

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    main(parser.parse_args().steps)
"""
CAPACITY = "4MiB"


def python(folder: Path, *words: str, **kwargs) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, with the project on its path."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-W", "ignore", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANGS_AFTER_S,
        **kwargs,
    )


def chameleon(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return python(folder, "-m", "chameleon_lab", *words)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def script(folder: Path, code: str, name: str = "script.py") -> str:
    (folder / name).write_text(code)
    return name


@pytest.mark.gate
def test_a_script_trains_the_same_in_less_memory(folder):
    """Same stdout to the bit, the files, and a report on stderr; then the policy that was saved serves a run."""
    bare = python(folder, "train.py", "--steps", "7")
    files = ("--save-policy", "p.json", "--save-trace", "t.parquet", "--report", "r.html")
    done = chameleon(folder, "run", "--capacity", CAPACITY, *files, "train.py", "--steps", "7")
    assert done.returncode == 0, done.stderr
    assert done.stdout == bare.stdout and bare.stdout.count("0x") == 8
    assert "p.json: saved the policy" in done.stderr and "Peak resident" in done.stderr

    trace, policy = cl.Trace.load(folder / "t.parquet"), cl.Policy.load(folder / "p.json")
    assert trace.last.peak_bytes <= 4 << 20 < trace.last.live_peak_bytes
    assert policy.swaps and policy.capacity_bytes == 4 << 20
    assert (folder / "r.html").read_text().startswith("<!doctype html>")

    again = chameleon(
        folder, "run", "--policy", "p.json", "--report", "r.json", "-q", "train.py", "--steps", "7"
    )
    assert (again.returncode, again.stdout, again.stderr) == (0, bare.stdout, "")
    report = json.loads((folder / "r.json").read_text())
    assert report["capacity_bytes"] == 4 << 20 and report["decisions"] == len(policy)
    # The script builds its model in the first step, and logs the loss between the optimizer and the next forward.
    assert report["notes"] == ["the given policy fits: in force from the second step on"]
    assert [step["stage"] for step in report["history"]] == ["WarmUp"] + ["Stable"] * 6
    assert not list(folder.glob(".*"))  # nothing half-written


def test_it_is_main_as_for_python(folder):
    """argv, path, __main__, __file__, imports beside the script, and options that look like ours."""
    inner = folder / "inner"
    inner.mkdir()
    code = """
import atexit, sys, pickle, beside, chameleon_lab
atexit.register(lambda: print(type(pickle.loads(pickle.dumps(Here()))) is Here))
class Here: pass
print(__name__, sys.argv, sys.path[0], __file__, __spec__, __package__, __doc__)
print(sys.modules["__main__"].Here is Here, type(pickle.loads(pickle.dumps(Here()))) is Here)
"""
    script(inner, code)
    (inner / "beside.py").write_text("")
    words = ("inner/script.py", "--capacity", "x", "--", "-m", "--help")
    bare, done = python(folder, *words), chameleon(folder, "run", "-q", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout == bare.stdout
    assert f"['inner/script.py', '--capacity', 'x', '--', '-m', '--help'] {inner}" in done.stdout


def test_options_reach_the_session(folder):
    code = """
import chameleon_lab as cl
session = cl.current_session()
print(session.capacity_bytes == cl.Session(0.6, device="cpu").capacity_bytes)
print(session.host_capacity_bytes == cl.Session("1MiB", device="cpu", host_capacity="50%").host_capacity_bytes)
print(session.link, session.margin, session.rematerialize)
"""
    done = chameleon(
        *(folder, "run", "-q", "--device", "cpu", "--capacity", "60%", "--host-capacity", "0.5"),
        *("--link", "1e9,2GB/s", "--margin", "5%", "--rematerialize", "cheap", script(folder, code)),
    )
    assert done.stdout == f"True\nTrue\n{cl.policy.Link(1e9, 2e9)} 0.05 cheap\n", done.stderr


def test_a_module_runs_as_with_python_dash_m(folder):
    package = folder / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text("value = 7")
    (package / "main.py").write_text(
        "import sys\nfrom .part import value\nprint(__name__, __package__, sys.argv, sys.path[0], value)"
    )
    bare = python(folder, "-m", "package.main", "-m", "--steps", "3")
    done = chameleon(folder, "run", "-q", "-m", "package.main", "-m", "--steps", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout == bare.stdout != ""


@pytest.mark.parametrize(
    ("code", "status", "stderr"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('no data')", 1, "no data\n"),
    ],
)
def test_the_exit_code_of_the_script_is_passed_on(folder, code, status, stderr):
    done = chameleon(folder, "run", "-q", script(folder, code))
    assert (done.returncode, done.stderr) == (status, stderr)


def test_an_exception_shows_the_scripts_own_traceback(folder):
    code = TRAIN + "\ndef fails():\n    raise ValueError('bad batch')\nfails()\n"
    name = script(folder, code)
    bare = python(folder, name, "--steps", "3")
    done = chameleon(
        folder, "run", "-q", "--capacity", CAPACITY, "--save-trace", "t.parquet", name, "--steps", "3"
    )
    assert (done.returncode, done.stdout) == (bare.returncode, bare.stdout) == (1, bare.stdout)
    own = bare.stderr.replace(f'"{folder}/', '"').splitlines()
    assert done.stderr.replace(f'"{folder}/', '"').splitlines() == own
    assert len(cl.Trace.load(folder / "t.parquet")) == 3  # written all the same


def test_a_syntax_error_is_shown_as_python_shows_it(folder):
    done = chameleon(folder, "run", "-q", script(folder, "x = (\n"))
    assert done.returncode == 1
    assert "SyntaxError" in done.stderr and "runpy" not in done.stderr and "chameleon_lab" not in done.stderr


def test_ctrl_c_leaves_the_files_and_dies_of_the_signal(folder):
    """As Python does, so that a shell's loop around it stops too."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "chameleon_lab", "run", "--capacity", CAPACITY),
            *("--save-policy", "p.json", "--save-trace", "t.parquet", "train.py", "--steps", "1000000"),
        ],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # background jobs are born deaf to it
    )
    try:
        for _ in range(6):
            assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=HANGS_AFTER_S)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGINT, stderr
    assert "KeyboardInterrupt" in stderr and "chameleon_lab/cli" not in stderr
    assert cl.Policy.load(folder / "p.json").swaps and len(cl.Trace.load(folder / "t.parquet")) > 1


def test_below_the_floor_is_an_exit_code_of_its_own(folder):
    done = chameleon(folder, "run", "-q", "--capacity", "300KiB", "train.py")
    assert done.returncode == 3
    assert "is below the floor" in done.stderr and "chameleon_lab/cli" not in done.stderr


def test_a_script_with_a_session_of_its_own_is_told(folder):
    code = "import chameleon_lab as cl\nwith cl.Session('4MiB'):\n    pass\n"
    done = chameleon(folder, "run", "-q", "--capacity", CAPACITY, script(folder, code))
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("chameleon run has opened the session") and "plain python" in last


def test_a_file_that_was_asked_for_and_is_not_there_is_an_error(folder):
    done = chameleon(
        folder, "run", "--capacity", CAPACITY, "--save-policy", "p.json", "train.py", "--steps", "1"
    )
    assert done.returncode == 4
    assert "p.json: no policy: it comes after 2 whole steps, and this session had 1" in done.stderr


def test_workers_and_children_leave_no_second_report(folder):
    """DataLoader workers, forked and spawned, and a child that runs on to the end of the script."""
    code = """
import os, sys, torch
from torch.utils.data import DataLoader, TensorDataset

def main():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 256))
    net = torch.nn.Linear(256, 256)
    optimizer = torch.optim.AdamW(net.parameters())
    for kind in ("fork", "spawn"):
        for (x,) in DataLoader(data, batch_size=32, num_workers=1, multiprocessing_context=kind):
            net(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    print("trained", flush=True)
    if os.fork() == 0:
        return
    os.wait()
    print("done", flush=True)

if __name__ == "__main__":
    main()
"""
    done = chameleon(folder, "run", "--capacity", "2MiB", script(folder, code))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained\ndone\n"
    assert done.stderr.count("Peak resident") == 1
    assert "4 steps on cpu" in done.stderr


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        (["gone.py"], 2, "chameleon run: gone.py: there is no such script"),
        (["--capacity", "lots", "train.py"], 2, "capacity 'lots' is not a size"),
        (["--capacity", "1.5", "train.py"], 2, "capacity '1.5' is neither a fraction"),
        (["--host-capacity", "150%", "train.py"], 2, "--host-capacity '150%' is neither a fraction"),
        (["--margin", "101%", "train.py"], 2, "--margin '101%' is no fraction"),
        (["--rematerialize", "dear", "train.py"], 2, "'dear' is not one of"),
        (["--link", "8GiB", "train.py"], 2, "--link '8GiB' is not a bandwidth"),
        (["--device", "cuda", "train.py"], 2, core.missing_device("cuda:0").partition(":")[0]),
        (["--policy", "gone.json", "train.py"], 4, "gone.json: No such file or directory"),
        (["--policy", "train.py", "train.py"], 4, "train.py"),
        (["--save-trace", "gone/t.parquet", "train.py"], 4, "gone: there is no such folder"),
        (["--save-policy", ".", "train.py"], 4, ".: Is a directory"),
        ([], 2, "Missing argument 'SCRIPT'"),
        (["--capcity", "1MiB", "train.py"], 2, "'--capcity'"),
    ],
)
def test_what_is_wrong_before_the_script_begins_is_one_line(
    folder, words, status, error, capsys, monkeypatch
):
    from chameleon_lab.cli import main

    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as ended:
        main(["run", *words])
    captured = capsys.readouterr()
    assert ended.value.code == status, captured.err
    assert error in captured.err and len(captured.err.splitlines()) == 1
    assert captured.out == ""
