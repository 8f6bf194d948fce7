"""The installed torch, and whether this build fits it. The check imports no unsuitable torch."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version


def minor_of(torch_version: str) -> str:
    """``"2.13"`` of ``"2.13.1+cu130"``: what is built for one release of a minor version runs with all of them."""
    return ".".join(torch_version.split("+")[0].split(".")[:2])


def misfit(built_for: str, installed: str) -> str | None:
    """What is wrong, in a sentence with both versions and the command that mends it; None: nothing."""
    needed, found = minor_of(built_for), minor_of(installed)
    if needed == found:
        return None
    also, mended = "", f'`pip install "torch=={needed}.*"` mends it'
    if _is_wheel():
        mended += f", or the wheel of chameleon-lab for torch {found}"
    elif _is_accepted(found):
        mended = "build it again with `pip install --force-reinstall --no-deps .` in the project's folder"
    else:
        also = ", with which it has not been tested"
    return f"chameleon_lab was built for torch {needed}, and torch {installed} is installed{also}: {mended}"


def _is_accepted(minor: str) -> bool:
    """Does the package accept this torch, by its metadata? Yes where it has none."""
    try:
        wanted = next(each for each in requires("chameleon-lab") or () if re.match(r"torch\b", each))
    except (PackageNotFoundError, StopIteration):
        return True
    own = _numbers(minor)
    bounds = [(sign, _numbers(bound)) for sign, bound in re.findall(r"(>=|<)([\d.]+)", wanted)]
    return all(own >= bound if sign == ">=" else own < bound for sign, bound in bounds)


def _numbers(version_text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version_text))


def _is_wheel() -> bool:
    """Was it installed from a wheel of ``make wheel``, whose version names its torch?"""
    try:
        return "+torch" in version("chameleon-lab")
    except PackageNotFoundError:
        return False


_broken: Exception | None = None


def note_broken(error: Exception) -> None:
    """Note why torch does not load. Only the first attempt says it: later ones meet what that has left behind."""
    global _broken
    _broken = _broken or error


_owners: str | None = None


def note_owners(owners: str | None) -> None:
    """In a process that loads no torch: which one is installed, as the process says that it works for."""
    global _owners
    _owners = owners


def installed() -> str | None:
    """The version of torch: its own word where it is loaded, else its package's; None where there is none.

    Imports nothing. A package's word leaves the build out where it comes from PyPI: 2.13.0 for 2.13.0+cu130.
    """
    loaded = getattr(sys.modules.get("torch"), "__version__", None)
    if loaded is not None:
        return str(loaded)
    if _owners is not None:
        return _owners
    try:
        return version("torch")
    except PackageNotFoundError:
        return None


def built_for() -> str:
    """The version of torch that the core was built for; empty where nothing is built."""
    try:
        return str(import_module("chameleon_lab._built_for").TORCH)
    except ImportError:
        return ""


def mismatch() -> str | None:
    """Why the torch that is loaded does not fit this build; None where it does, or where there is none of the two."""
    loaded = getattr(sys.modules.get("torch"), "__version__", "")
    built = built_for()
    return misfit(built, loaded) if built and loaded else None


def require() -> None:
    """Raise an ImportError, with what mends it, where torch is missing, broken or another than this build's."""
    built = built_for()  # where nothing is built, the extension that is missing is the next news
    needed = f'"torch=={minor_of(built)}.*"' if built else "torch"
    try:
        if _broken is not None:
            raise _broken
        import torch  # noqa: F401
    except Exception as error:
        if (wrong := mismatch()) is not None:
            raise ImportError(wrong) from error
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            text = (
                f"torch is not installed, which sessions and trace_meta need: `pip install {needed}` mends it"
            )
        else:
            why = f"{type(error).__name__}: {error}"
            text = f"torch does not load ({why}): `pip install --force-reinstall {needed}` brings another"
        raise ImportError(text) from error
    if (wrong := mismatch()) is not None:
        raise ImportError(wrong)
