"""A disk that fails while a training's tensors lie on it: writes, reads, short moves, flipped bits, kills, forks.

Whatever it does, losses and tensors are right or an error names what is wrong, and no file is left.
"""

from __future__ import annotations

import atexit
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import chameleon_lab as cl
from chameleon_lab.runtime import core

from .cases import Cases
from .compare import bits, different
from .outcome import Outcome
from .pool import ROOT, Options
from .training import (
    MIN_SWAP,
    Counted,
    Training,
    bare,
    halfway,
    left_behind,
    left_now,
    peak_bytes,
    threads,
    unlike,
)

Case = Callable[[Outcome, Options], None]
_CASES: Cases[Case] = Cases()
_STEPS = 4
_FAULTS = ("writes", "reads", "short_moves", "flips", "full", "flushes")
_NAMED = ("could not be brought back", "takes no more storages", "bytes are lost")
"""What an error of the disk says, one of them."""

case = _CASES.named


def cases(options: Options) -> list[str]:
    """A case is a way to fail."""
    return _CASES.names(options)


def check(name: str, options: Options) -> Outcome:
    """All trials of one way, and what they leave behind."""
    outcome = Outcome(name)
    bare(_STEPS), peak_bytes()
    before = threads()
    made = sum(core.disk_faults_made(fault) for fault in _FAULTS)
    try:
        _CASES[name](outcome, options)
    finally:
        _no_faults()
        core.refuse_direct_moves(False)
    if injected := sum(core.disk_faults_made(fault) for fault in _FAULTS) - made:
        outcome.notes["faults injected"] = injected
    if left := [path.name for path in _folder().iterdir()]:
        outcome.wrong.append(f"files are left: {left}")
    outcome.wrong += left_behind(before)
    return outcome


@cache
def _folder() -> Path:
    """On a disk: what lies in memory is refused."""
    refusals = []
    for place in (ROOT / "build", Path("/var/tmp"), Path.home(), Path(tempfile.gettempdir())):
        try:
            place.mkdir(exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix="torture-disk-", dir=place))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            with cl.Session("64MiB", device="cpu", disk=folder):
                return folder
        except (OSError, cl.SessionError) as error:
            refusals.append(f"{place}: {error}")
    raise RuntimeError(f"no folder of this machine lies on a disk: {'; '.join(refusals)}")


def _no_faults() -> None:
    for fault in _FAULTS:
        core.set_disk_fault(fault)


def _trials(outcome: Outcome, options: Options, share: int, full: int) -> Iterator[random.Random]:
    """A generator for each; what a trial has left behind is looked for when the next begins."""
    before = threads()
    for number in range(share if options.share else full):
        core.refuse_direct_moves(number % 4 == 3)
        yield random.Random(options.seed * 10_007 + number)
        outcome.wrong += [f"after trial {number}: {left}" for left in left_now(before)]


def _session(draw: random.Random, **options: Any) -> cl.Session:
    capacity = peak_bytes() // draw.randint(2, 4)
    planning = draw.random() < 0.6
    return cl.Session(
        capacity,
        **{"device": "cpu", "disk": _folder(), "min_swap": MIN_SWAP, "planning": planning, **options},
    )


def _survive(outcome: Outcome, label: str, session: cl.Session, fault: str, rate: int, most: int) -> None:
    """Train with faults from the second step on: right bits, or a named error and right bits until then."""
    training = Counted()
    with session:
        try:
            for number in range(_STEPS):
                if number == 1:
                    core.set_disk_fault(fault, rate, most)
                training.step()
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            if any(words in str(error) for words in _NAMED):
                outcome.named += 1
            else:
                outcome.wrong.append(f"{label}: {type(error).__name__}: {str(error)[:200]}")
        finally:
            _no_faults()
    outcome.tried += 1
    if not training.optimizing:
        if difference := different(bare(training.steps), training.state()):
            outcome.wrong.append(f"{label}, {training.steps} steps: {difference}")
        return
    assert training.ops is not None
    ended = training.ops.ended
    if name := unlike(training.tensors(), halfway(training.steps, ended)):
        outcome.wrong.append(f"{label}, {training.steps} steps and {ended} ops of the optimizer: {name}")


@case("writes fail")
def _writes(outcome: Outcome, options: Options) -> None:
    for draw in _trials(outcome, options, 8, 60):
        rate, most = draw.choice([3, 30, 300, 1024]), draw.randint(1, 5)
        _survive(outcome, f"{rate} of 1024 writes, {most} at most", _session(draw), "writes", rate, most)


