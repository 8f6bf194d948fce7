"""`make test` (scripts/test.py): every part runs, failures are told apart and named last, with what runs them again."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with parts of its own: two of pytest, on the files first.py and second.py."""
    spec = importlib.util.spec_from_file_location("test_script", ROOT / "scripts" / "test.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "KEPT", tmp_path / "kept")
    parts = {
        name: module._pytest(name, name, "-n", "1", "--strict-markers", f"{name}.py")
        for name in ("first", "second")
    }
    monkeypatch.setattr(module, "RUNS", {"gate": parts})
    monkeypatch.setenv(
        "PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    )  # as the Makefile has it
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = bits: compares bits\n")
    (tmp_path / "second.py").write_text("def test_runs():\n    open('ran', 'w')\n")
    return module


def summary(tmp_path: Path) -> dict[str, Any]:
    return json.loads((tmp_path / "kept" / "summary.json").read_text())


def test_a_failure_is_named_and_the_next_part_runs(script, tmp_path, monkeypatch, capfd) -> None:
    (tmp_path / "first.py").write_text(
        "import pytest\n@pytest.mark.parametrize('x', ['a b', 'c'])\ndef test_x(x):\n    assert x == 'c'\n"
    )
    for setting in script._CHOOSE_KERNELS:
        monkeypatch.delenv(setting, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert script.main(["gate"]) == 1
    assert (tmp_path / "ran").exists()
    lines = capfd.readouterr().out.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("==> 1 failed"))
    settings = "OMP_NUM_THREADS=2 ATEN_CPU_CAPABILITY=default"
    assert lines[head + 1 :] == [f"  {settings} python -m pytest -q 'first.py::test_x[a b]'"]
    again = shlex.split(lines[head + 1])[2:]
    done = subprocess.run([sys.executable, *again[1:]], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "1 failed" in done.stdout and "passed" not in done.stdout

    (tmp_path / "first.py").write_text("def test_x():\n    pass\n")
    assert script.main(["gate"]) == 0  # nothing is left of the run before
    assert "failed" not in capfd.readouterr().out


# Passes when it is run again: what it leaves is there by then.
UNSTEADY = (
    "    import os\n    seen = os.path.exists('seen')\n    open('seen', 'w')\n    assert seen, 'not seen'\n"
)


def test_what_passes_twice_alone_is_unsteady_and_fails_nothing(script, tmp_path, capfd) -> None:
    (tmp_path / "first.py").write_text(f"def test_x():\n{UNSTEADY}")
    assert script.main(["gate"]) == 0
    lines = capfd.readouterr().out.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("==> 1 unsteady"))
    assert lines[head + 1].endswith("python -m pytest -q first.py::test_x")
    assert any("not seen" in line for line in lines[head:]), "what it said the first time"
    (found,) = summary(tmp_path)["unsteady"]
    assert "not seen" in found["said"] and summary(tmp_path)["failed"] == []

    once = "    import os\n    open(str(sum(name.isdigit() for name in os.listdir())), 'w')\n"
    (tmp_path / "first.py").write_text(
        f"def test_x():\n{once}    assert sum(name.isdigit() for name in os.listdir()) == 2\n"
    )
    assert script.main(["gate", "first"]) == 1, "the first of two passes is not enough"
    assert {path.name for path in tmp_path.iterdir() if path.name.isdigit()} == {"0", "1", "2"}


def test_a_failure_of_another_python_is_run_again_by_that_one(script, tmp_path, monkeypatch, capfd) -> None:
    """As the parts of the oldest PyTorch are: their runner sets up an environment of its own."""
    runner = tmp_path / "runner.sh"
    runner.write_text(f'#!/bin/sh\necho "$@" >>asked\nshift\nexec {sys.executable} -m pytest "$@"\n')
    runner.chmod(0o755)
    part = script._pytest("first", "first", "first.py", runner=(str(runner), "pytest"))
    monkeypatch.setitem(script.RUNS["gate"], "first", part)
    (tmp_path / "first.py").write_text(f"def test_x():\n{UNSTEADY}")
    assert script.main(["gate", "first"]) == 0
    assert f"{runner} pytest -q first.py::test_x" in capfd.readouterr().out
    assert [line.split()[0] for line in (tmp_path / "asked").read_text().splitlines()] == ["pytest"] * 3


def test_a_wrong_bit_is_a_failure_although_it_does_not_come_again(script, tmp_path, capfd) -> None:
    (tmp_path / "first.py").write_text(f"import pytest\n@pytest.mark.bits\ndef test_x():\n{UNSTEADY}")
    assert script.main(["gate"]) == 1
    assert capfd.readouterr().out.splitlines()[-1].endswith("python -m pytest -q first.py::test_x")
    (found,) = summary(tmp_path)["failed"]
    assert "not seen" in found["said"] and summary(tmp_path)["unsteady"] == []


def test_a_crash_is_a_failure_although_it_does_not_come_again(script, tmp_path, capfd) -> None:
    crash = (
        "    import os\n    if not os.path.exists('seen'):\n        open('seen', 'w')\n        os.abort()\n"
    )
    (tmp_path / "first.py").write_text(
        f"def test_w():\n    pass\ndef test_x():\n{crash}def test_y():\n    pass\n"
    )
    assert script.main(["gate"]) == 1
    assert (tmp_path / "ran").exists()
    assert capfd.readouterr().out.splitlines()[-1].endswith("python -m pytest -q first.py::test_x")
    (found,) = summary(tmp_path)["failed"]
    assert "crashed while running 'first.py::test_x'" in found["said"]


def test_a_crash_is_no_less_one_in_a_process_that_the_test_started(script, tmp_path) -> None:
    child = "    if not seen:\n        raise AssertionError('the child crashed (signal 11)')\n"
    lines = UNSTEADY.replace("    assert seen, 'not seen'\n", child)
    (tmp_path / "first.py").write_text(f"def test_x():\n{lines}")
    assert script.main(["gate"]) == 1
    assert "the child crashed" in summary(tmp_path)["failed"][0]["said"]


def test_a_crash_after_a_failure_of_the_same_test_counts(script, tmp_path) -> None:
    (tmp_path / "first.py").write_text(
        "import os, pytest\n@pytest.fixture\ndef crashes():\n    new = not os.path.exists('seen')\n    yield new\n"
        "    open('seen', 'w')\n    if new: os.abort()\ndef test_x(crashes):\n    assert not crashes\n"
    )
    assert script.main(["gate"]) == 1
    assert "crashed while running" in summary(tmp_path)["failed"][0]["said"]


def test_a_worker_that_crashes_outside_of_a_test_fails_the_part(script, tmp_path) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "first.py").write_text(
        "import os\nif 'PYTEST_XDIST_WORKER' in os.environ and not os.path.exists('seen'):\n"
        "    open('seen', 'w')\n    os._exit(3)\ndef test_x():\n    pass\n"
    )
    assert script.main(["gate", "first"]) == 1
    assert "ended with 3" in summary(tmp_path)["failed"][0]["command"]


def test_a_test_that_is_skipped_when_it_is_run_again_has_not_passed(script, tmp_path) -> None:
    skips = UNSTEADY.replace(
        "    assert seen, 'not seen'\n", "    if seen: pytest.skip()\n    assert False\n"
    )
    (tmp_path / "first.py").write_text(f"import pytest\ndef test_x():\n{skips}")
    assert script.main(["gate"]) == 1


def test_where_very_many_fail_none_is_run_again(script, tmp_path, capfd) -> None:
    many = script.TRIED_AGAIN + 1
    (tmp_path / "first.py").write_text(
        f"import pytest\n@pytest.mark.parametrize('x', range({many}))\ndef test_x(x):\n    assert False\n"
    )
    assert script.main(["gate", "first"]) == 1
    said = capfd.readouterr().out
    assert f"==> {many} failed" in said and "Running again" not in said


def test_the_hash_of_a_clean_tree_that_passed_is_written(script, tmp_path) -> None:
    def git(*arguments: str) -> str:
        who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        done = subprocess.run(
            ["git", *who, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    passed = tmp_path / "kept" / "passed"
    (tmp_path / "first.py").write_text("def test_x():\n    pass\n")
    (tmp_path / ".gitignore").write_text("kept\nran\n__pycache__\n")
    assert script.main(["gate"]) == 0 and not passed.exists(), "no tree of git's"
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "all")
    assert script.main(["gate"]) == 0
    assert passed.read_text().strip() == git("rev-parse", "HEAD^{tree}")
    assert script.main(["gate", "first"]) == 0 and not passed.exists(), "a part is not the gate"
    (tmp_path / "first.py").write_text("def test_x():\n    assert True\n")
    assert script.main(["gate"]) == 0 and not passed.exists(), "a changed tree has no hash"


def test_a_part_that_ends_otherwise_is_named_as_a_whole(script, tmp_path, monkeypatch, capfd) -> None:
    (tmp_path / "first.py").write_text(
        "import subprocess, sys, time\ndef test_x():\n    assert False\ndef test_y():\n"
        "    heedless = 'import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(3600)'\n"
        "    child = subprocess.Popen([sys.executable, '-c', heedless])\n"
        "    open('child', 'w').write(str(child.pid))\n"
        "    time.sleep(3600)\n"
    )

    class TooLong(subprocess.Popen):
        """Its time is over when the test that hangs is reached, however long that takes."""

        def wait(self, timeout: float | None = None) -> int:
            if timeout != script.ENDS_WITHIN_S or "first" not in str(self.args):
                return super().wait(timeout)
            child = tmp_path / "child"
            while not (child.exists() and child.read_text()):
                time.sleep(0.05)
            raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(subprocess, "Popen", TooLong)
    monkeypatch.setattr(script, "TRIED_AGAIN", 0)
    assert script.main(["gate", "first"]) == 1
    named, cut, whole = capfd.readouterr().out.splitlines()[-3:]
    assert named.endswith("first.py::test_x") and whole.endswith("first.py  # did not end within 14400 s")
    assert cut.endswith("first.py::test_y  # was running when its part was ended")
    status = Path("/proc", (tmp_path / "child").read_text(), "status")
    while status.exists() and "State:\tZ" not in status.read_text():
        time.sleep(0.05)  # what was killed ends when it gets to run
    unknown = {"third": script.Part([str(tmp_path / "no such program")])}
    monkeypatch.setitem(script.RUNS, "gate", unknown | script.RUNS["gate"])
    assert script.main(["gate", "third", "second"]) == 1 and "could not be started" in capfd.readouterr().out
    del script.RUNS["gate"]["third"]
    assert script.main(["gate", "third"]) == 2 and "first, second" in capfd.readouterr().err
    assert script.main([]) == 2 and "usage" in capfd.readouterr().err


def test_a_test_that_hangs_is_named_beside_what_failed_before_it(script, tmp_path, capfd) -> None:
    """As pytest's own watchdog ends it: at once, in the middle of the test."""
    (tmp_path / "first.py").write_text(
        "import faulthandler, time\ndef test_x():\n    assert False\ndef test_y():\n    pass\n"
        "def test_z():\n    faulthandler.dump_traceback_later(0.1, exit=True)\n    time.sleep(3600)\n"
    )
    assert script.main(["gate"]) == 1
    assert (tmp_path / "ran").exists()
    head, failed, hung = capfd.readouterr().out.splitlines()[-3:]
    assert head.startswith("==> 2 failed") and failed.endswith("python -m pytest -q first.py::test_x")
    assert hung.endswith("python -m pytest -q first.py::test_z")
    (tmp_path / "first.py").write_text("import nothing_of_this_name\n")
    assert script.main(["gate", "first"]) == 1
    assert "nothing_of_this_name" in summary(tmp_path)["failed"][0]["said"]


def test_a_failure_of_style_keeps_no_test_from_running(script, tmp_path, monkeypatch, capfd) -> None:
    (tmp_path / "Makefile").write_text("lint:\n\t@exit 3\ncheck-cuda:\n\t@touch checked\n")
    (tmp_path / "first.py").write_text("def test_x():\n    assert False\n")
    parts = {"style": script._make("lint"), "cuda": script._make("check-cuda"), **script.RUNS["gate"]}
    monkeypatch.setitem(script.RUNS, "gate", parts)
    assert script.main(["gate"]) == 1
    assert (tmp_path / "checked").exists() and (tmp_path / "ran").exists()
    head, style, test = capfd.readouterr().out.splitlines()[-3:]
    assert head.startswith("==> 2 failed")
    assert style == "  make lint  # ended with 2" and test.endswith("python -m pytest -q first.py::test_x")


def test_make_test_says_that_the_build_failed_and_how_to_run_it_again(tmp_path) -> None:
    """Nothing is there to build it from; what the tests are run with is not called."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "scripts").mkdir()
    for name, does in {"setup.sh": "exit 0", "test.py": "open('ran', 'w')"}.items():
        (tmp_path / "scripts" / name).write_text(f"#!/bin/sh\n{does}\n" if name == "setup.sh" else does)
    (tmp_path / "scripts" / "setup.sh").chmod(0o755)
    done = subprocess.run(["make", "test"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0 and not (tmp_path / "ran").exists()
    head, command = done.stdout.splitlines()[-2:]
    assert head.startswith("==> 1 failed") and command == "  make build"


def test_failures_of_the_panel_are_named(script, tmp_path) -> None:
    file = {"name": str(tmp_path / "src" / "a.test.ts"), "status": "failed"}
    test = {"fullName": "a's [] test.", "status": "failed"}
    results = [
        file | {"assertionResults": [test, test | {"status": "passed"}]},
        file | {"assertionResults": []},
        file | {"status": "passed", "assertionResults": [test | {"status": "passed"}]},
    ]
    (tmp_path / "vitest.json").write_text(json.dumps({"testResults": results}))
    named, whole = (failure.command for failure in script.vitest_found(tmp_path / "vitest.json").failures)
    assert shlex.split(named) == ["npx", "vitest", "run", "src/a.test.ts", "-t", r"a's \[\] test\."]
    assert shlex.split(whole) == ["npx", "vitest", "run", "src/a.test.ts"]


def test_the_newest_torch_is_run_by_itself_where_another_is_installed(script) -> None:
    parts = ["python", "oldest", "newest", "newest-gpu"]
    newest = f"{script._NEWEST_TORCH}.0"
    for other in ("2.14.1+cu130", f"{newest}+cpu", f"{newest}.dev20261120+cu132"):
        assert script.by_default(parts, other) == parts
    assert script.by_default(parts, f"{newest}+cu132") == ["python", "oldest"]
