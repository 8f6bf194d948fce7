"""A small GPT that the faults are tried on, and what it leaves behind."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch

import chameleon_lab as cl
from benchmarks.models import GPT, Job, next_token_job
from chameleon_lab.runtime import core

from .compare import bits, seed_all

LENGTH, BATCH, VOCABULARY = 32, 4, 64
MIN_SWAP = "2KiB"


class Training:
    """A model, its optimizer and its batches, all from one seed. ``optimizing``: is it inside ``optimizer.step``?"""

    def __init__(self, seed: int = 0) -> None:
        seed_all(seed)
        self.job: Job = next_token_job(GPT(VOCABULARY, LENGTH, 48, 2, 4), VOCABULARY, BATCH, LENGTH)
        # One tensor at a time: the ops are then the same with and without a session.
        self.job.optimizer = torch.optim.AdamW(self.job.model.parameters(), lr=1e-2, foreach=False)
        self.generator = torch.Generator().manual_seed(seed)
        self.losses: list[torch.Tensor] = []
        self.steps = 0
        self.optimizing = False

    def step(self) -> None:
        """Forward, backward, optimizer."""
        job = self.job
        job.optimizer.zero_grad()
        loss = job.loss(job.model, *job.make_batch(self.generator))
        loss.backward()
        self.optimizing = True
        job.optimizer.step()
        self.optimizing = False
        self.losses.append(loss.detach())
        self.steps += 1

    def state(self, gradients: bool = False) -> list[Any]:
        """Losses, weights and optimizer states, to be compared."""
        found: list[Any] = [
            self.losses,
            self.job.model.state_dict(),
            self.job.optimizer.state_dict()["state"],
        ]
        if gradients:
            found.append([p.grad for p in self.job.model.parameters()])
        return bits(found)


def train(steps: int, seed: int = 0, **session: Any) -> tuple[list[Any], cl.Report | None]:
    """The state after some steps. Without keywords: without Chameleon Lab."""
    training = Training(seed)
    opened = cl.Session(**{"min_swap": MIN_SWAP, **session}) if session else None
    with opened or nullcontext():
        for _ in range(steps):
            training.step()
        report = opened.report() if opened else None
    return training.state(), report


@cache
def bare(steps: int, seed: int = 0) -> list[Any]:
    """The state after some steps without Chameleon Lab."""
    return train(steps, seed)[0]


@cache
def peak_bytes() -> int:
    """What the training keeps alive at most."""
    report = train(3, capacity=None)[1]
    assert report is not None
    return report.live_peak_bytes


def left_behind(before: int) -> list[str]:
    """What should not be there once everything has been deleted. ``before``: threads before it began."""
    wrong = []
    if cl.current_session() is not None or core.is_open():
        wrong.append("a session is still open")
        if (session := cl.current_session()) is not None:
            session.stop()
    gc.collect()
    counters = core.counters()
    for name in ("live_bytes", "host_used_bytes", "storages"):
        if counters[name]:
            wrong.append(f"{name} is {counters[name]}")
    until_s = time.monotonic() + 5
    while threads() > before and time.monotonic() < until_s:
        time.sleep(0.01)
    if threads() > before:
        wrong.append(f"{threads()} threads, {before} before: {thread_names()}")
    if (got := train(3, capacity=peak_bytes() // 3)[0]) != bare(3):
        wrong.append(f"the next session gives other numbers ({len(got)})")
    return wrong


def threads() -> int:
    """Threads of the process, without the engines that every session shares."""
    return sum(name != "chameleon-copy" for name in thread_names())


def thread_names() -> list[str]:
    """The system's names of this process's threads."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        try:
            names.append((task / "comm").read_text().strip())
        except OSError:  # it has ended meanwhile
            continue
    return names


def in_threads(*bodies: Callable[[], None]) -> list[BaseException]:
    """Run all at once, and return what they raised."""
    errors: list[BaseException] = []

    def run(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    started = [threading.Thread(target=run, args=(body,)) for body in bodies]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return errors


def wait_for(pid: int, within_s: float) -> int | None:
    """The exit status of a forked child; None if it hangs, and is killed."""
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return None
