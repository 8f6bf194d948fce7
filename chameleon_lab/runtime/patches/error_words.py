"""The text of an out-of-memory error, wherever it is read: in an ``except``, a notebook or a log.

The core has to find its words in the middle of an op, where nothing of Python can be asked. Which capacity is enough is
looked up when somebody asks for them.

Between an op and Python, torch lets through a kind of error and its words, and nothing else: no number and no object,
and an error of a backward comes from another thread. So the core knows its own by the very sentence that it wrote and
kept (``core.failure_of``), and everything else is told from the figures that it kept beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .patch import Patches

_NAMED = "_names_enough"


def error_words(words: Callable[[str], str | None]) -> Patches:
    """What a session installs while it is open.

    Args:
        words: more exact words for an error with these ones; None where there are none.
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

    kind: Any = torch.OutOfMemoryError
    return Patches([(kind, "__str__", saying)])
