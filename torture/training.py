"""A small GPT that the faults are tried on, and what it leaves behind."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import chameleon_lab as cl
from benchmarks.models import GPT, Job, next_token_job
from chameleon_lab.runtime import core

from .compare import bits, seed_all

LENGTH, BATCH, VOCABULARY = 32, 4, 64
MIN_SWAP = "2KiB"


class OpCounter(TorchDispatchMode):
    """Counts aten's ops that begin and end inside; raises ``error`` before or after the one of a number."""

    def __init__(self, error: BaseException | None = None, before: int = 0, after: int = 0) -> None:
        super().__init__()
        self.error, self.before, self.after = error, before, after
        self.begun = self.ended = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "aten":  # the profiler's marks, which an exception passes on its way out too
            return func(*args, **(kwargs or {}))
        if self.error is not None and self.begun + 1 == self.before:
            raise self.error
        self.begun += 1
        result = func(*args, **(kwargs or {}))
        self.ended += 1
        if self.error is not None and self.ended == self.after:
            raise self.error
        return result


class Training:
    """A model, its optimizer and its batches, all from one seed.

    ``optimizing``: is it inside ``optimizer.step``? ``ops``: if there is one, it counts those of that step.
    """

    ops: OpCounter | None = None

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
        with self.ops or nullcontext():
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

    def tensors(self) -> dict[str, Any]:
        """Weights, gradients and optimizer states by name, to be compared one by one."""
        found = {}
        for name, weight in self.job.model.named_parameters():
            state = self.job.optimizer.state.get(weight, {})
            each = {"": weight, " gradient": weight.grad, **{f" {key}": state[key] for key in state}}
            found |= {name + what: bits(tensor) for what, tensor in each.items()}
        return found


class Counted(Training):
    """Counts the ops of the newest optimizer step; ``stop`` makes that one raise."""

    stop: OpCounter | None = None

    def step(self) -> None:
        """As of any training; see the class."""
        self.ops = self.stop or OpCounter()
        super().step()


def halfway(steps: int, ended: int, seed: int = 0) -> list[dict[str, Any]]:
    """What all tensors may be, without Chameleon Lab, in an optimizer step of which ``ended`` ops have ended: as the
    newest of them left it, as the next op finds it, and as that one leaves it. ``steps``: those before.
    """
    found = []
    for before, after in ((0, ended), (ended + 1, 0), (0, ended + 1)):
        training = Counted(seed)
        for _ in range(steps):
            training.step()
        training.stop = OpCounter(KeyboardInterrupt(), before, after)
        with suppress(KeyboardInterrupt):  # there is none past the last op
            training.step()
        found.append(training.tensors())
    return found[1:] if ended == 0 else found


def unlike(got: dict[str, Any], allowed: list[dict[str, Any]]) -> str:
    """The name of a tensor that is as in none of those; empty if there is none."""
    if not allowed[0].keys() <= got.keys() <= allowed[-1].keys():
        return f"{len(got)} tensors instead of {len(allowed[0])} to {len(allowed[-1])}"
    for name, tensor in got.items():
        if not any(name in one and one[name] == tensor for one in allowed):
            return name
    return ""


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
    """What should not be there once everything has been deleted, and whether the next session gives the right numbers.
    ``before``: threads before it began.
    """
    wrong = left_now(before)
    if (got := train(3, capacity=peak_bytes() // 3)[0]) != bare(3):
        wrong.append(f"the next session gives other numbers ({len(got)})")
    return wrong


def left_now(before: int) -> list[str]:
    """The sessions, bytes and threads that should not be there once everything has been deleted."""
    wrong = []
    if cl.current_session() is not None or core.of().is_open():
        wrong.append("a session is still open")
        if (session := cl.current_session()) is not None:
            session.stop()
    gc.collect()
    counters = core.of().counters()
    for name in ("live_bytes", "host_used_bytes", "storages"):
        if counters[name]:
            wrong.append(f"{name} is {counters[name]}")
    until_s = time.monotonic() + 5
    while threads() > before and time.monotonic() < until_s:
        time.sleep(0.01)
    if threads() > before:
        wrong.append(f"{threads()} threads, {before} before: {thread_names()}")
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
