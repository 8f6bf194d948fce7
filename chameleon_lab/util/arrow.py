"""Arrow arrays made of their buffers.

``pyarrow.array`` imports pandas where that is installed, which takes most of a second of the training that goes on
beside it. ``pa`` is the module pyarrow: callers import it, and say in their own words where it is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow


def numbers(pa: Any, values: np.ndarray) -> pyarrow.Array:
    """Numbers, or truth values, of shape (N,) as an array of the same type. Raises ValueError for another shape."""
    if values.ndim != 1:
        raise ValueError(f"a column has one value a row, and not the shape {values.shape}")
    kind, count = pa.from_numpy_dtype(values.dtype), len(values)
    if values.dtype == bool:
        values = np.packbits(values, bitorder="little")
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(np.ascontiguousarray(values))])


def strings(pa: Any, texts: Sequence[str]) -> pyarrow.StringArray:
    """Texts as an array."""
    encoded = [text.encode() for text in texts]
    begins = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(begins), pa.py_buffer(b"".join(encoded)))


def list_of(pa: Any, values: pyarrow.Array, field: pyarrow.Field) -> pyarrow.ListArray:
    """All values as one entry of a list column."""
    ends = pa.py_buffer(np.array([0, len(values)], np.int32))
    return pa.ListArray.from_buffers(field.type, 1, [None, ends], children=[values])
