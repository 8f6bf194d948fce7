"""Saved traces and policies where neither torch nor the compiled core is: a laptop looks at a cluster's run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
import torch
from hangs import HANGS_AFTER_S
from packaging.requirements import Requirement
from synthetic import gpt_step

from chameleon_lab.planner import plan
from chameleon_lab.policy import Link, Policy
from chameleon_lab.trace import Trace
from chameleon_lab.util import torch_version

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
WITHOUT = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch" or name.rpartition(".")[2] == "_C":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
sys.modules["torch"] = sys.modules["chameleon_lab._C"] = None
"""


def run(code: str, *arguments: str | Path, status: int = 0) -> str:
    """What a process without torch and core prints; on stderr where it is to fail."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT + code, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANGS_AFTER_S,
    )
    assert done.returncode == status, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stderr if status else done.stdout


COMMAND = "from chameleon_lab.cli import main\nmain(sys.argv[1:])"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A trace, and a policy for it."""
    folder = tmp_path_factory.mktemp("run")
    step = gpt_step(layers=3)
    meta = {"torch": "2.13.1+cu130", "link_out_bytes_per_s": 4e9, "link_in_bytes_per_s": 4e9}
    trace = Trace([step], meta)
    trace.save(folder / "run.parquet")
    plan(trace, int(0.7 * step.live_peak_bytes), Link(4e9, 4e9)).save(folder / "policy.json")
    return folder / "run.parquet", folder / "policy.json"


@pytest.mark.parametrize("name", ["torch", "torch.nn", "chameleon_lab._C"])
def test_the_process_has_neither(name: str) -> None:
    assert "ModuleNotFoundError" in run(f"import {name}", status=1)


def test_traces_and_policies_open_and_are_planned_with(files: tuple[Path, Path]) -> None:
    said = run(
        """
import chameleon_lab as cl
import chameleon_lab.trace
from chameleon_lab.policy import diff

trace, policy = cl.Trace.load(sys.argv[1]), cl.Policy.load(sys.argv[2])
made = cl.plan(trace, policy.capacity_bytes, policy.link)
assert not diff(policy, made) and made.assumed == policy.assumed, made.assumed
assert cl.simulate(trace, made).step_s > 0
assert cl.lower_bound(trace, policy.capacity_bytes, policy.link).step_s > 0
assert policy.draft(trace).keep(policy.decisions[0].storage).predict().step_s > 0
assert issubclass(cl.BelowFloorError, RuntimeError)
try:
    cl.plan(trace, cl.floor(trace).bytes - 1, policy.link)
except cl.BelowFloorError as error:
    print(error)
print(made.assumed["torch"])
""",
        *files,
    )
    assert "below the floor" in said and said.splitlines()[-1] == "2.13.1+cu130"


def test_the_plan_is_the_one_that_is_made_with_torch(files: tuple[Path, Path], tmp_path: Path) -> None:
    capacity = Policy.load(files[1]).capacity_bytes
    made = tmp_path / "made.json"
    run(COMMAND, "plan", files[0], "--capacity", capacity, "-o", made)
    wanted = plan(Trace.load(files[0]), capacity, Link(4e9, 4e9), margin=Policy.load(made).assumed["margin"])
    assert Policy.load(made).decisions == wanted.decisions


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_commands_on_files_work(files: tuple[Path, Path], more: list[str]) -> None:
    trace, policy = files
    for command in (
        ["report", trace],
        ["simulate", trace, policy],
        ["sweep", trace, "--capacity", "70%"],
        ["recover", trace, "--ranks", "8", "--capacity", "70%"],
        ["diff", policy, policy],
    ):
        said = run(COMMAND, *command, *more)
        assert said and (not more or json.loads(said) is not None)


def test_reports_are_drawn(files: tuple[Path, Path], tmp_path: Path) -> None:
    run(COMMAND, "report", files[0], "--html", tmp_path / "report.html")
    assert "plotly" in (tmp_path / "report.html").read_text().lower()


def test_the_help_lists_what_needs_torch_too() -> None:
    said = run(COMMAND, "--help")
    assert "advise" in said and "run" in said and "report" in said


