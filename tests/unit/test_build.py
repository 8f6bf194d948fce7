"""What CMake makes of compilers and of PyTorches as people have them, and what the package says of the latter."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from chameleon_lab.util import torch_version
from chameleon_lab.util.torch_version import misfit

ROOT = Path(__file__).parents[2]


def copied(folder: Path) -> Path:
    """The checkout with another package: modules are built into it."""
    copy = folder / "project"
    (copy / "chameleon_lab").mkdir(parents=True)
    for name in ("CMakeLists.txt", "csrc", "tests", "pyproject.toml"):
        (copy / name).symlink_to(ROOT / name)
    return copy


@pytest.mark.parametrize("version", ["2.10.1", "2.99.0.dev20991231+cpu"])
def test_a_torch_that_has_not_been_tested_is_refused_in_a_sentence(tmp_path: Path, version: str) -> None:
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "version.py").write_text(f"__version__ = '{version}'\n")
    options = [f"-DTORCH_DIR={torch}", f"-DPython_EXECUTABLE={sys.executable}", "-DBUILD_PANEL=OFF"]
    command = ["cmake", "-S", copied(tmp_path), "-B", tmp_path / "build", "-G", "Ninja", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = " ".join(done.stderr.split())
    (wanted,) = re.findall(r'^ *"(torch>=.*)",$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert done.returncode and f"torch {version.split('+')[0]} is installed" in said
    assert f'`pip install "{wanted}"` brings one of these' in said


def test_a_torch_that_the_package_does_not_accept_is_not_built_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_version, "_is_wheel", lambda: False)
    monkeypatch.setattr(torch_version, "requires", lambda _: ["numpy", "torch<2.16,>=2.11"])
    for newest in ("2.11.0", "2.15.1+cu132"):
        said = misfit("2.13.0", newest)
        assert said is not None and "build it again" in said and "tested" not in said
    for unknown in ("2.9.0", "2.16.0.dev20261120+cpu", "3.0.0"):
        assert misfit("2.13.0", unknown) == (
            f"chameleon_lab was built for torch 2.13, and torch {unknown} is installed, with which it has not been "
            'tested: `pip install "torch==2.13.*"` mends it'
        )


@pytest.mark.full
def test_a_compiler_that_links_libstdcxx_statically_leaves_modules_without_a_copy_of_it(
    tmp_path: Path,
) -> None:
    """One beside torch's ends the process as the module is imported."""
    copy, build = copied(tmp_path), tmp_path / "build"
    options = ["-DBUILD_PANEL=OFF", "-DBUILD_CUDA=OFF", "-DCMAKE_MODULE_LINKER_FLAGS=-static-libstdc++"]
    python = f"-DPython_EXECUTABLE={sys.executable}"
    for command in (
        ["cmake", "-S", copy, "-B", build, "-G", "Ninja", python, *options],
        ["cmake", "--build", build, "--target", "_planner"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (module,) = (copy / "chameleon_lab").glob("_planner*.so")
    needed = subprocess.run(["readelf", "-d", module], capture_output=True, text=True, check=True).stdout
    assert "[libstdc++.so.6]" in needed
