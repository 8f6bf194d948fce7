# Written by scripts/stub.py from the built module: change csrc/planner/bindings.cpp.
# ruff: noqa
import collections.abc
import typing

import numpy
import numpy.typing

FREE: int
PERIODS: int
REPLAY_READ: int
class RangeMax:
    def __init__(self, values: typing.Annotated[numpy.typing.ArrayLike, numpy.int64]) -> None: ...
    def add(self, begin: int, end: int, amount: int) -> None: ...
    def last_above(self, begin: int, end: int, bound: int) -> int: ...
SWAP_IN: int
SWAP_OUT: int
USE: int
def choose_swaps(bytes: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], out_op: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], use_op: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], latest_in: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], least_s: typing.Annotated[numpy.typing.ArrayLike, numpy.float64], returns: typing.Annotated[numpy.typing.ArrayLike, numpy.bool], op_bytes: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], start_s: typing.Annotated[numpy.typing.ArrayLike, numpy.float64], capacity_bytes: int, longest_first: bool = False) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]: ...
def prefetch(bytes: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], out_op: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], use_op: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], latest_in: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], least_s: typing.Annotated[numpy.typing.ArrayLike, numpy.float64], returns: typing.Annotated[numpy.typing.ArrayLike, numpy.bool], op_bytes: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], free: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], back: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], capacity_bytes: int) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]: ...
def run_until_steady(op: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], kind: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], swap: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], start_s: typing.Annotated[numpy.typing.ArrayLike, numpy.float64], op_start_s: typing.Annotated[numpy.typing.ArrayLike, numpy.float64], out_s: typing.Annotated[numpy.typing.ArrayLike, numpy.float64], in_s: typing.Annotated[numpy.typing.ArrayLike, numpy.float64], copies: typing.Annotated[numpy.typing.ArrayLike, numpy.bool]) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.bool], numpy.typing.NDArray[numpy.float64], int, numpy.typing.NDArray[numpy.float64], numpy.typing.NDArray[numpy.float64], float]: ...
