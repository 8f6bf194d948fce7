"""Faults in the middle of training: errors and interrupts, memory that is refused, copies that fail, forks, threads,
ranks and kernels that die. After each all tensors must be readable and right, nothing may be left, and the next session
must work.
"""

from __future__ import annotations

import functools
import gc
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import chameleon_lab as cl
from chameleon_lab.runtime import core

from .cases import Cases
from .compare import bits, different
from .outcome import Outcome
from .pool import ROOT, Options
from .training import (
    MIN_SWAP,
    Counted,
    OpCounter,
    Training,
    bare,
    halfway,
    in_threads,
    left_behind,
    left_now,
    peak_bytes,
    threads,
    train,
    unlike,
    wait_for,
)

Fault = Callable[[Outcome, Options], None]
_FAULTS: Cases[Fault] = Cases()
_STEPS = 4

fault = _FAULTS.named


def cases(options: Options) -> list[str]:
    """A case is a kind of fault."""
    return _FAULTS.names(options)


def check(case: str, options: Options) -> Outcome:
    """All trials of one kind, and what they leave behind."""
    outcome = Outcome(case)
    bare(_STEPS), peak_bytes()
    before = threads()
    try:
        _FAULTS[case](outcome, options)
    finally:
        core.set_faults()
    outcome.wrong += left_behind(before)
    return outcome


def _trials(outcome: Outcome, options: Options, share: int, full: int) -> Iterator[random.Random]:
    """A generator for each. What a trial has left behind is looked for when the next begins: its names, which keep its
    tensors alive, are to be gone by then."""
    before = threads()
    for number in range(share if options.share else full):
        yield random.Random(options.seed * 10_007 + number)
        outcome.wrong += [f"after trial {number}: {left}" for left in left_now(before)]


def _expect(outcome: Outcome, want: Any, got: Any, label: str) -> None:
    outcome.tried += 1
    if difference := different(want, got):
        outcome.wrong.append(f"{label}: {difference}")


def _expect_cut(outcome: Outcome, training: Counted, label: str) -> None:
    """Between optimizer steps: the state after as many. Inside of one: each tensor as the op that was cut found it, or
    as it leaves it."""
    if not training.optimizing:
        _expect(outcome, bare(training.steps), training.state(), f"{label}, {training.steps} steps")
        return
    assert training.ops is not None
    outcome.tried += 1
    outcome.notes["cut inside of optimizer.step"] = outcome.notes.get("cut inside of optimizer.step", 0) + 1
    ended = training.ops.ended
    if name := unlike(training.tensors(), halfway(training.steps, ended)):
        outcome.wrong.append(f"{label}, {training.steps} steps and {ended} ops of the optimizer: {name}")


# ----------------------------------------------------------------------------------------------- errors, interrupts


_ERRORS = (ZeroDivisionError, KeyboardInterrupt, torch.OutOfMemoryError, MemoryError, SystemExit)


@fault("errors and interrupts at random ops")
def _errors(outcome: Outcome, options: Options) -> None:
    """The same error at the same op leaves the same tensors as without Chameleon Lab."""
    for number, draw in enumerate(_trials(outcome, options, 10, 120)):
        at, kind = draw.randint(1, 900), _ERRORS[number % len(_ERRORS)]
        link = draw.choice([None, "50MiB/s"])

        def run(session: cl.Session | None, at: int = at, kind: type[BaseException] = kind) -> list[Any]:
            training, left = Training(), None
            try:
                with session or nullcontext():
                    training.step()
                    training.step()
                    with OpCounter(kind(), before=at):
                        training.step()
            except kind as error:
                left = error  # and with it the frames, and their tensors
            state = training.state(gradients=True)
            del left
            return state

        capacity = peak_bytes() // draw.randint(2, 4)
        got = run(cl.Session(capacity, min_swap=MIN_SWAP, link=link))
        _expect(outcome, run(None), got, f"{kind.__name__} at op {at}")


