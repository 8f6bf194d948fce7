def test_the_panel_follows_notebooks_and_reloads_and_bears_bad_messages(in_browser):
    found = in_browser("lines", notebook="first")
    assert found["errors"] == []
    for name in ("first", "second"):
        assert found[name]["notebook"] == f"{name}.ipynb"
        assert found[name]["drawn"]
    assert found["sent"] == "ok"
    assert found["answers"] == [
        [None, "malformed"],
        [1, "unknown_method"],
        [2, "version"],
        [3, "too_large"],
        [4, "gone"],
        [5, "gone"],
        [6, "reply"],
    ]
    assert found["reloaded"] == found["first"]
    assert found["ended"] == found["first"]
