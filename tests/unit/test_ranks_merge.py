"""Ranks side by side, on made-up traces: what is put in is what must be found."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from synthetic import StepBuilder

import chameleon_lab as cl
from chameleon_lab.errors import TraceError
from chameleon_lab.merged_report import MergedFile
from chameleon_lab.ranks.alignment import align
from chameleon_lab.ranks.collectives import collectives_of
from chameleon_lab.ranks.identity import Identity
from chameleon_lab.ranks.side import RankSide
from chameleon_lab.ranks.side_by_side import merge, merged, trace_files
from chameleon_lab.trace import Category, Pause, Pauses, Trace

MS = 1e-3
MOVING = 0.4 * MS
OF_STEP = 24
WAYS = [
    ("c10d::allreduce_", ""),
    ("c10d::allreduce_", "c10d::wait"),
    ("_c10d_functional::all_reduce", "_c10d_functional::wait_tensor"),
]


def job(
    world: int,
    steps: int = 4,
    offset_s: tuple[float, ...] = (),
    slow: dict[int, float] | None = None,
    seed: int = 0,
    device: str = "cpu",
    kind: str = "c10d::allreduce_",
    wait_op: str = "",
    groups: list[list[int]] | None = None,
) -> list[Trace]:
    """Traces of ranks that meet at collectives. ``slow``: seconds that a rank computes longer before each.

    ``wait_op``: the op that waits; "": a wait in C++, which is none.
    """
    rng = np.random.default_rng(seed)
    built = [[StepBuilder() for _ in range(world)] for _ in range(steps)]
    starts = np.zeros((steps, world))
    pauses: list[list[list[tuple[int, float]]]] = [[[] for _ in range(world)] for _ in range(steps)]
    clock = np.full(world, 1.7e9) + rng.uniform(0, MS, world)
    for step in range(steps):
        starts[step] = clock
        for builder in built[step]:
            builder.carried(Category.GRADIENT, 4096)
        for _ in range(OF_STEP):
            compute = rng.uniform(1, 2, world) * MS
            for rank, seconds in (slow or {}).items():
                compute[rank] += seconds
            launch = clock + compute
            done = launch.max() + MOVING + rng.uniform(0, 0.1, world) * MS
            for rank, builder in enumerate(built[step]):
                builder.op("aten::mm", makes=((Category.ACTIVATION, 512),), seconds=float(compute[rank]))
                takes = 0.05 * MS
                builder.op(kind, reads=(0,), writes=(0,), seconds=takes)
                if wait_op:
                    wait = float(done[rank] - launch[rank] - takes)
                    builder.op(wait_op, reads=(0,), seconds=wait)
                else:  # the wait is no op: the step's clock stands still, as for any pause
                    pauses[step][rank].append((len(builder.ops), float(done[rank] - launch[rank] - takes)))
                    builder.op("aten::div_", reads=(0,), writes=(0,), seconds=0.1 * MS)
            clock = done + (0.0 if wait_op else 0.1 * MS)
    traces = []
    for rank in range(world):
        found = []
        for step in range(steps):
            ahead = offset_s[rank] if offset_s else 0.0
            made = built[step][rank].build(step)
            rows = pauses[step][rank]
            of = Pauses(
                op=np.array([op for op, _ in rows], dtype=np.int32),
                kind=np.full(len(rows), Pause.IDLE, dtype=np.uint8),
                at_s=np.array([made.ops.start_s[op] for op, _ in rows], dtype=np.float64),
                duration_s=np.array([seconds for _, seconds in rows], dtype=np.float64),
            )
            found.append(replace(made, start_s=float(starts[step, rank] + ahead), pauses=of))
        meta = {"rank": rank, "world_size": world, "host": "node", "device": device}
        if groups is not None:
            meta["groups"] = {str(k): group for k, group in enumerate(groups) if rank in group}
        traces.append(Trace(found, meta))
    return traces


@pytest.mark.parametrize(("kind", "wait_op"), WAYS)
def test_what_a_collective_took_is_read_from_its_trace(kind, wait_op):
    (fast, slow) = job(2, steps=1, slow={1: 5 * MS}, kind=kind, wait_op=wait_op)
    one, other = collectives_of(fast.last), collectives_of(slow.last)
    assert one.names == other.names == (kind,) * OF_STEP
    assert (one.bytes == 4096).all() and one.is_exact.all()
    # Nobody has a result before the last has come, and the slow one waits for nothing but the bytes.
    assert (one.done_s >= other.begin_s).all() and (other.done_s >= one.begin_s).all()
    waited = other.done_s - np.maximum(other.needed_s, other.begin_s)
    assert np.all(waited < 2 * MOVING), waited
    assert np.all(one.done_s - one.needed_s > 4 * MS)


@pytest.mark.parametrize(("kind", "wait_op"), WAYS)
@pytest.mark.parametrize("ahead", [0.0, 0.0137, -1.25, 10.0, -10.0])
def test_an_offset_of_a_clock_is_found_within_its_bracket(kind, wait_op, ahead):
    """96 collectives: the bracket holds the truth, and is no wider than 1 ms."""
    traces = job(2, offset_s=(0.0, ahead), kind=kind, wait_op=wait_op)
    found = align([RankSide.of(trace) for trace in traces])
    assert found.matched == 96 and not found.why_not
    offset = found.offsets[1]
    assert offset.low_s <= ahead <= offset.high_s
    assert 0 < offset.high_s - offset.low_s <= MS
    assert abs(offset.seconds - ahead) <= min(offset.error_s, 0.1 * MS)


def test_many_clocks_are_found_at_once():
    offsets = tuple(np.random.default_rng(5).uniform(-10, 10, 8))
    found = align([RankSide.of(trace) for trace in job(8, offset_s=offsets)])
    for offset, truth in zip(found.offsets, offsets, strict=True):
        assert offset.low_s - 1e-6 <= truth - offsets[0] <= offset.high_s + 1e-6


@pytest.mark.parametrize("ahead", [0.0, 10.0])
def test_the_rank_that_others_wait_for_comes_first(ahead):
    """By what was put in: each of three ranks waits about 5 ms for rank 2, at each of 24 collectives of a step."""
    report = merge(job(4, offset_s=(0.0, ahead, -ahead, 0.0), slow={2: 5 * MS}))
    first, *others = report.rows
    assert first.name == "rank 2" and first.longest_for == "" and first.waited_s == 0.0
    expected = OF_STEP * 5 * MS
    for row in others:
        assert row.longest_for == "rank 2"
        assert 0.8 * expected < row.waited_s < 1.2 * expected
        assert row.skew_s < 1.5 * MS < 4 * MS < first.skew_s
        assert row.made_wait_s < 0.1 * first.made_wait_s
        assert row.step_s == pytest.approx(row.compute_s + row.waited_s + row.moving_s, rel=1e-6)
    assert first.made_wait_s == pytest.approx(sum(row.waited_s for row in others))
    assert first.compute_s > others[0].compute_s + 0.8 * expected
    assert report.steps == (1, 2, 3) and report.world_size == 4
    assert len({row.program for row in report.rows}) == 1
    text = str(report)
    assert text.splitlines()[2].startswith("rank 2") and "4 of 4 ranks" in text
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["rows"][0]["rank"] == 2 and plain["rows"][1]["clock"]["error_s"] >= 0


def test_what_a_rank_sends_to_be_merged_is_all_that_it_takes():
    traces = job(3, slow={1: 3 * MS})
    sides = [RankSide.of(trace) for trace in traces]
    again = [RankSide.of_dict(json.loads(json.dumps(side.to_dict()))) for side in sides]
    assert merged(again).to_dict() == merged(sides).to_dict() == merge(traces).to_dict()


def test_ranks_of_several_groups_are_not_aligned_by_collectives_of_others():
    """Each rank is in a group that the other one is not in, and a trace does not tell a collective's group."""
    apart = [[0, 1, 2, 3], [0, 1], [2, 3], [0, 2], [1, 3]]
    report = merge(job(4, offset_s=(0, 10, 0, 0), groups=apart))
    assert all(row.waited_s is None for row in report.rows)
    assert any("no collective ties rank 1" in note for note in report.notes), report.notes
    together = merge(job(4, offset_s=(0, 10, 0, 0), groups=[[0, 1, 2, 3]]))
    assert all(row.waited_s is not None for row in together.rows) and not together.notes


