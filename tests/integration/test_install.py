"""A wheel of ``make wheel`` brings the package, the C++ extension and the panel, for one minor version of PyTorch."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from installed import ROOT, bare, built_wheel, environment_with, run
from packaging.requirements import Requirement

import chameleon_lab as cl
from chameleon_lab.util.torch_version import minor_of, misfit

pytestmark = pytest.mark.full

MINOR = minor_of(torch.__version__)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel for the PyTorch that is installed here, of a copy of what git knows."""
    packages = ROOT / "node_modules"
    before = sorted(packages.glob("*"))
    built = built_wheel(tmp_path_factory.mktemp("wheels"))
    assert not list((ROOT / "build" / "wheel").glob("*/biome.json")), "make lint would end there"
    assert sorted(packages.glob("*")) == before, "npm has emptied the checkout's own packages"
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment into which the wheel was installed."""
    return environment_with(wheel, tmp_path_factory.mktemp("environment"))


def test_the_metadata_accept_this_minor_of_torch_alone(wheel: Path) -> None:
    assert wheel.name.startswith(f"chameleon_lab-{cl.__version__}+torch{MINOR}-cp3")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        text = archive.read(name).decode()
    wanted = [
        line.removeprefix("Requires-Dist: ")
        for line in text.split("\n")
        if line.startswith("Requires-Dist: ")
    ]
    (needed,) = [each for each in map(Requirement, wanted) if each.name == "torch"]
    major, minor = map(int, MINOR.split("."))
    assert torch.__version__ in needed.specifier and f"{MINOR}.7" in needed.specifier
    assert all(f"{major}.{other}.0" not in needed.specifier for other in (minor - 1, minor + 1))
    assert f"\nVersion: {cl.__version__}+torch{MINOR}\n" in text


def test_the_wheel_is_whole_and_names_no_registry(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (record,) = [name for name in names if name.endswith(".dist-info/RECORD")]
        rows = [line.rsplit(",", 2) for line in archive.read(record).decode().splitlines()]
        assert sorted(row[0] for row in rows) == sorted(names)
        for name, digest, size in rows:
            data = archive.read(name)
            if name != record:
                found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                assert (digest, int(size)) == (f"sha256={found}", len(data)), name
            if name.endswith((".json", "METADATA", ".py", ".txt")):
                assert not re.search(rb'://[^/"]*(registry|pypi|npmjs)|"resolved"', data), name
    folders = {name.split("/")[0] for name in names}
    assert folders == {
        "chameleon_lab",
        record.split("/")[0],
        record.split("/")[0].replace("dist-info", "data"),
    }
    assert not [name for name in names if "package-lock" in name]


def test_the_command_and_a_session_run_without_a_compiler(python: Path, tmp_path: Path) -> None:
    command = python.parent / "chameleon"
    told = run(command, "--version", cwd=tmp_path, **bare(python))
    assert told == f"chameleon, version {cl.__version__}\n"
    code = """
import chameleon_lab, sys, torch
assert chameleon_lab.__file__.startswith(sys.prefix), chameleon_lab.__file__
with chameleon_lab.Session("1MiB", device="cpu") as session:
    held = [torch.full((65536,), float(i)) for i in range(12)]
    assert [x[0].item() for x in held] == list(range(12))
print(session.report().peak_bytes)
"""
    assert 0 < int(run(python, "-c", code, cwd=tmp_path, **bare(python))) <= 1 << 20


def test_jupyterlab_finds_the_panel_and_the_kernel_answers_it(python: Path, tmp_path: Path) -> None:
    code = """
import json, sys
from pathlib import Path
from jupyterlab_server.config import get_federated_extensions
(found,) = [each for each in get_federated_extensions([str(Path(sys.prefix, "share/jupyter/labextensions"))]).values()]
print(json.dumps([found["name"], found["jupyterlab"]["_build"]["load"], found["ext_path"]]))
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "chameleon_lab")
shell.run_line_magic("chameleon", "status")
"""
    environment = bare(python) | {"IPYTHONDIR": str(tmp_path)}
    first, status = run(python, "-c", code, cwd=tmp_path, **environment).splitlines()
    name, load, folder = json.loads(first)
    assert name == "chameleon-lab" and (Path(folder) / load).is_file()
    told = json.loads((Path(folder) / "install.json").read_text())
    assert told["packageName"].replace("_", "-") == "chameleon-lab"
    assert status.startswith("No session. Next: %chameleon start")


def test_another_torch_is_one_sentence_with_the_command_that_mends_it(python: Path, tmp_path: Path) -> None:
    """Nothing else of it is asked for: it may lack whatever the package needs."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.99.1+cu130'")
    said = run(
        *(python, "-c", "import chameleon_lab; chameleon_lab.Trace; chameleon_lab.Session"),
        cwd=tmp_path,
        code=1,
        **bare(python) | {"PYTHONPATH": str(tmp_path)},
    )
    assert said.splitlines()[-1] == (
        f"ImportError: chameleon_lab was built for torch {MINOR}, and torch 2.99.1+cu130 is installed: "
        f'`pip install "torch=={MINOR}.*"` mends it, or the wheel of chameleon-lab for torch 2.99'
    )


def test_releases_of_one_minor_are_one_build() -> None:
    assert misfit("2.13.0", "2.13.0+cpu") is None and misfit("2.13.0", "2.13.1+cu130") is None
    said = misfit("2.13.0", "2.1.3")
    assert said is not None and "torch 2.13," in said and "torch 2.1.3 is installed" in said
    assert "pip install" in said


def test_unknown_minors_are_refused() -> None:
    said = run(sys.executable, "scripts/wheel.py", "2.10", code=2)
    assert "there is no wheel for torch 2.10: give some of 2.11, 2.12, 2.13, 2.14, 2.15" in said
