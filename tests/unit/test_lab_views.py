from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from synthetic import REASONS, dropped_step, gpt_step, swapped_step

from benchmarks.lab.traces import enlarged
from chameleon_lab.lab.panel import views
from chameleon_lab.lab.panel.blocks import DROPPED, ON_HOST
from chameleon_lab.lab.panel.compare import measured_side
from chameleon_lab.lab.panel.dispatch import answer
from chameleon_lab.lab.panel.protocol import MAX_REPLY_BYTES, VERSION, ProtocolError
from chameleon_lab.lab.panel.query import parse_query
from chameleon_lab.lab.panel.scene import Scene, below_layer, layer_of
from chameleon_lab.lab.panel.sources import Sources
from chameleon_lab.planner import floor
from chameleon_lab.trace import Category, Marks, Replays, Residencies, Stage, Trace
from chameleon_lab.trace.overlap import overlap_of

MIB = 1 << 20


@pytest.fixture
def scene():
    return Scene([swapped_step()[0]], {"capacity_bytes": 64 * MIB})


def tables(scene, axis="op", rows="storage", start=0.0, end=None, width=800, height=200):
    end = scene.length(axis) if end is None else end
    result, buffers = views.view(scene, axis, start, end, width, height, rows)
    read = [pa.ipc.open_stream(buffer).read_all().to_pydict() for buffer in buffers]
    return result, dict(zip(result["tables"], read, strict=True))


@pytest.mark.parametrize("axis", ["op", "time"])
def test_a_view_holds_every_track(scene, axis):
    step = scene.steps[0]
    result, found = tables(scene, axis)
    assert len(found["ops"]["row"]) == len(step.ops)
    assert found["ops"]["x1"][-1] == pytest.approx(scene.length(axis))
    assert [scene.stages.labels[i] for i in found["stages"]["label"]] == ["forward", "backward", "optimizer"]
    assert len(found["out"]["row"]) == len(found["in"]["row"]) == len(found["stalls"]["row"]) == 1
    assert len(found["blocks"]["x0"]) == len(scene.residencies["storage"]) + len(scene.away["storage"])
    assert max(found["live"]["bytes"]) == step.live_peak_bytes
    assert result["map_bytes"] > 0


def test_a_transfer_is_hidden_where_nothing_waits_for_it(scene):
    _, found = tables(scene)
    assert found["out"]["exposed"] == [0.0]
    assert found["in"]["exposed"] == [pytest.approx(0.5)]
    described = views.describe(scene)
    assert described["hidden"] == [1.0, pytest.approx(0.5)]
    assert described["stalls"] == 1


def test_away_is_what_no_residency_covers(scene):
    step, row = swapped_step()
    away = scene.away
    assert away["storage"].tolist() == [row]
    assert away["from_op"][0] == step.storages.birth_op[row] + 2
    assert away["to_op"][0] == step.storages.death_op[row]
    assert scene.away_bytes[1].max() == step.storages.block_bytes[row]


@pytest.mark.parametrize("axis", ["op", "time"])
def test_what_is_dropped_is_on_no_host_and_its_replay_is_drawn(axis):
    step, row = dropped_step()
    scene = Scene([step, replace(step, index=1, start_s=step.start_s + step.duration_s)], {})
    assert scene.away["dropped"].tolist() == [True, True]
    assert scene.away_bytes[1].max() == 0
    rectangles, _ = scene.block_map(axis, "storage")
    assert rectangles.place[rectangles.storage == row].tolist().count(DROPPED) == 1
    _, found = tables(scene, axis)
    assert found["blocks"]["place"].count(DROPPED) == 2
    drawn, length = found["replays"], scene.length(axis) / 2
    assert drawn["row"] == [0, 1] and drawn["category"] == [Category.ACTIVATION] * 2
    assert drawn["x0"][1] == pytest.approx(drawn["x0"][0] + length)
    facts = views.point(scene, axis, "replays", 0)["replay"]
    back = int(step.replays.op[0])
    assert facts["name"] == step.op_name(int(step.storages.birth_op[row])) and facts["cause"] == "demand"
    assert facts["storage"]["key"] == step.storage_keys[row] and facts["op"]["op"] == back
    assert facts["duration_s"] == pytest.approx(float(step.replays.duration_s[0]))
    assert views.point(scene, axis, "ops", back)["op"]["replay_s"] == pytest.approx(facts["duration_s"])
    whole = views.describe(scene)
    assert (whole["replays"], whole["declined"]) == (2, 2)
    assert whole["replay_s"] == pytest.approx(2 * facts["duration_s"])
    with pytest.raises(ProtocolError, match="no replay 9"):
        views.point(scene, axis, "replays", 9)


