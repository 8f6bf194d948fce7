"""CUDA graphs and sessions exclude each other.

A graph keeps the addresses that its kernels were captured with, and replays them without any op that could be seen:
what a session has moved meanwhile it would read, or overwrite, at the old place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from ...errors import SessionError
from .patch import Patches


def _refused(what: Callable[..., Any]) -> Callable[..., Any]:
    def refused(*args: Any, **kwargs: Any) -> NoReturn:
        raise SessionError(
            f"{what.__qualname__}: a CUDA graph keeps the addresses of its tensors, which a session moves. "
            "Capture and replay graphs outside of sessions, or run this part without a graph (torch.compile: leave out "
            'mode="reduce-overhead")'
        )

    return refused


def no_graphs() -> Patches:
    """While installed, capturing or replaying a CUDA graph raises SessionError."""
    places: list[tuple[type, str]] = [
        (torch.cuda.CUDAGraph, "capture_begin"),
        (torch.cuda.CUDAGraph, "replay"),
    ]
    places.append((torch.cuda.graph, "__enter__"))  # which has changed the stream when it begins the capture
    return Patches([(owner, name, _refused) for owner, name in places])
