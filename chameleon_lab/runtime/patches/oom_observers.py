"""Observers of out-of-memory errors, attached by the user to torch's CUDA allocator.

Torch calls them wherever a session makes room, inside the allocator, and those of Python ask for its lock there: with
another thread that has it and waits for the core, that hangs. They cannot be taken off again, and torch does not say
whether there are any. So attaching one is noted from the import of this package on; one that was attached before is
not known. While a session is open, and after the first one on a GPU, the allocator in front of torch's knows of those
from C++ too.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from ...errors import SessionError

_NAMES = ("_cuda_attach_out_of_memory_observer", "_cuda_attach_oom_rejection_observer")

_attached: list[str] = []


def refuse_where_attached() -> None:
    """Raises SessionError if one is known to be there."""
    if _attached:
        raise SessionError(
            f"an observer of out-of-memory was attached in this process (torch._C.{_attached[0]}). It would be called "
            "wherever a session makes room, and asks for Python's lock inside the allocator, which can hang; torch has "
            "no way to take it off: start the process without it"
        )


def _noting(name: str, attach: Any) -> Any:
    @functools.wraps(attach)
    def attach_and_note(*args: Any, **options: Any) -> Any:
        result = attach(*args, **options)
        _attached.append(name)
        return result

    return attach_and_note


def watch() -> None:
    """Note from now on what is attached. A build of torch without CUDA has nothing to watch."""
    for name in _NAMES:
        if (attach := getattr(torch._C, name, None)) is not None:
            setattr(torch._C, name, _noting(name, attach))


watch()
