"""Trace files: they read back as they were, and say what is wrong with a bad one."""

from __future__ import annotations

import builtins
import dataclasses
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hangs import HANGS_AFTER_S
from synthetic import gpt_step, random_step

from chameleon_lab.errors import CutFileError, TraceError
from chameleon_lab.trace import (
    Cause,
    Declined,
    Kernels,
    Makings,
    Marks,
    Pauses,
    Replays,
    Segments,
    Stalls,
    StepTrace,
    Storages,
    Trace,
    Transfers,
    store,
)
from chameleon_lab.trace.cut_file import note
from chameleon_lab.trace.parquet_footer import stated_size
from chameleon_lab.trace.stall_parts import parts_of_step
from chameleon_lab.trace.thrift import Int32, written

COUNTS = ("refusals", "soft_ooms", "alloc_retries", "device_allocs", "device_frees", "device_syncs")
WRITTEN = Path(__file__).parent / "data" / "trace.parquet"
META_OF_WRITTEN = {"torch": "2.13.0", "device": "cpu", "capacity_bytes": None}
META = {"torch": "2.13.0", "device": "cpu", "capacity_bytes": None, "link_out_bytes_per_s": 1e9}


def rich_step() -> StepTrace:
    """A step with a row in every table and a value in every column."""
    step = gpt_step(layers=2)
    n = len(step.ops)
    ops = dataclasses.replace(
        step.ops,
        stack=np.arange(n, dtype=np.int32) % 2 - 1,
        plan_op=np.arange(n, dtype=np.int32) - 1,
        device_s=np.linspace(0, 1e-3, n),
    )
    rows = {
        Transfers: {
            "storage": [3, -1],
            "direction": [0, 1],
            "cause": [1, 2],
            "bytes": [1 << 40, 7],
            "issue_op": [4, 9],
            "issue_s": [0.1, 0.2],
            "start_s": [0.15, 0.25],
            "end_s": [0.2, 0.3],
            "due_s": [0.05, np.nan],
        },
        Stalls: {
            "op": [9],
            "storage": [-1],
            "direction": [1],
            "cause": [2],
            "start_s": [0.2],
            "duration_s": [0.1],
            "due_s": [0.19],
            "issue_s": [0.2],
            "copy_start_s": [0.25],
            "copy_end_s": [0.3],
            "room_bytes": [1 << 20],
            "room_storage": [3],
        },
        Replays: {
            "op": [9],
            "storage": [4],
            "name": [1],
            "cause": [2],
            "bytes": [1 << 33],
            "start_s": [0.21],
            "duration_s": [0.02],
        },
        Declined: {"op": [5], "storage": [2], "name": [-1], "refusal": [3]},
        Makings: {
            "making": [0, 0, 1],
            "op": [1, 1, 4],
            "storage": [2, 2, 3],
            "name": [0, 0, -1],
            "input": [0, 1, -1],
            "refusal": [0, 0, 6],
        },
        Pauses: {"op": [3, n], "kind": [1, 2], "at_s": [0.01, 0.02], "duration_s": [1.5, 0.25]},
        Marks: {
            "name": [0],
            "thread": [0],
            "from_op": [1],
            "to_op": [4],
            "start_s": [0.1],
            "duration_s": [0.2],
        },
        Kernels: {
            "name": [0, 1],
            "op": [2, -1],
            "device": [0, 1],
            "stream": [7, 1 << 40],
            "start_s": [0.01, 0.02],
            "duration_s": [0.001, 0.002],
        },
        Segments: {
            "address": [1 << 63],
            "total_bytes": [1 << 31],
            "allocated_bytes": [1 << 30],
            "gaps": [3],
            "largest_gap_bytes": [1 << 29],
            "stream": [-1],
            "kind": [0],
        },
    }
    tables = {
        kind.__name__.lower(): kind(
            **{name: np.array(values, kind.declared()[name].dtype) for name, values in columns.items()}
        )
        for kind, columns in rows.items()
    }
    counts = {name: number for number, name in enumerate(COUNTS, 1)}
    return dataclasses.replace(
        step,
        index=41,
        start_s=1.7e9,
        ops=ops,
        storages=dataclasses.replace(
            step.storages, form=np.arange(len(step.storages), dtype=np.int32) % 3 - 1
        ),
        uses=dataclasses.replace(step.uses, part=np.arange(len(step.uses), dtype=np.int32) % 3 - 1),
        forms=("float32 [64, 256]", "int64"),
        mark_names=("my step",),
        stacks=("train.py:12 step\nmodel.py:7 forward",),
        truncated_ops=3,
        useless_bytes=77,
        lacks="nobody saw the reads",
        **tables,
        **counts,
    )