def test_a_dropped_storage_tells_of_its_replays_and_of_drops_that_were_declined():
    step, row = dropped_step()
    scene = Scene([step], {})
    found = views.storage(scene, "op", int(step.storages.uid[row]))
    birth, back = int(step.storages.birth_op[row]), int(step.replays.op[0])
    assert found["dropped"] == [[birth + 2, back]] and found["away"] == []
    assert [replay["op"]["op"] for replay in found["replays"]] == [back]
    assert found["declined"] == []
    stayed = int(step.declined.storage[0])
    kept = views.storage(scene, "op", int(step.storages.uid[stayed]))
    assert kept["dropped"] == [] and kept["declined"][0]["why"] == REASONS[1] != ""
    alive = views.alive(scene, "op", birth + 2.5)
    assert alive["dropped_bytes"] == found["bytes"] and alive["away_bytes"] == 0
    assert next(s for s in alive["storages"] if s["uid"] == found["uid"])["dropped"]
    searched = views.search(scene, "op", found["key"].split("/")[0])
    assert searched["replay_count"] == 1 and searched["replays"][0]["row"] == 0
    own = next(s for s in searched["storages"] if s["uid"] == found["uid"])
    assert own["replays"] == 1 and own["dropped_s"] > 0 and own["away_s"] == 0
    assert views.search(scene, "op", "category:param")["replay_count"] == 0
    assert views.search(scene, "op", "")["declined_count"] == 1
    whole = views.summarize(scene, "op", 0.0, scene.length("op"))
    assert whole["replays"] == 1 and whole["replayed_bytes"] == found["bytes"]


def test_what_dies_while_it_is_dropped_was_on_no_host():
    step, row = dropped_step()
    held = step.residencies
    keep = (held.storage != row) | (held.from_op <= step.storages.birth_op[row])
    gone = replace(
        step,
        residencies=Residencies(**{name: column[keep] for name, column in held.columns().items()}),
        replays=gpt_step().replays,
    )
    assert Scene([gone], {}).away["dropped"].tolist() == [True]


def test_what_is_away_when_the_step_begins_is_away_before_its_first_op():
    step = gpt_step()
    held = step.residencies
    keep = held.storage != 0  # a parameter, away for all of the step
    late = replace(
        step,
        duration_s=step.duration_s + 1.0,
        ops=replace(step.ops, start_s=step.ops.start_s + 0.5),
        residencies=Residencies(**{name: column[keep] for name, column in held.columns().items()}),
    )
    scene = Scene([late], {})
    assert scene.away["storage"].tolist() == [0]
    assert scene.away["from_s"].tolist() == [0.0]
    assert scene.away["to_s"].tolist() == [pytest.approx(late.duration_s)]
    assert views.storage(scene, "time", int(step.storages.uid[0]))["x0"] == 0.0


def test_a_storage_keeps_its_rows_while_it_is_away(scene):
    rectangles, _ = scene.block_map("op", "storage")
    _, row = swapped_step()
    own = rectangles.storage == row
    assert own.sum() == 3
    assert len(set(rectangles.y0[own].tolist())) == 1
    assert rectangles.place[own].tolist().count(ON_HOST) == 1
    packed, _ = scene.block_map("op", "packed")
    assert not packed.place.any()


def test_two_steps_lie_side_by_side_and_share_storages():
    first = swapped_step()[0]
    second = replace(first, index=1, start_s=first.start_s + first.duration_s)
    scene = Scene([first, second], {})
    assert scene.length("op") == 2 * len(first.ops)
    assert scene.length("time") == pytest.approx(2 * first.duration_s)
    uid = int(first.storages.uid[0])
    assert views.storage(scene, "op", uid)["use_count"] == 2 * int((first.uses.storage == 0).sum())
    assert len(tables(scene)[1]["stages"]["label"]) == 6


