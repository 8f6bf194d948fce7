"""What became of a case."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Outcome:
    """Counts of one case. A case is what a worker does at a time; it makes several tries."""

    case: str
    tried: int = 0
    """Calls, runs or accesses that were compared to the same without Chameleon Lab."""
    named: int = 0
    """Of them, those that ended in an error which says what is wrong, where a right answer cannot be had."""
    skipped: Counter[str] = field(default_factory=Counter)
    """How many were not tried, by reason."""
    wrong: list[str] = field(default_factory=list)
    """What went wrong, one line each. None is wanted."""
    notes: dict[str, float] = field(default_factory=dict)
    """Figures worth printing."""
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**vars(self), "skipped": dict(self.skipped)}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Outcome:
        """The reverse of :meth:`to_dict`."""
        return Outcome(**{**values, "skipped": Counter(values["skipped"])})


def total(outcomes: list[Outcome]) -> Outcome:
    """The sum of all, under the name of none. What went wrong begins with the name of its case."""
    whole = Outcome("")
    for outcome in outcomes:
        whole.tried += outcome.tried
        whole.named += outcome.named
        whole.skipped += outcome.skipped
        whole.wrong += [f"{outcome.case}: {text}" for text in outcome.wrong]
        whole.seconds += outcome.seconds
    return whole
