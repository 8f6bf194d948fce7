"""What CMake makes of compilers as people have them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.full
def test_a_compiler_that_links_libstdcxx_statically_leaves_modules_without_a_copy_of_it(
    tmp_path: Path,
) -> None:
    """One beside torch's ends the process as the module is imported."""
    copy = tmp_path / "project"
    (copy / "chameleon_lab").mkdir(parents=True)  # modules are built into the checkout
    for name in ("CMakeLists.txt", "csrc", "tests", "pyproject.toml"):
        (copy / name).symlink_to(ROOT / name)
    build = tmp_path / "build"
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