@pytest.mark.full
def test_large_views_stay_under_the_limit():
    step = gpt_step(layers=6000)
    scene = Scene([step], {})
    assert len(step.ops) > 40_000
    for axis in ("time", "op"):
        for rows in ("storage", "packed"):
            result, buffers = views.view(scene, axis, 0, scene.length(axis), 16384, 16384, rows)
            assert sum(map(len, buffers)) <= views.VIEW_BYTES < MAX_REPLY_BYTES
    _, found = tables(scene, width=1000)
    assert sum(found["ops"]["count"]) == len(step.ops)
    assert max(found["live"]["bytes"]) == step.live_peak_bytes


def test_every_table_of_a_large_view_together_fits_without_getting_coarser(monkeypatch):
    """Two hundred thousand events, with markers and replays, which fill every lane."""
    dropped, _ = dropped_step()
    step = enlarged(swapped_step()[0], 200_000)
    ops, count = len(step.ops), len(step.ops) // 5
    at = np.arange(0, 5 * count, 5, dtype=np.int32)
    one = np.zeros(count, dtype=np.int32)
    replays = Replays(
        **{name: np.resize(column, count) for name, column in dropped.replays.columns().items()}
    )
    step = replace(
        step,
        marks=Marks(one, one, at, at + 5, step.ops.start_s[at], np.full(count, 5 * step.duration_s / ops)),
        mark_names=("a",),
        modules=tuple(f"{path}.mlp" for path in step.modules),
        replays=replace(replays, op=at, start_s=step.ops.start_s[at], storage=one),
    )
    scene = Scene([step], {"capacity_bytes": 64 * MIB})
    detail = []
    make = views._tables
    monkeypatch.setattr(views, "_tables", lambda *rest: detail.append(rest[-1]) or make(*rest))
    for axis in ("time", "op"):
        for width, height in ((1280, 400), (1600, 800), (1920, 1080)):
            result, buffers = views.view(scene, axis, 0.0, scene.length(axis), width, height, "storage")
            sizes = dict(zip(result["tables"], map(len, buffers), strict=True))
            assert sum(sizes.values()) <= views.VIEW_BYTES == 10**6, sizes
            assert all(pa.ipc.open_stream(buffer).read_all().num_rows > 500 for buffer in buffers), sizes
            assert detail.pop() > (0.99 if width <= 1600 else 0.8), (width, sizes)
            detail.clear()


def test_the_storages_alive_and_which_could_leave(scene):
    step, row = swapped_step()
    uid = int(step.storages.uid[row])
    out = int(scene.away["from_op"][0])
    found = views.alive(scene, "op", out + 0.5)
    by_uid = {storage["uid"]: storage for storage in found["storages"]}
    assert by_uid[uid]["resident"] is False
    assert by_uid[uid]["can_leave"] is False
    assert found["away_bytes"] == by_uid[uid]["bytes"]
    resident = [s for s in found["storages"] if s["resident"]]
    assert [s["bytes"] for s in resident] == sorted((s["bytes"] for s in resident), reverse=True)
    used = set(step.uses.storage[step.uses.op == out].tolist())
    for storage in resident:
        inside = storage["uid"] - 100 in used
        assert storage["in_use"] is inside
        assert storage["can_leave"] is not inside
    assert sum(c["resident_bytes"] for c in found["categories"]) == found["resident_bytes"]
    assert sum(m["away_bytes"] for m in found["modules"]) == found["away_bytes"]


def test_a_range_counts_what_lies_inside(scene):
    whole = views.summarize(scene, "op", 0, scene.length("op"))
    step, row = swapped_step()
    assert whole["ops"] == len(step.ops)
    assert whole["out_bytes"] == whole["in_bytes"] == step.storages.block_bytes[row]
    assert whole["overlap"] == pytest.approx(2 / 3)
    assert whole["stalls"] == 1
    assert whole["storages"][0]["uid"] == step.storages.uid[row]
    start, end = scene.away["from_op"][0] + 1.0, scene.away["to_op"][0] - 3.0
    idle = views.summarize(scene, "op", start, end)
    assert idle["out_bytes"] == idle["in_bytes"] == idle["stalls"] == 0
    assert idle["overlap"] is None


