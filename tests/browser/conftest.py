"""A real JupyterLab on a free port of this machine, and Chromium to drive it."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hangs import HANGS_AFTER_S

from benchmarks.lab.server import ServerError, browser_check, jupyter_lab, notebook_url, require_tools
from chameleon_lab.trace import Trace

ROOT = Path(__file__).parents[2]
SCREENSHOTS = ROOT / "build" / "browser"
BROWSER_DIED = 3
OTHER_LAB = "CHAMELEON_LAB_PYTHON"
"""The Python of another JupyterLab: see scripts/with_lab.sh."""


def _train_until(path: str, pause_s: float) -> str:
    """A cell that trains until there is a file; a check that failed before it wrote one ends it too, late."""
    return f"""\
import os
import time

until = time.time() + {HANGS_AFTER_S}
while time.time() < until and not os.path.exists("{path}"):
    train()
    time.sleep({pause_s})"""


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
    _train_until("trained.txt", pause_s=0.2),
    "cl.current_session().trace().save('run.parquet')\n"
    "whole = open('run.parquet', 'rb').read()\n"
    "open('half.parquet', 'wb').write(whole[:200])",
    "%chameleon panel",
]

# What the check of flame graph, growth, markers and notes runs: a loop that names its parts, and keeps too much.
VIEW_CELLS = [
    TRAIN_CELLS[0],
    TRAIN_CELLS[1]
    .replace(" --stacks", "")
    .replace(
        """\
def train():
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        """\
kept = []


def leak(out):
    kept.append(out.detach().repeat(4, 1).clone())


def train():
    with torch.profiler.record_function("my step"):
        with torch.profiler.record_function("my forward"):
            out = model(batch)
        with torch.profiler.record_function("my backward"):
            out.square().mean().backward()
        leak(out)
        optimizer.step()
        optimizer.zero_grad()
""",
    ),
]

# What the policy editor's check runs: the same training, a loop that goes on until there is a file, and an end.
EDIT_CELLS = [
    TRAIN_CELLS[0],
    TRAIN_CELLS[1].replace("range(6)", "range(4)"),
    _train_until("enough.txt", pause_s=0.1),
    "import os\n\nos._exit(1)",
]

# What the first look runs: the same training, and then what the edit did.
FIRST_LOOK_CELLS = [
    *EDIT_CELLS[:2],
    "train()\n"
    "edits = cl.current_session().policy.edits\n"
    "assert [edit.action for edit in edits] == ['never_touch'], edits",
]

# What the check of replays runs: activations, a link that has no room for them, and ops that make them again for less.
REPLAY_CELLS = [
    TRAIN_CELLS[0],
    """\
import torch
import chameleon_lab as cl

torch.manual_seed(0)
torch.set_num_threads(1)


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


model = torch.nn.Sequential()
model.h = torch.nn.Sequential(*[Block(128) for _ in range(6)])
batch = torch.randn(1024, 128)
%chameleon start --capacity 20MiB --link 100MiB/s
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train():
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


for _ in range(6):
    train()
print(len(cl.current_session().policy.drops))""",
    "for _ in range(5):\n    train()",
]

# What the dashboard's check runs: it is shown before the first step, when there is nothing to draw.
DASHBOARD_CELLS = [
    f"{TRAIN_CELLS[0]}\n{TRAIN_CELLS[1].replace('range(6):', 'range(0):')}\n"
    "session = cl.current_session()\nprint(session.stage)",
    "session.dashboard()",
    _train_until("drawn.txt", pause_s=0.05)
    + """
import threading

policy, trace = session.policy, session.trace()
session.stop()
print("ended")
print([thread for thread in threading.enumerate() if "dashboard" in thread.name])""",
    "policy.draft(trace).gantt()",
]

# What the check of comparing runs: the same training, then its trace and its policy in files.
COMPARE_CELLS = [
    *TRAIN_CELLS[:2],
    "cl.current_session().trace().save('before.parquet')\n"
    "draft = cl.current_session().policy.draft()\n"
    "draft.keep(module='h.0.*').policy().save('kept.json')",
]


