"""Is the torch that is installed one that this build was made for? Importing this asks, before anything else does."""

from __future__ import annotations

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


def _check() -> None:
    try:
        from ._built_for import TORCH
    except ImportError:
        return  # nothing is built: the extension that is missing is the news
    import torch

    if (wrong := misfit(TORCH, torch.__version__)) is not None:
        raise ImportError(wrong)


_check()
