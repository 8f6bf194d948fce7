"""What `import chameleon_lab` and its names load: torch, numpy and itself. Looked at in processes of their own."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from hangs import HANGS_AFTER_S

ROOT = Path(__file__).parents[2]
OPTIONAL = (
    *("IPython", "ipykernel", "jupyterlab", "ipywidgets", "anywidget", "comm"),
    *("plotly", "bokeh", "jupyter_bokeh", "pyarrow", "pandas", "scipy", "tqdm", "transformers"),
)


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=HANGS_AFTER_S
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_import_loads_nothing_that_torch_does_not() -> None:
    loaded = run(
        "import sys, torch, numpy\n"
        "before = set(sys.modules)\n"
        "import chameleon_lab\n"
        "for name in chameleon_lab.__all__: getattr(chameleon_lab, name)\n"
        "new = set(sys.modules) - before\n"
        "print(*sorted({name.split('.')[0] for name in new} | ({'torch.utils.flop_counter'} & new)))"
    ).split()
    assert "chameleon_lab" in loaded
    assert "torch.utils.flop_counter" not in loaded, "in a CUDA build of torch it loads Triton"
    assert set(loaded) <= {"chameleon_lab", "torch", "numpy", *sys.stdlib_module_names}, loaded


def test_import_waits_for_what_is_asked_of_it() -> None:
    loaded = run(
        "import sys\n"
        "import chameleon_lab\n"
        "assert {*chameleon_lab.__all__} <= {*dir(chameleon_lab)}\n"
        "print(*sorted(sys.modules))\n"
        "assert chameleon_lab.policy.diff and chameleon_lab.trace.Trace is chameleon_lab.Trace\n"
        "try: chameleon_lab.nothing\n"
        "except AttributeError as error: print(error)\n"
    )
    names = {*loaded.splitlines()[0].split()}
    assert not {f"chameleon_lab.{name}" for name in ("session", "policy", "trace.store", "lab")} & names
    assert loaded.splitlines()[1] == "module 'chameleon_lab' has no attribute 'nothing'"


def test_saving_a_trace_imports_no_pandas(tmp_path: Path) -> None:
    """It takes most of a second, which a training would wait for that saves its newest steps."""
    loaded = run(
        "import sys\n"
        "sys.path.insert(0, 'tests/unit')\n"
        "from synthetic import gpt_step\n"
        "from chameleon_lab.trace import Trace\n"
        f"Trace([gpt_step(layers=2)], {{}}).save({str(tmp_path / 'trace.parquet')!r})\n"
        "print(*sys.modules)\n"
    ).split()
    assert "pyarrow.parquet" in loaded and "pandas" not in loaded


def test_the_drawing_of_a_step_imports_no_pandas() -> None:
    """As above: the panel's first drawing of a kernel."""
    loaded = run(
        "import sys\n"
        "sys.path.insert(0, 'tests/unit')\n"
        "from synthetic import gpt_step\n"
        "from chameleon_lab.lab.panel.scene import Scene\n"
        "from chameleon_lab.lab.panel.views import view\n"
        "scene = Scene([gpt_step(layers=2)], {})\n"
        "view(scene, 'op', 0.0, float(scene.op_count), 1200, 600, 'storage')\n"
        "print(*sys.modules)\n"
    ).split()
    assert "pyarrow.ipc" in loaded and "pandas" not in loaded


def test_torchs_allocator_is_handed_functions_of_python_through_ours_from_the_import_on() -> None:
    """They ask for Python's lock where a session holds its own: only its allocator knows when."""
    said = run(
        "import torch\n"
        "calls = []\n"
        "torch._C._cuda_attach_out_of_memory_observer = calls.append\n"  # as a CUDA build has them
        "torch._C._cuda_record_memory_history = lambda *options: calls.append(options)\n"
        "import chameleon_lab\n"
        "from chameleon_lab.runtime import core\n"
        "core.stand_in_front = lambda device: calls.append(f'in front on {device}')\n"
        "torch._C._cuda_attach_out_of_memory_observer('observer')\n"  # no GPU: for torch to say
        "torch.cuda.is_available = lambda: True\n"
        "torch.cuda.init = lambda: calls.append('init')\n"
        "torch._C._cuda_attach_out_of_memory_observer('observer')\n"
        "torch._C._cuda_record_memory_history('all', 'all')\n"
        "print(calls)\n"
    )
    in_front = ["init", "in front on cuda"]
    assert said.strip() == str(["observer", *in_front, "observer", *in_front, ("all", "all")])


def test_a_training_node_reports_and_draws_without_the_lab(tmp_path: Path) -> None:
    """What `pip install chameleon-lab` brings is enough for the command line, and for reports with figures."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lab = [re.split(r"[<>=]", name)[0] for name in project["optional-dependencies"]["lab"]]
    assert {"ipython", "jupyterlab", "comm"} <= {*lab}
    modules = [{"ipython": "IPython"}.get(name, name) for name in lab]
    printed = run(
        f"""
import sys

sys.modules.update(dict.fromkeys({modules!r}))  # importing these now fails as if they were missing
sys.path.insert(0, "tests/unit")
from synthetic import gpt_step
from chameleon_lab.cli import chameleon
from chameleon_lab.trace import Trace

trace, page = {str(tmp_path / "t.parquet")!r}, {str(tmp_path / "t.html")!r}
Trace([gpt_step(layers=2)], {{}}).save(trace)
for words in [["report", trace, "--html", page], ["plan", trace, "--capacity", "50%", "--link", "8GiB/s"]]:
    chameleon.main(words, standalone_mode=False)
"""
    )
    assert "plotly" in (tmp_path / "t.html").read_text().lower()
    assert "Peak" in printed


def test_training_and_reports_work_where_nothing_optional_is_installed() -> None:
    printed = run(
        f"""
import sys

sys.modules.update(dict.fromkeys({OPTIONAL!r}))  # importing these now fails as if they were missing
import torch
import chameleon_lab as cl

model = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(4)))
optimizer = torch.optim.AdamW(model.parameters())
with cl.Session("512KiB") as session:
    for _ in range(4):
        model(torch.ones(8, 128)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
print(session.report())
policy = session.policy
assert policy is not None and cl.Policy.from_json(policy.to_json()) == policy
print(policy)
try:
    session.trace().save("never.parquet")
except ImportError as error:
    print("refused:", error)
"""
    )
    assert "Peak resident" in printed and "Policy:" in printed
    assert "refused:" in printed and "pyarrow" in printed.rpartition("refused:")[2]
