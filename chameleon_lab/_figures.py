"""What the methods that draw or edit call: it lies above them, and is imported at the first call.

So ``trace.figure()`` stands where people look for it, and a trace imports nothing that draws. The only such table.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = {
    "Dashboard": "lab.dashboard",
    "Draft": "policy.draft",
    "DraftGantt": "lab.draft_gantt",
    "Gantt": "lab.gantt",
    "history_figure": "lab.figures",
    "policy_sweep_figure": "lab.sweep_figure",
    "session_figure": "lab.figures",
    "step_figure": "lab.figures",
    "trace_figure": "lab.trace_figure",
}


def at_first_use(name: str) -> Any:
    """A function or class of the table. Raises KeyError for others."""
    return getattr(import_module(f"{__package__}.{_MODULES[name]}"), name)
