"""Runs every part of the tests, whatever fails before, and says at the end what failed and how to run it again.

    python scripts/test.py [PART ...]

Ends with 1 if anything failed. `make test` calls it when everything is built.
"""

from __future__ import annotations

import contextlib
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

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "build" / "tests"
"""What the parts leave for this script: their failures."""
ENDS_WITHIN_S = 14400
"""A part that takes longer hangs: pytest-xdist waits for ever for a test whose worker died in some orders."""
_VITEST = KEPT / "vitest.json"
_CHOOSE_KERNELS = ("OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS")
"""A test is run again with these as they were."""


@dataclass(frozen=True)
class Part:
    """A part of the tests: what it is, how it is run, and how each failure in it is run again."""

    title: str
    command: list[str]
    failures: Callable[[str], list[str]]


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
        print(f"==> Testing {part.title}", flush=True)
        ending, before = _run(part.command), len(failed)
        if ending:
            failed += part.failures(name)
        if ending and (ending != "ended with 1" or len(failed) == before):
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


def _pytest(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-o", f"cache_dir={KEPT / name}", *arguments]


def pytest_failures(name: str) -> list[str]:
    """What pytest's cache says has failed."""
    try:
        found = json.loads((KEPT / name / "v" / "cache" / "lastfailed").read_text())
    except (OSError, ValueError):
        return []
    were = {"OMP_NUM_THREADS": "1"} | os.environ
    again = [f"{setting}={shlex.quote(were[setting])}" for setting in _CHOOSE_KERNELS if setting in were]
    return [" ".join([*again, "python -m pytest", shlex.quote(test)]) for test in found]


def vitest_failures(_: str) -> list[str]:
    """What vitest's report says has failed."""
    try:
        files = json.loads(_VITEST.read_text())["testResults"]
    except (OSError, ValueError, KeyError):
        return []
    failed = []
    for file in files:
        again = f"npx vitest run {shlex.quote(os.path.relpath(file['name'], ROOT))}"
        tests = [test for test in file["assertionResults"] if test["status"] == "failed"]
        failed += [f"{again} -t {shlex.quote(_pattern(test['fullName']))}" for test in tests]
        if file["status"] == "failed" and not tests:  # it could not be loaded
            failed.append(again)
    return failed


def _pattern(name: str) -> str:
    """A regular expression of JavaScript that a test's name matches."""
    return re.sub(r"[.*+?^${}()|[\]\\]", r"\\\g<0>", name)


PARTS = {
    "panel": Part(
        "the panel's TypeScript",
        [
            *("npm", "run", "--silent", "test", "--", "--reporter=dot"),
            *("--reporter=json", f"--outputFile.json={_VITEST}"),
        ],
        vitest_failures,
    ),
    "python": Part(
        "unit, property, integration, programs, torture, tutorials, on two cores",
        _pytest("python", "-n", "2", "--dist", "loadfile", "--ignore=tests/browser", "tests"),
        pytest_failures,
    ),
    "browser": Part("the lab in a browser", _pytest("browser", "tests/browser"), pytest_failures),
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
