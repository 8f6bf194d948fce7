"""A real JupyterLab on a free port of this machine, which reads no settings of the person who runs it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHROMIUM = "/usr/bin/chromium"
TOKEN = "local"
_STARTS_WITHIN_S = 900  # a busy machine takes its time
_ENDS_WITHIN_S = 30
_SAYS_WITHIN_S = 120  # a check whose time is over takes a last picture, and closes its browser


class ServerError(Exception):
    """A tool is missing, or JupyterLab did not start; made to be shown."""


def require_tools() -> None:
    """Raises ServerError, which names what is missing, where a browser cannot be driven."""
    for tool in ("node", CHROMIUM, str(ROOT / "node_modules" / "playwright-core" / "cli.js")):
        if not shutil.which(tool, mode=os.F_OK):
            raise ServerError(f"The browser needs {tool}: run `make dev`.")


@contextmanager
def jupyter_lab(
    home: Path,
    notebooks: Mapping[str, Sequence[str]],
    python: str | Path = sys.executable,
    environment: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Serve notebooks of these names and cells from ``home``; gives JupyterLab's address, without the notebook.

    ``python``: whose JupyterLab, kernels and panel, by default this one's; ``environment`` has variables of theirs.

    Raises ServerError if it does not start.
    """
    import nbformat

    folder = home / "notebooks"
    folder.mkdir(parents=True)
    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    for name, cells in notebooks.items():
        nbformat.write(
            nbformat.v4.new_notebook(
                metadata={"kernelspec": kernel}, cells=[nbformat.v4.new_code_cell(cell) for cell in cells]
            ),
            folder / f"{name}.ipynb",
        )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        *(str(python), "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1"),
        *(f"--port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}"),
        *(f"--ServerApp.root_dir={folder}", "--LabApp.expose_app_in_browser=True"),
        "--JupyterNotebookApp.expose_app_in_browser=True",  # where Notebook 7 is installed beside it
        "--LabApp.extension_manager=readonly",  # the usual one asks the internet
    ]
    log = home / "server.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {}), **_own_folders(home)},
            text=True,
            start_new_session=True,
        )
    try:
        _wait_for(f"http://127.0.0.1:{port}/api/status?token={TOKEN}", server, log)
        yield f"http://127.0.0.1:{port}/lab"
    finally:
        server.terminate()
        try:
            server.wait(timeout=_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            _kill_all(server)
            server.wait()


def browser_check(
    script: str | Path,
    url: str,
    screenshot: str | Path,
    profile: str | Path,
    *more: str,
    timeout_s: float,
) -> subprocess.CompletedProcess[str]:
    """Run a script that is made of ``tests/browser/lab.mjs``; its status and what it printed.

    Args:
        script: to run with node.
        url: of the page to begin with, as :func:`notebook_url` gives it.
        screenshot: where the last picture goes; named ones go beside it.
        profile: a folder for what Chromium writes.
        more: what else the script is told.
        timeout_s: what it may take; it then ends by itself, and says what it waited for.

    Raises TimeoutError if it does not.
    """
    command = ["node", str(script), url, str(screenshot), str(profile), *more]
    return bounded(command, timeout_s + _SAYS_WITHIN_S, {"CHECK_ENDS_WITHIN_S": f"{timeout_s:g}"})


def bounded(
    command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command that starts a browser; its status and what it printed. ``environment`` has variables of its own.

    Raises TimeoutError if it takes longer: it is then ended, with all that it has started.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    ) as process:
        try:
            printed, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            _kill_all(process)
            said = _said(process)
            raise TimeoutError(f"{' '.join(command)} did not end within {timeout_s:g} s:\n{said}") from error
        except BaseException:
            _kill_all(process)
            raise
    return subprocess.CompletedProcess(command, process.returncode, printed, errors)


def _said(process: subprocess.Popen[str]) -> str:
    """What a killed process has printed, unless something that outlives it holds its output open."""
    try:
        return "".join(process.communicate(timeout=_ENDS_WITHIN_S))
    except subprocess.TimeoutExpired:
        return "(its output stays open)"


def _kill_all(process: subprocess.Popen[str]) -> None:
    """Kill a process and what it has started; Playwright gives Chromium a process group of its own."""
    groups = {process.pid}
    for pid in _descendants(process.pid):
        with suppress(ProcessLookupError):
            groups.add(os.getpgid(pid))
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    children = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # it has ended
            children += [int(child) for child in listed.read_text().split()]
    return children + [below for child in children for below in _descendants(child)]


def notebook_url(address: str, notebook: str, reset: bool = True) -> str:
    """Where JupyterLab shows a notebook; ``reset`` forgets the layout of before."""
    return f"{address}/tree/{notebook}.ipynb?token={TOKEN}" + ("&reset" if reset else "")


def _own_folders(home: Path) -> dict[str, str]:
    names = (
        *("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"),
        *("JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR"),
    )
    folders = {name: str(home / name) for name in names}
    quiet = Path(folders["JUPYTERLAB_SETTINGS_DIR"], "@jupyterlab", "apputils-extension")
    quiet.mkdir(parents=True)
    (quiet / "notification.jupyterlab-settings").write_text(
        json.dumps({"fetchNews": "false", "checkForUpdates": False})
    )
    return folders


def _wait_for(url: str, server: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + _STARTS_WITHIN_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise ServerError(f"JupyterLab did not start:\n{log.read_text()}")
