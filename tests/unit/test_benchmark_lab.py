"""The traces that the panel's benchmark makes of a real step."""

import argparse
import sys
from pathlib import Path

import numpy as np
import pytest
from synthetic import gpt_step, swapped_step

import benchmarks
import chameleon_lab
from benchmarks.lab.__main__ import (
    SIZES,
    made_by_another,
    options_of,
    other_python,
    rows_of,
    screen_row,
)
from benchmarks.lab.server import ServerError
from benchmarks.lab.traces import allocations, enlarged, events, repeat
from chameleon_lab.lab.panel.scene import Scene
from chameleon_lab.trace import Trace

pytestmark = pytest.mark.full


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


@pytest.mark.parametrize(
    ("least_events", "least_storages", "least_ops"), [(500, 0, 0), (0, 300, 0), (2000, 100, 0), (0, 0, 1500)]
)
def test_a_step_is_enlarged_until_it_is_large_enough(tmp_path, least_events, least_storages, least_ops):
    def enough(made):
        wanted = (least_events, least_storages, least_ops)
        found = (events(made), len(made.storages), len(made.ops))
        return all(there >= least for there, least in zip(found, wanted, strict=True))

    step = gpt_step()
    large = enlarged(step, least_events, least_storages, least_ops)
    assert enough(large) and not enough(repeat(step, len(large.ops) // len(step.ops) - 1))
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


def test_another_checkout_is_measured_beside_this_one_where_it_is_built(tmp_path, capsys):
    assert options_of([]).against is None and options_of([]).rounds == 1
    with pytest.raises(argparse.ArgumentTypeError, match=r"has no \.venv/bin/python: give a checkout"):
        other_python(str(tmp_path))
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    with pytest.raises(SystemExit):
        options_of(["--against", str(tmp_path)])
    assert "has no chameleon_lab/labextension/package.json: give a checkout" in capsys.readouterr().err
    panel = tmp_path / "chameleon_lab" / "labextension" / "package.json"
    panel.parent.mkdir(parents=True)
    panel.touch()
    options = options_of(["--against", str(tmp_path), "--rounds", "3"])
    assert (options.against, options.rounds) == (str(python), 3)


def test_another_checkout_records_its_own_traces(tmp_path):
    """It may not know this one's files."""
    for module in (benchmarks, chameleon_lab):
        folder = Path(module.__file__).parent
        (tmp_path / folder.name).symlink_to(folder)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    options = options_of(["--quick"])
    facts = [{"name": "small", "ops": 1000, "trace": "/elsewhere/small.parquet"}]
    (made,) = made_by_another(str(python), tmp_path / "traces", options, facts)
    step = Trace.load(made["trace"]).last
    assert Path(made["trace"]) == tmp_path / "traces" / "small.parquet"
    assert (made["name"], made["ops"], made["events"]) == ("small", len(step.ops), events(step))
    assert made["ops"] >= 1000
    python.write_text("#!/bin/sh\necho no torch >&2\nexit 1\n")
    with pytest.raises(ServerError, match=f"{tmp_path} recorded no trace:\nno torch"):
        made_by_another(str(python), tmp_path / "again", options, facts)


def measured(ready_s, work_ms):
    frames = {"p50_ms": 1.0, "p95_ms": work_ms}
    heap = {"used_bytes": 10**7, "buffers_bytes": None}
    panel = {"ready_s": ready_s, "view_bytes": 10**5, "heap": heap, "heap_before": heap}
    return {"panel": panel | {"gestures": {"all": {"work": frames, "between": frames}}}, "stacked": {}}


def test_figures_are_medians_of_the_rounds_and_are_wanted_below_two_seconds_and_fifty_milliseconds():
    assert [(size.ready_s, size.frame_ms) for size in SIZES[1:]] == [(2.0, 50.0)] * 2
    size = SIZES[-1]
    ours, theirs = [measured(ready, 40.0) for ready in (1.5, 9.0, 1.9)], [measured(2.5, 60.0)] * 3
    rows = {row["figure"]: row for row in rows_of(size, {"name": size.name}, ours, theirs)}
    ready, frame = rows["ready after the click, s"], rows["a frame's work, p95, ms"]
    assert (ready["panel"], ready["against"], ready["met"]) == (1.9, 2.5, True)
    assert (frame["panel"], frame["against"], frame["met"]) == (40.0, 60.0, True)
    assert rows["array buffers, MB"]["panel"] is None and rows["between frames, p95, ms"]["met"] is None
    assert screen_row(ready) == [size.name, ready["figure"], "at most 2", "1.9", "yes", "2.5", "-"]
    (alone,) = rows_of(size, {"name": size.name}, [measured(2.1, 40.0)])[:1]
    assert (alone["against"], alone["met"]) == (None, False)
