"""Drawing and editing functions that methods of lower layers import at the first call.

So ``trace.figure()`` stands where people look for it, and a trace imports nothing that draws. The only such table.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = {
    "Bound": "planner.bound",
    "Dashboard": "lab.figures.dashboard",
    "Draft": "planner.draft",
    "DraftGantt": "lab.figures.draft_gantt",
    "Floor": "planner.memory",
    "Gantt": "lab.figures.gantt",
    "OpStall": "planner.simulate",
    "Prediction": "planner.simulate",
    "StallCause": "planner.simulate",
    "Suggestion": "planner.suggest",
    "Sweep": "planner.sweep",
    "SweepPoint": "planner.sweep",
    "export": "export",
    "floor": "planner.memory",
    "history_figure": "lab.figures.step_figures",
    "html_page": "lab.page.html_page",
    "lower_bound": "planner.bound",
    "open_trace": "formats.reading",
    "plan": "planner.generate",
    "policy_sweep_figure": "lab.figures.sweep_figure",
    "session_figure": "lab.figures.step_figures",
    "simulate": "planner.simulate",
    "step_figure": "lab.figures.step_figures",
    "suggest": "planner.suggest",
    "sweep": "planner.sweep",
    "trace_figure": "lab.figures.trace_figure",
}


def at_first_use(name: str) -> Any:
    """A function or class of the table. Raises KeyError for others."""
    return getattr(import_module(f"{__package__}.{_MODULES[name]}"), name)


def names_in(package: str) -> frozenset[str]:
    """Those of the table whose module lies in a package."""
    return frozenset(name for name, module in _MODULES.items() if module.startswith(f"{package}."))
