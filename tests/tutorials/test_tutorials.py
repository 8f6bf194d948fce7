"""Every notebook in tutorials/ runs from top to bottom, headless, as a reader would run it."""

import base64
import os
import re
import sys
from pathlib import Path

import nbclient
import nbformat
import numpy as np
import pytest
from hangs import HANGS_AFTER_S

ROOT = Path(__file__).resolve().parents[2]
FIGURES = {"application/vnd.plotly.v1+json", "application/vnd.jupyter.widget-view+json"}
NOTEBOOKS = sorted((ROOT / "tutorials").glob("*.ipynb"))


def read(path):
    return nbformat.read(path, as_version=4)


def test_there_are_tutorials():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_stored_without_outputs(path):
    notebook = read(path)
    assert notebook.metadata.kernelspec.name == "python3"
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None, cell.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_imports_nothing_from_inside_the_package(path):
    for cell in read(path).cells:
        if cell.cell_type == "code":
            assert not re.findall(r"(?:from|import) chameleon_lab\.\S+", cell.source), cell.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path, monkeypatch, tmp_path):
    # The kernel is this Python, whatever the kernel of that name on this machine is.
    kernels = tmp_path / "kernels" / "python3"
    kernels.mkdir(parents=True)
    (kernels / "kernel.json").write_text(
        f'{{"argv": ["{sys.executable}", "-m", "ipykernel_launcher", "-f", "{{connection_file}}"], '
        '"display_name": "Python 3", "language": "python"}'
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = read(path)
    client = nbclient.NotebookClient(
        notebook,
        timeout=HANGS_AFTER_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()

    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error"]
    # Usage errors of magics are shown, and stop nothing.
    assert not [text for text in texts(outputs) if "UsageError" in text]
    assert "All checks passed.\n" in texts(outputs)
    drawn = [output for output in outputs if FIGURES & set(output.get("data", {}))]
    assert len(drawn) >= 2
    assert outputs[-1] is drawn[-1] and outputs[-1] in notebook.cells[-1].outputs, "it ends with a figure"
    if path.stem in CHECKS:
        CHECKS[path.stem](outputs)


def has_a_knee(outputs):
    drawn = outputs[-1]["data"]["application/vnd.plotly.v1+json"]["data"]
    curve = next(trace for trace in drawn if trace["name"] == "Step, predicted")
    knee = next(trace for trace in drawn if trace["name"].startswith("Knee"))
    x, y = values(curve["x"]), values(curve["y"])
    assert min(x) < values(knee["x"])[0] < max(x) and max(y) > 1.05 * min(y)


def says_where_it_trains(outputs):
    assert texts(outputs)[0] in ("Training on the 'cpu' device.\n", "Training on the 'cuda' device.\n")
    assert not [output.text for output in outputs if output.get("name") == "stderr"]


def values(column):
    """Of a figure's JSON, in which numpy arrays are bytes."""
    if isinstance(column, dict):
        return np.frombuffer(base64.b64decode(column["bdata"]), dtype=column["dtype"]).tolist()
    return column


CHECKS = {"03-edit-a-policy": has_a_knee, "04-train-an-oversize-model": says_where_it_trains}
"""What some of them promise besides."""


def texts(outputs):
    return [output.text for output in outputs if output.output_type == "stream"]
