"""Is everything here that the GPU check needs? Says what is missing, before a long build finds out.

python -m benchmarks.gpu.ready [--device cpu]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

LEAST_TORCH = (2, 11)
LEAST_CMAKE = (3, 25)
LEAST_BUILDER = (0, 11)

TO_RUN = ("numpy", "pytest")
TO_BUILD = ("pip", "scikit_build_core", "pathspec", "packaging")
WISHES = {
    "transformers": "the Llama of tests/cuda is left out, and the peers offload checkpoints by save_on_cpu alone",
    "triton": "the Triton kernel of tests/cuda is left out",
    "trl": "OffloadActivations is left out of the peers (a wheel in build/wheels brings it; torchtune has it too)",
    "accelerate": "TRL's OffloadActivations, which imports it, is left out of the peers (a wheel brings it)",
    "psutil": "TRL's OffloadActivations, which imports it, is left out of the peers (a wheel brings it)",
}
TOOL_WISHES = {"compute-sanitizer": "its run over a short training is left out"}
"""What is done without, and what is lost: Python packages, and programs."""


def missing(device: str) -> list[str]:
    """What to install, in words; nothing where all is there."""
    wanted = [f"the Python package {name}" for name in TO_RUN if find_spec(name) is None]
    if find_spec("torch") is None:
        return [
            f"torch {text_of(LEAST_TORCH)} or newer" + (" with CUDA" if device == "cuda" else ""),
            *wanted,
        ]
    import torch

    if version_of(torch.__version__) < LEAST_TORCH:
        wanted.append(f"torch {text_of(LEAST_TORCH)} or newer: this is {torch.__version__}")
    if device != "cuda":
        return wanted
    if torch.version.cuda is None:
        wanted.append(f"a torch that is built with CUDA: this is {torch.__version__}")
    elif not torch.cuda.is_available():
        wanted.append("an NVIDIA GPU with its driver: torch finds none (try nvidia-smi)")
    wanted += [f"the Python package {name}" for name in TO_BUILD if find_spec(name) is None]
    if (
        find_spec("scikit_build_core")
        and version_of(found := metadata.version("scikit-build-core")) < LEAST_BUILDER
    ):
        wanted.append(f"scikit-build-core {text_of(LEAST_BUILDER)} or newer: this is {found}")
    return wanted + _tools_missing()


def lacking() -> list[tuple[str, str]]:
    """What the check does without here, and what is lost."""
    found = [(name, lost) for name, lost in WISHES.items() if find_spec(name) is None]
    return found + [(name, lost) for name, lost in TOOL_WISHES.items() if shutil.which(name) is None]


def _tools_missing() -> list[str]:
    wanted = []
    cmake = shutil.which("cmake")
    if cmake is None and find_spec("cmake") is None:
        wanted.append(f"cmake {text_of(LEAST_CMAKE)} or newer")
    elif cmake is not None and (found := _cmake_version(cmake)) < LEAST_CMAKE:
        wanted.append(f"cmake {text_of(LEAST_CMAKE)} or newer: {cmake} is {text_of(found)}")
    if shutil.which("ninja") is None and find_spec("ninja") is None:
        wanted.append("ninja")
    compiler = os.environ.get("CXX", "c++").split()[0]
    if shutil.which(compiler) is None:
        wanted.append(f"a C++20 compiler: there is no {compiler} (set CXX)")
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.exists():
        wanted.append(f"Python's headers ({header}): a package such as python3-dev has them")
    return wanted


def _cmake_version(cmake: str) -> tuple[int, ...]:
    try:
        said = subprocess.run([cmake, "--version"], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return (0, 0)
    return version_of(said.partition("version ")[2] or "0.0")


def version_of(text: str) -> tuple[int, ...]:
    """Major and minor of what begins with a version; zeros where nothing does."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def text_of(version: tuple[int, ...]) -> str:
    """As it is written."""
    return ".".join(map(str, version))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print it; the exit code is 1 if something is missing."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.gpu.ready", description=__doc__.splitlines()[0])
    made.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = made.parse_args(arguments)
    wanted = missing(options.device)
    for name in wanted:
        print(f"missing: {name}")
    for name, lost in lacking():
        print(f"not here: {name}: {lost}")
    if not wanted:
        print(f"Python {sys.version.split()[0]}: all that is needed is here")
    return 1 if wanted else 0


if __name__ == "__main__":
    sys.exit(main())