@fault("Ctrl-C at random moments, also inside transfers")
def _signals(outcome: Outcome, options: Options) -> None:
    """Tensors are those of a run that was cut at the same op, and what was read inside is there outside."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        for draw in _trials(outcome, options, 4, 40):
            training, inside, caught = Counted(), None, False
            try:
                with cl.Session(peak_bytes() // 3, min_swap=MIN_SWAP, link="40MiB/s"):
                    try:
                        signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.01, 1.0))
                        while True:
                            training.step()
                    finally:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                        inside = training.state()
            except KeyboardInterrupt:
                caught = True
            if not caught:
                outcome.wrong.append("the interrupt was lost")
            _expect(outcome, inside, training.state(), "after Ctrl-C")
            _expect_cut(outcome, training, "Ctrl-C")
            del training
    finally:
        signal.signal(signal.SIGALRM, old)


# ------------------------------------------------------------------------------------------------- refused, and failing


def _judge(outcome: Outcome, label: str, error: Exception) -> None:
    """Does the error name what was lacking? One that asks to be reported does not."""
    text = str(error)
    lacking = (
        "capacity",
        "bad_alloc",
        "not enough memory",
        "can't allocate memory",
        "Cannot allocate memory",
    )
    ours = "Chameleon Lab" in text or any(words in text for words in lacking)
    if (isinstance(error, MemoryError) or ours) and "report this" not in text:
        outcome.named += 1
    else:
        outcome.wrong.append(f"{label}: {type(error).__name__}: {text.splitlines()[0][:200]}")


def _until_denied(outcome: Outcome, label: str, **session: Any) -> None:
    """Train; either all steps give the right bits, or a named error ends it, and what was done until then is right."""
    training = Counted()
    try:
        with cl.Session(**{"min_swap": MIN_SWAP, **session}):
            for _ in range(_STEPS):
                training.step()
    except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
        _judge(outcome, label, error)
    finally:
        core.set_faults()
    _expect_cut(outcome, training, label)


@fault("the host pool is exhausted")
def _no_host(outcome: Outcome, options: Options) -> None:
    for draw in _trials(outcome, options, 5, 40):
        share = draw.choice([0.0, 0.02, 0.1, 0.3, 0.5, 0.8])
        host = max(int(peak_bytes() * share), 1)
        _until_denied(
            outcome, f"host_capacity {share} of peak", capacity=peak_bytes() // 3, host_capacity=host
        )


@fault("device memory is refused at random")
def _refused(outcome: Outcome, options: Options) -> None:
    for draw in _trials(outcome, options, 5, 40):
        rate = draw.choice([1, 10, 100, 300, 700])
        core.set_faults(refused_blocks=rate)
        _until_denied(outcome, f"{rate} of 1024 blocks refused", capacity=peak_bytes() // 3)


@fault("host memory is refused at random")
def _refused_buffers(outcome: Outcome, options: Options) -> None:
    for draw in _trials(outcome, options, 5, 40):
        rate = draw.choice([10, 100, 500, 1000])
        core.set_faults(refused_buffers=rate)
        _until_denied(outcome, f"{rate} of 1024 buffers refused", capacity=peak_bytes() // 3)


@fault("capacities from the floor down")
def _below_floor(outcome: Outcome, options: Options) -> None:
    for draw in _trials(outcome, options, 5, 40):
        part = draw.uniform(4, 40)
        _until_denied(outcome, f"1/{part:.1f} of peak", capacity=int(peak_bytes() / part))


@fault("the system has no memory left")
def _no_memory(outcome: Outcome, options: Options) -> None:
    """The address space is limited in the middle of training: mmap fails, here and in torch."""
    for draw in _trials(outcome, options, 3, 20):
        training, room = Counted(), draw.choice([0, 64 << 10, 1 << 20, 4 << 20])
        old = resource.getrlimit(resource.RLIMIT_AS)
        try:
            with cl.Session(peak_bytes() // 2, min_swap=MIN_SWAP):
                training.step()
                training.step()
                used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (used + room, old[1]))
                try:
                    for _ in range(2):
                        training.step()
                finally:
                    resource.setrlimit(resource.RLIMIT_AS, old)
        except (MemoryError, RuntimeError) as error:
            _judge(outcome, f"{room} bytes left", error)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, old)
        _expect_cut(outcome, training, f"{room} bytes left")
        del training


@fault("slow links")
def _slow(outcome: Outcome, options: Options) -> None:
    for link in (
        ["20MiB/s"] if options.share else ["5MiB/s", "20MiB/s", ("2MiB/s", "1GiB/s"), ("1GiB/s", "2MiB/s")]
    ):
        got, _ = train(_STEPS, capacity=peak_bytes() // 2, link=link)
        _expect(outcome, bare(_STEPS), got, f"link {link}")


@fault("a copy engine's thread dies")
def _engine_dies(outcome: Outcome, options: Options) -> None:
    for draw in _trials(outcome, options, 4, 30):
        at = draw.randint(0, 200)
        core.set_faults(copies=at)
        got, _ = train(_STEPS, capacity=peak_bytes() // 3, link=draw.choice([None, "100MiB/s"]))
        core.set_faults()
        _expect(outcome, bare(_STEPS), got, f"at copy {at}")


@fault("garbage collection in the middle of swaps")
def _garbage(outcome: Outcome, options: Options) -> None:
    class Knot:
        def __init__(self, k: int) -> None:
            self.me, self.block = self, torch.full((4000,), float(k))

    old = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(20, 2, 2)
    stop = threading.Event()

    def collect() -> None:
        while not stop.wait(0.003):
            gc.collect()

    collector = threading.Thread(target=collect)
    collector.start()
    try:
        for _ in _trials(outcome, options, 1, 10):
            training = Training()
            with cl.Session(peak_bytes() // 3, min_swap=MIN_SWAP):
                for _ in range(_STEPS):
                    for k in range(30):
                        Knot(k)
                    training.step()
            _expect(outcome, bare(_STEPS), training.state(), "with knots")
            del training
    finally:
        stop.set()
        collector.join()
        gc.set_threshold(*old)
        gc.unfreeze()


# ------------------------------------------------------------------------------------------------------- sessions


@fault("sessions entered twice, left twice, left in forward and backward")
def _sessions(outcome: Outcome, options: Options) -> None:
    training = Training()
    session = cl.Session(peak_bytes() // 3, min_swap=MIN_SWAP)
    with session:
        training.step()
        for again in (session.start, cl.Session("8MiB").start):
            try:
                again()
                outcome.wrong.append("a second session was let in")
            except cl.SessionError:
                outcome.named += 1
        training.step()
    session.stop()
    session.stop()
    training.step()
    _expect(outcome, bare(3), training.state(), "entered twice, left twice")
    for place in ("forward", "backward"):
        training = Training()
        session = cl.Session(peak_bytes() // 3, min_swap=MIN_SWAP)
        up = training.job.model.blocks[2].mlp[0]
        with session:
            training.step()
            training.step()

            def leave(*_: Any, session: cl.Session = session) -> None:
                session.stop()

            handle = up.register_forward_hook(leave) if place == "forward" else up.weight.register_hook(leave)
            training.step()
            handle.remove()
        training.step()
        _expect(outcome, bare(4), training.state(), f"left in {place}")
    for _ in range(30 if options.share else 300):
        with cl.Session(peak_bytes() // 3, min_swap=MIN_SWAP):
            pass
    outcome.tried += 1


@fault("two training threads")
def _two_threads(outcome: Outcome, options: Options) -> None:
    """Dropout draws from a generator that threads share: without it."""
    for _ in _trials(outcome, options, 1, 6):
        wanted = _side_by_side(None, outcome)
        found = _side_by_side(cl.Session(peak_bytes(), min_swap=MIN_SWAP), outcome)
        for want, got in zip(wanted, found, strict=True):
            _expect(outcome, want, got, "one of two threads")


def _side_by_side(session: cl.Session | None, outcome: Outcome) -> list[Any]:
    """The states of two trainings, a thread each."""
    both = [Training(seed) for seed in (1, 2)]
    for training in both:
        training.job.model.eval()

    def run(training: Training) -> None:
        for _ in range(_STEPS):
            training.step()

    with session or nullcontext():
        errors = in_threads(*(functools.partial(run, training) for training in both))
    outcome.wrong += [f"{type(error).__name__}: {error}"[:200] for error in errors]
    return [training.state() for training in both]


@fault("a thread reads through tolist() while others evict")
def _reader(outcome: Outcome, options: Options) -> None:
    """tolist() reads through a const pointer after its op has ended: anything may have happened meanwhile."""
    want = [float(k) for k in range(5000)]
    reads = 40 if options.share else 400
    with cl.Session("1MiB", min_swap=MIN_SWAP):
        x = torch.arange(5000.0)
        stop = threading.Event()

        def read() -> None:
            try:
                for _ in range(reads):
                    _expect(outcome, want, x.tolist(), "tolist")
            finally:
                stop.set()

        def press() -> None:
            while not stop.is_set():
                held = [torch.full((20_000,), float(k)) for k in range(16)]
                del held

        errors = in_threads(read, press)
        outcome.wrong += [f"{type(error).__name__}: {error}"[:200] for error in errors]


# ---------------------------------------------------------------------------------------------------- processes


class Rows(torch.utils.data.Dataset):
    """Rows of a table; workers read it."""

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.table[index] * 2


@fault("DataLoader workers by fork, spawn and forkserver")
def _workers(outcome: Outcome, options: Options) -> None:
    for method in ("fork",) if options.share else ("fork", "forkserver", "spawn"):
        training = Training()
        with cl.Session(peak_bytes() // 3, min_swap=MIN_SWAP, link="200MiB/s") as session:
            table = torch.arange(64 * 500.0).reshape(64, 500)
            want = bits(table * 2)
            session.evict(table)
            loader = torch.utils.data.DataLoader(
                Rows(table),
                batch_size=8,
                num_workers=2,
                multiprocessing_context=method,
                generator=torch.Generator(),  # the training's dropout draws from the other one
            )
            rows = []
            for number, batch in enumerate(loader):
                rows.append(batch)
                if number % 2 == 0:
                    training.step()
            _expect(outcome, want, bits(torch.cat(rows)), f"rows by {method}")
        del loader
        _expect(outcome, bare(4), training.state(), f"training beside {method}")


class _ForkAt(TorchDispatchMode):
    """Forks before the op of a number. ``child`` is then what ``os.fork`` returned."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.left = number
        self.child: int | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.left -= 1
        if self.left == 0:
            self.child = os.fork()
        return func(*args, **(kwargs or {}))


