"""What an out-of-memory error is and says, wherever it is caught or read: in an ``except``, a notebook or a log.

The core has to find its words in the middle of an op, where nothing of Python can be asked. Which capacity is enough is
looked up when somebody asks for them.

Between an op and Python, torch lets through a kind of error and its words, and nothing else: no number and no object,
and an error of a backward comes from another thread. So the core knows its own by the very sentence that it wrote and
kept (``core.failure_of``), and everything else is told from the figures that it kept beside it. Where torch makes the
Python error from the words (HANDLE_TH_ERRORS in torch/csrc/Exceptions.h), it makes a BelowFloorError if it is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...errors import BelowFloorError
from .. import core
from .patch import Patches

_NAMED = "_names_enough"


def error_words(
    words: Callable[[str], str | None], failure_of: Callable[[str], core.Failure | None]
) -> Patches:
    """What a session installs while it is open.

    Args:
        words: more exact words for an error with these ones; None where there are none.
        failure_of: what the core knows of an error with these words; None where it is none of a session's.
    """

    def saying(say: Callable[[BaseException], str]) -> Callable[[BaseException], str]:
        def said(error: BaseException) -> str:
            text = say(error)
            better = None if getattr(error, _NAMED, False) else words(text)
            if better is None or better == text:
                return text
            error.args = (better, *error.args[1:])  # it says so when the session is gone, too
            setattr(error, _NAMED, True)  # and for good: later on less is known of its step
            return better

        return said

    def making(make: Callable[..., BaseException]) -> Callable[..., BaseException]:
        def made(kind: type[BaseException], /, *args: Any, **keywords: Any) -> BaseException:
            by_torch = kind is torch.OutOfMemoryError and len(args) == 1 and isinstance(args[0], str)
            failure = failure_of(args[0]) if by_torch else None
            if failure is None or not failure["below_floor"]:
                return make(kind, *args, **keywords)
            below = make(BelowFloorError, *args)  # Python calls its __init__ with the words
            vars(below).update(
                capacity_bytes=failure["capacity_bytes"],
                needed_bytes=failure["needed_bytes"],
                op_name=failure["op"],
            )
            return below

        return made

    kind: Any = torch.OutOfMemoryError
    return Patches([(kind, "__str__", saying), (kind, "__new__", making)])
