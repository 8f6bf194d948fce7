"""One `pip install` gives the package, the C++ extension and the prebuilt JupyterLab extension."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from training import HANGS_AFTER_S

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, capture_output=True, text=True, timeout=HANGS_AFTER_S
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment in which nothing but `pip install` of the checkout was done; it sees torch from outside."""
    folder = tmp_path_factory.mktemp("install")
    # A copy of what git knows, so that nothing which was built in the checkout can slip in.
    files = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    source = folder / "source"
    for name in filter(None, files):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    environment = folder / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    run(
        *(
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
            "--no-build-isolation",
            "--no-deps",
        ),
        *("--no-index", "--prefix", environment, "--ignore-installed", source),
    )
    return environment


def test_the_wheel_holds_everything(installed: Path, tmp_path: Path) -> None:
    site = next(installed.glob("lib/python*/site-packages"))
    assert list(site.glob("chameleon_lab/_C*.so"))
    assert not list(site.glob("benchmarks")) and not list(site.glob("tests"))
    # The installed package comes first; torch is found where this test found it.
    here = json.dumps([str(site), *(path for path in sys.path if "site-packages" in path)])
    code = f"""
import sys
sys.path[:0] = {here}
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
import chameleon_lab, torch
assert chameleon_lab.__file__.startswith({str(site)!r}), chameleon_lab.__file__
with chameleon_lab.Session("1MiB") as session:
    held = [torch.full((65536,), float(i)) for i in range(12)]
    assert [x[0].item() for x in held] == list(range(12))
assert session.report().swapped_out_bytes >= 0
print(session.report().peak_bytes)
"""
    assert 0 < int(run(sys.executable, "-c", code, cwd=tmp_path)) <= 1 << 20


def test_jupyterlab_finds_the_prebuilt_extension(installed: Path) -> None:
    extension = installed / "share" / "jupyter" / "labextensions" / "chameleon-lab"
    package = json.loads((extension / "package.json").read_text())
    assert package["name"] == "chameleon-lab"
    assert (extension / package["jupyterlab"]["_build"]["load"]).is_file()
    assert (
        json.loads((extension / "install.json").read_text())["packageName"].replace("_", "-")
        == "chameleon-lab"
    )
