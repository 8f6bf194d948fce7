"""The errors that Chameleon Lab raises. Each message names the thing, the value and the way out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .policy.edits import Finding


class ChameleonError(RuntimeError):
    """Base of the errors that are Chameleon Lab's own."""


class SessionError(ChameleonError):
    """A session was used in a way it cannot serve: a second one on a device, one that is closed, and so on."""


class PolicyError(ChameleonError, ValueError):
    """A policy file or a policy that cannot be used: truncated, of another version, or contradictory."""


class TraceError(ChameleonError, ValueError):
    """A trace file that cannot be read: truncated, of another version, or no trace at all."""


class CutFileError(TraceError):
    """A trace file that ends before its end: cut while it was copied or written."""


class BelowFloorError(torch.OutOfMemoryError):
    """The capacity is below what a single op needs at once, so that no policy can run the step in it."""


class EditsUnreachableError(BelowFloorError):
    """With a policy's edits no plan fits the capacity, and without them one would."""

    def __init__(
        self, message: str, findings: tuple[Finding, ...] = (), others: tuple[Finding, ...] = ()
    ) -> None:
        super().__init__(message)
        self.findings = findings
        """One for each edit that is to blame, the heaviest first."""
        self.others = others
        """What else is wrong with the edits, as far as it shows without a plan."""

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        """Both, in the order of the edits."""
        return tuple(sorted((*self.findings, *self.others), key=lambda finding: finding.index))
