"""Runs the gate, or every check there is, whatever fails before; says last what failed and how to run it again.

    python scripts/test.py gate | all [PART ...]

A test that fails is run again by itself, twice. If it passes both times it is *unsteady* (flaky): it is listed with
what it said, and fails nothing. A test that compares bits (marker ``bits``), or whose process crashes, has failed even
if it would pass when it is run again: the wrong bit or the crash was there all the same.

Ends with 1 if anything failed. Writes ``build/tests/summary.json``, and the hash of a clean tree on which all of it has
passed into ``build/tests/passed``. `make test` and `make test-all` call it when everything is built.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "build" / "tests"
"""What a run leaves: the parts' reports, the summary, the hash of the tree that passed."""
ENDS_WITHIN_S = 14400
"""A part that takes longer hangs: pytest-xdist waits for ever for a test whose worker died in some orders."""
TRIED_AGAIN = 20
"""If more tests fail than this, none is run again: that many are no accident."""
_CHOOSE_KERNELS = ("OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS")
"""A test is run again with these as they were."""


@dataclass(frozen=True)
class Failure:
    """What failed: the command that runs it again, and what it said."""

    command: str
    said: str = ""
    final: bool = True
    """It is a failure even if it passes when it is run again."""


@dataclass(frozen=True)
class Found:
    """What a part's report tells of its tests."""

    failures: list[Failure] = field(default_factory=list)
    file_seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """A part of the checks: its command, its report, how that is read, and a title where the command prints none."""

    command: list[str]
    report: Path | None = None
    read: Callable[[Path], Found] = lambda _: Found()
    title: str = ""


def main(arguments: list[str]) -> int:
    """Run the gate or all, or the parts of it that have these names."""
    which, names = arguments[0] if arguments else "", arguments[1:]
    if which not in RUNS:
        print(f"usage: python scripts/test.py {' | '.join(RUNS)} [PART ...]", file=sys.stderr)
        return 2
    parts = RUNS[which]
    if unknown := [name for name in names if name not in parts]:
        print(f"there is no part {unknown[0]!r}: there are {', '.join(parts)}", file=sys.stderr)
        return 2
    began, tree = time.monotonic(), _clean_tree()
    for name in ("passed", "summary.json"):
        (KEPT / name).unlink(missing_ok=True)
    seconds: dict[str, float] = {}
    failed: list[Failure] = []
    unsteady: list[Failure] = []
    file_seconds: dict[str, float] = {}
    for name in names or by_default(parts):
        part_began = time.monotonic()
        found = _run_part(parts[name])
        file_seconds |= found.file_seconds
        for failure, passes in _tried_again(found.failures):
            (unsteady if passes else failed).append(failure)
        seconds[name] = round(time.monotonic() - part_began, 1)
    total_s = round(time.monotonic() - began, 1)
    slowest = sorted(file_seconds.items(), key=lambda item: -item[1])
    _tell(seconds, total_s, failed, unsteady, slowest[:10])
    summary = {
        "run": which,
        "parts_s": seconds,
        "total_s": total_s,
        "torch": version("torch"),
        "failed": [asdict(failure) for failure in failed],
        "unsteady": [asdict(failure) for failure in unsteady],
        "file_s": {name: round(file_s, 1) for name, file_s in slowest},
    }
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    whole = not names and "PYTEST_ADDOPTS" not in os.environ  # which may choose tests
    if tree and whole and not failed and tree == _clean_tree():
        (KEPT / "passed").write_text(tree + "\n")
    return int(bool(failed))


def by_default(parts: Iterable[str], torch_version: str = "") -> list[str]:
    """All of them, but for the newest PyTorch's where the others run with a release of it, in its CUDA build."""
    names = list(parts)
    if newest := [name for name in names if name.startswith("newest")]:
        if not torch_version:
            import torch  # its package's version does not name the build

            torch_version = torch.__version__
        if re.fullmatch(rf"{re.escape(_NEWEST_TORCH)}\.\d+\+cu\d+", torch_version):
            print(
                f"==> Leaving out {', '.join(newest)}: all others run with torch {torch_version}", flush=True
            )
            return [name for name in names if name not in newest]
    return names


