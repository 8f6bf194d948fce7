"""How the panel looks: nothing cut or overlapping, and pictures that are compared with those in ``pictures/``.

The pictures show a trace and a font that come along, so they are the same on every machine but for how edges are
smoothed: tiles of 8 x 8 pixels are compared by their mean color. The planner's figures and the header are masked there;
of those, and of every picture, what is said in words is checked instead. After a change that is meant, look at the new
ones in build/browser, and take them over with ``UPDATE_PICTURES=1 python -m pytest tests/browser/test_pictures.py``.
"""

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

PICTURES = Path(__file__).with_name("pictures")
SEEN = Path(__file__).parents[2] / "tutorials" / "images"
"""The pictures that the documentation shows: made here, so that they are of the panel as it is."""
MOST_TILES_SEEN = 0.05
"""As below, of those: what the planner predicts is in them."""
TAKEN = Path(__file__).parents[2] / "build" / "browser"
TILE = 8
"""Pixels, each way, whose mean is compared: it takes the smoothing of letters out."""
MOST_APART = 20
"""By which a channel of a tile's mean, 0 to 255, may differ."""
SHOWN = ("step", "stall", "flame", "decide", "draft")
MOST_TILES = 0.004
"""Share of the tiles that may differ by more."""


def tiles(picture: Image.Image) -> np.ndarray:
    """The mean color of each tile, shape (rows, columns, 3)."""
    pixels = np.asarray(picture.convert("RGB"), dtype=np.float64)
    rows, columns = (size // TILE for size in pixels.shape[:2])
    cut = pixels[: rows * TILE, : columns * TILE]
    return cut.reshape(rows, TILE, columns, TILE, 3).mean(axis=(1, 3))


def difference(wanted: Image.Image, found: Image.Image) -> float:
    """The share of tiles that look otherwise; all, where the sizes differ."""
    if wanted.size != found.size:
        return 1.0
    return float((np.abs(tiles(wanted) - tiles(found)).max(axis=2) > MOST_APART).mean())


@pytest.fixture(scope="module")
def wanted():
    return {path.stem: Image.open(path).convert("RGB") for path in sorted(PICTURES.glob("*.png"))}


def test_the_panel_is_readable_and_looks_as_it_did(in_browser, wanted):
    found = in_browser("pictures", notebook="file")
    assert found["errors"] == []
    for name, looks in found["looks"].items():
        assert (looks["cut"], looks["clipped"], looks["overlapping"]) == ([], [], []), name
        assert looks["belowFold"] == 0, f"{name}: lanes of the timeline are out of sight"
        assert looks["rows"]["buttons"] <= 1, name
        if name.startswith("1600"):
            assert looks["rows"]["toolbar"] == 1, name
    pictures = {name for name in found["looks"] if name.endswith(("-light", "-dark"))}
    if os.environ.get("UPDATE_PICTURES"):
        PICTURES.mkdir(exist_ok=True)
        for name in pictures:
            shutil.copy(TAKEN / f"pictures-{name}.png", PICTURES / f"{name}.png")
        for name in SHOWN:
            shutil.copy(TAKEN / f"pictures-see-{name}.png", SEEN / f"{name}.png")
        return
    assert pictures == set(wanted)
    apart = {name: difference(wanted[name], Image.open(TAKEN / f"pictures-{name}.png")) for name in pictures}
    assert {name: share for name, share in apart.items() if share > MOST_TILES} == {}, "look at build/browser"
    for name in SHOWN:
        seen = [Image.open(path) for path in (SEEN / f"{name}.png", TAKEN / f"pictures-see-{name}.png")]
        assert difference(*seen) <= MOST_TILES_SEEN, f"{name}: look at build/browser"


@pytest.mark.parametrize("page", ["docs/what-you-will-see.md", "tutorials/01-quickstart.ipynb"])
def test_the_documentation_shows_pictures_that_are_there(page):
    path = Path(__file__).parents[2] / page
    named = re.findall(r"[^(\s\"]*images/[a-z-]+\.png", path.read_text(encoding="utf-8"))
    assert len(named) >= 3
    for name in named:
        assert (path.parent / name).resolve().is_file(), name


@pytest.mark.parametrize(
    "change", ["a lane moved by 6 pixels", "another hue", "a name gone", "a button moved", "another size"]
)
def test_what_a_person_would_see_is_found(wanted, change):
    before = wanted["1280-light"]
    after = before.copy()
    if change == "a lane moved by 6 pixels":
        after.paste(before.crop((172, 320, 613, 380)), (172, 326))
    elif change == "another hue":
        pixels = np.asarray(before).copy()
        pixels[320:440, 172:613] = pixels[320:440, 172:613][..., ::-1]
        after = Image.fromarray(pixels)
    elif change == "a name gone":
        after.paste((255, 255, 255), (628, 90, 780, 230))
    elif change == "a button moved":
        after.paste(before.crop((8, 84, 420, 112)), (40, 84))
    else:
        after = before.crop((0, 0, before.width - 8, before.height))
    assert difference(before, after) > MOST_TILES


def test_how_letters_are_smoothed_is_not(wanted):
    before = wanted["1280-light"]
    noise = np.random.default_rng(0).normal(0, 14, (*before.size[::-1], 3))
    after = Image.fromarray(np.clip(np.asarray(before) + noise, 0, 255).astype(np.uint8))
    assert difference(before, after) <= MOST_TILES
    shifted = Image.blend(
        before, before.transform(before.size, Image.Transform.AFFINE, (1, 0, 0.3, 0, 1, 0)), 1.0
    )
    assert difference(before, shifted) <= MOST_TILES
