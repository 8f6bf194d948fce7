"""Other ways to choose swaps, for comparison alone: no part of the product.

Each takes a step's memory and gives swaps that the planner's own simulator judges. They choose gaps and when copies
come back; :mod:`.placement` finds the ops, by the same rule for all.
"""

from .greedy import greedy
from .mindspeed import mindspeed
from .naive import naive

__all__ = ["greedy", "mindspeed", "naive"]