def assert_same(left: Trace, right: Trace) -> None:
    assert left.meta == right.meta
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        for field in dataclasses.fields(StepTrace):
            x, y = getattr(a, field.name), getattr(b, field.name)
            if not dataclasses.is_dataclass(x):
                assert x == y and type(x) is type(y), field.name
                continue
            assert type(x) is type(y)
            for name, column in x.columns().items():
                np.testing.assert_array_equal(column, y.columns()[name], err_msg=name)
                assert column.dtype == y.columns()[name].dtype, name


def test_round_trip_is_the_identity(tmp_path: Path) -> None:
    trace = Trace([rich_step(), *(random_step(seed) for seed in range(5))], META)
    path = tmp_path / "run.parquet"
    trace.save(str(path))
    assert_same(Trace.load(str(path)), trace)
    Trace.load(str(path)).save(tmp_path / "again.parquet")
    assert_same(Trace.load(tmp_path / "again.parquet"), trace)


def test_empty_trace_survives(tmp_path: Path) -> None:
    Trace([], META).save(tmp_path / "empty.parquet")
    assert_same(Trace.load(tmp_path / "empty.parquet"), Trace([], META))


def test_file_has_a_row_a_step_and_a_column_for_every_field(tmp_path: Path) -> None:
    Trace([rich_step(), rich_step()]).save(tmp_path / "run.parquet")
    table = parquet.read_table(tmp_path / "run.parquet")
    assert table.num_rows == 2
    fields = {field.name for field in dataclasses.fields(StepTrace)}
    assert set(table.column_names) == fields - {"keeps_host_copies"}  # which the header has, once a file
    step = rich_step()
    tables = ("ops", "storages", "uses", "transfers", "stalls", "residencies", "replays", "declined")
    for name in tables:
        struct = table.schema.field(name).type.value_type
        assert [struct.field(k).name for k in range(struct.num_fields)] == list(getattr(step, name).columns())


def test_loaded_columns_can_be_planned_on(tmp_path: Path) -> None:
    from chameleon_lab.planner import plan
    from chameleon_lab.policy import Link

    step = gpt_step(layers=4)
    Trace([step]).save(tmp_path / "run.parquet")
    capacity = int(0.6 * step.live_peak_bytes)
    assert plan(Trace.load(tmp_path / "run.parquet"), capacity, Link(None, None)) == plan(
        step, capacity, Link(None, None)
    )


