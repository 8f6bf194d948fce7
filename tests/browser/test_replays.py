def test_replays_are_drawn_edited_and_run_and_a_draft_outlives_its_page(in_browser):
    found = in_browser("replays", notebook="replays")
    assert found["errors"] == []
    assert found["trained"] == ["ok", "ok"] and found["ran"] == ["ok", "ok"]

    assert found["banner"] == "", "the panel says that something went wrong"

    # In the drawing, at the pointer, in the table.
    replays = found["tracks"]["Replays"]
    assert replays["drawn"] > 20 and replays["colors"] > 1
    assert "dropped" in found["legend"]
    assert "Cause" in found["tip"] and "For" in found["tip"] and "Time" in found["tip"]
    replayed, declined, dropped = found["drawn"]
    assert replayed > 2 and dropped == 1 and found["listed"] == replayed + declined

    # Several rows together; one by its card, with what a replay takes beside what copies take.
    drops, actions = found["together"]
    assert actions == ["never_rematerialize"] * 3 and drops == [0, 0, 0]
    for words in ("A replay takes", "Copies take", "Never rematerialize", "in the draft"):
        assert words in found["cards"]
    current, draft = found["draft"]
    assert draft["drops"] > 0 and draft["replay_s"] > 0 and draft["peak_bytes"] <= draft["capacity_bytes"]

    # The draft as it is drawn, and compared with.
    assert found["made"][0] == 0 < found["made"][1]  # the draft makes it again, what ran did not
    assert "Replays" in found["differs"]
    assert found["predicted"][0] >= draft["drops"] and found["predicted"][1] == draft["peak_bytes"]
    assert not found["predicted"][2].startswith("draft:")
    assert "drops" in found["compared"]

    # What is enabled runs.
    assert found["tried"]["replay_s"] > 0 and found["tried"]["peak_bytes"] <= draft["capacity_bytes"]
    assert found["replayed"] > 0

    assert found["cut"] == {"wide": [], "half": [], "narrow": []}

    # In 350 pixels there is room for each part.
    for part, (width, height) in found["narrow"].items():
        assert width > 300 and height > 200, part

    assert {"action": "keep", "storage": found["other"]} in found["back"]
