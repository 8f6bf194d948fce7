"""The traces that the panel's benchmark makes of a real step."""

import numpy as np
import pytest
from synthetic import gpt_step, swapped_step

from benchmarks.lab_trace import allocations, enlarged, events, repeat
from chameleon_lab.lab.scene import Scene
from chameleon_lab.trace import Trace


def test_a_repeated_step_is_a_step_of_the_same_memory():
    step, row = swapped_step()
    twice = repeat(step, 2)
    n = len(step.ops)
    assert len(twice.ops) == 2 * n
    assert len(twice.uses) == 2 * len(step.uses)
    stays = (step.storages.birth_op < 0) & (step.storages.death_op >= n)
    assert len(twice.storages) == stays.sum() + 2 * (~stays).sum()
    assert (twice.ops.live_peak_bytes == np.tile(step.ops.live_peak_bytes, 2)).all()
    assert (np.diff(twice.ops.start_s) >= 0).all()
    assert twice.duration_s == 2 * step.duration_s
    # Each repetition swaps a storage of its own, and what stays is on the device in one piece.
    assert len(np.unique(twice.transfers.storage)) == 2
    assert (twice.storages.block_bytes[twice.transfers.storage] == step.storages.block_bytes[row]).all()
    assert len(twice.residencies) == stays.sum() + 2 * (len(step.residencies) - stays.sum())
    assert Scene([twice], {}).away_bytes[1].max() == step.storages.block_bytes[row]


def test_repetitions_use_what_is_alive():
    step = repeat(gpt_step(), 3)
    birth, death = (column[step.uses.storage] for column in (step.storages.birth_op, step.storages.death_op))
    assert ((birth <= step.uses.op) & (step.uses.op <= death)).all()
    assert (np.diff(step.uses.op) >= 0).all()


@pytest.mark.parametrize(("least_events", "least_storages"), [(500, 0), (0, 300), (2000, 100)])
def test_a_step_is_enlarged_until_it_is_large_enough(tmp_path, least_events, least_storages):
    step = gpt_step()
    large = enlarged(step, least_events, least_storages)
    fewer = repeat(step, len(large.ops) // len(step.ops) - 1)
    assert events(large) >= least_events and len(large.storages) >= least_storages
    assert events(fewer) < least_events or len(fewer.storages) < least_storages
    Trace([large], {}).save(tmp_path / "large.parquet")
    assert len(Trace.load(tmp_path / "large.parquet").last.uses) == len(large.uses)


def test_the_log_frees_what_it_allocates_and_holds_what_is_resident():
    step, _ = swapped_step()
    alive, most = {}, 0
    for block, size in allocations(step):
        if size:
            alive[block] = size
            most = max(most, sum(alive.values()))
        else:
            del alive[block]
    levels = Scene([step], {}).resident[1].sum(axis=1)
    assert most == levels.max()
    assert sum(alive.values()) == levels[-1]
