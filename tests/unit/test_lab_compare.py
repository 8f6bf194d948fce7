from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from synthetic import gpt_step, swapped_step

from chameleon_lab.lab.panel import box, sources, views
from chameleon_lab.lab.panel.compare import Sides, compare, compare_view, measured_side, predicted_side
from chameleon_lab.lab.panel.dispatch import answer
from chameleon_lab.lab.panel.protocol import VERSION, ProtocolError, Side
from chameleon_lab.lab.panel.scene import Scene, high_points
from chameleon_lab.lab.panel.sources import Sources
from chameleon_lab.planner import plan, simulate
from chameleon_lab.policy import Link, Policy
from chameleon_lab.trace import Trace

MIB = 1 << 20
LINK = Link(2e8, 2e8)


@pytest.fixture
def scene():
    return Scene([swapped_step()[0]], {"capacity_bytes": 64 * MIB})


@pytest.fixture
def policies():
    step = gpt_step()
    return [plan(step, int(step.live_peak_bytes * share), LINK) for share in (0.8, 0.6)]


def curves(sides, a, b, axis="op", start=0.0, end=None, width=800):
    end = max(a.length(axis), b.length(axis)) if end is None else end
    result, buffers = compare_view(sides, a, b, axis, start, end, width)
    read = [pa.ipc.open_stream(buffer).read_all().to_pydict() for buffer in buffers]
    return dict(zip(result["tables"], read, strict=True))


def test_a_measured_side_says_what_the_step_did(scene):
    side = measured_side(scene)
    step = scene.steps[0]
    figures = side.figures
    assert figures["peak_bytes"] == step.peak_bytes
    assert figures["step_s"] == step.duration_s
    assert figures["stall_s"] == pytest.approx(step.stalls.duration_s.sum())
    assert figures["stall_prefetch_s"] == figures["stall_s"]
    assert figures["out_bytes"] == figures["in_bytes"] == step.transfers.bytes[0]
    assert sum(row["moved_bytes"] for row in side.modules.values()) == step.transfers.bytes.sum()
    assert sum(row["stall_s"] for row in side.modules.values()) == pytest.approx(figures["stall_s"])


def test_a_predicted_side_says_what_the_simulator_does(policies):
    step, policy = gpt_step(), policies[1]
    found, side = simulate(step, policy), predicted_side(policy, step)
    figures = side.figures
    assert figures["peak_bytes"] == found.peak_bytes
    assert figures["step_s"] == pytest.approx(found.step_s)
    assert side.clock[-1] == pytest.approx(found.step_s)
    assert (np.diff(side.clock) >= 0).all()
    causes = [figures[f"stall_{cause}_s"] for cause in ("out", "prefetch", "demand")]
    assert sum(causes) == pytest.approx(found.stall_s) == pytest.approx(figures["stall_s"])
    assert found.stall_s > 0
    moved = sum(row["moved_bytes"] for row in side.modules.values())
    assert moved == found.swapped_out_bytes + found.swapped_in_bytes
    # Without ops' scratch memory, the modules' bytes at the peak are the peak.
    assert sum(row["peak_bytes"] for row in side.modules.values()) == found.peak_bytes
    assert (side.stalls[:, 1] - side.stalls[:, 0]).sum() == pytest.approx(found.stall_s)


def test_a_step_differs_from_itself_in_nothing(scene):
    side = measured_side(scene)
    found = compare(side, side)
    assert found["same_ops"]
    assert found["decisions"] is None
    assert found["a"] == found["b"]
    assert all(row["a"] == row["b"] for row in found["modules"])
    assert set(curves(Sides(), side, side)["difference"]["bytes"]) == {0}


def test_modules_with_the_largest_difference_come_first(scene, policies):
    a, b = measured_side(scene), predicted_side(policies[1], gpt_step())
    rows = compare(a, b)["modules"]
    apart = [abs(row["a"]["peak_bytes"] - row["b"]["peak_bytes"]) for row in rows]
    assert apart == sorted(apart, reverse=True)
    assert apart[0] > 0
    assert {row["module"] for row in rows} == {*a.modules, *b.modules}


