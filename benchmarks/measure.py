"""What the benchmarks share: one timed training run, comparison bit for bit, process memory, tables and JSON."""

from __future__ import annotations

import argparse
import ctypes
import datetime
import gc
import hashlib
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import chameleon_lab as cl
from chameleon_lab.policy import Policy
from chameleon_lab.runtime import core
from chameleon_lab.trace import StepTrace, Trace
from chameleon_lab.util.files import write_then_rename

from .models import Case, Job

SEED = 20260101

SKIPPED_STEPS = 3
"""Untimed steps: the warm-up, the one that is profiled, and the first under the policy."""

SETTLING_STEPS = 20
"""Untimed steps where a run is measured at its best: those, and some in which its plan is made again."""

MEMORY_STEPS = 2
"""Steps after the timed ones in which process memory is sampled: the sampler would disturb the timing."""


# ------------------------------------------------------------------------------------------------------ other processes


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Inside, so many processes do nothing but compute."""
    command = [sys.executable, "-c", f"import os\nwhile os.getppid() == {os.getpid()}: sum(range(10**6))"]
    others = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


# ------------------------------------------------------------------------------------------------------ process memory


class MemorySampler:
    """Samples, in a thread, the process's anonymous memory without the host pool's: device and everything else.

    The emulated device's memory is host memory, so what a session frees must leave the process. What it holds for
    storages that are away is host memory too, and subtracted.
    """

    def __init__(self, period_s: float = 0.002) -> None:
        self.peak_bytes = 0
        self.samples = 0
        self._period_s = period_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-sampler", daemon=True)

    def __enter__(self) -> MemorySampler:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with open("/proc/self/status", "rb", buffering=0) as status:
            while not self._stop.wait(self._period_s):
                sample = device_memory_bytes(status)
                if sample is not None:
                    self.peak_bytes = max(self.peak_bytes, sample)
                    self.samples += 1


def device_memory_bytes(status: Any = None) -> int | None:
    """RssAnon without the bytes that the host pool has reserved; None if the pool changed meanwhile."""
    if status is None:
        with open("/proc/self/status", "rb", buffering=0) as file:
            return device_memory_bytes(file)
    before = core.of().counters()["host_reserved_bytes"]
    status.seek(0)
    text = status.read(4096)
    if core.of().counters()["host_reserved_bytes"] != before:
        return None
    at = text.index(b"RssAnon:")
    return int(text[at + 8 : text.index(b"kB", at)]) * 1024 - before


def give_memory_back() -> int:
    """Return what caches hold to the system, and say what the process still has."""
    gc.collect()
    with cl.Session(device="cpu"):
        pass  # closing a session returns the device's cached blocks
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
    return device_memory_bytes() or 0


def keep_freed_memory() -> None:
    """Let malloc keep what is freed for the rest of the process, as a session's device does.

    By default glibc returns large blocks to the system at once and gets them zeroed again, which on a big model takes
    a larger part of a step than recording does: without this, a run in a session is the faster one.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        trim_threshold, mmap_max = -1, -4  # M_TRIM_THRESHOLD, M_MMAP_MAX
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, 2**31 - 1)


# ------------------------------------------------------------------------------------------------- comparison


