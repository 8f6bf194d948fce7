def test_steps_and_policies_are_compared_and_boxes_listed(in_browser):
    found = in_browser("compare", notebook="compare")
    assert found["errors"] == []
    assert found["ran"] == ["ok", "ok", "ok"]

    listed, boxed = found["boxed"]
    # All but those that live for less than a pixel at the very edges.
    assert 0.8 * int(listed) < int(boxed.split()[0]) <= int(listed)
    assert found["pressed"] == "true"
    assert 0 < int(found["keyed"].split()[0]) < int(listed.replace(",", ""))
    assert found["op"].startswith("aten::")
    assert found["layer"].startswith("h")

    assert "A, predicted" in found["kinds"] and "B, measured" in found["kinds"]
    assert all(peak.endswith("MiB") for peak in found["peaks"][:2])
    assert found["sameOps"] == "The same sequence of ops"
    assert found["modules"] > 6
    assert [share > 0.02 for share in found["lanes"]] == [True, True, True], found["lanes"]
    assert found["redrawn"] == 3
    assert found["rows"] > 0
    assert found["told"].endswith("changed")
    assert found["chosen"].startswith("before.parquet")
    assert found["closed"]