@fault("forks in the middle of a step, the child goes on")
def _forks(outcome: Outcome, options: Options) -> None:
    for draw in _trials(outcome, options, 2, 20):
        training, forks = Training(), _ForkAt(draw.randint(1, 700))
        at = forks.left
        with cl.Session(peak_bytes() // 3, min_swap=MIN_SWAP, link=draw.choice([None, "100MiB/s"])):
            training.step()
            with forks:
                training.step()
            training.step()
            if forks.child == 0:  # it has ended the step, and made another one
                os._exit(3 if different(bare(3), training.state()) else 0)
        _expect(outcome, bare(3), training.state(), f"the parent, forked at op {at}")
        outcome.tried += 1
        status = wait_for(forks.child, 60) if forks.child is not None else 0
        if status != 0:
            ended = "hangs" if status is None else f"ended with status {status}"
            outcome.wrong.append(f"the child, forked at op {at}, {ended}")
        del training


def _ranks(kind: str, ending: str, folder: str) -> list[tuple[int, str]]:
    """Two ranks over gloo: their exit codes, and what they printed."""
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    store = f"{folder}/{kind}-{ending}"
    started = [
        subprocess.Popen(
            [
                sys.executable,
                "-W",
                "ignore",
                "-m",
                "torture.ranks",
                kind,
                ending,
                str(rank),
                store,
            ],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    ended = []
    for process in started:
        try:
            said = process.communicate(timeout=240)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            said = "hangs: " + process.communicate()[0]
        ended.append((process.returncode, said))
    return ended


def _distributed(outcome: Outcome, kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        plain = _ranks(kind, "plain", folder)
        swapped = _ranks(kind, "swapped", folder)
        for rank, (want, got) in enumerate(zip(plain, swapped, strict=True)):
            outcome.tried += 1
            if want[0] or got[0] or want[1].splitlines()[-1:] != got[1].splitlines()[-1:]:
                outcome.wrong.append(f"rank {rank}: {got[1][-300:]} instead of {want[1][-200:]}")
        killed = _ranks(kind, "killed", folder)
        outcome.tried += 1
        if killed[1][0] != -signal.SIGKILL or killed[0][0] != 0 or "survived" not in killed[0][1]:
            outcome.wrong.append(f"one rank killed: {killed[0][0]}, {killed[1][0]}: {killed[0][1][-400:]}")
        told = {line for line in killed[0][1].splitlines() if line.startswith("after ")}
        if not told or not told <= set(plain[0][1].splitlines()):
            outcome.wrong.append(f"the survivor has other weights than a plain run: {told}")


@fault("DDP over gloo, two ranks, one killed", slow=True)
def _ddp(outcome: Outcome, options: Options) -> None:
    _distributed(outcome, "ddp")


@fault("FSDP2 over gloo, two ranks, one killed", slow=True)
def _fsdp(outcome: Outcome, options: Options) -> None:
    _distributed(outcome, "fsdp")


_LOAD = """from torture.compare import different
from torture.training import *
%load_ext chameleon_lab
torch.set_num_threads(1)
training = Counted()"""
_START = "%chameleon start --capacity 1MiB\ntraining.step()"
_FOREVER = "while True:\n    training.step()"
_LOOK = """steps, cut = training.steps, training.ops.ended if training.optimizing else None
got = training.state() if cut is None else training.tensors()
training.step()
%chameleon stop
wrong = different(bare(steps), got) if cut is None else unlike(got, halfway(steps, cut))
print(wrong or 'as without Chameleon Lab')"""


@fault("kernel interrupt and restart while training", slow=True)
def _kernel(outcome: Outcome, options: Options) -> None:
    """What JupyterLab's buttons do: its server asks the same kernel manager."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", cwd=str(ROOT))

    def run(code: str, wanted: str, after_s: float = 0.0, then: Callable[[], None] = lambda: None) -> None:
        asked = client.execute(code)
        time.sleep(after_s)
        then()
        said = _answer(client, asked)
        outcome.tried += 1
        if wanted not in said or (not wanted and "Error" in said):
            outcome.wrong.append(f"the cell said {said[:300]!r}, and {wanted!r} was wanted")

    try:
        for _ in range(2):
            run(_LOAD, "")
            run(_START, "")
            run(_FOREVER, "KeyboardInterrupt", 1.5, manager.interrupt_kernel)
            run(_LOOK, "as without Chameleon Lab")
            run(_START, "")
            client.execute(_FOREVER)
            time.sleep(1.5)
            manager.restart_kernel(now=True)
            client.wait_for_ready(timeout=60)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _answer(client: Any, asked: str) -> str:
    """What a cell said until it ended."""
    said = ""
    while True:
        message = client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") != asked:
            continue
        content = message["content"]
        said += content.get("text", "") + content.get("ename", "") + content.get("evalue", "")
        if message["msg_type"] == "status" and content["execution_state"] == "idle":
            return said