def test_a_gpus_host_times_align_nothing():
    report = merge(job(2, device="cuda:0"))
    assert all(row.waited_s is None for row in report.rows)
    assert "cuda:0" in report.notes[0] and "host does not wait" in report.notes[0]


def test_clocks_that_are_set_meanwhile_are_aligned_in_the_newest_step():
    """Over all steps the collectives contradict each other."""
    one, other = job(2, slow={1: 5 * MS})
    steps = [replace(step, start_s=step.start_s + 3.0 * step.index) for step in other]
    moved = Trace(steps, other.meta)
    assert align([RankSide.of(one), RankSide.of(moved)]).contradicts
    report = merge([one, moved])
    assert report.steps == (3,) and "Only step 3" in report.notes[0]
    assert (
        report.rows[0].name == "rank 1" and report.rows[0].clock.low_s <= 9.0 <= report.rows[0].clock.high_s
    )

    late = [
        replace(step.ops, start_s=step.ops.start_s * 3.0) for step in other
    ]  # another clock within a step
    report = merge(
        [one, Trace([replace(step, ops=ops) for step, ops in zip(other, late, strict=True)], other.meta)]
    )
    assert any("contradict" in note for note in report.notes), report.notes
    assert all(row.waited_s is None for row in report.rows)


def test_ranks_that_are_missing_or_run_something_else_are_said():
    (first, _, third) = job(3)
    other = Trace([replace(step, index=step.index + 50) for step in third], third.meta)
    report = merge([first, other])
    assert any("No trace of rank 1" in note for note in report.notes)
    assert any("no step in common" in note for note in report.notes)
    with pytest.raises(TraceError, match="two traces are of rank 0"):
        merge([first, first])
    with pytest.raises(TraceError, match="no trace holds step 99"):
        merge([first, third], step=99)
    assert merge([first, third], step=2).steps == (2,)
    assert merge([first]).rows[0].made_wait_s is None


