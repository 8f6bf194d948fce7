"""Arrow arrays that are made of their buffers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from chameleon_lab.util import arrow


@pytest.mark.parametrize(
    "values",
    [
        np.arange(20, dtype=np.int32)[::2],
        np.array([0.5, np.inf, -1.0]),
        np.array([True, False] * 6),
        np.zeros(0, bool),
    ],
)
def test_numbers_are_those_that_pyarrow_makes(values: np.ndarray) -> None:
    made = arrow.numbers(pa, values)
    made.validate(full=True)
    assert made.equals(pa.array(values))


def test_nan_is_a_number_and_no_missing_value() -> None:
    assert arrow.numbers(pa, np.array([np.nan])).null_count == 0


def test_texts_and_lists_are_those_that_pyarrow_makes() -> None:
    texts = ["aten::mm", "", "Größe"]
    made = arrow.list_of(pa, arrow.strings(pa, texts), pa.field("names", pa.list_(pa.string())))
    made.validate(full=True)
    assert made.equals(pa.array([texts]))


def test_a_column_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"not the shape \(2, 3\)"):
        arrow.numbers(pa, np.zeros((2, 3)))
