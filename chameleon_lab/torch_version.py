"""Which torch is installed, and is it one that this build was made for? Asking imports no torch that would not fit."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version


def minor_of(torch_version: str) -> str:
    """``"2.13"`` of ``"2.13.1+cu130"``: what is built for one release of a minor version runs with all of them."""
    return ".".join(torch_version.split("+")[0].split(".")[:2])


def misfit(built_for: str, installed: str) -> str | None:
    """What is wrong, in a sentence with both versions and the command that mends it; None: nothing."""
    needed, found = minor_of(built_for), minor_of(installed)
    if needed == found:
        return None
    mended = f'`pip install "torch=={needed}.*"` mends it, or the wheel of chameleon-lab for torch {found}'
    if not _is_wheel():
        mended = "build it again with `pip install --force-reinstall --no-deps .` in the project's folder"
    return f"chameleon_lab was built for torch {needed}, and torch {installed} is installed: {mended}"


def _is_wheel() -> bool:
    """Was it installed from a wheel of ``make wheel``, whose version names its torch?"""
    try:
        return "+torch" in version("chameleon-lab")
    except PackageNotFoundError:
        return False


@cache
def installed() -> str | None:
    """The version of torch as its package says; None where none is installed. Imports nothing."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return None


def require() -> None:
    """Raise an ImportError, with the command that mends it, where torch is missing or another than this build's."""
    try:
        built_for: str = import_module("._built_for", __package__).TORCH
    except ImportError:
        built_for = ""  # nothing is built: the extension that is missing is the next news
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        needed = f'"torch=={minor_of(built_for)}.*"' if built_for else "torch"
        raise ImportError(
            f"torch is not installed, which sessions and trace_meta need: `pip install {needed}` mends it"
        ) from error
    if built_for and (wrong := misfit(built_for, torch.__version__)) is not None:
        raise ImportError(wrong)
