"""The process that plans: what it gives back, how it ends, and what it leaves alone."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hangs import HANGS_AFTER_S, until
from synthetic import gpt_step

from chameleon_lab.errors import BelowFloorError
from chameleon_lab.planner import floor, plan, process
from chameleon_lab.planner.obey import plan_and_bind, plan_obeying
from chameleon_lab.planner.process import PlannerInterruptedError, PlannerProcess, PlannerProcessError
from chameleon_lab.planner.program import compile_program
from chameleon_lab.policy import Edit, EditAction, EditsUnreachableError, Link

STEP = gpt_step(layers=4)
WAITS = "__import__('threading').Event().wait()"
"""For ever, whatever signals come."""
LINK = Link(4e9, 4e9)


@pytest.fixture
def planner() -> Iterator[PlannerProcess]:
    made = PlannerProcess()
    yield made
    made.close()


def state(pid: int) -> str:
    """As the system says it: "S" where it sleeps; "Z" where it has ended, or is no more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


def has_ended(pid: int) -> bool:
    return state(pid) == "Z"


def test_its_plan_is_the_one_that_would_be_made_here(
    planner: PlannerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build of torch too, which PyPI's packages leave out of their version."""
    monkeypatch.setattr(torch, "__version__", "2.13.0+made.up")
    capacity, edits = int(1.5 * floor(STEP).bytes), (Edit(EditAction.KEEP, "nothing"),)
    made = planner.call(plan_and_bind, STEP, capacity, LINK, edits, rematerialize=True)
    policy, program = made.policy, made.program
    here, remarks_here = plan_obeying(STEP, capacity, LINK, edits, rematerialize=True)
    assert policy.source is None and dataclasses.replace(policy, source=STEP) == here and policy.decisions
    assert policy.findings == here.findings and list(made.remarks) == remarks_here != []
    bound = compile_program(here, STEP)
    for name in ("storage_row", "uses_op", "action_op", "action_kind", "action_storage"):
        assert np.array_equal(getattr(program, name), getattr(bound, name)), name
    assert planner.spent_s > 0


def test_it_raises_what_the_planner_raises(planner: PlannerProcess) -> None:
    with pytest.raises(BelowFloorError) as below:
        planner.call(plan_and_bind, STEP, 1024, LINK, ())
    assert below.value.capacity_bytes == 1024 and below.value.needed_bytes == floor(STEP).bytes
    edits = (Edit(EditAction.NEVER_TOUCH, category="activation"),)
    with pytest.raises(EditsUnreachableError) as unreachable:
        planner.call(plan, STEP, floor(STEP).bytes, LINK, edits=edits)
    assert unreachable.value.findings[0].edit == edits[0] and "activation" in str(unreachable.value)


def test_it_has_no_torch_and_what_is_printed_there_harms_no_answer(planner: PlannerProcess) -> None:
    assert planner.call(eval, "__import__('sys').modules['torch']") is None
    assert planner.call(print, "x" * 100_000) is None
    assert planner.call(math.sqrt, 4.0) == 2.0


def test_ctrl_c_is_the_loop_s_and_so_is_the_processor(planner: PlannerProcess) -> None:
    pid = planner.call(os.getpid)
    assert planner.call(os.getpgid, 0) == pid
    assert planner.call(os.getsid, 0) == os.getsid(0), "else its priority may not count"
    assert planner.call(signal.getsignal, signal.SIGINT) == signal.SIG_IGN
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    assert planner.call(os.getpriority, os.PRIO_PROCESS, 0) == min(ours + 10, 19)


@pytest.mark.parametrize(
    ("said", "rested"),
    [
        ("0.9 0.7 0.5 {all}/345 678\n", []),
        ("0.9 0.7 0.5 {more}/345 678\n", [process._REST_S]),
        ("", []),
        (None, []),
    ],
)
def test_it_rests_where_more_want_to_run_than_there_are_processors(
    said: str | None, rested: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loadavg, processors = tmp_path / "loadavg", os.cpu_count() or 1
    if said is not None:
        loadavg.write_text(said.format(all=processors, more=processors + 1))
    rests: list[float] = []
    monkeypatch.setattr(process, "_LOADAVG", str(loadavg))
    monkeypatch.setattr(process.time, "sleep", rests.append)
    process._rest_where_others_wait()
    assert rests == rested


def test_it_looks_while_it_plans_whether_to_rest(planner: PlannerProcess, tmp_path: Path) -> None:
    crowded = tmp_path / "loadavg"
    crowded.write_text(f"0.9 0.7 0.5 {(os.cpu_count() or 1) + 1}/345 678\n")
    planner.call(
        exec,
        "from chameleon_lab.planner import process\n"
        "rests = []\n"
        "process.time.sleep = rests.append\n"
        f"process._LOADAVG = {str(crowded)!r}\n"
        "for turn in range(10**8):\n"
        "    if rests: break\n"
        "assert rests, 'it has worked for seconds'\n",
        {},
    )


def test_what_nobody_wants_any_more_is_interrupted(planner: PlannerProcess) -> None:
    pid, raised = planner.call(os.getpid), []

    def wait() -> None:
        try:
            planner.call(eval, WAITS)
        except PlannerProcessError as error:
            raised.append(type(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: state(pid) == "S" and planner._turn.locked())
    planner.interrupt()
    waiting.join(HANGS_AFTER_S)
    assert raised == [PlannerInterruptedError] and has_ended(pid)
    assert planner.call(os.getpid) != pid
    planner.close()
    with pytest.raises(PlannerInterruptedError):
        planner.call(os.getpid)


def test_one_that_begins_while_it_is_closed_ends(
    planner: PlannerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def closing(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        planner.close()
        started.append(start(*args, **kwargs))
        return started[0]

    monkeypatch.setattr(process.subprocess, "Popen", closing)
    with pytest.raises(PlannerInterruptedError):
        planner.call(os.getpid)
    assert started[0].returncode is not None


def test_where_it_ends_by_itself_the_next_call_begins_anew(planner: PlannerProcess) -> None:
    with pytest.raises(PlannerProcessError, match="ended with 3") as error:
        planner.call(os._exit, 3)
    assert not isinstance(error.value, PlannerInterruptedError)
    assert planner.call(math.sqrt, 9.0) == 3.0


def test_a_forked_child_has_none_and_ends_none(planner: PlannerProcess) -> None:
    pid = planner.call(os.getpid)
    with planner._turn:  # as where another thread waits for a plan
        child = os.fork()
        if child == 0:
            code = 1
            try:
                planner.call(os.getpid)
            except PlannerProcessError as error:  # and its session plans in the child
                code = int(isinstance(error, PlannerInterruptedError))
            planner.close()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert planner.call(os.getpid) == pid


def test_what_cannot_be_read_here_is_no_answer_to_the_next_call(planner: PlannerProcess) -> None:
    unreadable = "type('Away', (), {'__reduce__': lambda self: (exec, ('raise TypeError',))})()"
    with pytest.raises(PlannerProcessError):
        planner.call(eval, unreadable)
    assert planner.call(math.sqrt, 16.0) == 4.0


def test_the_answer_of_a_call_that_ctrl_c_has_ended_is_no_answer_to_the_next_one(
    planner: PlannerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(process.pickle, "load", interrupted)
        with pytest.raises(KeyboardInterrupt):
            planner.call(math.sqrt, 16.0)
    assert planner.call(math.sqrt, 4.0) == 2.0


@pytest.mark.parametrize("why", ["no program", "no process"])
def test_where_none_can_be_started_it_says_why(
    why: str, planner: PlannerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    if why == "no program":
        monkeypatch.setattr(sys, "executable", "")
    else:
        monkeypatch.setattr(process.subprocess, "Popen", refuse)
    with pytest.raises(PlannerProcessError, match="sys.executable|temporarily unavailable"):
        planner.call(os.getpid)
    planner.start()
    other = PlannerProcess()
    assert other.call_or_run(os.getpid) == os.getpid()
    with pytest.raises(ValueError, match="invalid literal") as error:
        other.call_or_run(int, "four")
    assert error.value.__context__ is None
    monkeypatch.undo()
    assert other.call_or_run(os.getpid) != os.getpid()
    other.close()


@pytest.mark.full
@pytest.mark.parametrize("forked", [False, True])
def test_it_ends_with_its_owner_however_that_ends(forked: bool) -> None:
    """A child that the owner has forked may live on, with the other end of the pipe."""
    code = (
        "import os, signal, sys\n"
        "from chameleon_lab.planner.process import PlannerProcess\n"
        "planner = PlannerProcess()\n"
        "print(planner.call(os.getpid), flush=True)\n"
        f"if {forked} and os.fork() == 0:\n    print(os.getpid(), flush=True)\n    signal.pause()\n"
        "signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        child = int(owner.stdout.readline()) if forked else 0
        assert not has_ended(pid)
        owner.kill()
        owner.wait()
        until(lambda: has_ended(pid))
        if child:
            os.kill(child, signal.SIGKILL)
