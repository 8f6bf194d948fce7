import numpy as np
import pytest

from chameleon_lab.lab.panel.blocks import Rectangles, rasterise, stack_rows
from chameleon_lab.lab.panel.lod import Intervals, steps_between


def test_few_intervals_come_one_by_one():
    intervals = Intervals(np.array([3.0, 0.0, 5.0]), np.array([4.0, 2.0, 9.0]))
    bars = intervals.bars(1.0, 4.5, pixels=100, most=10)
    assert bars.row.tolist() == [1, 0]
    assert bars.x0.tolist() == [0.0, 3.0]
    assert bars.fill.tolist() == [1.0, 1.0]


def test_a_long_interval_is_found_from_its_middle():
    x0 = np.arange(1000.0)
    x1 = x0 + 0.5
    x1[3] = 900.0
    assert 3 in Intervals(x0, x1).bars(800, 801, pixels=10, most=50).row


def test_many_short_intervals_merge_by_pixel_and_keep_the_longest():
    random = np.random.default_rng(0)
    x0 = np.sort(random.random(50_000)) * 100
    x1 = x0 + random.random(50_000) * 1e-3
    x1[777] = x0[777] + 5.0  # wider than a pixel: stays itself
    bars = Intervals(x0, x1).bars(0.0, 100.0, pixels=200, most=1000)
    assert len(bars.row) <= 201
    assert bars.count.sum() == 50_000
    alone = bars.row == 777
    assert bars.count[alone].tolist() == [1]
    assert bars.x1[alone] == x1[777]
    covered = ((bars.x1 - bars.x0) * bars.fill)[~alone].sum()
    assert covered == pytest.approx((x1 - x0).sum() - 5.0, rel=1e-5)
    for bar in np.flatnonzero(~alone)[:20]:
        inside = np.flatnonzero((x0 >= bars.x0[bar]) & (x0 < bars.x1[bar]) & (np.arange(50_000) != 777))
        assert bars.row[bar] == inside[np.argmax((x1 - x0)[inside])]


@pytest.mark.parametrize("seed", range(5))
def test_a_thinned_step_function_keeps_its_extremes(seed):
    random = np.random.default_rng(seed)
    x = np.sort(random.random(20_000))
    values = random.integers(0, 10**9, 20_000)
    kept = steps_between(x, values, 0.2, 0.7, pixels=100)
    inside = np.flatnonzero((x >= 0.2) & (x <= 0.7))
    assert len(kept) <= 303
    assert (np.diff(kept) > 0).all()
    assert values[kept].max() >= values[inside].max()
    assert values[kept].min() <= values[inside].min()
    assert x[kept[0]] <= 0.2 < x[kept[0] + 1]  # what holds where the view begins
    edges = np.linspace(0.2, 0.7, 101)
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        piece = np.flatnonzero((x >= low) & (x < high))
        assert values[piece].max() in values[kept]
        assert values[piece].min() in values[kept]


def test_rows_never_overlap_and_are_taken_again():
    random = np.random.default_rng(1)
    start = random.integers(0, 100, 300).astype(float)
    end = start + random.integers(0, 20, 300)
    size = random.choice([1, 2, 8], 300)
    offset, top = stack_rows(start, end, size)
    assert top < size.sum() / 2
    for i in range(300):
        both = (start < end[i]) & (end > start[i])
        both[i] = False
        assert not (both & (offset < offset[i] + size[i]) & (offset + size > offset[i])).any()


def test_a_raster_stays_small_and_covers_what_was_there():
    n = 40_000
    random = np.random.default_rng(2)
    x0, y0 = random.random(n) * 100, random.random(n) * 1000
    rects = Rectangles(
        x0,
        x0 + 0.05,
        y0.astype(np.float32),
        (y0 + 0.5).astype(np.float32),
        random.integers(0, 6, n).astype(np.uint8),
        random.random(n) < 0.5,
        np.arange(n, dtype=np.int32),
        np.ones(n, dtype=np.float32),
    )
    rects.x1[5] = 90.0
    rects.y1[5] = rects.y0[5] + 300
    thin = rasterise(rects, 0.0, 100.0, 1000.0, columns=64, lines=32, most=100)
    assert len(thin.x0) <= 100 + 64 * 32
    assert 5 in thin.storage
    cells = thin.storage < 0
    assert cells.sum() > 100
    assert ((thin.fill[cells] > 0) & (thin.fill[cells] <= 1)).all()
    assert (thin.x1 > thin.x0).all()


def test_a_raster_cell_shows_the_side_that_covers_most_of_it():
    rects = Rectangles(
        np.array([0.0, 0.0, 5.0]),
        np.array([10.0, 2.0, 10.0]),
        np.array([0, 0, 0], dtype=np.float32),
        np.array([10, 1, 6], dtype=np.float32),
        np.array([3, 2, 2], dtype=np.uint8),
        np.array([True, False, False]),
        np.array([0, 1, 2], dtype=np.int32),
        np.ones(3, dtype=np.float32),
    )
    thin = rasterise(rects, 0.0, 10.0, 10.0, columns=2, lines=1, most=1)
    cells = thin.storage < 0
    assert thin.category[cells].tolist() == [2, 2]
    assert thin.place[cells].tolist() == [0, 0]
    assert thin.storage[~cells].tolist() == [0]
