"""Notebook 7, where the JupyterLab under test has it beside it: scripts/with_lab.sh brings it."""

import os
import urllib.error
import urllib.request

import pytest

from benchmarks.lab.server import TOKEN

OTHER_LAB = "CHAMELEON_LAB_PYTHON"  # set by scripts/with_lab.sh


def test_the_panel_opens_beside_a_notebook_and_an_edit_reaches_the_kernel(in_browser, lab_address):
    server = lab_address.removesuffix("/lab")
    try:
        urllib.request.urlopen(f"{server}/tree?token={TOKEN}").close()
    except urllib.error.HTTPError as error:
        if error.code != 404 or OTHER_LAB in os.environ:
            raise
        pytest.skip(
            "Notebook 7 is not installed beside this JupyterLab: scripts/with_lab.sh runs this with one"
        )
    found = in_browser("notebook_7", url=f"{server}/notebooks/notebook-7.ipynb?token={TOKEN}")
    # Notebook's own file browser may open the page's file before its commands are there: `restoreBrowser` in
    # packages/filebrowser-extension/src/index.ts of JupyterLab 4.4.
    errors = [
        error for error in found["errors"] if "Command 'filebrowser:open-path' not registered" not in error
    ]
    assert errors == []
    assert found["trained"] == ["ok", "ok"] and found["reached"] == "ok"
    assert found["panels"] == [1, 1] and found["seen"]
    assert {"Ops", "Swap-out", "Swap-in", "Resident"} <= {*found["drawn"]}, found["drawn"]
