TRACKS = [
    *("Whole step", "Stage", "Layer", "Module", "Ops", "Swap-out", "Swap-in", "Stall"),
    *("Resident", "On the host", "Block map"),
]


def test_the_panel_draws_what_trains_beside_it(in_browser):
    found = in_browser("panel", notebook="train")
    assert found["errors"] == []
    assert found["before"] == "This kernel has not loaded Chameleon Lab"
    assert (found["loaded"], found["trained"], found["ran"]) == ("ok", "ok", "ok")
    assert found["answers"] == "Answered from a kernel subshell"
    for theme in ("colors", "dark"):
        drawn = found[theme]
        for track in TRACKS:
            assert drawn[track]["drawn"] > 0.002 * drawn[track]["pixels"], (theme, track, drawn[track])
        assert drawn["Resident"]["colors"] > 6
        assert drawn["Block map"]["colors"] > 6
    assert found["colors"] != found["dark"]
    assert found["several"]["All steps"]["drawn"] > 0
    assert found["zooms"] == [True, True, True]
    assert "h.3" in found["searched"]
    assert found["entered"] == "gelu"
    assert found["selected"].startswith("output")
    assert found["lit"]
    assert found["tip"].startswith("aten::")
    assert "Moved" in found["range"]
    assert found["floor"].startswith("Floor") and "op thread" in found["floor"]
    assert "op thread" in found["capacity"]
    assert found["stalls"] > 0
    assert "could leave" in found["alive"]
    assert found["whileRunning"]
    assert found["focused"] == "true"
    assert found["file"].startswith("run.parquet")
    assert found["restarted"]
    assert found["called"]
