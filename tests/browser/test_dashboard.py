def test_the_dashboard_streams_while_the_next_cell_trains(in_browser):
    found = in_browser("dashboard", notebook="dashboard")
    assert found["errors"] == []
    assert found["running"] == "busy"
    assert found["pictures"] >= 3
    assert found["stall"] > 0
    assert "Capacity\n24.0 MiB" in found["words"]
    assert found["left"].splitlines() == ["ended", "[]"]
    assert found["told"].startswith("Tap bars")
    assert found["edit"].startswith("keep ")
    assert found["redrawn"]
