"""What the copies of the newest steps have found of the link, and how much less the slowest of them."""

from __future__ import annotations

import numpy as np

from ..policy import Link
from ..trace import Transfers

_STEPS = 16
"""So many steps tell."""
_SLOWEST = 0.1
"""The margin covers all steps but this share of them."""
MOST = 0.5
"""The margin is at most this: beyond it, plans would pay in every step for what few find."""


class LinkUnderLoad:
    """The link of a session that measures it, as training finds it: beside compute, other copies, other processes.

    Plans are made for the median of the newest steps, less a margin for the slowest of them: a plan that assumes too
    much of the link stalls far longer than one that assumes too little (``benchmarks/link.py``).
    """

    def __init__(self) -> None:
        self._found: dict[int, Link] = {}  # by step

    def learn(self, step: int, transfers: Transfers, before: Link) -> None:
        """Take in the copies of a step. In a direction in which it moved next to nothing it has found ``before``."""
        self._found[step] = before.under_load(transfers)
        while len(self._found) > _STEPS:
            self._found.pop(next(iter(self._found)), None)

    def typical(self, before: Link) -> tuple[Link, float]:
        """What half of the steps have found, and the share by which the slowest found less, 0 to :data:`MOST`.

        ``before`` and 0 where no step has told. May be asked from any thread.
        """
        found = list(self._found.values())
        if not found:
            return before, 0.0
        speeds, margin = [], 0.0
        for name in ("out_bytes_per_s", "in_bytes_per_s"):
            known = [speed for link in found if (speed := getattr(link, name)) is not None]
            speeds.append(float(np.median(known)) if known else None)
            if known:
                margin = max(margin, 1.0 - float(np.quantile(known, _SLOWEST)) / float(np.median(known)))
        return Link(*speeds), min(margin, MOST)
