"""Processes that begin where PyTorch has been imported: they end as fresh ones do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from children import FLAGS, ChildServer
from training import of_the_gate

LONG_S = 300.0
Run = Callable[[str], "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def server() -> Iterator[ChildServer]:
    with ChildServer() as running:
        yield running


@pytest.fixture(params=of_the_gate("forked", all_of=["forked", "fresh"]))
def run(request: pytest.FixtureRequest, server: ChildServer) -> Run:
    if request.param == "forked":
        return lambda source: server.run(source, LONG_S)
    return lambda source: subprocess.run(
        [sys.executable, *FLAGS, "-c", source], capture_output=True, text=True, timeout=LONG_S
    )


def test_its_outputs_and_how_it_ended(run: Run) -> None:
    done = run("import atexit, sys; atexit.register(print, 'last'); print('first'); sys.exit(3)")
    assert (done.returncode, done.stdout, done.stderr) == (3, "first\nlast\n", "")
    done = run("\n\n1 / 0")
    assert done.returncode == 1 and done.stderr.startswith("Traceback")
    assert 'File "<string>", line 3' in done.stderr and done.stderr.endswith("division by zero\n")
    done = run("import os; os.abort()")
    assert done.returncode == -6 and done.stderr.startswith("Fatal Python error: Aborted")


def test_its_main_module_holds_what_the_source_defines_alone(run: Run) -> None:
    source = """
class Here:
    pass
import pickle, sys
assert type(pickle.loads(pickle.dumps(Here()))) is Here
names = globals().keys() - {"__annotations__", "__builtins__", "__cached__", "__doc__", "__loader__", "__spec__"}
print(sorted(names), sys.argv, repr(sys.path[0]), __name__)
"""
    assert run(source).stdout == "['Here', '__name__', '__package__', 'pickle', 'sys'] ['-c'] '' __main__\n"


def test_each_begins_anew_and_has_no_thread_but_its_own(run: Run) -> None:
    source = (
        "import os, torch; torch.manual_seed(1); print(os.listdir('/proc/self/task') == [str(os.getpid())])"
    )
    assert run(source).stdout == "True\n"
    assert run("import random; random.marked = True").returncode == 0
    assert run("import random; print(hasattr(random, 'marked'))").stdout == "False\n"


def test_one_that_hangs_is_ended_and_says_what_it_printed(server: ChildServer) -> None:
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        server.run("import signal; print('so far', flush=True); signal.pause()", 1.0)
    assert caught.value.output == "so far\n"
    assert server.run("print('and goes on')", LONG_S).stdout == "and goes on\n"


def test_another_environment_needs_a_fresh_process(
    server: ChildServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server.has(os.environ)
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert not server.has(os.environ)
