"""`make test` (scripts/test.py): every part runs, and what failed is named last, with what runs it again."""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

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
    monkeypatch.setattr(module, "_VITEST", tmp_path / "kept" / "vitest.json")
    parts = {
        name: module.Part(module._pytest(name, "-p", "no:xdist", f"{name}.py"), module.pytest_failures, name)
        for name in ("first", "second")
    }
    monkeypatch.setattr(module, "PARTS", parts)
    (tmp_path / "second.py").write_text("def test_runs():\n    open('ran', 'w')\n")
    return module


def test_a_failure_is_named_and_the_next_part_runs(script, tmp_path, monkeypatch, capfd) -> None:
    (tmp_path / "first.py").write_text(
        "import pytest\n@pytest.mark.parametrize('x', ['a b', 'c'])\ndef test_x(x):\n    assert x == 'c'\n"
    )
    for setting in script._CHOOSE_KERNELS:
        monkeypatch.delenv(setting, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert script.main([]) == 1
    assert (tmp_path / "ran").exists()
    lines = capfd.readouterr().out.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("==> 1 failed"))
    settings = "OMP_NUM_THREADS=2 ATEN_CPU_CAPABILITY=default"
    assert lines[head + 1 :] == [f"  {settings} python -m pytest 'first.py::test_x[a b]'"]
    again = shlex.split(lines[head + 1])[2:]
    done = subprocess.run([sys.executable, *again[1:]], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "1 failed" in done.stdout and "passed" not in done.stdout

    (tmp_path / "first.py").write_text("def test_x():\n    pass\n")
    assert script.main([]) == 0  # nothing is left of the run before
    assert "failed" not in capfd.readouterr().out


def test_a_part_that_ends_otherwise_is_named_as_a_whole(script, tmp_path, monkeypatch, capfd) -> None:
    (tmp_path / "first.py").write_text("import os\ndef test_x():\n    os._exit(7)\n")
    assert script.main(["first", "second"]) == 1
    assert (tmp_path / "ran").exists()
    assert capfd.readouterr().out.splitlines()[-1].endswith("first.py  # ended with 7")

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
            if timeout != script.ENDS_WITHIN_S:
                return super().wait(timeout)
            child = tmp_path / "child"
            while not (child.exists() and child.read_text()):
                time.sleep(0.05)
            raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(subprocess, "Popen", TooLong)
    assert script.main(["first"]) == 1
    named, cut, whole = capfd.readouterr().out.splitlines()[-3:]
    assert named.endswith("first.py::test_x") and whole.endswith("first.py  # did not end within 14400 s")
    assert cut.endswith("first.py::test_y  # was running when its part was ended")
    status = Path("/proc", (tmp_path / "child").read_text(), "status")
    while status.exists() and "State:\tZ" not in status.read_text():
        time.sleep(0.05)  # what was killed ends when it gets to run
    unknown = {"third": script.Part([str(tmp_path / "no such program")], script.pytest_failures)}
    monkeypatch.setattr(script, "PARTS", unknown | script.PARTS)
    assert script.main(["third", "second"]) == 1 and "could not be started" in capfd.readouterr().out
    monkeypatch.delitem(script.PARTS, "third")
    assert script.main(["third"]) == 2 and "first, second" in capfd.readouterr().err


def test_a_test_that_hangs_is_named_beside_what_failed_before_it(script, tmp_path, capfd) -> None:
    """As pytest's own watchdog ends it: at once, in the middle of the test."""
    (tmp_path / "first.py").write_text(
        "import faulthandler, time\ndef test_x():\n    assert False\ndef test_y():\n    pass\n"
        "def test_z():\n    faulthandler.dump_traceback_later(0.1, exit=True)\n    time.sleep(3600)\n"
    )
    assert script.main([]) == 1
    assert (tmp_path / "ran").exists()
    head, failed, hung, whole = capfd.readouterr().out.splitlines()[-4:]
    assert head.startswith("==> 3 failed") and failed.endswith("python -m pytest first.py::test_x")
    assert hung.endswith("python -m pytest first.py::test_z  # was running when its part was ended")
    assert whole.endswith("first.py  # ended with 1")
    (tmp_path / "first.py").write_text("import nothing_of_this_name\n")
    assert script.main(["first"]) == 1
    named, whole = capfd.readouterr().out.splitlines()[-2:]
    assert named.endswith("python -m pytest first.py") and whole.endswith("first.py  # ended with 2")


def test_a_worker_that_hangs_is_named_too(script, tmp_path, monkeypatch, capfd) -> None:
    (tmp_path / "first.py").write_text(
        "import faulthandler, time\ndef test_y():\n    pass\n"
        "def test_z():\n    faulthandler.dump_traceback_later(0.1, exit=True)\n    time.sleep(3600)\n"
    )
    shared = script._pytest("first", "-n", "2", "--dist", "loadfile", "first.py", "second.py")
    monkeypatch.setitem(script.PARTS, "first", script.Part(shared, script.pytest_failures))
    assert script.main(["first"]) == 1
    assert (tmp_path / "ran").exists()
    head, hung = capfd.readouterr().out.splitlines()[-2:]
    assert head.startswith("==> 1 failed") and hung.endswith("python -m pytest first.py::test_z")


def test_a_failure_of_style_keeps_no_test_from_running(script, tmp_path, monkeypatch, capfd) -> None:
    (tmp_path / "Makefile").write_text("lint:\n\t@exit 3\ncheck-cuda:\n\t@touch checked\n")
    (tmp_path / "first.py").write_text("def test_x():\n    assert False\n")
    parts = {"style": script._make("lint"), "cuda": script._make("check-cuda"), **script.PARTS}
    monkeypatch.setattr(script, "PARTS", parts)
    assert script.main([]) == 1
    assert (tmp_path / "checked").exists() and (tmp_path / "ran").exists()
    head, style, test = capfd.readouterr().out.splitlines()[-3:]
    assert head.startswith("==> 2 failed")
    assert style == "  make lint  # ended with 2" and test.endswith("python -m pytest first.py::test_x")


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
    (tmp_path / "kept").mkdir()
    file = {"name": str(tmp_path / "src" / "a.test.ts"), "status": "failed"}
    test = {"fullName": "a's [] test.", "status": "failed"}
    results = [
        file | {"assertionResults": [test, test | {"status": "passed"}]},
        file | {"assertionResults": []},
        file | {"status": "passed", "assertionResults": [test | {"status": "passed"}]},
    ]
    (tmp_path / "kept" / "vitest.json").write_text(json.dumps({"testResults": results}))
    named, whole = script.vitest_failures("panel").failed
    assert shlex.split(named) == ["npx", "vitest", "run", "src/a.test.ts", "-t", r"a's \[\] test\."]
    assert shlex.split(whole) == ["npx", "vitest", "run", "src/a.test.ts"]
