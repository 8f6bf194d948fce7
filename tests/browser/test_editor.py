import re


def mib(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+) (\w+)", text).groups()
    return float(number) * {"KiB": 1 / 1024, "MiB": 1, "GiB": 1024}[unit]


def test_a_policy_is_edited_tried_enabled_and_kept_beside_what_trains(in_browser):
    found = in_browser("editor", notebook="edit")
    assert found["errors"] == []
    assert found["trained"] == ["ok", "ok"] and found["ran"] == "ok"
    assert found["untouched"][0] == found["untouched"][1]
    assert len(found["untouched"][0]) in (5, 6)  # with what replays cost, where the plan has any
    assert found["listed"] > 20
    for action in ("Keep", "Swap", "Never touch"):
        assert action in found["cards"]
    assert "in the draft" in found["cards"]

    # One storage kept: its row says so, and the plan moves something else, which may well cost the same.
    current, draft = found["kept"]
    assert current["swaps"] > 0 and draft["peak_bytes"] <= draft["capacity_bytes"]
    assert "Keep" in found["row"] and "you" in found["row"]

    # Below the floor one sentence, once; the list of edits names the one that is at fault.
    assert found["said"] == [["below the floor"], ["unreachable", "below the floor"]]
    # The way out of a capacity below the floor: the floor, and then what the edits need.
    sizes = [float(re.fullmatch(r"Set capacity to ([\d.]+) MiB", text)[1]) for text in found["offered"]]
    assert sizes[0] < sizes[1]

    # Less capacity: the prediction goes down, and so does what is measured once it is in force.
    before, after = found["capacities"]
    assert after < before
    assert mib(found["lowered"][1][0]) < mib(found["lowered"][0][0])
    assert found["predicted"] <= after
    assert mib(found["tried"][0]) <= 1.01 * after / 2**20
    assert found["peakAfter"] <= after < found["peakBefore"]
    assert abs(found["peakAfter"] / found["predicted"] - 1) < 0.02
    assert found["current"][0] == found["lowered"][1][0]
    assert found["whileRunning"]
    for word in ("keep", "never touch all of module h.0", "capacity"):
        assert word in found["changes"]

    # Files and dead kernels.
    actions = [edit["action"] for edit in found["loaded"]]
    assert actions == ["keep", "never_touch"]
    assert found["loaded"][0]["storage"] == found["selected"]
    assert found["back"] == found["loaded"]
    assert found["grown"] == 32
