"""Train models several times larger than the device in PyTorch's eager mode, and see and edit how.

``import chameleon_lab`` needs torch and numpy alone; what draws or stores is imported at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from . import torch_version as _torch_version  # noqa: F401 - first: another torch may lack what the others import
from .errors import (
    BelowFloorError,
    ChameleonError,
    PolicyError,
    SessionError,
    TraceError,
)
from .policy import EditsUnreachableError, Link, Policy, floor, lower_bound, plan, simulate, sweep
from .report import Report
from .runtime.host_memory import release_host_memory
from .session import Session, SessionStage, current_session
from .trace import Category, Stage, StepTrace, Trace
from .units import format_bytes, format_seconds

if TYPE_CHECKING:
    from .trace.meta import trace_meta
    from .trace.roofline import Roofline

_AT_FIRST_USE = {"Roofline": ".trace.roofline", "trace_meta": ".trace.meta"}

__version__ = "0.1.0"

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
    "lower_bound",
    "plan",
    "release_host_memory",
    "simulate",
    "sweep",
    "trace_meta",
]


def __getattr__(name: str) -> object:
    if name not in _AT_FIRST_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_AT_FIRST_USE[name], __name__), name)


def load_ipython_extension(shell: object) -> None:
    """``%load_ext chameleon_lab``: adds ``%chameleon`` and ``%%chameleon``."""
    from .lab.magics import load

    load(shell)


def unload_ipython_extension(shell: object) -> None:
    """``%unload_ext chameleon_lab``: takes the magics away; a running session goes on."""
    from .lab.magics import unload

    unload(shell)


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    return [{"src": "labextension", "dest": "chameleon-lab"}]
