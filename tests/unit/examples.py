"""How many examples a property is tried on: a quarter of them in the gate, all where everything runs."""

from __future__ import annotations

from hypothesis import settings


def examples(count: int) -> settings:
    """Decorator of a test that the full run and ``make explore`` try on ``count`` examples, without a deadline."""
    share = 4 if settings.get_current_profile_name() == "gate" else 1
    return settings(max_examples=-(-count // share), deadline=None)
