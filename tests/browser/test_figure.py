def test_a_figure_is_as_wide_as_its_output(in_browser):
    found = in_browser("figure", notebook="figure")
    assert found["errors"] == []
    for place, least in (("cell", 1200), ("beside", 800), ("again", 1200), ("smaller", 900), ("page", 1100)):
        drawn, room = found[place]
        assert room >= least, found
        assert room - 60 < drawn <= room, found
    assert found["beside"][0] < found["cell"][0] - 100
    assert found["words"].startswith("Step ") and "storages alive at op" in found["words"]
