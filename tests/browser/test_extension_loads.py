def test_the_command_opens_a_panel_that_follows_the_notebook(in_browser):
    found = in_browser("extension_loads")
    assert found == {
        "registered": True,
        "label": "Open Chameleon Lab",
        "opened": ["toolbar", "launcher"],
        "title": "empty.ipynb · Python 3 (ipykernel) · idle",
        "copied": "%load_ext chameleon_lab",
        "panels": 1,
        "errors": [],
    }