def test_overlap_is_the_same_in_header_lanes_range_and_figures(scene):
    told = views.describe(scene)
    whole = views.summarize(scene, "time", 0, scene.length("time"))
    rows = scene.transfers
    times = [float((rows.end_s - rows.start_s)[rows.direction == way].sum()) for way in (0, 1)]
    lanes = sum(share * time for share, time in zip(told["hidden"], times, strict=True)) / sum(times)
    others = (whole["overlap"], lanes, overlap_of(scene.steps[0]), measured_side(scene).figures["overlap"])
    assert others == pytest.approx([told["overlap"]] * 4) and 0 < told["overlap"] < 1
    still = Scene([replace(scene.steps[0], transfers=no_transfers(scene), stalls=no_stalls(scene))], {})
    assert views.describe(still)["overlap"] is None and overlap_of(still.steps[0]) is None
    assert views.describe(still)["match_rate"] is None


def no_transfers(scene):
    rows = scene.steps[0].transfers
    return type(rows)(**{name: column[:0] for name, column in rows.columns().items()})


def no_stalls(scene):
    rows = scene.steps[0].stalls
    return type(rows)(**{name: column[:0] for name, column in rows.columns().items()})


def test_seeking_goes_round(scene):
    forward = views.seek(scene, "time", 0.0, 1)
    assert (forward["number"], forward["count"]) == (1, 1)
    at = (forward["stall"]["x0"] + forward["stall"]["x1"]) / 2
    assert views.seek(scene, "time", at, 1)["stall"]["row"] == 0
    assert views.seek(Scene([gpt_step()], {}), "time", 0.0, 1)["stall"] is None


def test_search_by_layer_word_size_and_stage(scene):
    found = views.search(scene, "op", "layer.3 gelu")
    assert {op["module"] for op in found["ops"]} == {"h.3"}
    assert {op["name"] for op in found["ops"]} == {"aten::gelu", "aten::gelu_backward"}
    assert len(found["marks"]) == found["op_count"] == 2
    found = views.search(scene, "op", "h.1-2 >3MiB stage:forward")
    assert {s["module"] for s in found["storages"]} == {"h.1", "h.2"}
    assert all(s["bytes"] > 3 * MIB for s in found["storages"])
    assert found["op_count"] == 0
    everything = views.search(scene, "op", "")
    assert everything["storage_count"] == len(scene.steps[0].storages)
    assert views.search(scene, "op", "<4MiB")["storage_count"] < everything["storage_count"]
    assert {s["module"] for s in views.search(scene, "op", "weight h.2")["storages"]} == {"h.2"}


@pytest.mark.parametrize("text", [">big", "<", "stage:sideways", "category:"])
def test_a_search_that_cannot_be_read_is_named(scene, text):
    with pytest.raises(ProtocolError) as caught:
        views.search(scene, "op", text)
    assert caught.value.code == "query"
    assert text in str(caught.value)


def test_query_terms():
    query = parse_query("Attn layer.4-7 >4MiB <=1GiB stage:back category:act")
    assert query.words == ("attn",)
    assert query.layers == (("layer", 4, 7),)
    assert (query.at_least, query.at_most) == (4 * MIB + 1, 1 << 30)
    assert (query.stage, query.category) == (Stage.BACKWARD, Category.ACTIVATION)


def test_module_paths_split_at_the_layer():
    assert layer_of("transformer.h.7.attn.c_attn") == "h.7"
    assert below_layer("transformer.h.7.attn.c_attn") == "attn.c_attn"
    assert (layer_of("lm_head"), below_layer("lm_head")) == ("lm_head", "")


def test_pointing_names_what_is_there(scene):
    op = views.point(scene, "op", "ops", 1)["op"]
    assert (op["name"], op["module"], op["stage"]) == ("aten::mm", "h.0", "forward")
    assert op["touches"]["count"] == 3
    transfer = views.point(scene, "op", "in", 1)["transfer"]
    assert (transfer["direction"], transfer["hidden"]) == ("in", pytest.approx(0.5))
    assert views.point(scene, "op", "stalls", 0)["stall"]["storage"]["uid"] == transfer["storage"]["uid"]
    with pytest.raises(ProtocolError) as caught:
        views.point(scene, "op", "ops", 10_000)
    assert caught.value.code == "not_found"


