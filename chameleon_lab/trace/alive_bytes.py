"""Bytes that are there at each op, from where storages begin and end."""

from __future__ import annotations

import numpy as np

from .columns import Storages


def bytes_between(ops: int, begin: np.ndarray, end: np.ndarray, block_bytes: np.ndarray) -> np.ndarray:
    """Bytes at each op, int64 (ops,), if each block is there for ``begin <= op < end``. One row a block."""
    change = np.zeros(ops + 1, dtype=np.int64)
    np.add.at(change, np.clip(begin, 0, ops), block_bytes)
    np.subtract.at(change, np.clip(end, 0, ops), block_bytes)
    there: np.ndarray = np.cumsum(change)[:ops]
    return there


def alive_bytes(ops: int, birth_op: np.ndarray, death_op: np.ndarray, block_bytes: np.ndarray) -> np.ndarray:
    """Bytes alive at each op, int64 (ops,): what dies in an op is alive there. The columns are as in ``Storages``."""
    return bytes_between(ops, birth_op, death_op.astype(np.int64) + 1, block_bytes)


def alive_bytes_of(storages: Storages, ops: int) -> np.ndarray:
    """The same, of a step's storages."""
    return alive_bytes(ops, storages.birth_op, storages.death_op, storages.block_bytes)
