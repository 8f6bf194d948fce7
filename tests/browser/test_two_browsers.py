def test_two_browsers_on_one_kernel_share_a_draft(in_browser):
    found = in_browser("two_browsers", notebook="two")
    assert found["trained"] == ["ok", "ok"] and found["reached"] == "ok"
    # JupyterLab says so of each comm that another browser has opened.
    assert [error for error in found["errors"] if not error.startswith("Comm not found for comm id")] == []