@case("reads fail")
def _reads(outcome: Outcome, options: Options) -> None:
    for draw in _trials(outcome, options, 8, 60):
        rate, most = draw.choice([3, 30, 300]), draw.randint(1, 5)
        _survive(outcome, f"{rate} of 1024 reads, {most} at most", _session(draw), "reads", rate, most)


@case("moves are cut short")
def _short(outcome: Outcome, options: Options) -> None:
    for draw in _trials(outcome, options, 4, 40):
        rate = draw.choice([10, 100, 700])
        session = _session(draw, verify=draw.random() < 0.5)
        _survive(outcome, f"{rate} of 1024 moves", session, "short_moves", rate, 1 << 40)


@case("the page cache is not flushed")
def _flushes(outcome: Outcome, options: Options) -> None:
    for draw in _trials(outcome, options, 4, 40):
        core.refuse_direct_moves(True)
        most = draw.randint(1, 5)
        _survive(outcome, f"{most} flushes at most", _session(draw), "flushes", draw.choice([20, 300]), most)


@case("the disk has no room")
def _full(outcome: Outcome, options: Options) -> None:
    for draw in _trials(outcome, options, 6, 40):
        if draw.random() < 0.5:
            share = draw.choice([0.05, 0.2, 0.5, 0.9])
            disk = f"{_folder()}:{max(int(peak_bytes() * share), 64 << 10)}"
            _survive(outcome, f"{share} of the peak", _session(draw, disk=disk), "full", 0, 0)
        else:
            _survive(outcome, "no room from the second step on", _session(draw), "full", 1024, 1 << 40)


@case("bits flip on the disk")
def _flips(outcome: Outcome, options: Options) -> None:
    """Every loss is right until an error is raised; what cannot be read raises for good."""
    alone = Training()
    for _ in range(_STEPS):
        alone.step()
    wanted = [bits(loss) for loss in alone.losses]
    del alone
    for draw in _trials(outcome, options, 6, 40):
        training = Counted()
        try:
            with _session(draw, verify=True):
                core.set_disk_fault("flips", draw.choice([5, 50, 300]))
                for _ in range(_STEPS):
                    training.step()
        except RuntimeError as error:
            outcome.named += any(words in str(error) for words in _NAMED)
            if not any(words in str(error) for words in _NAMED):
                outcome.wrong.append(f"{type(error).__name__}: {str(error)[:200]}")
        _no_faults()
        outcome.tried += 1
        found = []
        for loss in training.losses:
            try:
                found.append(bits(loss))
            except RuntimeError as error:
                found.append(None)
                if "bytes are lost" not in str(error):
                    outcome.wrong.append(f"a loss: {str(error)[:200]}")
        for number, loss in enumerate(found):
            if loss is not None and loss != wanted[number]:
                outcome.wrong.append(f"loss {number} is wrong")
        del training


@case("the process is killed")
def _kills(outcome: Outcome, options: Options) -> None:
    call = f"disk.train_for_ever({str(_folder())!r}, {peak_bytes() // 3})"
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}]; from torture import disk; {call}"
    for draw in _trials(outcome, options, 1, 12):
        steps = draw.randint(1, 6)
        command = [sys.executable, "-W", "ignore", "-c", code]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(steps):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
        outcome.tried += 1
        if process.returncode != -signal.SIGKILL:
            outcome.wrong.append(f"the process had ended before it was killed ({process.returncode})")
        if left := list(_folder().iterdir()):
            outcome.wrong.append(f"after a kill, files are left: {left}")


def train_for_ever(folder: str, capacity_bytes: int) -> None:
    """In a process of its own, which says when a step has ended."""
    training = Training()
    with cl.Session(capacity_bytes, device="cpu", disk=folder, min_swap=MIN_SWAP):
        while True:
            training.step()
            print(training.steps, flush=True)


@case("forks")
def _forks(outcome: Outcome, options: Options) -> None:
    """The child reads what was away when it was forked, while the parent trains on and writes over what it frees."""
    for draw in _trials(outcome, options, 3, 20):
        training, at = Training(), draw.randint(1, _STEPS - 1)
        goes, went = os.pipe()
        with _session(draw, verify=draw.random() < 0.5):
            for _ in range(at):
                training.step()
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    os.close(went)
                    os.read(goes, 1)
                    status = 0 if not different(bare(at), training.state()) else 3
                finally:
                    os._exit(status)
            for _ in range(_STEPS - at):
                training.step()
            os.write(went, b"1")
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.close(goes)
        os.close(went)
        outcome.tried += 2
        if status:
            outcome.wrong.append(f"the child forked after step {at} exits with {status}")
        if difference := different(bare(_STEPS), training.state()):
            outcome.wrong.append(f"the parent, forked after step {at}: {difference}")