def test_decisions_that_differ_are_listed(policies):
    step = gpt_step()
    a, b = (predicted_side(policy, step) for policy in policies)
    found = compare(a, b)["decisions"]
    gaps = [{(d.storage, d.gap) for d in policy.decisions} for policy in policies]
    assert found["added"] == len(gaps[1] - gaps[0]) > 0
    assert found["removed"] == len(gaps[0] - gaps[1])
    assert len(found["rows"]) == found["added"] + found["removed"] + found["changed"]
    sizes = [row["bytes"] for row in found["rows"]]
    assert sizes == sorted(sizes, reverse=True)
    assert {row["name"]: row for row in found["conditions"]}["capacity_bytes"] == {
        "name": "capacity_bytes",
        "a": policies[0].capacity_bytes,
        "b": policies[1].capacity_bytes,
    }
    assert {row["name"] for row in found["conditions"]} == {"capacity_bytes"}
    assert compare(a, a)["decisions"]["rows"] == []


@pytest.mark.parametrize("axis", ["op", "time"])
def test_the_difference_is_second_less_first(scene, policies, axis):
    a, b = measured_side(scene), predicted_side(policies[1], gpt_step())
    found = curves(Sides(), a, b, axis)
    x, apart = (np.array(found["difference"][name]) for name in ("x", "bytes"))
    ends = min(a.length(axis), b.length(axis))
    for at in np.linspace(0, ends, 97)[:-1]:
        levels = [
            side.resident_bytes[np.searchsorted(side.x_of_op(axis)[:-1], at, side="right") - 1]
            for side in (a, b)
        ]
        assert apart[np.searchsorted(x, at, side="right") - 1] == levels[1] - levels[0]
    assert (x[-1], apart[-1]) == (pytest.approx(ends), 0)


def test_curves_are_thinned_to_the_pixels_and_keep_the_peak(policies):
    step = gpt_step(layers=400)
    side = measured_side(Scene([step], {}))
    found = curves(Sides(), side, side, width=100)
    assert len(found["a_resident"]["x"]) <= 4 * 100
    assert max(found["a_resident"]["bytes"]) == step.peak_bytes
    assert [side.scene.stages.labels[i] for i in found["a_stages"]["label"]] == [
        "forward",
        "backward",
        "optimizer",
    ]


def test_sides_are_made_once(scene, policies):
    sides, step = Sides(), gpt_step()
    assert sides.of_scene(scene) is sides.of_scene(scene)
    assert sides.of_policy(policies[0], step) is sides.of_policy(policies[0], step)
    assert sides.of_policy(policies[0], step) is not sides.of_policy(policies[1], step)


# ---------------------------------------------------------------------------------------------------- sources


def asked(found, method, **params):
    message = {"version": VERSION, "type": "request", "id": 1, "method": method, "params": params}
    envelope, buffers = answer(found, message)
    return envelope["result" if envelope["type"] == "reply" else "error"], buffers


def test_a_trace_file_is_compared_with_a_policy_file(tmp_path, policies):
    Trace([swapped_step()[0]], {"capacity_bytes": 64 * MIB}).save(tmp_path / "run.parquet")
    policies[1].save(tmp_path / "draft.json")
    opened = Sources()
    trace, policy = (
        asked(opened, "open", path=str(tmp_path / name))[0]["source"]
        for name in ("run.parquet", "draft.json")
    )
    status = asked(opened, "status")[0]
    assert [(row["source"], row["swaps"]) for row in status["policies"]] == [(policy, len(policies[1].swaps))]
    sides = {"a": {"source": trace, "step": 0}, "b": {"source": policy}}
    found, _ = asked(opened, "compare", **sides)
    assert (found["a"]["kind"], found["b"]["kind"]) == ("measured", "predicted")
    assert found["b"]["figures"]["peak_bytes"] <= policies[1].capacity_bytes
    found, buffers = asked(opened, "compare_view", **sides, axis="op", start=0, end=10, width=100)
    assert len(buffers) == len(found["tables"])
    assert asked(opened, "close", source=policy)[0] == {}
    assert asked(opened, "compare", **sides)[0]["code"] == "gone"


def test_the_policy_in_force_is_one_to_choose(monkeypatch, policies):
    session = SimpleNamespace(policy=policies[0], recorded_steps=lambda: ())
    monkeypatch.setattr(sources, "open_session", lambda: session)
    side = Sources().side(Side("policy:in force"))
    assert side.policy is policies[0]
    assert side.step is policies[0].source


def test_a_policy_without_its_step_is_shown_on_the_newest_one(monkeypatch, policies):
    policy = Policy(policies[0].capacity_bytes, LINK, policies[0].decisions)
    session = SimpleNamespace(policy=policy, recorded_steps=tuple)
    monkeypatch.setattr(sources, "open_session", lambda: session)
    with pytest.raises(ProtocolError, match="has no step"):
        Sources().side(Side("policy:in force"))
    session.recorded_steps = lambda: (3, 4)
    session.recorded_step = lambda index: gpt_step()
    assert Sources().side(Side("policy:in force")).figures["peak_bytes"] <= policy.capacity_bytes


