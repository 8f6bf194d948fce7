def test_keys_are_commands_that_the_settings_can_bind_anew(in_browser):
    found = in_browser("keys", notebook="keys")
    assert found["errors"] == []
    assert found["drawn"]
    assert found["closer"]
    assert found["typed"] == "wfp"
    assert found["still"]
    assert found["fitted"]
    assert found["listed"] == "F"
    assert found["groups"][0] == "Drawing"
    assert found["groups"][-1] == "Tables, menus and sliders"
    assert found["focused"] == "cl-overlay"
    assert found["enabled"] == [True, False, False]
    assert found["comparing"] == [True, False]
    assert found["title"] == "Show all (Q)"
    assert found["gone"]
    assert found["given"]
