"""A wheel of this checkout, and an environment that has it and sees nothing of the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hangs import HANGS_AFTER_S

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path = ROOT, code: int = 0, **environment: str) -> str:
    """Run a command; what it printed, on stderr where it is to fail."""
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=HANGS_AFTER_S,
    )
    assert done.returncode == code, f"{command}:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stderr if code else done.stdout


def built_wheel(output: Path) -> Path:
    """A wheel for the PyTorch that is installed here, in a folder that is empty."""
    run(sys.executable, "scripts/wheel.py", "--installed", "--output", output)
    (built,) = output.iterdir()
    return built


def environment_with(wheel: Path, folder: Path) -> Path:
    """The Python of an environment into which the wheel was installed; it sees torch and the others from outside."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    installed = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", installed)
    run(*pip, "install", "--no-deps", "--no-index", wheel)
    (site,) = folder.glob("lib/python*/site-packages")
    # No .pth file of those folders is read, so this checkout is not seen.
    (site / "others.pth").write_text("\n".join(path for path in sys.path if "site-packages" in path))
    return installed


def bare(python: Path) -> dict[str, str]:
    """No compiler, and nothing of the checkout."""
    return {"PATH": str(python.parent), "PYTHONPATH": "", "CC": "/nowhere", "CXX": "/nowhere"}
