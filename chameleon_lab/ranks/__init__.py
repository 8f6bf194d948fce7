"""Several ranks of one job: which one this process is, and their traces side by side. Opens traces without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .side_by_side import MergedReport, merge

__all__ = ["MergedReport", "merge"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import side_by_side

    return getattr(side_by_side, name)