def test_a_trace_file_is_opened_drawn_and_closed(tmp_path):
    path = tmp_path / "run.parquet"
    Trace([swapped_step()[0]], {"capacity_bytes": 64 * MIB}).save(str(path))
    sources = Sources()

    def ask(method, **params):
        message = {"version": VERSION, "type": "request", "id": 1, "method": method, "params": params}
        envelope, _ = answer(sources, message)
        return envelope.get("result") or envelope.get("error")

    source = ask("open", path=str(path))["source"]
    assert ask("status")["files"][0]["steps"][0]["duration_s"] == swapped_step()[0].duration_s
    assert ask("scene", source=source, first=0, last=0)["capacity_bytes"] == 64 * MIB
    ask("close", source=source)
    assert ask("scene", source=source, first=0, last=0)["code"] == "gone"

    broken = tmp_path / "broken.parquet"
    broken.write_bytes(path.read_bytes()[:200])
    error = ask("open", path=str(broken))
    assert error["code"] == "cut_file"
    assert "truncated" in error["message"]
    error = ask("open", path=str(tmp_path / "none.parquet"))
    assert error["code"] == "no_file" and "none.parquet: nothing is there" in error["message"]
    assert str(Path.cwd()) in error["hint"]
    (tmp_path / "notes.txt").write_text("no trace")
    error = ask("open", path=str(tmp_path / "notes.txt"))
    assert error["code"] == "bad_file" and "of no format that is read" in error["message"]


def test_what_a_cut_file_still_has_is_drawn_and_what_it_has_lost_is_said_also_when_saved_again(tmp_path):
    path, again = tmp_path / "run.parquet", tmp_path / "again.parquet"
    step = swapped_step()[0]
    Trace([step, replace(step, index=1)], {}).save(path)
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"CLab") + 9])
    sources = Sources()
    source = sources.open_file(str(path))
    (file,) = sources.status()["files"]
    assert [entry["index"] for entry in file["steps"]] == [0]
    assert file["lost"] == f"{path}: cut after {path.stat().st_size} bytes; 1 of its 2 steps can be read"
    assert len(sources.scene(source, 0, 0).steps) == 1
    sources.save_trace(source, str(again), overwrite=False)
    sources.open_file(str(again))
    assert [entry["lost"] for entry in sources.status()["files"]] == [file["lost"]] * 2


@pytest.mark.parametrize("axis", ["op", "time"])
def test_ops_that_a_search_found_are_walked_in_turn(scene, axis):
    found = views.search(scene, axis, "gelu_backward")
    assert found["op_count"] == 4
    at, rows = -1.0, []
    for number in (1, 2, 3, 4, 1):
        step = views.seek(scene, axis, at, 1, "op", "gelu_backward")
        assert (step["number"], step["count"]) == (number, 4)
        assert step["stall"] is None and step["peak"] is None
        at = (step["op"]["x0"] + step["op"]["x1"]) / 2
        rows.append(step["op"]["row"])
    assert rows == [*(op["row"] for op in found["ops"]), found["ops"][0]["row"]]
    back = views.seek(scene, axis, at, -1, "op", "gelu_backward")
    assert (back["number"], back["op"]["row"]) == (4, rows[3])
    assert views.seek(scene, axis, 0.0, 1, "op", "no such op")["op"] is None
    with pytest.raises(ProtocolError, match="is not a size"):
        views.seek(scene, axis, 0.0, 1, "op", ">lots")


@pytest.mark.parametrize("kernels", ["a CPU (AVX2)", "", None])
def test_the_floor_says_what_it_was_measured_on(kernels):
    step = gpt_step()
    meta = {} if kernels is None else {"kernels": kernels}
    lowest = floor(Trace([step], meta))
    found = views.describe(Scene([step], meta))["floor"]
    assert found["bytes"] == lowest.bytes and found["op"] == lowest.op_name
    assert found["measured_on"] == lowest.measured_on
    assert (kernels or "kernels") in found["measured_on"]
