"""The link that plans are made for."""

from __future__ import annotations

import pytest

from chameleon_lab.errors import PolicyError
from chameleon_lab.policy import Link


def test_less_of_a_link_is_less_in_both_directions() -> None:
    assert Link(1e9, 2e9).reduced("25%") == Link(0.75e9, 1.5e9)
    assert Link(None, 2e9).reduced(0) == Link(None, 2e9)
    with pytest.raises(PolicyError, match="out_bytes_per_s is 0"):
        Link(1e9, 2e9).reduced(1.0)


def test_links_differ_where_a_direction_does_by_more_than_a_seventh() -> None:
    link = Link(1e9, 2e9)
    for other, apart in (
        (link, False),
        (Link(1.14e9, 1.8e9), False),
        (Link(1.16e9, 2e9), True),
        (Link(1e9, 1.7e9), True),
        (Link(None, 2e9), True),
    ):
        assert link.differs(other) is other.differs(link) is apart, other
    assert not Link(None, 1e9).differs(Link(None, 1e9))
