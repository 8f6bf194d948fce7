"""Grains: the tree and the deal."""

import functools

import numpy as np
import pytest

from chameleon_lab.recovery.grains import Summing, deal, halves, nodes_of, total


def by_tree(values, node=None):
    begin, end = node or (0, len(values))
    if end - begin == 1:
        return values[begin]
    first, second = halves((begin, end))
    return by_tree(values, first) + by_tree(values, second)


def test_halves_have_powers_of_two_first():
    assert halves((0, 2)) == ((0, 1), (1, 2))
    assert halves((0, 6)) == ((0, 4), (4, 6))
    assert halves((3, 10)) == ((3, 7), (7, 10))
    assert halves((0, 8)) == ((0, 4), (4, 8))


@pytest.mark.parametrize("grains", [1, 2, 3, 6, 7, 12, 13, 32])
def test_every_grain_is_dealt_once_for_any_number_of_ranks(grains):
    for ranks in range(1, grains + 1):
        own = deal(grains, ranks)
        assert [grain for part in own for grain in part] == list(range(grains))
        assert max(map(len, own)) - min(map(len, own)) <= 1
        nodes = [node for part in own for node in nodes_of(grains, part)]
        assert [grain for begin, end in nodes for grain in range(begin, end)] == list(range(grains))


def test_more_ranks_than_grains_are_refused():
    with pytest.raises(ValueError, match="2 grains cannot be dealt to 3 ranks"):
        deal(2, 3)


@pytest.mark.parametrize("grains", [1, 2, 3, 5, 6, 7, 12, 13, 32])
def test_the_sum_has_the_same_bits_for_any_number_of_ranks(grains):
    dice = np.random.default_rng(grains)
    values = list(dice.normal(0, 1, (grains, 999)).astype(np.float32) ** 5)
    wanted = by_tree(values)
    for ranks in range(1, grains + 1):
        sums = {}
        for own in deal(grains, ranks):
            adding = Summing(nodes_of(grains, own), lambda a, b: a + b)
            for grain in own:
                adding.take(grain, values[grain])
            assert list(adding.sums) == nodes_of(grains, own)
            sums |= adding.sums
        assert (total(grains, sums, lambda a, b: a + b) == wanted).all()
    if grains > 12:  # the test would not see another order otherwise
        assert (functools.reduce(lambda a, b: a + b, values) != wanted).any()


def test_few_sums_are_open_at_once():
    adding, most = Summing(nodes_of(64, range(64)), lambda a, b: a + b), 0
    for grain in range(64):
        adding.take(grain, 1)
        most = max(most, len(adding._open))
    assert adding.sums == {(0, 64): 64} and most <= 6