def fingerprint(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """A digest of the bits of every weight, buffer, gradient and optimizer state, by name."""
    digests = {}
    for name, tensor in model.state_dict().items():
        digests[f"weight {name}"] = digest(tensor)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            digests[f"gradient {name}"] = digest(parameter.grad)
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                digests[f"state {key} of {name}"] = digest(value)
    return digests


def most_reserved_bytes(capacity_bytes: int, allocator: str) -> int:
    """What torch may reserve on a GPU under a capacity, with the allocator that a session's report names.

    It compares a request with the limit before it rounds up to the pages of expandable segments, of 20 MiB.
    """
    return capacity_bytes + (20 << 20 if allocator == "expandable_segments" else 0)


def digest(tensor: torch.Tensor) -> str:
    """SHA-256 of a tensor's type, shape and bits."""
    head = f"{tensor.dtype} {tuple(tensor.shape)} ".encode()
    # A copy: numpy would pin the storage itself for the rest of the session.
    bits = tensor.detach().cpu().clone().contiguous().flatten().view(torch.uint8)
    return hashlib.sha256(head + bits.numpy().tobytes()).hexdigest()


@dataclass(frozen=True)
class Comparison:
    """Is one run the same as another, to the last bit?"""

    losses: bool
    weights: bool
    """Weights, buffers, gradients and optimizer states."""
    first_difference: str = ""

    @property
    def identical(self) -> bool:
        """Both losses and weights."""
        return self.losses and self.weights


def compare(
    losses: Sequence[float],
    expected_losses: Sequence[float],
    digests: Mapping[str, str],
    expected_digests: Mapping[str, str],
) -> Comparison:
    """Compare every loss and every digest; says where they first differ."""
    first = ""
    if len(losses) != len(expected_losses):
        first = f"{len(losses)} losses instead of {len(expected_losses)}"
    for step, (loss, expected) in enumerate(zip(losses, expected_losses, strict=False)):
        if not first and loss.hex() != expected.hex():
            first = f"loss of step {step}: {loss!r} instead of {expected!r}"
    same_losses = not first
    for name in sorted({*digests, *expected_digests}):
        if digests.get(name) != expected_digests.get(name):
            return Comparison(same_losses, False, first or name)
    return Comparison(same_losses, True, first)


# ------------------------------------------------------------------------------------------------------- one run


@dataclass
class Run:
    """What one training run gave."""

    losses: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    """Of the timed steps that ran wholly in the Stable stage."""
    cpu_s: list[float] = field(default_factory=list)
    """Processor time of the training thread in the same steps: other programs slow the step, but not this."""
    digests: dict[str, str] = field(default_factory=dict)
    memory_bytes: int = 0
    """Peak of the process's memory without the host pool, less what it had before the model was made."""
    peaks: list[int] = field(default_factory=list)
    """Most bytes resident in every step; of a run in a session."""
    stall_s: list[float] = field(default_factory=list)
    out_bytes: list[int] = field(default_factory=list)
    in_bytes: list[int] = field(default_factory=list)
    evictions: list[int] = field(default_factory=list)
    demand_swap_ins: list[int] = field(default_factory=list)
    match_rate: list[float] = field(default_factory=list)
    drops: list[int] = field(default_factory=list)
    declined_drops: list[int] = field(default_factory=list)
    dropped_bytes: list[int] = field(default_factory=list)
    replays: list[int] = field(default_factory=list)
    replay_s: list[float] = field(default_factory=list)
    traffic: list[Traffic] = field(default_factory=list)
    """Of the newest timed steps, as far as the session keeps their traces."""
    live_peak_bytes: int = 0
    peak_reserved_bytes: int = 0
    predicted: dict[str, float] = field(default_factory=dict)
    policy: Policy | None = None
    step: StepTrace | None = None
    """The newest timed step."""
    decisions: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Traffic:
    """How long a step's copies took, and how long the step waited for them."""

    busy_s: float
    stall_s: float


def traffic_of(step: StepTrace) -> Traffic:
    """Work it out from a step's trace."""
    took_s = step.transfers.end_s - step.transfers.start_s
    return Traffic(float(took_s[took_s > 0].sum()), float(step.stalls.duration_s.sum()))


def train(
    case: Case,
    steps: int,
    session: Callable[[], cl.Session] | None = None,
    *,
    tiny: bool = False,
    skipped: int = SKIPPED_STEPS,
    memory_steps: int = MEMORY_STEPS,
    on_step: Callable[[int, float], None] | None = None,
    on_end: Callable[[cl.Session], None] | None = None,
) -> Run:
    """Build the case from the seed and train it; ``session`` makes the session to do it in, None is plain PyTorch.

    The model is made inside the session, so that its weights count and fall under the capacity from the start. Every
    run takes the same number of steps: those ``skipped``, ``steps`` timed ones, and ``memory_steps`` in which memory is
    sampled. What the session plans in the background during those skipped is waited for.
    """
    run = Run()
    before_bytes = give_memory_back()
    generator = torch.Generator().manual_seed(SEED)
    times: list[float] = []
    cpu_times: list[float] = []

    def one_step(job: Job) -> None:
        batch = job.make_batch(generator)
        start, cpu_start = time.perf_counter(), time.thread_time()
        loss = job.train_step(batch)
        times.append(time.perf_counter() - start)
        cpu_times.append(time.thread_time() - cpu_start)
        run.losses.append(loss.item())
        if opened and len(times) <= skipped:
            opened._plans.wait()
        if on_step:
            on_step(len(run.losses) - 1, run.losses[-1])

    def all_steps() -> Job:
        job = case.build(SEED, tiny)
        for _ in range(skipped + steps):
            one_step(job)
        timed = range(skipped, len(times))
        stable = _collect(run, opened.report(), opened.trace(), timed) if opened else list(timed)
        run.step_s = [times[i] for i in stable]
        run.cpu_s = [cpu_times[i] for i in stable]
        if memory_steps:
            with MemorySampler() as sampler:
                for _ in range(memory_steps):
                    one_step(job)
            run.memory_bytes = sampler.peak_bytes - before_bytes if sampler.samples else 0
        return job

    opened = session() if session else None
    if opened:
        with opened:
            job = all_steps()
            run.peak_reserved_bytes = opened.counters()["peak_reserved_bytes"]
            if on_end:
                on_end(opened)
        report = opened.report()
        run.peaks = [step.peak_bytes for step in report.history] + [report.peak_bytes]
        run.notes = report.notes
        if opened.policy is not None:
            run.predicted = dict(opened.policy.predicted)
            run.policy = opened.policy
            run.decisions = len(opened.policy.decisions)
    else:
        job = all_steps()
    run.digests = fingerprint(job.model, job.optimizer)
    return run


def _collect(run: Run, report: cl.Report, trace: Trace, timed: range) -> list[int]:
    """Take what the session says of the timed steps that a policy was in force for, from begin to end.

    Returns which they are; where the session never got that far, all timed ones.
    """
    history = report.history
    stable = [i for i in timed if history[i].stage == "Stable" and history[i - 1].stage == "Stable"] or list(
        timed
    )
    run.stall_s = [history[i].stall_s for i in stable]
    run.out_bytes = [history[i].swapped_out_bytes for i in stable]
    run.in_bytes = [history[i].swapped_in_bytes for i in stable]
    run.evictions = [history[i].evictions for i in stable]
    run.demand_swap_ins = [history[i].demand_swap_ins for i in stable]
    run.match_rate = [history[i].match_rate for i in stable]
    run.drops = [history[i].drops for i in stable]
    run.declined_drops = [history[i].declined_drops for i in stable]
    run.dropped_bytes = [history[i].dropped_bytes for i in stable]
    run.replays = [history[i].replays for i in stable]
    run.replay_s = [history[i].replay_s for i in stable]
    chosen = {history[i].index for i in stable}
    kept = [step for step in trace if step.index in chosen]
    run.traffic = [traffic_of(step) for step in kept]
    run.step = kept[-1] if kept else None
    run.live_peak_bytes = max((step.live_peak_bytes for step in trace), default=0)
    return stable


# ------------------------------------------------------------------------------------------------------ statistics


def median(values: Sequence[float]) -> float:
    """The median; 0 of nothing."""
    return float(statistics.median(values)) if values else 0.0


def ratio(
    values: Sequence[float], base: Sequence[float], of: Callable[[Sequence[float]], float] = median
) -> float:
    """Ratio of the medians (or of ``min``) of two lists of times; 0 where there is none."""
    return of(values) / of(base) if values and base else 0.0


# ------------------------------------------------------------------------------------------------------ what is printed


def progress(text: str) -> None:
    """One line on stderr."""
    print(text, file=sys.stderr, flush=True)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Columns as wide as they need; the first ``left`` start at the left, the others end at the right."""
    widths = [max(len(row[i]) for row in [headers, *rows]) for i in range(len(headers))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(headers), line(["-" * width for width in widths]), *map(line, rows)])


def mib(size: float) -> str:
    """Bytes in MiB with one decimal, for columns."""
    return f"{size / 2**20:.1f}"


def milliseconds(duration: float) -> str:
    """Seconds in ms, for columns."""
    return f"{duration * 1e3:.1f}" if duration < 0.1 else f"{duration * 1e3:.0f}"


def yes(value: bool) -> str:
    """``yes`` or a ``NO`` that is seen."""
    return "yes" if value else "NO"


# ------------------------------------------------------------------------------------------- arguments and the JSON


def parser_of(program: str, about: str | None = None) -> argparse.ArgumentParser:
    """A benchmark's command line, with what every one takes."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{program}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    return parser


def count(text: str) -> int:
    """A command-line argument that is a number from 1 up."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 up")
    return int(text)


def environment(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What a figure needs beside it: the machine, the versions, the date and the arguments."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpu": _cpu_model(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            "system": platform.platform(),
            "load_average": os.getloadavg(),
        },
        "device": "cpu (emulated: host memory under a budget, copies at the given bandwidth)",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "chameleon_lab": cl.__version__,
        "commit": _commit(),
        # Where the file was to go is no condition of a figure.
        "arguments": {key: _plain(value) for key, value in arguments.items() if key != "json"},
    }


def write_json(path: str | os.PathLike[str], document: Mapping[str, Any]) -> None:
    """Write it whole or not at all; makes the folder."""
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write it whole or not at all; makes the folder."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with write_then_rename(path) as beside:
        beside.write_text(text)


def device_line(environment: Mapping[str, Any]) -> str:
    """The machine in one line, for under a table."""
    machine = environment["machine"]
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {environment['threads']} thread(s) for ops, "
        f"torch {environment['torch']}, commit {environment['commit']}, {environment['date']}"
    )


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str:
    """The checkout's commit, with ``+changes`` where files differ from it."""

    def git(*arguments: str) -> str:
        root = Path(__file__).resolve().parent.parent
        return subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
