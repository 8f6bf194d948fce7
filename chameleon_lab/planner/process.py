"""A process that plans: what it takes of a processor, and of the interpreter, is not the training loop's.

The planner needs arrays alone. :class:`PlannerProcess` sends functions with their arguments to a process of their own,
and gives what they return or raise. That process has no torch, the loop comes before it (``nice``), and where more
threads want to run than there are processors it rests again and again.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar, cast

from ..util import torch_version

P = ParamSpec("P")
T = TypeVar("T")

_NICE = 10
"""A tenth of the weight of the others: it goes on where all processors are busy, and slows nobody much."""
_BURST_S, _REST_S = 0.002, 0.006
"""Where all processors are busy: of a processor, in the system's ticks, until it rests, and how long. A scheduler moves
threads as soon as a processor is idle; else it may leave the loop on one with others, and the planner on another."""
_LOADAVG = "/proc/loadavg"
_LOOK_S = 5.0
_BEGIN = """
import sys
sys.path[:] = {path!r}
sys.modules["torch"] = None  # plans need none, and its import takes seconds
from chameleon_lab.planner.process import serve
serve({torch!r})
"""


class PlannerProcessError(Exception):
    """No process can be started, or it has ended in the middle of a call."""


class PlannerInterruptedError(PlannerProcessError):
    """The call has been interrupted: nobody wants its result any more."""


class PlannerProcess:
    """Runs functions in a process of its own, one at a time.

    It begins with the first call, and ends with :meth:`close`, or when the process that it belongs to has ended in
    whatever way. In a forked child there is none.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner: int | None = None
        self._closed = False
        self.spent_s = 0.0
        """Seconds of a processor that the calls have taken there."""

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the function returns. Both it and its arguments are pickled.

        Raises what the function raises, and PlannerProcessError where it cannot be asked.
        """
        asked = pickle.dumps((function, args, kwargs), protocol=5)
        if self._owner is not None and self._owner != os.getpid():
            # A thread of its parent's may have held the lock as it forked.
            raise PlannerProcessError("a forked child has no planning process")
        with self._turn:
            process = self._running()
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(asked)
                process.stdin.flush()
                returned, found, spent_s = pickle.load(process.stdout)
            except Exception as error:  # the pipe has ended, or what comes out of it is no answer
                if self._process is not process:
                    raise PlannerInterruptedError("interrupted") from None
                self.interrupt()
                raise PlannerProcessError(f"the planner's process ended with {process.returncode}") from error
            except BaseException:  # Ctrl-C: its answer must not be taken for the next call's
                self.interrupt()
                raise
        self.spent_s += spent_s
        if returned:
            return cast(T, found)
        raise found

    def call_or_run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """:meth:`call`; where there is no process, the caller's thread runs the function.

        Raises what the function raises, and PlannerInterruptedError.
        """
        try:
            return self.call(function, *args, **kwargs)
        except PlannerInterruptedError:
            raise
        except PlannerProcessError:
            pass
        return function(*args, **kwargs)

    def start(self) -> None:
        """Begin now, so that the next call need not wait for it."""
        with suppress(PlannerProcessError):
            self.call(int)

    def interrupt(self) -> None:
        """End what runs there now, in whichever thread it is waited for. The next call begins anew."""
        process, self._process = self._process, None
        if process is not None and os.getpid() == self._owner:
            process.kill()
            process.wait()

    def close(self) -> None:
        """End the process for good."""
        self._closed = True
        self.interrupt()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise PlannerInterruptedError("closed")
        if self._process is None:
            if not sys.executable or getattr(sys, "frozen", False):
                raise PlannerProcessError("this program is no Python that can be started (sys.executable)")
            self._owner = os.getpid()
            try:
                started = subprocess.Popen(
                    [sys.executable, "-c", _BEGIN.format(path=sys.path, torch=torch_version.installed())],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    # Ctrl-C is the loop's. Between two of the system's sessions nice values may count for nothing: see
                    # "The autogroup feature" in sched(7).
                    process_group=0,
                )
            except OSError as error:
                raise PlannerProcessError(f"no process can be started: {error}") from error
            with suppress(OSError):  # now, since its start takes as much of a processor as a plan
                os.setpriority(os.PRIO_PROCESS, started.pid, os.getpriority(os.PRIO_PROCESS, 0) + _NICE)
            self._process = started
        process = self._process
        if self._closed or process is None:  # by another thread, meanwhile
            self.interrupt()
            raise PlannerInterruptedError("closed")
        return process


def serve(torch: str | None) -> None:
    """Answer calls until there are no more, or the process that makes them has ended. ``torch``: its version there."""
    parent = os.getppid()
    torch_version.note_owners(torch)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, _rest_where_others_wait)
    signal.setitimer(signal.ITIMER_PROF, _BURST_S, _BURST_S)
    calls, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for taken in (0, 1):  # whoever reads or prints does not meet what is pickled
        os.dup2(nothing, taken)
    # A forked child of that process may hold the pipe's other end, so that its end alone does not tell.
    while os.getppid() == parent:
        if not select.select([calls], [], [], _LOOK_S)[0]:
            continue
        try:
            function, args, kwargs = pickle.load(calls)
        except EOFError:
            return
        began_s = time.process_time()
        try:
            returned, found = True, function(*args, **kwargs)
        except Exception as error:
            returned, found = False, error
        answers.write(pickle.dumps((returned, found, time.process_time() - began_s), protocol=5))
        answers.flush()


def _rest_where_others_wait(*_: object) -> None:
    """Between two bytecodes: a plan's parts in C++ are not interrupted."""
    try:
        with open(_LOADAVG) as file:  # proc(5): its fourth field is how many want to run, and of how many
            wanting = int(file.read().split()[3].partition("/")[0])
    except (OSError, IndexError, ValueError):
        return
    if wanting > (os.cpu_count() or 1):
        time.sleep(_REST_S)
