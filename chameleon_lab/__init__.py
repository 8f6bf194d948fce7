"""Train models several times larger than the device in PyTorch's eager mode, and see and edit how.

What is asked for is imported at its first use: a session needs torch and numpy alone, what draws or stores loads then,
and traces and policies open without torch and without the compiled core. Where torch is, what scripts tell it before
there is a session is noted from here on.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING

from ._version import __version__ as __version__

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from .errors import (
        BelowFloorError,
        ChameleonError,
        PolicyError,
        SessionError,
        TraceError,
    )
    from .lifecycle import SessionStage
    from .meta.roofline import Roofline
    from .meta.trace_meta import trace_meta
    from .planner import floor, lower_bound, plan, simulate, sweep
    from .policy import EditsUnreachableError, Link, Policy
    from .report import Report
    from .runtime.host_memory import release_host_memory
    from .runtime.launching import launch
    from .session import Session, current_session
    from .trace import Category, Stage, StepTrace, Trace
    from .util.units import format_bytes, format_seconds

__all__ = [
    "BelowFloorError",
    "Category",
    "ChameleonError",
    "EditsUnreachableError",
    "Link",
    "Policy",
    "PolicyError",
    "Report",
    "Roofline",
    "Session",
    "SessionError",
    "SessionStage",
    "Stage",
    "StepTrace",
    "Trace",
    "TraceError",
    "current_session",
    "floor",
    "format_bytes",
    "format_seconds",
    "launch",
    "lower_bound",
    "plan",
    "release_host_memory",
    "simulate",
    "sweep",
    "trace_meta",
]

_MODULES = {
    "BelowFloorError": "errors",
    "Category": "trace",
    "ChameleonError": "errors",
    "EditsUnreachableError": "policy",
    "Link": "policy",
    "Policy": "policy",
    "PolicyError": "errors",
    "Report": "report",
    "Roofline": "meta",
    "Session": "session",
    "SessionError": "errors",
    "SessionStage": "lifecycle",
    "Stage": "trace",
    "StepTrace": "trace",
    "Trace": "trace",
    "TraceError": "errors",
    "current_session": "session",
    "floor": "planner",
    "format_bytes": "util.units",
    "format_seconds": "util.units",
    "launch": "runtime.launching",
    "lower_bound": "planner",
    "plan": "planner",
    "release_host_memory": "runtime.host_memory",
    "simulate": "planner",
    "sweep": "planner",
    "trace_meta": "meta",
}
"""Where the public names are."""

_PARTS = ("errors", "planner", "policy", "ranks", "recovery", "report", "session", "trace")
"""Modules that are reached as attributes, too: ``chameleon_lab.policy.diff``."""


def __getattr__(name: str) -> object:
    if name in _PARTS:
        return import_module(f".{name}", __name__)
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_PARTS})


def _watch() -> None:
    """Stand between torch's allocator and what it calls, and note what the nvtx package makes: see the two modules."""
    from . import errors  # noqa: F401  (the first who loads torch, and notes why it does not load)

    try:
        from .runtime.patches import allocator_callbacks, nvtx_ranges  # noqa: F401
    except ImportError:  # a session says what is missing; that torch does not fit the build is said here, too
        from .util.torch_version import mismatch

        if (wrong := mismatch()) is not None:
            warnings.warn(wrong, RuntimeWarning, stacklevel=3)  # where chameleon_lab is imported


_watch()


def load_ipython_extension(shell: InteractiveShell) -> None:
    """``%load_ext chameleon_lab``: adds ``%chameleon`` and ``%%chameleon``."""
    from .lab.magics import load

    load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """``%unload_ext chameleon_lab``: takes the magics away; a running session goes on."""
    from .lab.magics import unload

    unload(shell)


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    return [{"src": "labextension", "dest": "chameleon-lab"}]
