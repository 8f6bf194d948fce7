def test_the_panel_is_usable_without_a_mouse_and_without_sight(in_browser):
    found = in_browser("axe", notebook="axe")
    assert found["errors"] == []
    assert found["violations"] == []
    assert len(found["seen"]) >= 14 and found["checked"] > 150
    assert found["foundOp"] == ["aten::gelu", "model.blocks.0.mlp.up/aten::linear.0#0"]
    assert (found["stops"], found["stopsAfter"]) == (1, 1)
    assert found["walked"] == [1, 2, 199, 0, "Storage", "Module", 0]
    assert found["left"]
    assert found["missing"].startswith("There is no such file.") and "none.parquet" in found["missing"]
    assert found["cut"].startswith("The file ends early.") and "cut.parquet: truncated" in found["cut"]
    assert (
        found["part"].startswith("The file ends early.") and "1 of its 2 steps can be read" in found["part"]
    )
    assert found["partSteps"] == [6]
    assert found["other"].startswith("The file was not read.") and "no list traceEvents" in found["other"]
