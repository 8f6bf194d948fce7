"""Every notebook in tutorials/ runs from top to bottom, headless, as a reader would run it."""

import os
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

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
        notebook, timeout=1200, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
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


def texts(outputs):
    return [output.text for output in outputs if output.output_type == "stream"]
