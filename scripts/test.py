"""Runs every part of the checks, whatever fails before, and says at the end what failed and how to run it again.

    python scripts/test.py [PART ...]

Ends with 1 if anything failed. `make test` calls it when everything is built.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "build" / "tests"
"""What the parts leave for this script: their failures."""
ENDS_WITHIN_S = 14400
"""A part that takes longer hangs: pytest-xdist waits for ever for a test whose worker died in some orders."""
_VITEST = KEPT / "vitest.json"
_CHOOSE_KERNELS = ("OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS")
"""A test is run again with these as they were."""


@dataclass(frozen=True)
class Failures:
    """What runs again each test that failed, and each that was running when its part was ended."""

    failed: list[str]
    cut: list[str]


@dataclass(frozen=True)
class Part:
    """A part of the checks: how it is run, how each failure in it is run again, and what it is if it does not say."""

    command: list[str]
    failures: Callable[[str], Failures]
    title: str = ""


def main(names: list[str]) -> int:
    """Run the parts with these names, or all."""
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(f"there is no part {unknown[0]!r}: there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    failed: list[str] = []
    for name in names or PARTS:
        part = PARTS[name]
        shutil.rmtree(KEPT / name, ignore_errors=True)
        _VITEST.unlink(missing_ok=True)
        if part.title:
            print(f"==> Testing {part.title}", flush=True)
        if not (ending := _run(part.command)):
            continue
        found = part.failures(name)
        failed += found.failed
        failed += [f"{command}  # was running when its part was ended" for command in found.cut]
        if ending != "ended with 1" or found.cut or not found.failed:
            # A crash, or what did not end: there is more than the failed tests.
            failed.append(f"{shlex.join(part.command)}  # {ending}")
    if failed:
        print(f"==> {len(failed)} failed. To run each again, with .venv/bin in PATH:")
        print("\n".join(f"  {command}" for command in failed))
    return int(bool(failed))


def _run(command: list[str]) -> str:
    """Run a part. Returns how it ended, or "" if nothing failed."""
    environment = {"OMP_NUM_THREADS": "1"} | os.environ
    heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # in the background of a shell it would not
    # A session of its own: what ends the part ends its workers and their children too.
    try:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, preexec_fn=heeds, start_new_session=True
        )
    except OSError as error:
        return f"could not be started: {error}"
    with process:
        try:
            code = process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            _end(process)
            return f"did not end within {ENDS_WITHIN_S} s"
        except KeyboardInterrupt:
            _end(process)
            raise
    return f"ended with {code}" if code else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a part and all that it has started. Pytest first says what has failed so far."""
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(60)
    with contextlib.suppress(ProcessLookupError):  # the last of them may have ended
        os.killpg(process.pid, signal.SIGKILL)


def _module(name: str) -> ModuleType:
    """A script beside this one."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _notes(name: str) -> Path:
    return KEPT / name / "notes.txt"


def _pytest(name: str, *arguments: str) -> list[str]:
    noted = str(Path(__file__).with_name("noted_pytest.py"))
    cache = f"cache_dir={KEPT / name / 'cache'}"
    return [sys.executable, noted, str(_notes(name)), "-q", "-o", cache, *arguments]


def pytest_failures(name: str) -> Failures:
    """What the notes of a part of pytest's say."""
    were = {"OMP_NUM_THREADS": "1"} | os.environ
    again = [f"{setting}={shlex.quote(were[setting])}" for setting in _CHOOSE_KERNELS if setting in were]

    def commands(tests: list[str]) -> list[str]:
        return [" ".join([*again, "python -m pytest", shlex.quote(test)]) for test in tests]

    failed, running = _module("noted_pytest").read(_notes(name))
    return Failures(commands(failed), commands(running))


def vitest_failures(_: str) -> Failures:
    """What vitest's report says has failed."""
    try:
        files = json.loads(_VITEST.read_text())["testResults"]
    except (OSError, ValueError, KeyError):
        return Failures([], [])
    failed = []
    for file in files:
        again = f"npx vitest run {shlex.quote(os.path.relpath(file['name'], ROOT))}"
        tests = [test for test in file["assertionResults"] if test["status"] == "failed"]
        failed += [f"{again} -t {shlex.quote(_pattern(test['fullName']))}" for test in tests]
        if file["status"] == "failed" and not tests:  # it could not be loaded
            failed.append(again)
    return Failures(failed, [])


def _pattern(name: str) -> str:
    """A regular expression of JavaScript that a test's name matches."""
    return re.sub(r"[.*+?^${}()|[\]\\]", r"\\\g<0>", name)


def _make(target: str) -> Part:
    """A part that is a target of the Makefile, which says what it does."""
    return Part(["make", target], lambda _: Failures([], []))


PARTS = {
    "style": _make("lint"),
    "cuda": _make("check-cuda"),
    "panel": Part(
        [
            *("npm", "run", "--silent", "test", "--", "--reporter=dot"),
            *("--reporter=json", f"--outputFile.json={_VITEST}"),
        ],
        vitest_failures,
        "the panel's TypeScript",
    ),
    "apart": _make("apart"),
    "python": Part(
        _pytest("python", "-n", "2", "--dist", "loadfile", "--ignore=tests/browser", "tests"),
        pytest_failures,
        "unit, property, integration, programs, torture, tutorials, on two cores",
    ),
    "chromium": _make("chromium"),
    "browser": Part(_pytest("browser", "tests/browser"), pytest_failures, "the lab in a browser"),
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
