"""The errors that Chameleon Lab raises. Each message names the thing, the value and the way out."""

from __future__ import annotations

import torch


class ChameleonError(RuntimeError):
    """Base of the errors that are Chameleon Lab's own."""


class SessionError(ChameleonError):
    """A session was used in a way it cannot serve: a second one on a device, one that is closed, and so on."""


class PolicyError(ChameleonError, ValueError):
    """A policy file or a policy that cannot be used: truncated, of another version, or contradictory."""


class TraceError(ChameleonError, ValueError):
    """A trace file that cannot be read: truncated, of another version, or no trace at all."""


class BelowFloorError(torch.OutOfMemoryError):
    """The capacity is below what a single op needs at once, so that no policy can run the step in it."""