def test_a_folder_holds_the_best_trace_of_each_rank(tmp_path):
    traces = job(2, steps=2)
    for trace, name in zip(
        traces * 2, ("t.rank0", "t.rank1.unfinished", "t.rank0.killed", "t.rank1.killed"), strict=True
    ):
        trace.save(tmp_path / f"{name}.parquet")
    names = [name.rpartition("/")[2] for name in trace_files(tmp_path)]
    assert names == ["t.rank0.parquet", "t.rank1.unfinished.parquet"]
    assert merge(tmp_path).rows[0].steps == 1
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceError, match="no trace is in this folder"):
        trace_files(tmp_path / "empty")


def test_a_trace_without_a_rank_has_its_files_number(tmp_path):
    for rank, trace in enumerate(job(2, steps=2)):
        Trace(trace.steps, {}).save(tmp_path / f"run7.rank{rank}.parquet")
    report = cl.ranks.merge(tmp_path)
    assert isinstance(report, cl.ranks.MergedReport)
    assert sorted(row.rank for row in report.rows) == [0, 1] and report.world_size == 2


class Ended:
    """A session that has ended, as far as its side needs it."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def trace(self) -> Trace:
        return self._trace


@pytest.mark.parametrize("ending", ["json", "html"])
def test_rank_0_merges_what_the_others_have_left(tmp_path, ending):
    """Of this job alone. One that is missing is waited for up to the limit, and said."""
    job_of = {"MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x"}
    traces, path = job(3, steps=2), tmp_path / f"r.{ending}"
    files = [MergedFile(path, Identity(rank, 3, rank, 3, "node"), job_of) for rank in range(3)]
    for file, trace in zip(files[:2], traces, strict=False):
        file.begin()
        file.write_side(Ended(trace))
    MergedFile(path, Identity(2, 3), job_of | {"MASTER_PORT": "2"}).write_side(Ended(traces[2]))
    report = files[0].merge(0.0)
    assert sorted(row.rank for row in report.rows) == [0, 1]
    assert "No trace of rank 2." in report.notes and "rank 2" in path.read_text()
    for file, trace in zip(files, traces, strict=True):
        file.begin()
        file.write_side(Ended(trace))
    assert len(files[0].merge(600.0).rows) == 3, "nothing is missing, and nothing is waited for"
    text = path.read_text()
    assert "rank 2" in text and (
        json.loads(text)["world_size"] == 3 if ending == "json" else "<table>" in text
    )
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_one_rank_alone_has_nothing_to_merge(tmp_path):
    assert not MergedFile(tmp_path / "r.json", Identity(0, 1)).is_wanted
    assert not MergedFile("/dev/stderr", Identity(0, 2)).is_wanted
    assert MergedFile(tmp_path / "r.{rank}.json", Identity(1, 2)).path == tmp_path / "r.all.json"
