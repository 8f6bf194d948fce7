"""Build a wheel of chameleon-lab for each PyTorch that is asked for, into build/wheels.

    python scripts/wheel.py 2.12 2.13     # for these; downloads each PyTorch once, about 530 MB, and keeps 600 MB of it
    python scripts/wheel.py --installed   # for the one beside this Python, and for its kind (CPU or CUDA) alone

A wheel fits one minor version of PyTorch: its metadata accepts no other, and its own version names it. It has two
modules, one of them with the CUDA device: a PyTorch without CUDA loads the other.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LEAST, _BELOW = re.findall(r'"torch>=2\.(\d+),<2\.(\d+)"', (ROOT / "pyproject.toml").read_text())[0]
MINORS = [f"2.{minor}" for minor in range(int(_LEAST), int(_BELOW))]
_WANTED = (
    "torch/include/",
    "torch/version.py",
    *(f"torch/lib/lib{name}.so" for name in ("c10", "torch_cpu", "c10_cuda")),
)


def main() -> None:
    """Build what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "minors", nargs="*", metavar="MINOR", help=f"{', '.join(MINORS)}: all of them if left out"
    )
    parser.add_argument("--installed", action="store_true", help="for the PyTorch beside this Python")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "wheels", metavar="FOLDER")
    options = parser.parse_args()
    if unknown := [minor for minor in options.minors if minor not in MINORS]:
        parser.error(f"there is no wheel for torch {unknown[0]}: give some of {', '.join(MINORS)}")
    if options.installed:
        spec = find_spec("torch")
        if spec is None or not spec.submodule_search_locations:
            parser.error(f"{sys.executable} has no PyTorch")
        torches = [Path(spec.submodule_search_locations[0])]
    else:
        torches = [_downloaded(minor) for minor in options.minors or MINORS]
    work = ROOT / "build" / "wheel"
    source = _copied(work / "source")
    options.output.mkdir(parents=True, exist_ok=True)
    for torch in torches:
        version = _version_of(torch)
        minor = ".".join(version.split(".")[:2])
        print(f"==> Building the wheel for torch {minor}", flush=True)
        folder = work / ("installed" if options.installed else minor)
        raw = _built(source, torch, folder, both=not options.installed)
        print(f"    {_for_one_minor(raw, minor, options.output)}", flush=True)


def _version_of(torch: Path) -> str:
    names: dict[str, object] = {}
    exec((torch / "version.py").read_text(), names)
    return str(names["__version__"]).split("+")[0]


def _downloaded(minor: str) -> Path:
    """The headers of a PyTorch with CUDA, and what to link against: the first release of the minor version."""
    folder = ROOT / "build" / "torch" / minor
    if not (folder / "done").exists():
        print(f"==> Downloading torch {minor}.0 (about 530 MB)", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        pip = (
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "download",
            "--quiet",
            "--no-cache-dir",
        )
        # "===" leaves builds such as 2.13.0+cpu out: without CUDA they lack a header and a library.
        subprocess.run(
            [*pip, "--no-deps", "--only-binary", ":all:", "-d", folder, f"torch==={minor}.0"], check=True
        )
        (wheel,) = folder.glob("torch-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if name.startswith(_WANTED)])
        wheel.unlink()
        (folder / "done").touch()
    return folder / "torch"


def _copied(source: Path) -> Path:
    """A copy of what git knows, so that nothing built in the checkout slips in, and nothing there is built anew."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    wanted = {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}
    wanted.discard("biome.json")  # biome refuses to lint a checkout in which another one lies
    (source / "biome.json").unlink(missing_ok=True)
    source.mkdir(parents=True, exist_ok=True)
    for name in wanted:
        there = source / name
        if not there.exists() or there.stat().st_mtime_ns != (ROOT / name).stat().st_mtime_ns:
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, there)
    for folder in ("chameleon_lab", "csrc", "labextension"):  # what was there once and is no more
        for file in (source / folder).rglob("*"):
            if file.is_file() and str(file.relative_to(source)) not in wanted:
                file.unlink()
    # Its npm packages are its own: `npm ci` empties what a link leads to.
    if (source / "node_modules").is_symlink():
        (source / "node_modules").unlink()
    return source


def _built(source: Path, torch: Path, folder: Path, *, both: bool) -> Path:
    """The wheel as the build makes it, which fits no PyTorch but this one and does not say so."""
    shutil.rmtree(folder / "raw", ignore_errors=True)
    for module in (source / "chameleon_lab").rglob("_C*.so"):
        module.unlink()  # of another PyTorch: newer than its own sources, it would be taken for built
    defines = {"TORCH_DIR": torch, "BUILD_PANEL": "ON"} | (
        {"BUILD_CUDA": "ON", "BOTH_MODULES": "ON"} if both else {}
    )
    settings = [f"cmake.define.{name}={value}" for name, value in defines.items()]
    subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pip",
                "--disable-pip-version-check",
                "wheel",
                "--quiet",
                "--no-build-isolation",
            ),
            *("--no-deps", "--no-index", "-w", folder / "raw"),
            *(
                word
                for setting in (*settings, f"build-dir={source / folder.name}")
                for word in ("--config-settings", setting)
            ),
            source,
        ],
        env=os.environ | _cuda_headers(),
        check=True,
    )
    (wheel,) = (folder / "raw").glob("*.whl")
    return wheel


def _cuda_headers() -> dict[str, str]:
    """Where pip has put CUDA's headers, unless a toolkit is named."""
    found = [
        path for entry in sys.path for path in Path(entry).glob("nvidia/cu1*") if (path / "include").is_dir()
    ]
    return {"CUDA_HOME": str(found[0])} if found and "CUDA_HOME" not in os.environ else {}


def _for_one_minor(raw: Path, minor: str, output: Path) -> Path:
    """The wheel with a version and metadata that name the PyTorch it fits."""
    name, version, *tags = raw.name.split("-")
    fits = f"{version}+torch{minor}"
    following = f"{minor.split('.')[0]}.{int(minor.split('.')[1]) + 1}"
    wheel = output / "-".join((name, fits, *tags))
    before, after = f"{name}-{version}.", f"{name}-{fits}."
    record = []
    with zipfile.ZipFile(raw) as old, zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as new:
        for item in old.infolist():
            data, path = old.read(item), item.filename.replace(before, after, 1)
            if path.endswith(".dist-info/RECORD"):
                continue
            if path.endswith(".dist-info/METADATA"):
                lines = data.decode().split("\n")
                lines[lines.index(f"Version: {version}")] = f"Version: {fits}"
                (place,) = (k for k, line in enumerate(lines) if line.startswith("Requires-Dist: torch<"))
                lines[place] = f"Requires-Dist: torch<{following},>={minor}"
                data = "\n".join(lines).encode()
            item.filename = path
            new.writestr(item, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(data)}")
        path = f"{name}-{fits}.dist-info/RECORD"
        new.writestr(path, "\n".join([*record, f"{path},,", ""]))
    return wheel


if __name__ == "__main__":
    main()