def _tell(
    seconds: dict[str, float],
    total_s: float,
    failed: list[Failure],
    unsteady: list[Failure],
    slowest: list[tuple[str, float]],
) -> None:
    if slowest:
        print("==> The slowest files, in seconds of a worker:")
        print("\n".join(f"  {file_s:6.1f}  {name}" for name, file_s in slowest))
    parts = ", ".join(f"{name} {part_s:.0f} s" for name, part_s in seconds.items())
    print(f"==> {total_s:.0f} s in all, with torch {version('torch')}: {parts}")
    if unsteady:
        print(f"==> {len(unsteady)} unsteady: failed once, and passed twice when run again alone:")
        for failure in unsteady:
            print(f"  {failure.command}\n{_indented(failure.said)}")
    if failed:
        print(f"==> {len(failed)} failed. To run each again, with .venv/bin in PATH:")
        print("\n".join(f"  {failure.command}" for failure in failed), flush=True)


def _indented(text: str) -> str:
    return "\n".join(f"      {line}" for line in text.splitlines()[-40:])


def _clean_tree() -> str:
    """The hash of the tree that is checked out, or "" where it is changed, or not git's."""

    def git(*arguments: str) -> str | None:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
        return None if done.returncode else done.stdout.strip()

    return git("rev-parse", "HEAD^{tree}") or "" if git("status", "--porcelain") == "" else ""


def _run_part(part: Part) -> Found:
    """Run a part, and read what failed in it."""
    if part.report:
        part.report.parent.mkdir(parents=True, exist_ok=True)
        part.report.unlink(missing_ok=True)
    if part.title:
        print(f"==> Testing {part.title}", flush=True)
    ending = _run(part.command)
    found = part.read(part.report) if part.report and part.report.exists() else Found()
    if ending and (ending != "ended with 1" or not found.failures):
        # A crash, or what did not end: there is more than the failed tests.
        found.failures.append(Failure(f"{shlex.join(part.command)}  # {ending}"))
    return found


def _tried_again(failures: list[Failure]) -> Iterator[tuple[Failure, bool]]:
    """Each failure, and whether its test passes twice when it is run again by itself."""
    again = [failure for failure in failures if not failure.final]
    if len(again) > TRIED_AGAIN:
        again = []
    if again:
        print(f"==> Running again by itself, twice, what failed: {len(again)}", flush=True)
    for failure in failures:
        yield failure, failure in again and all(_passes(failure.command) for _ in range(2))


def _passes(command: str) -> bool:
    """Does a test run, and pass?"""
    report = KEPT / "again.jsonl"
    ending = _run([*shlex.split(command), f"--report-log={report}"], True)
    return not ending and not any(said.get("outcome") == "skipped" for said in _reports(report))


def _environment() -> dict[str, str]:
    return {"OMP_NUM_THREADS": "1"} | os.environ


def _run(command: list[str], silently: bool = False) -> str:
    """Run a command. Returns how it ended, or "" if nothing failed."""
    heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # in the background of a shell it would not
    while "=" in command[0]:  # its settings, which are this process's too
        command = command[1:]
    output = subprocess.DEVNULL if silently else None
    # A session of its own: what ends the part ends its workers and their children too.
    try:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=_environment(),
            stdout=output,
            stderr=output,
            preexec_fn=heeds,
            start_new_session=True,
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


_PYTEST = ("python", "-m", "pytest")


def _pytest(name: str, title: str, *arguments: str, runner: tuple[str, ...] = _PYTEST) -> Part:
    """A part of pytest's. A worker's crash is a report of pytest-xdist's controller, which runs no test itself."""
    report = KEPT / f"{name}.jsonl"
    command = [*runner, "-q", "--dist", "loadfile", "-o", f"cache_dir={KEPT / name}"]
    read = partial(pytest_found, runner=runner)
    return Part([*command, f"--report-log={report}", *arguments], report, read, title)


