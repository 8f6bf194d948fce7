"""The panel of an installed wheel opens in Chromium, with neither the sources nor a compiler in reach."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from installed import ROOT, bare, built_wheel, environment_with, run

from benchmarks.lab.server import ServerError, jupyter_lab, require_tools


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    wheel = built_wheel(tmp_path_factory.mktemp("wheels"))
    return environment_with(wheel, tmp_path_factory.mktemp("environment"))


@pytest.fixture(scope="module")
def lab_address(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a JupyterLab that runs in that environment, and so do its kernels."""
    # JupyterLab's own pages and settings are where it is installed; the extensions are those of the environment.
    outside = {
        "JUPYTERLAB_DIR": str(Path(sys.prefix, "share", "jupyter", "lab")),
        "JUPYTER_CONFIG_PATH": str(Path(sys.prefix, "etc", "jupyter")),
    }
    cells = [
        "import chameleon_lab, sys\nassert chameleon_lab.__file__.startswith(sys.prefix)\n%load_ext chameleon_lab"
    ]
    try:
        require_tools()
        home = tmp_path_factory.mktemp("jupyter")
        with jupyter_lab(home, {"empty": cells}, python, bare(python) | outside) as address:
            yield address
    except ServerError as error:
        pytest.fail(str(error))


def test_the_panel_of_an_installed_wheel_opens(python: Path, in_browser: Callable[..., dict]) -> None:
    where = "import chameleon_lab; print(chameleon_lab.__file__)"
    assert not run(python, "-c", where, cwd=python.parent, **bare(python)).startswith(str(ROOT))
    found = in_browser("extension_loads")
    assert found["registered"] and found["opened"] == ["toolbar", "launcher"] and found["panels"] == 1
    assert found["errors"] == []
