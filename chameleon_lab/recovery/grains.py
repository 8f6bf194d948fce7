"""Grains: the fixed micro-batches of a global batch, dealt to the ranks that are there, and summed in one fixed tree.

Additions of floats depend on their order. The tree depends on the number of grains alone, so a sum has the same bits
for any number of ranks, whoever has added what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

_T = TypeVar("_T")

Node = tuple[int, int]
"""The grains ``begin`` to ``end``, not included: a subtree."""


def halves(node: Node) -> tuple[Node, Node]:
    """The two subtrees of a node with several grains: the first has the largest power of two that is less."""
    begin, end = node
    first = 1 << (end - begin - 1).bit_length() - 1
    return (begin, begin + first), (begin + first, end)


def deal(grains: int, ranks: int) -> list[range]:
    """Which grains each rank takes: consecutive ones, as evenly as can be, the first ranks one more."""
    if ranks < 1 or grains < ranks:
        raise ValueError(f"{grains} grains cannot be dealt to {ranks} ranks: give each rank at least one")
    each, rest = divmod(grains, ranks)
    begins = [rank * each + min(rank, rest) for rank in range(ranks + 1)]
    return [range(begin, end) for begin, end in zip(begins, begins[1:], strict=False)]


def nodes_of(grains: int, own: range) -> list[Node]:
    """The largest subtrees that a rank can add up alone, in order."""

    def within(node: Node) -> list[Node]:
        begin, end = node
        if end <= own.start or own.stop <= begin:
            return []
        if own.start <= begin and end <= own.stop:
            return [node]
        first, second = halves(node)
        return within(first) + within(second)

    return within((0, grains))


def total(grains: int, values: Mapping[Node, _T], add: Callable[[_T, _T], _T]) -> _T:
    """The tree's sum, from the sums of subtrees that cover it."""

    def of(node: Node) -> _T:
        if node in values:
            return values[node]
        first, second = halves(node)
        return add(of(first), of(second))

    return of((0, grains))


class Summing(Generic[_T]):
    """Adds up the grains of one rank as they come, in the tree's order.

    Args:
        nodes: of the rank, as :func:`nodes_of` gives them.
        add: two values to their sum; it may write to the first.
    """

    def __init__(self, nodes: Sequence[Node], add: Callable[[_T, _T], _T]) -> None:
        self._nodes = list(nodes)
        self._add = add
        self._open: list[tuple[Node, _T]] = []
        self.sums: dict[Node, _T] = {}
        """What is complete."""

    def take(self, grain: int, value: _T) -> None:
        """The next grain, in ascending order."""
        self._open.append(((grain, grain + 1), value))
        while True:
            node, newest = self._open[-1]
            if node in self._nodes:
                self.sums[node] = newest
                self._open.pop()
                return
            if len(self._open) < 2 or not self._siblings(self._open[-2][0], node):
                return
            (before, older), _ = self._open[-2:]
            self._open[-2:] = [((before[0], node[1]), self._add(older, newest))]

    def _siblings(self, first: Node, second: Node) -> bool:
        node = (first[0], second[1])
        top = next(n for n in self._nodes if n[0] <= node[0] and node[1] <= n[1])
        while top != node:
            one, other = halves(top)
            if node[1] <= one[1]:
                top = one
            elif node[0] >= other[0]:
                top = other
            else:
                return False
        return halves(node) == (first, second)