@pytest.mark.parametrize(
    ("params", "word"),
    [
        ({"a": {"source": "x"}}, "'b'"),
        ({"a": "x", "b": {"source": "x"}}, "object"),
        ({"a": {"source": "x", "step": "1"}, "b": {"source": "x"}}, "compare.a.step"),
        ({"a": {"source": "x", "color": 1}, "b": {"source": "x"}}, "color"),
    ],
)
def test_bad_sides_are_refused_by_name(params, word):
    found, _ = asked(Sources(), "compare", **params)
    assert found["code"] == "malformed"
    assert word in found["message"]


def test_a_policy_file_that_cannot_be_read_is_said(tmp_path):
    (tmp_path / "half.json").write_text('{"version":')
    for name, code in (("half.json", "bad_file"), ("none.json", "no_file")):
        found, _ = asked(Sources(), "open", path=str(tmp_path / name))
        assert found["code"] == code
        assert name in found["message"]


# ---------------------------------------------------------------------------------------------------- box and peaks


@pytest.mark.parametrize("rows", ["storage", "packed"])
def test_a_box_over_all_of_the_map_holds_every_storage(scene, rows):
    _, map_bytes = scene.block_map("op", rows)
    found = box.inside(scene, "op", 0, scene.length("op"), 0, map_bytes, rows)
    sizes = scene.storage_bytes
    assert (found["count"], found["bytes"], found["away_bytes"]) == (len(sizes), sizes.sum(), 0)
    assert sum(row["resident_bytes"] for row in found["categories"]) == sizes.sum()
    assert sum(row["resident_bytes"] for row in found["modules"]) == sizes.sum()
    listed = [row["bytes"] for row in found["storages"]]
    assert listed == sorted(listed, reverse=True)


def test_a_box_holds_what_it_touches_and_no_more(scene):
    rectangles, _ = scene.block_map("op", "storage")
    _, row = swapped_step()
    away = int(np.flatnonzero(rectangles.place)[0])
    low, high = float(rectangles.y0[away]), float(rectangles.y1[away])
    middle = float(rectangles.x0[away] + rectangles.x1[away]) / 2
    inside = (middle - 0.1, middle + 0.1, low + 1, high - 1)
    found = box.inside(scene, "op", *inside, "storage")
    assert [entry["uid"] for entry in found["storages"]] == [int(scene.storage_uid[row])]
    assert found["away_bytes"] == found["bytes"] == scene.storage_bytes[row]
    assert found["categories"] == [
        {"label": "activation", "resident_bytes": 0, "away_bytes": int(scene.storage_bytes[row])}
    ]
    outside = box.inside(scene, "op", middle, middle + 0.1, high + 1e9, high + 2e9, "storage")
    assert (outside["count"], outside["storages"]) == (0, [])


def test_a_storage_of_several_steps_counts_once():
    scene = Scene([swapped_step()[0], swapped_step()[0]], {})
    _, map_bytes = scene.block_map("op", "storage")
    found = box.inside(scene, "op", 0, scene.length("op"), 0, map_bytes, "storage")
    assert found["count"] == len(np.unique(scene.storage_uid))


@pytest.mark.parametrize(
    ("values", "peaks"),
    [
        ([5], [0]),
        ([1, 5, 2, 6, 1], [1, 3]),
        ([1, 5, 4.5, 6, 1], [3]),  # too shallow a fall between them
        ([5, 5, 1, 5, 5], [0, 3]),
        ([5, 4, 3, 2], [0]),
        ([2, 3, 4, 5], [3]),
        ([5, 1, 1.5], [0]),
    ],
)
def test_peaks_lie_between_falls(values, peaks):
    assert high_points(np.array(values), 1).tolist() == peaks


def test_seeking_peaks_goes_round():
    step = gpt_step()
    scene = Scene([step, step], {})
    found, at = [], -1.0
    while not found or found[-1]["number"] < found[-1]["count"]:
        found.append(views.seek(scene, "op", at, 1, "peak"))
        at = found[-1]["peak"]["at"]
        assert found[-1]["number"] == len(found)
    assert len(found) >= 2
    assert all(entry["stall"] is None for entry in found)
    assert max(entry["peak"]["bytes"] for entry in found) == step.peak_bytes
    assert all(entry["peak"]["op"]["row"] == entry["peak"]["at"] for entry in found)
    assert views.seek(scene, "op", at, 1, "peak") == found[0]
    assert views.seek(scene, "op", found[0]["peak"]["at"], -1, "peak") == found[-1]
