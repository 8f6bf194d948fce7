from pathlib import Path

from PIL import Image

SCREENSHOTS = Path(__file__).parents[2] / "build" / "browser"


def test_what_is_summed_up_beside_the_drawing_and_what_is_kept_of_it(in_browser):
    found = in_browser("views", notebook="views")
    assert found["errors"] == []
    assert found["trained"] == ["ok", "ok"]

    # The flame graph: modules, lines, entering and leaving, keys, one storage.
    assert any(node.startswith("h.3, ") for node in found["byModule"])
    assert "storages at op" in found["at"]
    assert any(" forward, " in node for node in found["byStack"])
    assert any(node.startswith("Made before the step, ") for node in found["byStack"])
    whole, entered = found["entered"]
    assert entered < whole == found["left"]
    start, child, neighbor, parent = found["walked"]
    assert start == parent == "0" and child == "1" and int(neighbor) > 1
    assert "float32 [256, 1024]" in found["selected"]
    assert "forward" in found["stack"]

    # Markers, and a range by op.
    assert any(row.startswith("aten::mm") for row in found["range"])
    assert found["rangeGone"]

    # Folded lanes.
    before, after = found["laneNames"]
    assert set(before) - set(after) == {"Module", "Swap-in"}
    tall, taller, again = found["lanes"]
    assert taller > tall == again

    # Pinned lanes: reached with the keys, at the top in their order, in sight when the others scroll, kept.
    assert found["pinFocus"] == ["Pin Resident", "Pin Resident"] and found["pinStops"] == 1
    pinned = ["Swap-in", "Resident"]
    assert found["pinnedNames"][1:] == pinned + [name for name in before[1:] if name not in pinned]
    assert found["scrolled"][:2] == found["unscrolled"][:2]
    assert found["scrolled"][2] < found["unscrolled"][2] - 30
    assert found["pinnedHit"] == ["cl-overlay", 0, True]
    assert found["reopened"] == found["pinnedNames"] and found["unpinnedNames"] == before

    # Growth: the leak, and nothing that the loop frees again.
    assert len(found["grown"]) == 1 and "aten::clone" in found["grown"][0] and "leak" in found["grown"][0]
    assert "+1.00 MiB" in found["grown"][0] and "+" in found["grew"]

    # Notes, files, pictures.
    assert "kept.parquet" in found["offered"]
    assert found["picture"] == "chameleon-step-5.png"
    assert found["notes"] == 0
    with Image.open(SCREENSHOTS / "views-saved.png") as picture:
        assert picture.width > 800 and picture.height > 300
        assert len(picture.convert("RGB").getcolors(1 << 24)) > 50
    for name, looks in found["looks"].items():
        assert (looks["cut"], looks["clipped"], looks["overlapping"]) == ([], [], []), name
