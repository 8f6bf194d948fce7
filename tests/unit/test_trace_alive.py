"""`trace.alive(op)`: what is there at an op, in one call."""

import numpy as np
import pytest
from synthetic import gpt_step

from chameleon_lab.report.trace_report import TraceReport
from chameleon_lab.trace import Category, Trace

STEP = gpt_step(layers=4)


def at(op):
    storages = STEP.storages
    return np.flatnonzero((storages.birth_op <= op) & (op <= storages.death_op))


@pytest.mark.parametrize("op", [0, 7, len(STEP.ops) - 1])
def test_it_is_what_was_born_and_has_not_died(op):
    found = STEP.alive(op)
    assert sorted(found.rows.tolist()) == at(op).tolist() and len(found) == len(at(op))
    total = int(STEP.storages.block_bytes[at(op)].sum())
    for summed in (found.by_category(), found.by_module(), found.by_module(1), found.by_storage()):
        assert sum(summed.values()) == found.bytes == total
        assert list(summed.values()) == sorted(summed.values(), reverse=True)
    used = STEP.uses.storage[STEP.uses.op == op]
    assert set(found.in_use.rows.tolist()) == set(used.tolist()) & set(at(op).tolist())


def test_without_an_op_it_is_the_peak():
    found = Trace([STEP]).alive()
    assert found.op == STEP.ops.live_peak_bytes.argmax()
    report = TraceReport.of(Trace([STEP]))
    assert {name.replace("_", " "): size for name, size in found.by_category().items()} == dict(
        report.peak_categories
    )
    assert found.of("activation").bytes == found.of(Category.ACTIVATION).bytes
    assert found.of("activation").bytes == found.by_category()["activation"]
    assert f"in {len(found)} storages alive at op {found.op} " in str(found)
    assert "<table>" in found._repr_html_()


def test_modules_are_cut_to_a_depth_and_named_storages_belong_to_their_own():
    by_module = STEP.alive().by_module()
    assert any("." in name for name in by_module)
    cut = STEP.alive().by_module(depth=1)
    assert not any("." in name for name in cut)
    assert cut["h"] == sum(size for name, size in by_module.items() if name.split(".")[0] == "h")


def test_what_an_op_uses_is_a_column():
    op = int(STEP.used_bytes.argmax())
    rows = np.unique(STEP.uses.storage[STEP.uses.op == op])
    assert STEP.used_bytes[op] == STEP.storages.block_bytes[rows].sum()


@pytest.mark.parametrize("op", [-1, len(STEP.ops), 10**9])
def test_an_op_that_is_none_is_named(op):
    with pytest.raises(IndexError, match=f"no op {op}: give one from 0"):
        STEP.alive(op)


def test_what_is_no_op_and_no_category_is_named():
    with pytest.raises(TypeError, match="op is 'peak'"):
        STEP.alive("peak")
    with pytest.raises(ValueError, match="no category 'weights': give one of parameter"):
        STEP.alive().of("weights")
    with pytest.raises(ValueError, match="depth is 0"):
        STEP.alive().by_module(0)