def _small_cells(width: int, steps: int) -> list[str]:
    """A session of so many steps on a small model, for checks that ask where a line leads and not what it draws."""
    return [
        "%load_ext chameleon_lab",
        f"""\
import torch

model = torch.nn.Sequential(*[torch.nn.Linear({width}, {width}) for _ in range(4)])
%chameleon start --capacity 64MiB
optimizer = torch.optim.SGD(model.parameters())
for _ in range({steps}):
    model(torch.randn(64, {width})).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()""",
        "from chameleon_lab.lab.panel import comm as line\n"
        "for panel, _ in list(line._line._comms.values()):\n"
        "    panel.send({'version': 99, 'type': 'event', 'name': 'status', 'body': {}})\n"
        "    panel.send('nonsense')\n"
        "    panel.send({'version': 1, 'type': 'event', 'name': 'unheard', 'body': {}})\n"
        "    panel.send({'version': 1, 'type': 'reply', 'id': 999999, 'result': {}})",
        "%chameleon stop",
    ]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.browser)


# What the check of a trace's figure runs: the last cell shows it.
FIGURE_CELLS = [
    "\n".join(_small_cells(256, 3)[:2]),
    "import chameleon_lab as cl\n\n"
    "figure = cl.current_session().trace().figure(cl.current_session().policy)\n"
    "figure.write_html('figure.html')\nfigure",
]


@pytest.fixture(scope="session")
def lab_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """JupyterLab's address."""
    notebooks = {
        "empty": ["1 + 1"],
        "train": TRAIN_CELLS,
        "edit": EDIT_CELLS,
        "first-look": FIRST_LOOK_CELLS,
        "views": VIEW_CELLS,
        "compare": COMPARE_CELLS,
        "replays": REPLAY_CELLS,
        "dashboard": DASHBOARD_CELLS,
        "figure": FIGURE_CELLS,
        "first": _small_cells(256, 4),
        "keys": _small_cells(256, 4),
        "notebook-7": FIRST_LOOK_CELLS,
        "two": FIRST_LOOK_CELLS,
        "second": _small_cells(128, 6),
        "file": [TRAIN_CELLS[0]],
        "axe": [TRAIN_CELLS[0]],
    }
    try:
        require_tools()
        home = tmp_path_factory.mktemp("jupyter")
        with jupyter_lab(home, notebooks, os.environ.get(OTHER_LAB) or sys.executable) as address:
            whole = (Path(__file__).parent / "data" / "blocks.parquet").read_bytes()
            (home / "notebooks" / "blocks.parquet").write_bytes(whole)
            within_its_first_step = whole[: len(whole) // 4]
            (home / "notebooks" / "cut.parquet").write_bytes(within_its_first_step)
            blocks = Trace.load(str(Path(__file__).parent / "data" / "blocks.parquet"))
            blocks.save(str(home / "notebooks" / "part.parquet"))
            whole = (home / "notebooks" / "part.parquet").read_bytes()
            (home / "notebooks" / "part.parquet").write_bytes(whole[: whole.rindex(b"CLab") + 99])
            yield address
    except ServerError as error:
        pytest.fail(str(error))


@pytest.fixture
def in_browser(lab_address: str, tmp_path: Path) -> Callable[..., dict]:
    """Run one of the .mjs checks beside this file with a notebook in front, or a page; returns what it found."""

    def run(check: str, notebook: str = "empty", url: str = "") -> dict:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        for attempt in range(2):
            done = browser_check(
                Path(__file__).with_name(f"{check}.mjs"),
                url or notebook_url(lab_address, notebook),
                SCREENSHOTS / f"{check}.png",
                tmp_path / f"profile-{attempt}",
                timeout_s=HANGS_AFTER_S,
            )
            if done.returncode != BROWSER_DIED:
                break
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
