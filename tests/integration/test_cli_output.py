"""What becomes of a command whose stdout or stderr takes nothing any more: a full disk, a reader that has gone."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic import gpt_step
from training import HANGS_AFTER_S, ROOT

import chameleon_lab as cl
from chameleon_lab.planner import plan

pytestmark = pytest.mark.full

TRAIN = """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(6)])
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(4):
    net(torch.randn(128, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained")
"""
RUN = ("run", "--device", "cpu", "--capacity", "4MiB", "--link", "1GiB/s", "--save-policy", "p.json")


@contextmanager
def gone() -> Iterator[int]:
    """A pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        yield writer
    finally:
        os.close(writer)


@contextmanager
def full() -> Iterator[int]:
    """A file on a disk without a free byte."""
    file = os.open("/dev/full", os.O_WRONLY)
    try:
        yield file
    finally:
        os.close(file)


def chameleon(folder: Path, *words: str, **streams) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "chameleon_lab", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        text=True,
        timeout=HANGS_AFTER_S,
        **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a trace, two policies that differ, and a script."""
    meta = {"device": "cpu", "link_out_bytes_per_s": 2.0**30, "link_in_bytes_per_s": 2.0**30}
    step = gpt_step()
    cl.Trace([replace(step, index=index) for index in range(3)], meta).save(tmp_path / "t.parquet")
    for name, share in (("a.json", "60%"), ("b.json", "50%")):
        plan(step, share, "1GiB/s").save(tmp_path / name)
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


@pytest.mark.parametrize(
    "words", [("--version",), ("report", "t.parquet"), ("plan", "t.parquet", "--capacity", "60%", "--json")]
)
def test_a_full_disk_is_one_line_and_an_exit_code(folder: Path, words: tuple[str, ...]) -> None:
    with full() as disk:
        done = chameleon(folder, *words, stdout=disk)
    assert done.returncode == 4
    assert done.stderr == "chameleon: cannot write the output: No space left on device\n"


@pytest.mark.parametrize(
    ("words", "code"),
    [(("report", "t.parquet", "--json"), 0), (("diff", "a.json", "b.json"), 1), (("-h",), 0)],
)
def test_a_reader_that_has_gone_changes_no_exit_code(folder: Path, words: tuple[str, ...], code: int) -> None:
    with gone() as pipe:
        done = chameleon(folder, *words, stdout=pipe)
    assert (done.returncode, done.stderr) == (code, "")


def test_with_stdout_closed_a_command_does_its_work(folder: Path) -> None:
    done = chameleon(
        folder, "plan", "t.parquet", "--capacity", "60%", "-o", "c.json", preexec_fn=lambda: os.close(1)
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert cl.Policy.load(folder / "c.json").swaps


def test_an_error_that_cannot_be_said_keeps_its_exit_code(folder: Path) -> None:
    with full() as disk, gone() as pipe:
        for stream in (disk, pipe):
            assert chameleon(folder, "plan", "gone", "--capacity", "60%", stderr=stream).returncode == 4


def test_a_report_that_cannot_be_written_costs_no_file(folder: Path) -> None:
    """The script's output and the policy are there; a full disk is an exit code, and a closed pipe is none."""
    for stream, code in ((full, 4), (gone, 0)):
        with stream() as stderr:
            done = chameleon(folder, *RUN, "train.py", stderr=stderr)
        assert done.returncode == code, stream
        assert done.stdout == "trained\n"
        assert cl.Policy.load(folder / "p.json").swaps
        (folder / "p.json").unlink()


def test_what_is_no_file_is_written_to_and_stays_what_it_is(folder: Path) -> None:
    """A pipe or a device gets the bytes; a file put in its place would be the end of ``/dev/null``."""
    os.mkfifo(folder / "pipe")
    (folder / "link.json").symlink_to("there.json")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((folder / "pipe").read_text()), daemon=True)
    reader.start()
    for place in ("pipe", "link.json"):
        done = chameleon(folder, "plan", "t.parquet", "--capacity", "60%", "-o", place)
        assert (done.returncode, done.stderr) == (0, "")
    if (folder / "pipe").is_fifo():
        reader.join()
    assert (folder / "pipe").is_fifo() and (folder / "link.json").is_symlink()
    assert read[0] == (folder / "there.json").read_text() and '"decisions"' in read[0]
    told: list[bytes] = []
    reader = threading.Thread(target=lambda: told.append((folder / "pipe").read_bytes()), daemon=True)
    reader.start()
    done = chameleon(folder, *RUN, "--save-trace", "pipe", "train.py")
    assert done.returncode == 0, done.stderr
    reader.join()
    (folder / "told.parquet").write_bytes(told[0])
    assert cl.Trace.load(folder / "told.parquet").steps
    for place in ("/dev/stdout", "/dev/fd/1"):
        with (folder / "out.json").open("w") as out:
            done = chameleon(folder, "plan", "t.parquet", "--capacity", "60%", "-o", place, stdout=out)
        assert done.returncode == 0, done.stderr
        assert (folder / "there.json").read_text() in (folder / "out.json").read_text()
    (folder / "disk").symlink_to("/dev/full")
    done = chameleon(folder, "plan", "t.parquet", "--capacity", "60%", "-o", "disk")
    assert done.returncode == 4 and len(done.stderr.splitlines()) == 1 and "No space left" in done.stderr
    done = chameleon(folder, *RUN[:-1], "disk", "--report", "disk", "--save-trace", "disk", "train.py")
    assert done.returncode == 4 and done.stdout == "trained\n"
    for what in ("policy", "trace", "report"):
        assert f"disk: no {what}: OSError: [Errno 28] No space left" in done.stderr
    assert (folder / "disk").is_char_device()


def test_files_for_which_there_is_no_room_are_one_line_each(folder: Path) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (256, 256))

    done = chameleon(folder, *RUN, "--save-trace", "u.parquet", "train.py", preexec_fn=small_files)
    assert done.returncode == 4 and done.stdout == "trained\n"
    policy, trace, *_ = done.stderr.splitlines()
    assert policy.startswith("chameleon run: p.json: no policy: OSError: ")
    assert trace.startswith("chameleon run: u.parquet: no trace: OSError: ")
    assert "Peak resident" in done.stderr
    done = chameleon(folder, "plan", "t.parquet", "--capacity", "60%", "-o", "c.json", preexec_fn=small_files)
    assert done.returncode == 4 and len(done.stderr.splitlines()) == 1 and "c.json" in done.stderr
    left = {path.name for path in folder.iterdir()}
    assert left == {"t.parquet", "a.json", "b.json", "train.py"}  # nothing half-written
