"""The policies that a session was given: the one that was made for its program is found when its ops are known."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from ..policy import Policy
from ..ranks.identity import Identity
from ..ranks.policies import find_policies


class PolicyChoice:
    """One policy, or several of which at most one is used.

    Args:
        given: a policy, a path as :func:`~chameleon_lab.ranks.policies.find_policies` takes it, several policies, or
            None.
        who: the rank that looks for it.

    Raises what find_policies raises; TypeError, ValueError for anything else, and for none.
    """

    def __init__(
        self, given: Policy | str | os.PathLike[str] | Sequence[Policy] | None, who: Identity
    ) -> None:
        self._named: list[tuple[str, Policy]] = []
        if isinstance(given, Policy):
            self._named = [("", given)]
        elif isinstance(given, str | os.PathLike):
            self._named = find_policies(given, who)
        elif given is not None:
            self._named = [(f"number {number}", _checked(each)) for number, each in enumerate(given, 1)]
            if not self._named:
                raise ValueError("policy=[] holds no policy: leave it out, and one is generated")

    @property
    def first(self) -> Policy | None:
        """The one that stands for all until the ops are known."""
        return self._named[0][1] if self._named else None

    def is_open(self, given: Policy | None) -> bool:
        """Are there several, and is the policy that is given now one of them?"""
        return len(self._named) > 1 and any(policy is given for _, policy in self._named)

    def fitting(
        self, reason_against: Callable[[Policy], str | None], agreeing_ops: Callable[[Policy], int]
    ) -> tuple[Policy, str | None]:
        """The first that nothing speaks against, and None; else the nearest, and what speaks against it."""
        reasons = []
        for name, policy in self._named:
            if (reason := reason_against(policy)) is None:
                return policy, None
            reasons.append((agreeing_ops(policy), name, policy, reason))
        _, name, policy, reason = max(reasons, key=lambda each: each[0])
        if len(reasons) > 1:
            reason = f"none of {len(reasons)} policies fits; the nearest is {name}: {reason}"
        return policy, reason


def _checked(value: Any) -> Policy:
    if not isinstance(value, Policy):
        raise TypeError(f"policy takes policies or the path of one, not {type(value).__name__}")
    return value