@pytest.mark.parametrize("command", ["run", "advise"])
def test_commands_that_train_say_what_is_missing(command: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('trained')")
    said = run(COMMAND, command, script, status=4)
    assert len(said.splitlines()) == 1 and "torch is not installed" in said and "pip install" in said


def test_the_panel_draws_and_edits_what_is_saved(files: tuple[Path, Path]) -> None:
    said = run(
        """
import threading, time
from chameleon_lab.lab import magics
from chameleon_lab.lab.panel import comm
from chameleon_lab.lab.panel.protocol import VERSION
from chameleon_lab.lab.panel.sources import Sources

class Comm:
    comm_id = "one"
    def __init__(self):
        self.sent, self.told = [], threading.Event()
    def on_msg(self, callback):
        self.say = callback
    def on_close(self, callback):
        self.hang_up = callback
    def send(self, data, buffers=None):
        self.sent.append((data, buffers))
        if data["type"] == "event":
            self.told.set()
    def close(self):
        pass

def ask(method, **params):
    panel.say({"content": {"data": {"version": VERSION, "id": 1, "method": method, "params": params}}})
    data, buffers = next(each for each in reversed(panel.sent) if each[0]["type"] != "event")
    assert "result" in data, data
    return data["result"], buffers

line, panel = comm.PanelLine(Sources()), Comm()
line.opened(panel, {})
assert panel.told.wait(60)
source = ask("open", path=sys.argv[1])[0]["source"]
ask("open", path=sys.argv[2])
status = ask("status")[0]
assert status["session"] is None and len(status["files"]) == len(status["policies"]) == 1, status
steps = {"source": source, "first": 0, "last": 0}
print(ask("scene", **steps)[0]["peak_bytes"])
result, buffers = ask("view", **steps, axis="op", start=0, end=20, width=400, height=300, rows="packed")
assert buffers, result
assert ask("alive", **steps, axis="op", at=5)[0]
while not (draft := ask("draft", source=source, rebase=False)[0])["editable"]:
    assert draft["why"] == "Preparing the draft", draft
    time.sleep(0.05)
rows = {"query": "", "sort": "bytes", "down": True, "first_row": 0, "count": 5}
page = ask("decisions", source=source, **rows)[0]
change = {"change": "add", "edits": [{"action": "keep", "storage": page["rows"][0]["storage"]}]}
while not (draft := ask("edit", source=source, **change)[0])["exact"]:
    time.sleep(0.05)
assert draft["fits"] and draft["staged"] == 1, draft
line.close()
""",
        *files,
    )
    assert int(said.splitlines()[0]) == Trace.load(files[0]).last.peak_bytes


def test_magics_load_what_is_saved_and_say_what_is_missing(files: tuple[Path, Path]) -> None:
    said = run(
        """
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
import chameleon_lab

shell = InteractiveShell.instance()
chameleon_lab.load_ipython_extension(shell)
for file in sys.argv[1:]:
    shell.run_line_magic("chameleon", f"load {file}")
shell.run_line_magic("chameleon", "status")
try:
    shell.run_line_magic("chameleon", "start --capacity 1MiB")
except UsageError as error:
    print(error)
""",
        *files,
    ).splitlines()
    assert "1 step; newest: " in said[0] and "Loaded a policy" in said[1] and "No session" in said[2]
    assert said[3].startswith("torch is not installed") and len(said) == 4


def test_a_session_says_what_is_missing_and_the_command_that_mends_it() -> None:
    for code in ("import chameleon_lab as cl; cl.Session", "from chameleon_lab.session import Session"):
        said = run(code, status=1).splitlines()[-1]
        assert said.startswith("ImportError: torch is not installed") and "pip install" in said


def of_a_session_beside(folder: Path, trace: Path) -> list[str]:
    """What a process says that finds its torch in a folder: it opens the trace, and then asks for a session."""
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); import chameleon_lab as cl"
    code += "; print(len(cl.Trace.load(sys.argv[1]))); cl.Session"
    done = subprocess.run(
        [sys.executable, "-c", code, str(trace)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANGS_AFTER_S,
    )
    assert (done.returncode, done.stdout) == (1, "1\n"), done.stderr
    return done.stderr.splitlines()


def test_another_torch_is_one_sentence_at_import_and_where_a_session_is_asked_for(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    """Nothing else of it is asked for: it may lack whatever a session needs. Traces open with it all the same."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.99.1+cu130'")
    said = of_a_session_beside(tmp_path, files[0])
    sentence = (
        re.escape("chameleon_lab was built for torch") + r" .*torch 2\.99\.1\+cu130 is installed.*mends it"
    )
    assert re.fullmatch(f"<string>:1: RuntimeWarning: {sentence}", said[0])
    assert re.fullmatch(f"ImportError: {sentence}", said[-1])
    assert sum("was built for" in line for line in said) == 2


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("raise OSError('libcublasLt.so.13: cannot open shared object file')", "OSError: libcublasLt.so.13"),
        ("raise ValueError('libcublasLt.so.*[0-9] not found')", "ValueError: libcublasLt"),
        ("raise ImportError('a later one' if hasattr(sys, 'seen') else 'a symbol')", "ImportError: a symbol"),
    ],
)
def test_traces_open_beside_a_torch_that_does_not_load(
    broken: str, why: str, files: tuple[Path, Path], tmp_path: Path
) -> None:
    """As where CUDA's libraries are missing. The first attempt says why."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(f"import sys\ntry: {broken}\nfinally: sys.seen = True\n")
    said = of_a_session_beside(tmp_path, files[0])[-1]
    assert said.startswith("ImportError: torch does not load (") and why in said and "pip install" in said


def test_helpers_for_tests_say_what_is_missing() -> None:
    assert "torch is not installed" in run("import chameleon_lab.testing", status=1).splitlines()[-1]


def test_the_torch_that_is_loaded_says_its_own_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of torch 2.13.0+cu130 from PyPI calls itself 2.13.0."""
    monkeypatch.setattr(torch_version, "version", lambda name: "2.13.0")
    step = gpt_step(layers=1)
    assert plan(step, step.live_peak_bytes, Link(4e9, 4e9)).assumed["torch"] == torch.__version__


def test_a_draft_of_a_cluster_s_run_keeps_the_torch_of_its_trace(files: tuple[Path, Path]) -> None:
    trace, policy = Trace.load(files[0]), Policy.load(files[1])
    for draft in (policy.draft(trace), plan(trace, policy.capacity_bytes, policy.link).draft()):
        assert draft.keep(policy.decisions[0].storage).policy().assumed["torch"] == "2.13.1+cu130"


def linked(names: list[str], site: Path) -> None:
    """Let an environment see some packages of this one, and what they need."""
    wanted, seen = [Requirement(name) for name in names], set[str]()
    while wanted:
        needed = wanted.pop()
        if needed.name in seen or (needed.marker and not needed.marker.evaluate({"extra": ""})):
            continue
        seen.add(needed.name)
        found = distribution(needed.name)
        for top in {path.parts[0] for path in found.files or ()} - {"..", "__pycache__"}:
            (site / top).symlink_to(found.locate_file(top))
        wanted += map(Requirement, found.requires or ())


def test_an_environment_with_the_packages_that_the_page_names_is_enough(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "command-line.md").read_text().partition("\n## On a laptop, without torch\n")[2]
    (named,) = [line.split()[2:] for line in page.splitlines() if line.startswith("pip install numpy")]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "laptop"], check=True)
    (site,) = (tmp_path / "laptop").glob("lib/python*/site-packages")
    linked(named, site)
    built = shutil.ignore_patterns("_C*", "_built_for.py", "labextension", "__pycache__")
    shutil.copytree(ROOT / "chameleon_lab", site / "chameleon_lab", ignore=built)

    def chameleon(*arguments: str | Path, status: int = 0) -> str:
        done = subprocess.run(
            [tmp_path / "laptop" / "bin" / "python", "-m", "chameleon_lab", *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": ""},
            capture_output=True,
            text=True,
            timeout=HANGS_AFTER_S,
        )
        assert done.returncode == status, done.stderr[-3000:]
        return done.stderr if status else done.stdout

    trace, policy = files
    assert not (site / "torch").exists() and "Peak" in chameleon("report", trace)
    chameleon("plan", trace, "--capacity", "70%", "-o", "made.json")
    assert len(Policy.load(tmp_path / "made.json")) > 0
    assert "step" in chameleon("simulate", trace, policy).lower() and chameleon("sweep", trace)
    assert chameleon("diff", policy, policy)
    (tmp_path / "train.py").write_text("print('trained')")
    assert "`pip install torch` mends it" in chameleon("run", "train.py", status=4)


def test_a_core_that_is_missing_is_named() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.modules['chameleon_lab._C'] = None; import chameleon_lab; chameleon_lab.Session",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANGS_AFTER_S,
    )
    said = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "C++ extension" in said and "pip install ." in said
