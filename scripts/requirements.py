"""Asks the package index, by its metadata alone, whether a new user can install together what is pinned.

As a new user asks: without the folders of wheels, constraints and other settings of this machine, but for the index.
uv answers, in a second where pip takes one to two minutes. Nothing is installed. Where no index can be reached, this
says so, and ends well.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
_NAME = "chameleon-lab"
_UNREACHED = "Failed to fetch"
"""How uv says that an index does not answer."""


def main() -> int:
    """Resolve all sets at once: what can be had together can be had in parts."""
    print("==> Asking the package index for what is pinned", flush=True)
    constraints = ROOT / "constraints.txt"
    torch = re.search(r"^torch==\S+$", constraints.read_text(), re.MULTILINE)
    core = re.search(r'"\$\{pip\[@\]\}" (cmake .*)', (ROOT / "scripts" / "setup.sh").read_text())
    assert torch and core
    headers = ["nvidia-cuda-crt==13.0.*", "nvidia-cuda-runtime==13.0.*"]  # of the CUDA of PyPI's torch
    said = unresolved([torch[0], *core[1].split(), *headers, *requirements("dev")], "-c", str(constraints))
    if _UNREACHED in said:
        print(f"    skipped, for no index answers: {said.splitlines()[-1].strip()}")
        return 0
    if said:
        print(said, file=sys.stderr)
    return int(bool(said))


def requirements(extra: str) -> list[str]:
    """What the package and one of its extras require, with the extras that these name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = list(project["dependencies"])
    extras = [extra]
    while extras:
        for requirement in project["optional-dependencies"][extras.pop()]:
            if own := re.fullmatch(rf"{_NAME}\[(.+)\]", requirement):
                extras += own[1].split(",")
            else:
                found.append(requirement)
    return found


def unresolved(wanted: list[str], *options: str) -> str:
    """What uv says if no set of packages satisfies these requirements, or ""."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    if index := _setting("index-url"):
        environment["UV_DEFAULT_INDEX"] = index
    if certificates := _setting("cert"):
        environment["SSL_CERT_FILE"] = certificates
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-config", "--only-binary=:all:"]
    done = subprocess.run(
        [*command, "--python", sys.executable, *options, "-"],
        input="\n".join(wanted),
        env=environment,
        capture_output=True,
        text=True,
    )
    return (done.stderr or "uv failed") if done.returncode else ""


def _setting(name: str) -> str:
    """A setting of pip's on this machine."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    said = subprocess.run(command, capture_output=True, text=True).stdout
    found = re.findall(rf"^\S*\.{name}='(.*)'$", said, re.MULTILINE)
    return found[-1] if found else ""


if __name__ == "__main__":
    sys.exit(main())
