"""The rows of the C++ core are what the tables of a trace declare."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import chameleon_lab as cl
from chameleon_lab.runtime import core
from chameleon_lab.trace.columns import TABLES

FROM_OTHERS = {
    "ops": {"start_ticks", "end_ticks"},
    "storages": {"label", "dtype", "shape"},  # in words: name and form
    "replays": {"end_ticks"},
    "stalls": {"end_ticks"},
    "marks": {"end_ticks"},
    "pauses": {"start_ticks", "end_ticks"},
}
"""What columns are worked out from that the core has no row of."""

NEVER_RECORDED = {"kernels", "segments"}
"""Tables that come from the files of other tools alone."""

WORKED_OUT = {"duration_s", "at_s"}


@pytest.fixture(scope="module")
def log():
    with cl.Session(device="cpu", capacity="unlimited") as session:
        (torch.ones(4096) * 2).sum()
        session.step()
        return core.of("cpu").logs()[-1]


@pytest.mark.parametrize("table", [name for name in TABLES if name not in NEVER_RECORDED])
def test_rows_of_the_core_are_as_declared(log, table: str) -> None:
    rows = getattr(log, table)().dtype
    left = set(rows.names) - FROM_OTHERS.get(table, set())
    for name, column in TABLES[table].declared().items():
        if name in WORKED_OUT or (table, name) in {("storages", "name"), ("storages", "form")}:
            continue
        row = name if column.unit != "s" else name.removesuffix("_s") + "_ticks"
        assert row in rows.names, f"{table}.{name} is no row of the core"
        kind = {"s": "int64"}.get(column.unit, column.dtype.replace("bool", "uint8"))
        assert rows[row] == np.dtype(kind), f"{table}.{row}"
        left.discard(row)
    assert not left, f"{table}: no column is made of {left}"
