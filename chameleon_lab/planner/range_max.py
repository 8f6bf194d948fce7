"""A segment tree over a list of integers: add to a range, find the last value above a bound. O(log n) each."""

from __future__ import annotations


class RangeMax:
    """Integers at positions 0 to ``len(values) - 1``.

    Node ``k`` has the children ``2k`` and ``2k + 1``; the leaves follow from ``size``. What is added to a
    whole subtree stays at its top, so the true maximum of a node is ``top[k]`` plus ``pending`` of all nodes
    above it.
    """

    def __init__(self, values: list[int]) -> None:
        size = 1
        while size < len(values):
            size *= 2
        lowest = min(values, default=0)
        top = [lowest] * (2 * size)
        top[size : size + len(values)] = values
        for node in range(size - 1, 0, -1):
            left, right = top[2 * node], top[2 * node + 1]
            top[node] = left if left > right else right
        self.size, self.top, self.pending = size, top, [0] * size

    def add(self, begin: int, end: int, amount: int) -> None:
        """Add ``amount`` at the positions ``begin <= i < end``; nothing if there is none."""
        if begin >= end:
            return
        size, top, pending = self.size, self.top, self.pending
        left, right = begin + size, end + size
        while left < right:
            if left & 1:
                top[left] += amount
                if left < size:
                    pending[left] += amount
                left += 1
            if right & 1:
                right -= 1
                top[right] += amount
                if right < size:
                    pending[right] += amount
            left >>= 1
            right >>= 1
        for node in (begin + size, end - 1 + size):
            node >>= 1
            while node:
                below, beside = top[2 * node], top[2 * node + 1]
                top[node] = (below if below > beside else beside) + pending[node]
                node >>= 1

    def last_above(self, begin: int, end: int, bound: int) -> int:
        """The last position in ``begin <= i < end`` whose value is above ``bound``; ``begin - 1`` if there is none."""
        if begin >= end:
            return begin - 1
        size, top, pending = self.size, self.top, self.pending
        node = end - 1 + size
        # From the root down to the leaf: what to add to the values of each node on the way.
        above = [0] * size.bit_length()
        total = 0
        for level in range(size.bit_length() - 1, 0, -1):
            total += pending[node >> level]
            above[level - 1] = total
        level = 0
        while top[node] + above[level] <= bound:
            # Nothing here: to the left neighbor, by way of the first ancestor that is a right child.
            while not node & 1:
                node >>= 1
                level += 1
            if node == 1:
                return begin - 1
            node -= 1
            if ((node + 1) << level) - size <= begin:
                return begin - 1
        total = above[level]
        while node < size:
            total += pending[node]
            right = 2 * node + 1
            node = right if top[right] + total > bound else right - 1
        return max(node - size, begin - 1)
