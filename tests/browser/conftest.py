"""A real JupyterLab on a free port of this machine, and Chromium to drive it."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
SCREENSHOTS = ROOT / "build" / "browser"
TOKEN = "browser-test"
BROWSER_DIED = 3

# What the panel's check runs, a cell at a time.
TRAIN_CELLS = [
    "%load_ext chameleon_lab",
    """\
import torch
import chameleon_lab as cl

torch.manual_seed(0)


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


model = torch.nn.Sequential()
model.h = torch.nn.Sequential(*[Block(256) for _ in range(6)])
batch = torch.randn(256, 256)
%chameleon start --capacity 24MiB --link 1GiB/s --stacks
optimizer = torch.optim.Adam(model.parameters(), foreach=False)


def train():
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


for _ in range(6):
    train()""",
    """\
import time

until = time.time() + 25
while time.time() < until and not globals().get("enough"):
    train()
    time.sleep(0.2)""",
    "cl.current_session().trace().save('run.parquet')\n"
    "whole = open('run.parquet', 'rb').read()\n"
    "open('half.parquet', 'wb').write(whole[: len(whole) // 2])",
    "%chameleon panel",
]

# What the dashboard's check runs.
DASHBOARD_CELLS = [
    f"{TRAIN_CELLS[0]}\n{TRAIN_CELLS[1]}\nsession = cl.current_session()\nprint(session.stage)",
    "session.dashboard()",
    """\
import os
import threading
import time

until = time.time() + 120
while time.time() < until and not os.path.exists("enough.txt"):
    train()
    time.sleep(0.05)
policy, trace = session.policy, session.trace()
session.stop()
print("ended")
print([thread for thread in threading.enumerate() if "dashboard" in thread.name])""",
    "policy.draft(trace).gantt()",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def lab_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """JupyterLab's address. The server reads no settings of the person who runs the tests."""
    for tool in ("node", "/usr/bin/chromium", str(ROOT / "node_modules" / "playwright-core" / "cli.js")):
        if not shutil.which(tool, mode=os.F_OK):
            pytest.fail(f"The browser tests need {tool}: run `make dev`, or choose -m 'not browser'.")

    home = tmp_path_factory.mktemp("jupyter")
    notebooks = home / "notebooks"
    notebooks.mkdir()
    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    for name, cells in {"empty": ["1 + 1"], "train": TRAIN_CELLS, "dashboard": DASHBOARD_CELLS}.items():
        nbformat.write(
            nbformat.v4.new_notebook(
                metadata={"kernelspec": kernel}, cells=[nbformat.v4.new_code_cell(cell) for cell in cells]
            ),
            notebooks / f"{name}.ipynb",
        )

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1"),
        *(f"--port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}"),
        *(f"--ServerApp.root_dir={notebooks}", "--LabApp.expose_app_in_browser=True"),
        "--LabApp.extension_manager=readonly",  # the usual one asks the internet
    ]
    folders = {
        name: str(home / name)
        for name in (
            *("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"),
            *("JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR"),
        )
    }
    quiet = Path(folders["JUPYTERLAB_SETTINGS_DIR"], "@jupyterlab", "apputils-extension")
    quiet.mkdir(parents=True)
    (quiet / "notification.jupyterlab-settings").write_text(
        json.dumps({"fetchNews": "false", "checkForUpdates": False})
    )
    log = home / "server.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=os.environ | folders
        )
    try:
        _wait_for(f"http://127.0.0.1:{port}/api/status?token={TOKEN}", server, log)
        yield f"http://127.0.0.1:{port}/lab/tree/empty.ipynb?token={TOKEN}&reset"
    finally:
        server.terminate()
        server.wait(timeout=30)


def _wait_for(url: str, server: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    pytest.fail(f"JupyterLab did not start:\n{log.read_text()}")


@pytest.fixture
def in_browser(lab_url: str, tmp_path: Path) -> Callable[..., dict]:
    """Run one of the .mjs checks beside this file with a notebook in front, and return what it found."""

    def run(check: str, notebook: str = "empty") -> dict:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        for attempt in range(2):
            done = subprocess.run(
                [
                    *("node", str(Path(__file__).with_name(f"{check}.mjs"))),
                    lab_url.replace("empty", notebook),
                    *(str(SCREENSHOTS / f"{check}.png"), str(tmp_path / f"profile-{attempt}")),
                ],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=240,
            )
            if done.returncode != BROWSER_DIED:
                break
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
