"""Replicas under torchft that are killed and come back: losses and weights as without a failure (`make recovery`).

Replicas wait at named steps until the test lets them go on. Which of them is in a step may depend on how fast the
machine is; nothing that is compared does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torchft = pytest.importorskip("torchft", reason="torchft is not installed: see `make recovery`")
pytestmark = pytest.mark.torchft

STEPS, GRAINS = 14, 6
ENDS_WITHIN_S = 240
ROOT = Path(__file__).parents[2]


class Job:
    """A lighthouse, and replicas as processes."""

    def __init__(self, folder: Path, **more: Any) -> None:
        from torchft.coordination import LighthouseServer

        self.folder = folder
        self.lighthouse = LighthouseServer(
            bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=10_000, heartbeat_timeout_ms=2_500
        )
        job = {
            "steps": STEPS,
            "grains": GRAINS,
            "timeout_s": 30,
            "capacity": None,
            "killed": None,
            "killed_at": -1,
        }
        address = self.lighthouse.address().replace(os.uname().nodename, "127.0.0.1")
        (folder / "job.json").write_text(json.dumps(job | {"lighthouse": address} | more))
        self.replicas: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        (self.folder / f"up-{name}").unlink(missing_ok=True)
        with open(self.folder / f"log-{name}.txt", "ab") as log:
            self.replicas[name] = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("worker.py"), self.folder, name],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "RUST_LOG": "error"},
            )

    def start_all(self, *names: str) -> None:
        """Let nobody begin before all are there."""
        for name in names:
            self.hold(name, 0)
            self.start(name)
        for name in names:
            self.wait_for(name, 0)
        for name in names:
            self.go(name, 0)

    def hold(self, name: str, step: int) -> None:
        (self.folder / f"hold-{name}-{step}").touch()

    def wait_for(self, name: str, step: int) -> None:
        self.until(lambda: (self.folder / f"at-{name}-{step}").exists(), f"{name} at step {step}")

    def go(self, name: str, step: int) -> None:
        (self.folder / f"hold-{name}-{step}").unlink()
        (self.folder / f"go-{name}-{step}").touch()

    def kill(self, name: str) -> None:
        self.replicas[name].send_signal(signal.SIGKILL)
        self.replicas[name].wait()

    def until(self, there: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + ENDS_WITHIN_S
        while not there():
            logs = "\n".join(path.read_text()[-1500:] for path in sorted(self.folder.glob("log-*.txt")))
            assert time.monotonic() < end, f"{what} did not come\n{logs}"
            for name, process in self.replicas.items():
                assert process.poll() in (None, 0, -signal.SIGKILL), f"{name} ended\n{logs}"
            time.sleep(0.02)

    def found(self, *names: str) -> list[dict[str, Any]]:
        """What the replicas have done, once they have ended."""
        for name in names:
            self.until(lambda name=name: self.replicas[name].poll() is not None, f"the end of {name}")
        return [json.loads((self.folder / f"found-{name}.json").read_text()) for name in names]

    def close(self) -> None:
        for process in self.replicas.values():
            if process.poll() is None:
                process.kill()
                process.wait()
        self.lighthouse.shutdown()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def make(**more: Any) -> Job:
        jobs.append(Job(tmp_path, **more))
        return jobs[-1]

    yield make
    for each in jobs:
        each.close()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One replica that nothing happens to."""
    made = Job(tmp_path_factory.mktemp("alone"))
    try:
        made.start("0")
        (found,) = made.found("0")
    finally:
        made.close()
    assert len(found["losses"]) == STEPS
    return found


def same(found: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    for one in found:
        assert one["losses"] == {step: alone["losses"][step] for step in one["losses"]}
        assert one["weights"] == alone["weights"]
    assert set().union(*(one["losses"] for one in found)) == set(alone["losses"])


def test_one_is_killed_and_comes_back(job: Callable[..., Job], alone: dict[str, Any]) -> None:
    run = job()
    run.hold("2", 4)
    run.start_all("0", "1", "2")
    run.wait_for("2", 4)
    for name in "01":
        run.hold(name, 9)
    run.kill("2")
    for name in "01":
        run.wait_for(name, 9)
    run.go("2", 4)
    run.start("2")
    run.until(lambda: (run.folder / "up-2").exists(), "the restarted replica")
    for name in "01":
        run.go(name, 9)
    found = run.found("0", "1", "2")
    same(found, alone)
    assert found[2]["healed"] >= 1 and "0" not in found[2]["losses"]


def test_one_dies_in_the_all_reduce(job: Callable[..., Job], alone: dict[str, Any]) -> None:
    run = job(killed="2", killed_at=5)
    run.start_all("0", "1", "2")
    found = run.found("0", "1")
    same(found, alone)
    assert run.replicas["2"].wait() == -signal.SIGKILL
    assert all(one["failed"] >= 1 for one in found)


def test_two_are_killed_at_once(job: Callable[..., Job], alone: dict[str, Any]) -> None:
    run = job()
    for name in "12":
        run.hold(name, 6)
    run.start_all("0", "1", "2")
    for name in "12":
        run.wait_for(name, 6)
    for name in "12":
        run.kill(name)
    same(run.found("0"), alone)
