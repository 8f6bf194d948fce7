"""Which ops begin a collective and which wait for one, by name.

What a collective was given stays on the device from the op that launches it until it is waited for; see Note [Flights]
in ``csrc/collectives.h``.
"""

from __future__ import annotations

import numpy as np

from .step import StepTrace

WAITS = frozenset({"c10d::wait", "_c10d_functional::wait_tensor"})
"""Ops that wait for one: their time is that of the other ranks, too."""

_NEITHER = frozenset({"_c10d_functional::_wrap_tensor_autograd", "c10d::check_for_nan"})


def launches(name: str) -> bool:
    """Does the op with this name launch a collective?"""
    return (
        name.startswith(("c10d::", "_c10d_functional::", "_c10d_functional_autograd::"))
        and name not in WAITS
        and name not in _NEITHER
    )


def launch_ops(step: StepTrace) -> np.ndarray:
    """Which ops of a step launch one, bool (ops,)."""
    by_name = np.array([launches(name) for name in step.names] + [False])
    found: np.ndarray = by_name[step.ops.name]
    return found


def wait_ops(step: StepTrace) -> np.ndarray:
    """Which ops of a step wait for one, bool (ops,)."""
    by_name = np.array([name in WAITS for name in step.names] + [False])
    found: np.ndarray = by_name[step.ops.name]
    return found
