"""Collectives as torch.distributed calls them from Python.

Waits for collectives are ops of the step: from a wait on, what the collective was given may move again.

The waits inside of C++ are seen by what comes after them; see Note [Flights] in ``csrc/collectives.h``.

DDP makes its buckets long before it fills them. They may leave meanwhile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed

from .. import core
from .patch import Patches, Replacement

_WAITS = ("wait", "synchronize", "block_current_stream")


def _as_an_op(wait: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(wait)
    def wait_as_an_op(work: Any, *args: Any, **kwargs: Any) -> Any:
        core.enter_wait(work)
        over = False
        try:
            result = wait(work, *args, **kwargs)
            over = True
        finally:
            core.leave_wait(over)
        return result

    return wait_as_an_op


def _leaving_buckets(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def make_buckets(*args: Any, **kwargs: Any) -> Any:
        core.begin_buckets()
        made = make(*args, **kwargs)
        core.settle_buckets()
        return made

    return make_buckets


def collectives() -> Patches:
    """For as long as a session is open."""
    replacements: list[Replacement] = []
    if torch.distributed.is_available():
        replacements = [
            (kind, name, _as_an_op)
            for kind in _kinds(torch.distributed.Work)
            for name in _WAITS
            if name in vars(kind)
        ]
        replacements += [
            (torch.nn.parallel.DistributedDataParallel, "__init__", _leaving_buckets),
            (vars(torch.distributed)["Reducer"], "_rebuild_buckets", _leaving_buckets),
        ]
    return Patches(replacements)


def _kinds(work: type[Any]) -> Iterator[type[Any]]:
    """A class and all that are derived from it: some back-ends' have waits of their own."""
    yield work
    for derived in work.__subclasses__():
        yield from _kinds(derived)
