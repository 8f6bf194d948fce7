"""What others have torch's CUDA allocator call: stacks of its memory history, and observers of out-of-memory.

Frameworks switch both on by themselves. Torch calls them inside the allocator, where Python's lock is asked for, and a
session may hold its own lock there: with another thread that has Python's and waits for the session's, that hangs. The
session's allocator calls them where it holds no lock (csrc/device/cuda/torch_callbacks.h). So from the import of this
package on it is put in front of torch's before such a function is handed over. What was handed over before is not
known: a session refuses to start while such a memory history is recorded, and cannot tell that there are observers.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from .. import core

_NAMES = (
    "_cuda_attach_out_of_memory_observer",
    "_cuda_attach_oom_rejection_observer",
    "_cuda_record_memory_history",
    "_cuda_record_memory_history_legacy",
)
"""The first argument of each is an observer, or what of a history is to be recorded: false where that ends."""


def _behind_ours(hand_over: Any) -> Any:
    @functools.wraps(hand_over)
    def handed_to_ours(*args: Any, **options: Any) -> Any:
        ends = bool(args) and not args[0]
        if not ends and torch.cuda.is_available():
            torch.cuda.init()  # torch does so next, and has no allocator before
            core.stand_in_front("cuda")
        return hand_over(*args, **options)

    return handed_to_ours


def watch() -> None:
    """From now on. A build of torch without CUDA has nothing to watch."""
    for name in _NAMES:
        if (hand_over := getattr(torch._C, name, None)) is not None:
            setattr(torch._C, name, _behind_ours(hand_over))


watch()
