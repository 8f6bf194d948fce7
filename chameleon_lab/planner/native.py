"""The planner's C++ extension: inner loops on arrays, which run without the interpreter's lock.

It needs neither torch nor the core. Everything else in the package reaches ``chameleon_lab._planner`` through this
module.
"""

from __future__ import annotations

try:
    from chameleon_lab._planner import (
        FREE,
        PERIODS,
        REPLAY_READ,
        SWAP_IN,
        SWAP_OUT,
        USE,
        RangeMax,
        ReplayChains,
        choose_swaps,
        prefetch,
        run_until_steady,
    )
except ImportError as error:
    raise ImportError(
        f"chameleon_lab's planner extension is missing or does not load ({error}): build it with `pip install .` "
        "in the project's folder"
    ) from error

__all__ = [
    "FREE",
    "PERIODS",
    "REPLAY_READ",
    "SWAP_IN",
    "SWAP_OUT",
    "USE",
    "RangeMax",
    "ReplayChains",
    "choose_swaps",
    "prefetch",
    "run_until_steady",
]