def test_truncated_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    Trace([rich_step()]).save(path)
    data = path.read_bytes()
    for length in (3, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(
            CutFileError, match=rf"run\.parquet: truncated: .* of its {length} bytes the last"
        ):
            Trace.load(path)
    path.write_bytes(b"")
    with pytest.raises(CutFileError, match=r"run\.parquet: the file is empty"):
        Trace.load(path)


def cut_trace(tmp_path: Path) -> tuple[Trace, Path, bytes]:
    """Three steps in a file."""
    steps = [rich_step(), dataclasses.replace(random_step(1), index=42), rich_step()]
    trace, path = Trace(steps, META), tmp_path / "run.parquet"
    trace.save(path)
    return trace, path, path.read_bytes()


def test_a_cut_file_gives_its_whole_steps_wherever_it_is_cut(tmp_path: Path) -> None:
    trace, path, data = cut_trace(tmp_path)
    notes = [k for k in range(len(data)) if data.startswith(b"CLab", k)]
    assert len(notes) == 1 + len(trace)
    edges = {at + k for at in [*notes, len(data) - 8] for k in (-1, 0, 12)}
    places = sorted({*range(0, len(data), len(data) // 12), *edges, len(data) - 1} & set(range(len(data))))
    read = []
    for place in places:
        path.write_bytes(data[:place])
        try:
            found = Trace.load(path, partial=True)
        except CutFileError as error:
            assert str(path) in str(error)
            read.append(0)
            assert place <= notes[2]
            continue
        assert found.lost == f"{path}: cut after {place} bytes; {len(found)} of its 3 steps can be read"
        assert_same(found, Trace(trace.steps[: len(found)], META))
        with pytest.raises(CutFileError, match=rf"partial=True\), .*; {len(found)} of its 3 steps"):
            Trace.load(path)
        # As many as there can be: a step ends where the next one's note begins.
        assert len(found) == sum(at <= place for at in notes[2:]) or len(found) == 3
        read.append(len(found))
    assert read == sorted(read) and set(read) == {0, 1, 2, 3}


def test_sizes_that_are_no_numbers_end_what_can_be_read(tmp_path: Path) -> None:
    _, path, data = cut_trace(tmp_path)
    second = [k for k in range(len(data)) if data.startswith(b"CLab", k)][2]
    size = int.from_bytes(data[second + 4 : second + 8], "little")
    begin = second + 12 + size
    for number in ({1: 5}, b"5", [5]):
        page = written({1: Int32(0), 2: number, 3: Int32(10), 5: {1: Int32(1)}})
        path.write_bytes(data[:begin] + page + data[begin + len(page) : -1])
        assert len(Trace.load(path, partial=True)) == 1
    counts = json.loads(data[second + 12 : begin])["values"]
    path.write_bytes(data[:second] + note({"values": [None] * len(counts)}))
    with pytest.raises(TraceError, match="a step lacks its size"):
        Trace.load(path, partial=True)


def test_a_whole_file_has_lost_nothing_and_what_is_saved_again_says_what_was_lost(tmp_path: Path) -> None:
    trace, path, data = cut_trace(tmp_path)
    assert Trace.load(path, partial=True).lost is None
    path.write_bytes(data[: data.rindex(b"CLab") + 30])
    found = Trace.load(path, partial=True)
    assert len(found) == 2
    found.save(tmp_path / "again.parquet")
    again = Trace.load(tmp_path / "again.parquet")
    assert again.lost == found.lost
    assert_same(again, found)


def test_a_file_whose_end_is_empty_gives_the_steps_before(tmp_path: Path) -> None:
    """As after a crash, where a file has its length and not its bytes; the last pages may be torn in the middle."""
    trace, path, data = cut_trace(tmp_path)
    for place in range(len(data) // 4, len(data) - 8, len(data) // 9):
        path.write_bytes(data[:place] + bytes(len(data) - place))
        try:
            found = Trace.load(path, partial=True)
        except CutFileError:
            continue
        assert_same(found, Trace(trace.steps[: len(found)], META))
        assert found.lost is not None


def test_a_file_in_one_piece_is_read_whole_and_not_in_part(tmp_path: Path) -> None:
    """As other programs write Parquet: one row group for all steps, and nothing before the end that tells of it."""
    trace, path, _ = cut_trace(tmp_path)
    parquet.write_table(parquet.read_table(path), path, compression="zstd")
    assert_same(Trace.load(path, partial=True), trace)
    data = path.read_bytes()
    for place in (3, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:place])
        for partial in (False, True):
            with pytest.raises(
                CutFileError, match="truncated: it begins as a trace, .* save the trace again$"
            ):
                Trace.load(path, partial=partial)


def test_what_is_whole_and_no_trace_is_not_called_truncated(tmp_path: Path) -> None:
    path = tmp_path / "notes.parquet"
    path.write_text("what I saw")
    with pytest.raises(TraceError, match=r"notes\.parquet: this is no Parquet file") as caught:
        Trace.load(path)
    assert not isinstance(caught.value, CutFileError)
    path.write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    with pytest.raises(TraceError, match=r"notes\.parquet: damaged"):
        Trace.load(path)


def test_the_footer_says_what_pyarrow_reads_in_it(tmp_path: Path) -> None:
    Trace([rich_step(), rich_step()], META).save(tmp_path / "t.parquet")
    metadata = parquet.ParquetFile(tmp_path / "t.parquet").metadata
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    columns = [group.column(k) for group in groups for k in range(group.num_columns)]
    with open(tmp_path / "t.parquet", "rb") as file:
        assert stated_size(file) == (
            sum(column.num_values for column in columns),
            sum(column.total_uncompressed_size for column in columns),
        )


def test_more_than_anybody_records_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Trace([rich_step()], META).save(tmp_path / "t.parquet")
    monkeypatch.setattr(store, "_MOST_VALUES", 10)
    with pytest.raises(TraceError, match="at most 10 in"):
        Trace.load(tmp_path / "t.parquet")


def test_a_damaged_footer_never_ends_the_process(tmp_path: Path) -> None:
    """pyarrow lets C++ exceptions through where it looks at damaged metadata of a column. Many bytes, in one child."""
    path = tmp_path / "t.parquet"
    Trace([rich_step()], META).save(path)
    code = f"""
import random
from chameleon_lab.errors import TraceError
from chameleon_lab.trace import Trace
whole = open({str(path)!r}, "rb").read()
begin = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
# Entries of more than a field: what was found there first.
places = [k for k in range(begin, len(whole) - 8) if whole[k] & 15 == 6 and whole[k] != 6]
random.Random(0).shuffle(places)
refused = 0
for place in places[:400]:
    damaged = bytearray(whole)
    damaged[place] = min(whole[place] + 16, 0xE6)
    open({str(path)!r}, "wb").write(damaged)
    try:
        Trace.load({str(path)!r})
    except TraceError:
        refused += 1
print(len(places), refused)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANGS_AFTER_S)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    assert int(done.stdout.split()[1]) > 0


@pytest.mark.parametrize(
    "footer",
    [
        b"",
        b"\x00",
        b"\x49" + b"\x19" * 5000,
        b"\x19\xfc\xff\xff\xff\xff\x0f",
        b"\x16" + b"\xff" * 20,
        b"\x4f",
    ],
    ids=["none", "empty", "deep", "long list", "long number", "no type"],
)
def test_a_footer_of_nonsense_is_refused(footer: bytes) -> None:
    with pytest.raises(ValueError):
        stated_size(io.BytesIO(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"))


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    path.write_text("step,loss\n0,1.0\n")
    with pytest.raises(TraceError, match="no Parquet file"):
        Trace.load(path)
    parquet.write_table(pa.table({"loss": [1.0]}), path)
    with pytest.raises(TraceError, match="no Chameleon Lab trace"):
        Trace.load(path)


def rewrite(path: Path, table: pa.Table, header: object) -> None:
    text = header if isinstance(header, str) else json.dumps(header)
    parquet.write_table(table.replace_schema_metadata({b"chameleon_lab.trace": text.encode()}), path)


def test_a_file_that_was_written_before_reads_as_it_was_written(tmp_path: Path) -> None:
    """From :func:`rich_step`. A change that makes this fail raises VERSION, and writes the file anew."""
    read = Trace.load(WRITTEN)
    assert_same(read, Trace([rich_step()], META_OF_WRITTEN))
    assert sum(parts_of_step(read.last).totals().values()) == pytest.approx(
        rich_step().stalls.duration_s.sum()
    )
    read.save(tmp_path / "again.parquet")
    assert_same(Trace.load(tmp_path / "again.parquet"), read)


def with_enums(path: Path, enums: dict[str, list[str]]) -> None:
    """The file, as a Chameleon Lab would have written it whose enums are other ones."""
    header = json.loads(parquet.read_schema(path).metadata[b"chameleon_lab.trace"])
    rewrite(path, parquet.read_table(path), header | {"enums": header["enums"] | enums})


def test_numbers_of_enums_mean_what_the_file_calls_them(tmp_path: Path) -> None:
    path, step = tmp_path / "run.parquet", rich_step()
    Trace([step]).save(path)
    with_enums(path, {"Cause": ["DEMAND", "PLANNED", "WEATHER", "ACCESS", "EVICT"]})
    with pytest.raises(TraceError, match=r"transfers\.cause is 'WEATHER', which this .* anew"):
        Trace.load(path)
    with_enums(path, {"Cause": ["WEATHER", "DEMAND", "ACCESS"]})
    read = Trace.load(path).last
    assert step.transfers.cause.tolist() == [Cause.EVICT, Cause.DEMAND]
    assert read.transfers.cause.tolist() == [Cause.DEMAND, Cause.ACCESS]
    assert read.transfers.cause.dtype == np.uint8
    with_enums(path, {"Cause": ["PLANNED"]})
    with pytest.raises(TraceError, match=r"transfers\.cause is outside 0 to 0"):
        Trace.load(path)


def test_a_column_that_cannot_be_left_out_is_asked_for() -> None:
    with pytest.raises(TypeError, match="Storages needs the column 'bytes'"):
        Storages()
    assert "category: uint8; Category" in Storages.__doc__


@pytest.mark.parametrize("version", [store.VERSION - 1, store.VERSION + 1])
def test_another_version_is_refused(version: int, tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    Trace([rich_step()]).save(path)
    rewrite(path, parquet.read_table(path), {"version": version, "meta": {}})
    said = f"^{re.escape(str(path))}: it is of trace version {version}, .* version {store.VERSION}: record it anew$"
    with pytest.raises(TraceError, match=said):
        Trace.load(path)


@pytest.mark.parametrize(
    "header",
    [
        *("{", [], {"meta": {}}, {"version": store.VERSION, "meta": 3}),
        *({"version": version, "meta": {}} for version in ("9", 9.0, True)),
    ],
)
def test_broken_header_is_refused(tmp_path: Path, header: object) -> None:
    path = tmp_path / "run.parquet"
    Trace([rich_step()]).save(path)
    rewrite(path, parquet.read_table(path), header)
    with pytest.raises(TraceError, match="header is broken"):
        Trace.load(path)


def test_missing_and_changed_columns_are_named(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    Trace([rich_step()]).save(path)
    table = parquet.read_table(path)
    header = table.schema.metadata[b"chameleon_lab.trace"].decode()
    rewrite(path, table.drop_columns(["uses"]), header)
    with pytest.raises(TraceError, match="column 'uses' is missing"):
        Trace.load(path)
    rewrite(path, table.set_column(0, "index", pa.array(["zero"])), header)
    with pytest.raises(TraceError, match="column 'index' is of type string, not int64"):
        Trace.load(path)


def test_meta_must_be_plain(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="meta must hold plain"):
        Trace([], {"device": object()}).save(tmp_path / "run.parquet")
    assert list(tmp_path.iterdir()) == []


def test_failed_save_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    Trace([rich_step()], META).save(path)
    step = rich_step()
    bad = dataclasses.replace(step, ops=dataclasses.replace(step.ops, name=step.ops.name + 0.5))
    with pytest.raises(TraceError, match=r"column ops\.name is float64, which does not fit int32"):
        Trace([bad]).save(path)
    bad = dataclasses.replace(step, ops=dataclasses.replace(step.ops, name=np.stack([step.ops.name] * 2, 1)))
    with pytest.raises(TraceError, match=r"column ops\.name has the shape \(\d+, 2\)"):
        Trace([bad]).save(path)
    assert_same(Trace.load(path), Trace([rich_step()], META))
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.parquet"]


def test_missing_file_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Trace.load(tmp_path / "nowhere.parquet")


def test_missing_pyarrow_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *args: object, **kwargs: object) -> object:
        if name.split(".")[0] == "pyarrow":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    for call in (lambda: Trace([]).save(tmp_path / "x"), lambda: Trace.load(tmp_path / "x")):
        with pytest.raises(ImportError, match="pip install pyarrow"):
            call()


def test_whether_copies_on_the_host_last_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    for keeps in (True, False):
        Trace([dataclasses.replace(rich_step(), keeps_host_copies=keeps)], META).save(path)
        assert [step.keeps_host_copies for step in Trace.load(path).steps] == [keeps]