def pytest_found(report: Path, runner: tuple[str, ...] = _PYTEST) -> Found:
    """What pytest-reportlog has written, line by line, until the end or until pytest was ended.

    ``runner`` is what runs pytest, or runs a test again.
    """
    file_seconds: dict[str, float] = defaultdict(float)
    failed: dict[str, Failure] = {}
    running: dict[str, None] = {}
    for said in _reports(report):
        if said["$report_type"] not in ("TestReport", "CollectReport"):
            continue
        test, when = said["nodeid"], said.get("when")
        if when:
            file_seconds[test.partition("::")[0]] += said["duration"]
        if when in ("setup", "call"):
            running[test] = None
        else:
            running.pop(test, None)
        if said["outcome"] == "failed":
            text = _text(said)
            # A worker (so pytest-xdist says it), or a process that a test started (tests/integration/training.py).
            crashed = when == "???" or "the child crashed" in text
            final = crashed or "bits" in said.get("keywords", {})
            if test not in failed or final:
                failed[test] = Failure(_again(test, runner), text, final)
    cut = [
        Failure(f"{_again(test, runner)}  # was running when its part was ended")
        for test in running.keys() - failed
    ]
    return Found([*failed.values(), *cut], file_seconds)


def _reports(report: Path) -> Iterator[dict[str, Any]]:
    """The lines of a report; the last one may have been cut off."""
    for line in report.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            yield json.loads(line)


def _again(test: str, runner: tuple[str, ...]) -> str:
    """The command that runs a test again."""
    environment = _environment()
    settings = [f"{name}={shlex.quote(environment[name])}" for name in _CHOOSE_KERNELS if name in environment]
    return " ".join([*settings, *runner, "-q", shlex.quote(test)])


def _text(said: dict[str, Any]) -> str:
    """A report's failure, as pytest prints it."""
    if isinstance(said["longrepr"], str):
        return said["longrepr"]
    kind = pytest.TestReport if said["$report_type"] == "TestReport" else pytest.CollectReport
    # Without the worker, which pytest-xdist looks into and which has ended.
    here = {name: value for name, value in said.items() if name != "node"}
    return kind._from_json(here).longreprtext


def _vitest() -> Part:
    report = KEPT / "vitest.json"
    command = [
        "npm",
        "run",
        "--silent",
        "test",
        "--",
        "--reporter=dot",
        "--reporter=json",
        f"--outputFile.json={report}",
    ]
    return Part(command, report, vitest_found, "the panel's TypeScript")


def vitest_found(report: Path) -> Found:
    """What vitest's report says has failed."""
    failures = []
    for file in json.loads(report.read_text())["testResults"]:
        again = f"npx vitest run {shlex.quote(os.path.relpath(file['name'], ROOT))}"
        tests = [test for test in file["assertionResults"] if test["status"] == "failed"]
        failures += [Failure(f"{again} -t {shlex.quote(_pattern(test['fullName']))}") for test in tests]
        if file["status"] == "failed" and not tests:  # it could not be loaded
            failures.append(Failure(again))
    return Found(failures)


def _pattern(name: str) -> str:
    """A regular expression of JavaScript that a test's name matches."""
    return re.sub(r"[.*+?^${}()|[\]\\]", r"\\\g<0>", name)


def _make(target: str) -> Part:
    """A part that is a target of the Makefile, which says what it does."""
    return Part(["make", target])


# What is run first where there is a GPU: see benchmarks/gpu_check.sh.
_CALLS = {
    "first": ("ready", "tests"),
    "second": ("overlap", "replay", "facts"),
    "third": ("llama", "peers-24"),
}
_WITH_TORCH = "scripts/with_torch.sh"
(_TORCH_BELOW,) = re.findall(r'"torch>=2\.\d+,<2\.(\d+)"', (ROOT / "pyproject.toml").read_text())
_NEWEST_TORCH = f"2.{int(_TORCH_BELOW) - 1}"
_UNITS_OF_TORCH = [
    f"tests/unit/test_{name}.py" for name in ("torch_headers", "replay_check", "meta", "roofline")
]
_ON_THE_FAKE_GPU = (
    *("cuda_device", "cuda_allocator", "allocator_callbacks"),
    *("two_sessions", "benchmarks_fake_gpu", "default_device"),
)
_WITH_SEVERAL_RANKS = ("collectives", "agreement")


