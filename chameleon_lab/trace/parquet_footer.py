"""The declared sizes of a Parquet file, read from its footer without pyarrow.

pyarrow ends the process where the metadata of a column is damaged: ``RowGroupMetaData.column`` lets a C++ exception
through that Python cannot catch. The footer is Thrift (parquet-format, ``parquet.thrift``):
``FileMetaData.row_groups[].columns[].meta_data`` has the sizes.
"""

from __future__ import annotations

import os
from typing import Any, BinaryIO

from .thrift import Reader

_MAGIC = b"PAR1"
_ROW_GROUPS, _COLUMNS, _META_DATA, _NUM_VALUES, _TOTAL_UNCOMPRESSED_SIZE = 4, 1, 3, 5, 6


def stated_size(file: BinaryIO) -> tuple[int, int]:
    """The values in all columns of all row groups, and their bytes when uncompressed. The file's position changes.

    Raises ValueError if the footer is damaged.
    """
    end = file.seek(0, os.SEEK_END)
    file.seek(max(end - 8, 0))
    tail = file.read(8)
    size = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or size > end - 8:
        raise ValueError("it does not end as Parquet files do")
    file.seek(end - 8 - size)
    footer = Reader(file.read(size)).struct()
    values = uncompressed_bytes = 0
    for group in _listed(footer, _ROW_GROUPS):
        for column in _listed(group, _COLUMNS):
            about = column.get(_META_DATA)
            if not isinstance(about, dict):
                raise ValueError("a column without its metadata")
            values += _count(about, _NUM_VALUES)
            uncompressed_bytes += _count(about, _TOTAL_UNCOMPRESSED_SIZE)
    return values, uncompressed_bytes


def _listed(struct: dict[int, Any], field: int) -> list[dict[int, Any]]:
    found = struct.get(field)
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise ValueError(f"field {field} of the footer is no list of structures")
    return found


def _count(struct: dict[int, Any], field: int) -> int:
    found = struct.get(field)
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        raise ValueError(f"field {field} of a column's metadata is no size")
    return found
