def test_the_panel_draws_what_trained_and_an_edit_reaches_the_kernel(in_browser):
    found = in_browser("first_look", notebook="first-look")
    assert found["errors"] == []
    assert found["trained"] == ["ok", "ok"]
    assert {"Ops", "Swap-out", "Swap-in", "Resident"} <= {*found["drawn"]}, found["drawn"]
    assert found["reached"] == "ok"  # the cell asserts it in the kernel
