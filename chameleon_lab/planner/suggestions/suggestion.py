"""A change of the training script that no plan can make, with its code and its predicted effect."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from dataclasses import dataclass

from ...util.units import format_bytes, format_percent, format_seconds

WORTHWHILE = 0.02
"""Share of the peak that a suggestion must save."""


@dataclass(frozen=True, kw_only=True)
class Suggestion(ABC):
    """What to change in the script, and what comes of it in a step."""

    live_peak_bytes: int
    """Most bytes alive at once in the step, as it was recorded."""
    changed_peak_bytes: int
    """The same after the change, as predicted."""
    compute_s: float
    """Of the step as it was recorded, without stalls."""
    extra_s: float
    """Compute that the change adds to a step."""
    code: str
    """What to paste, with the names of your script put in."""
    same_bits: bool
    """Does the change keep the numbers to the bit?"""

    @property
    def saved_bytes(self) -> int:
        """How much lower the peak gets."""
        return self.live_peak_bytes - self.changed_peak_bytes

    @property
    def extra_share(self) -> float:
        """The added compute as a share of the step's; 0 without any."""
        return self.extra_s / self.compute_s if self.compute_s > 0 else 0.0

    @property
    @abstractmethod
    def what(self) -> str:
        """The change, in a few words."""

    @property
    def benefit(self) -> str:
        """What it saves, in words."""
        return f"takes {format_bytes(self.saved_bytes)} off the peak of {format_bytes(self.live_peak_bytes)}"

    @property
    def cost(self) -> str:
        """What it takes, in words."""
        if self.extra_s <= 0:
            return "no compute more"
        return f"{format_seconds(self.extra_s)} more a step ({format_percent(self.extra_share)} of compute)"

    def __str__(self) -> str:
        bits = "" if self.same_bits else "; sums are rounded in another order"
        return f"{self.what}: {self.benefit}, for {self.cost}{bits}"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(str(self))}</p><pre>{html.escape(self.code)}</pre>"
