"""Processes that begin where PyTorch has been imported: most of a small test's time would go there.

As a program, this is a server: it imports PyTorch, runs no op, and forks a child for each request. The child runs the
request's source as its ``__main__``, and ends as any Python process does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType

FLAGS = ("-X", "faulthandler", "-W", "ignore")


class ChildServer:
    """Runs one child at a time, with the environment that this process has now."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self._server, its = Pipe()
        command = [sys.executable, *FLAGS, __file__, str(its.fileno())]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[its.fileno()]
        )
        its.close()  # so the server ends with this process

    def __enter__(self) -> ChildServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        self._process.wait()

    def has(self, environment: Mapping[str, str]) -> bool:
        """Is it what the server has, but for what pytest says there?"""
        differing = environment.items() ^ self._environment.items()
        return {name for name, _ in differing} <= {"PYTEST_CURRENT_TEST"}

    def run(self, source: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """As subprocess.run() with its output. Raises subprocess.TimeoutExpired after the child has been killed."""
        with tempfile.TemporaryDirectory() as folder:
            outputs = [Path(folder, stream) for stream in ("stdout", "stderr")]
            self._server.send((source, os.getcwd(), [str(path) for path in outputs]))
            pid = self._server.recv()
            in_time = self._server.poll(timeout_s)
            if not in_time:
                os.kill(pid, 9)
            code = self._server.recv()
            stdout, stderr = (path.read_text(errors="replace") for path in outputs)
        if not in_time:
            raise subprocess.TimeoutExpired(source, timeout_s, stdout, stderr.encode())
        return subprocess.CompletedProcess(source, code, stdout, stderr)


def _serve(client: Connection) -> str:
    """In the server, until its client ends. In each child, returns the child's source."""
    while True:
        try:
            source, folder, outputs = client.recv()
        except EOFError:
            return ""
        pid = os.fork()
        if pid == 0:
            client.close()
            os.chdir(folder)
            for number, path in enumerate(outputs, start=1):
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(file, number)
                os.close(file)
            return source
        client.send(pid)
        client.send(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _as_main(source: str) -> CodeType:
    """The compiled source; ``__main__`` is empty for it, as for ``python -c``."""
    program = compile(source, "<string>", "exec", dont_inherit=True)
    sys.argv[:], sys.path[0] = ["-c"], ""
    for name in [name for name in globals() if not name.startswith("__") or name == "__file__"]:
        del globals()[name]
    return program


if __name__ == "__main__":
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import torch._dynamo  # noqa: F401 - an optimizer's first one imports it

    exec(_as_main(_serve(Connection(int(sys.argv[1])))), globals())
