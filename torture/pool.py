"""Runs cases in child processes, several at a time: one that crashes or hangs costs its case, and is named.

A worker (``python -m torture.pool PART OPTIONS``) reads a case a line from its standard input, and answers
each with a line of JSON.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

from .outcome import Outcome

ROOT = Path(__file__).parents[1]
_REASON_CHARACTERS = 600
_STARTS_WITHIN_S = 600.0


@dataclass(frozen=True)
class Options:
    """What all workers are told."""

    share: bool = False
    """A small share of all there is, for the test suite."""
    seed: int = 0


def part(name: str) -> ModuleType:
    """The module of a part: it has ``cases(options)`` and ``check(case, options)``."""
    return importlib.import_module(name if "." in name else f".{name}", __package__)


@contextlib.contextmanager
def package(name: str) -> Iterator[None]:
    """Inside, an optional package can be imported, if `scripts/setup.sh apart` has put it there."""
    folder = str(ROOT / "build" / "packages" / name)
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def run(
    name: str,
    cases: Sequence[str],
    options: Options,
    *,
    jobs: int = 2,
    timeout_s: float = 600.0,
    told: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Check every case of a part, ``jobs`` at a time. ``told`` is called with each outcome as it comes in.

    A case whose worker crashes, or takes longer than ``timeout_s``, has an outcome that says so; the next case gets a
    new worker.
    """
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for case in cases:
        waiting.put(case)
    outcomes: list[Outcome] = []
    lock = threading.Lock()

    def serve() -> None:
        worker: _Worker | None = None
        while True:
            try:
                case = waiting.get_nowait()
            except queue.Empty:
                break
            worker = worker or _Worker(name, options)
            outcome = worker.check(case, timeout_s)
            if not worker.alive:
                worker.end()
                worker = None
            with lock:
                outcomes.append(outcome)
                told(outcome)
        if worker is not None:
            worker.end()

    threads = [threading.Thread(target=serve) for _ in range(min(jobs, len(cases)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


class _Worker:
    def __init__(self, name: str, options: Options) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        command = [sys.executable, "-X", "faulthandler", "-W", "ignore", "-m", f"{__package__}.pool"]
        self._process = subprocess.Popen(
            [*command, name, json.dumps(asdict(options))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name != "CHAMELEON_CHECK_RESULTS"},
            start_new_session=True,
        )
        self.alive = True
        self._ready = False

    def check(self, case: str, timeout_s: float) -> Outcome:
        assert self._process.stdin is not None and self._process.stdout is not None
        hangs = threading.Event()

        def too_long() -> None:
            hangs.set()
            self._kill()

        if not self._ready:  # importing PyTorch takes its time on a busy machine, and is no case's
            watchdog = threading.Timer(timeout_s + _STARTS_WITHIN_S, too_long)
            watchdog.start()
            self._ready = bool(self._process.stdout.readline())
            watchdog.cancel()
        start_s = time.monotonic()
        watchdog = threading.Timer(timeout_s, too_long)
        watchdog.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(case + "\n")
                self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if line:
            return Outcome.from_dict(json.loads(line))
        self.alive = False
        code = self._process.wait()
        why = f"hangs (after {timeout_s:.0f} s)" if hangs.is_set() else _ending(code)
        return Outcome(
            case, tried=1, wrong=[f"{why}: {self._last_words()}"], seconds=time.monotonic() - start_s
        )

    def end(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # its own children too

    def _last_words(self) -> str:
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace").strip()
        lines = [line.strip() for line in text.splitlines() if not line.startswith("Extension modules")]
        return " | ".join(lines)[-_REASON_CHARACTERS:]


def _ending(code: int) -> str:
    return f"crashed ({signal.Signals(-code).name})" if code < 0 else f"the worker exited with {code}"


def _serve(name: str, options: Options) -> None:
    # What cases print must not be taken for answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch

    from chameleon_lab.runtime import core

    torch.set_num_threads(1)
    core.hand_over_copies(True)  # small ones too: an engine beside compute is the harder case
    module = part(name)
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        case = line.rstrip("\n")
        print("case", case, file=sys.stderr, flush=True)
        start_s = time.monotonic()
        outcome = module.check(case, options)
        outcome.seconds = time.monotonic() - start_s
        print(json.dumps(outcome.to_dict()), file=answers, flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1], Options(**json.loads(sys.argv[2])))
