"""How long a test waits for what always comes. ``training`` has the same for what runs in children."""

import time
from collections.abc import Callable
from typing import Any

HANGS_AFTER_S = 1200
"""A busy machine is no hang: this is for what would never end."""


def until(condition: Callable[[], Any]) -> Any:
    """The first true value of a condition, looked at again and again until it comes."""
    end_s = time.monotonic() + HANGS_AFTER_S
    while not (found := condition()):
        assert time.monotonic() < end_s, "it never came"
        time.sleep(0.001)
    return found