def _integration(*names: str) -> list[str]:
    return [f"tests/integration/test_{name}.py" for name in names]


RUNS = {
    "gate": {
        "style": _make("lint"),
        "requirements": _make("requirements"),
        "panel": _vitest(),
        "cuda": _make("check-cuda"),
        "chromium": _make("chromium"),
        "python": _pytest(
            *("python", "unit, property and integration, on two cores; one look at the panel in a browser"),
            *("-n", "2", "-m", "gate or not full", "--fork-children"),
            *("tests/unit", "tests/property", "tests/integration", "tests/browser/test_first_look.py"),
        ),
    },
    "all": {
        "style": _make("lint"),
        "requirements": _make("requirements"),
        "panel": _vitest(),
        "cuda": _make("check-cuda"),
        "apart": _make("apart"),
        # More tests than cores at a time: half of them wait for processes that they have started. The longest files
        # come first (tests/conftest.py).
        "python": _pytest(
            *("python", "all but the browser, three tests at a time"),
            *(
                "-n",
                "3",
                "--no-loadscope-reorder",
                "--hypothesis-profile=all",
                "--ignore=tests/browser",
                "tests",
            ),
        ),
        # As torch before 2.13, on this torch and on the oldest one; then the newest one, where .venv has another.
        "without-hook": _pytest(
            *("without_hook", "integration as with a torch that tells of no raw pointer"),
            *("-n", "2", "-m", "gate or not full", "tests/integration"),
            runner=(*_PYTEST, "--without-hook"),
        ),
        "without-hook-gpu": _pytest(
            *(
                "without_hook_gpu",
                "all of the fake GPU and of several ranks, and the GPU's tests on the CPU device, as with such a torch",
            ),
            *("-n", "2", *_integration(*_ON_THE_FAKE_GPU, *_WITH_SEVERAL_RANKS), "tests/cuda"),
            runner=("env", "CHAMELEON_TEST_DEVICE=cpu", *_PYTEST, "--without-hook"),
        ),
        **{
            f"oldest-{which}-call": Part(
                [_WITH_TORCH, "oldest", "check", *parts],
                title=f"the GPU check's {which} call on the CPU device, with the oldest PyTorch",
            )
            for which, parts in _CALLS.items()
        },
        "oldest": _pytest(
            *("oldest", "integration with the oldest PyTorch, in its CUDA build"),
            *("-n", "2", "-m", "gate or not full", "tests/integration"),
            runner=(_WITH_TORCH, "oldest", "pytest"),
        ),
        "oldest-gpu": _pytest(
            *("oldest_gpu", "all of the fake GPU and of several ranks, with the oldest PyTorch"),
            *("-n", "2", *_integration(*_ON_THE_FAKE_GPU, *_WITH_SEVERAL_RANKS)),
            runner=(_WITH_TORCH, "oldest", "pytest"),
        ),
        "newest": _pytest(
            *("newest", "integration with the newest PyTorch, in its CUDA build"),
            *("-n", "2", "-m", "gate or not full", *_UNITS_OF_TORCH, "tests/integration"),
            runner=(_WITH_TORCH, "newest", "pytest"),
        ),
        "newest-gpu": _pytest(
            *("newest_gpu", "all of the fake GPU and of several ranks, with the newest PyTorch"),
            *("-n", "2", *_integration(*_ON_THE_FAKE_GPU, *_WITH_SEVERAL_RANKS)),
            runner=(_WITH_TORCH, "newest", "pytest"),
        ),
        "chromium": _make("chromium"),
        "browser": _pytest("browser", "the lab in a browser", "-n", "1", "tests/browser"),
        "oldest-lab": _pytest(
            *("oldest_lab", "the panel in the oldest JupyterLab, and in Notebook 7"),
            *(
                f"tests/browser/test_{name}.py"
                for name in ("extension_loads", "panel", "editor", "notebook_7")
            ),
            runner=("scripts/with_lab.sh",),
        ),
    },
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
