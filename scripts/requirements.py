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
_CHOSEN_BY_TORCH = re.compile(r"^(nvidia-|cuda-|triton\b)", re.IGNORECASE)
"""What each build of torch brings in versions of its own: a pin would fit one of them alone."""
_OLDEST_PYTHON = "3.11"
"""What is apart is optional, and has no wheels for every Python: it is asked for this one."""


def main() -> int:
    """Ask for each set."""
    print("==> Asking the package index for what is pinned", flush=True)
    if pins := pinned_for_torch((ROOT / "constraints.txt").read_text()):
        print(f"    constraints.txt pins what torch itself chooses: {', '.join(pins)}", file=sys.stderr)
        return 1
    if said := unresolved(["pip"]):
        print(f"    skipped, for no index answers: {said.splitlines()[-1].strip()}")
        return 0
    failed = False
    for what, wanted, options in sets():
        if said := unresolved(wanted, *options):
            print(f"    {what}:\n{said}", file=sys.stderr)
            failed = True
    return int(failed)


def sets() -> list[tuple[str, list[str], list[str]]]:
    """Each set that somebody installs at once: what it is, its requirements, and options of uv."""
    setup = (ROOT / "scripts" / "setup.sh").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pinned = ["-c", str(ROOT / "constraints.txt")]
    build = project["build-system"]["requires"]
    alone = project["project"]["dependencies"]
    ((least, below),) = re.findall(r"^torch>=2\.(\d+),<2\.(\d+)$", "\n".join(alone), re.MULTILINE)
    oldest, newest = f"torch==2.{least}.*", f"torch==2.{int(below) - 1}.*"
    apart = [
        name
        for names in re.findall(r"for names in (.*); do", setup.replace("\\\n", " "))
        for name in re.findall(r"[\w.=-]+", names)
    ]
    torchft = _calls((ROOT / "scripts" / "torchft.sh").read_text(), "-m pip install ")
    return [
        ("what `make` installs", [*installed_by(setup), *build, *requirements("dev")], pinned),
        ("what `pip install .` installs", [*alone, *build], []),
        ("what `pip install .[lab]` installs", [*requirements("lab"), *build], []),
        *((f"the same with {torch}", [*alone, *build, torch], []) for torch in (oldest, newest)),
        (
            "what is apart",
            apart,
            [*pinned, "--no-deps", "--no-binary=deepspeed", "--python-version", _OLDEST_PYTHON],
        ),
        ("what `make recovery` installs", torchft, ["--no-deps"]),
        ("what scripts/with_lab.sh installs", _oldest_lab(), []),
        *(
            (f"what scripts/with_torch.sh installs for {torch}", _with(torch), ["--python-version", "3.12"])
            for torch in (oldest, newest)
        ),
    ]


def installed_by(setup: str) -> list[str]:
    """The requirements in the calls of pip in setup.sh, as on a machine with PyPI's torch."""
    (torch,) = re.findall(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    (cuda,) = re.findall(r'else "(\d+)\.\d+"\)', setup)  # its minor version is that of torch's build
    return _calls(setup.replace("$torch_version", torch).replace("$cuda", cuda), '"${pip[@]}" ')


def _oldest_lab() -> list[str]:
    """What scripts/with_lab.sh installs."""
    (version,) = re.findall(r"^jupyterlab>=([\d.]+),", "\n".join(requirements("lab")), re.MULTILINE)
    (wanted,) = re.findall(r"^wanted=\((.*)\)$", (ROOT / "scripts" / "with_lab.sh").read_text(), re.MULTILINE)
    return [one.strip('"').replace("$version", version) for one in wanted.split()]


def _with(torch: str) -> list[str]:
    """What scripts/with_torch.sh installs: that torch, CUDA's headers for it, and the rest."""
    (wanted,) = re.findall(
        r"^wanted=\((.*?)\)$", (ROOT / "scripts" / "with_torch.sh").read_text(), re.DOTALL | re.MULTILINE
    )
    return [torch, "nvidia-cuda-crt==13.*", *wanted.split()]


def _calls(script: str, pip: str) -> list[str]:
    """The requirements among what pip is called with: no options, no values of theirs, and not the project itself."""
    calls = re.findall(re.escape(pip) + "(.*)", script.replace("\\\n", " "))
    words = [word.strip('"') for call in calls for word in call.split()]
    return [word for word in words if re.fullmatch(r"[A-Za-z][\w.-]*([=<>]=.*)?", word)]


def pinned_for_torch(constraints: str) -> list[str]:
    """The lines that pin what torch chooses."""
    return [line for line in constraints.splitlines() if _CHOSEN_BY_TORCH.match(line)]


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
    raise SystemExit(main())
