"""Progress bars: shown to people, for long work, from the main thread, one at a time."""

from __future__ import annotations

import sys
import threading
import types

import pytest
from synthetic import gpt_step

from chameleon_lab.planner import plan, sweep
from chameleon_lab.policy import Link
from chameleon_lab.trace import Trace
from chameleon_lab.util import progress
from chameleon_lab.util.progress import bar, hidden, tick


class FakeBar:
    """What tqdm was asked to draw."""

    def __init__(self, **options):
        self.options, self.ticks, self.closed = options, 0, False

    def update(self, ticks=1):
        self.ticks += ticks

    def close(self):
        self.closed = True


@pytest.fixture
def bars(monkeypatch):
    """The bars that are drawn; somebody looks, and all work is long."""
    drawn = []

    def new(**options):
        drawn.append(FakeBar(**options))
        return drawn[-1]

    monkeypatch.setattr(progress, "_somebody_looks", lambda: True)
    monkeypatch.setattr(progress, "DELAY_S", 0.0)
    tqdm = types.ModuleType("tqdm.auto")
    tqdm.tqdm = new
    monkeypatch.setitem(sys.modules, "tqdm.auto", tqdm)
    return drawn


def work(what="Working", ticks=3):
    with bar(what, ticks, "part"):
        for _ in range(ticks):
            tick()


def test_a_bar_counts_its_ticks_and_goes(bars):
    work()
    assert [(b.options["desc"], b.options["total"], b.ticks, b.closed) for b in bars] == [
        ("Working", 3, 3, True)
    ]


def test_tqdm_draws_it(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(progress, "DELAY_S", 0.0)
    work()
    assert "Working" in capsys.readouterr().err


def test_short_work_shows_none(bars, monkeypatch):
    monkeypatch.setattr(progress, "DELAY_S", 60.0)
    work()
    assert not bars


def test_nobody_looks_where_no_terminal_is_and_at_other_threads(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert progress._somebody_looks()
    seen = []
    thread = threading.Thread(target=lambda: seen.append(progress._somebody_looks()))
    thread.start()
    thread.join()
    assert seen == [False]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    assert not progress._somebody_looks()


def test_nothing_is_drawn_where_nobody_looks(bars, monkeypatch):
    monkeypatch.setattr(progress, "_somebody_looks", lambda: False)
    work()
    assert not bars


def test_a_bar_inside_another_is_not_shown_and_does_not_move_it(bars):
    with bar("Outer", 2):
        work("Inner", 5)
        tick()
        tick()
    assert [(b.options["desc"], b.ticks) for b in bars] == [("Outer", 2)]


def test_hidden_hides(bars):
    with hidden():
        work()
    tick()  # outside of any bar
    assert not bars


def test_a_failure_ends_the_bar(bars):
    with pytest.raises(KeyError), bar("First", 2):
        tick()
        raise KeyError
    work("Second")
    assert [b.closed for b in bars] == [True, True]


def test_without_tqdm_there_is_none(bars, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    work()
    assert not bars and capsys.readouterr().err == ""


def test_planning_sweeps_and_reading_show_theirs(bars, tmp_path):
    step = gpt_step()
    plan(step, int(0.6 * step.live_peak_bytes), Link(1e9, 1e9))
    sweep(step, None, Link(1e9, 1e9))
    path = tmp_path / "t.parquet"
    Trace([step]).save(path)
    Trace.load(path)
    assert [b.options["desc"] for b in bars] == [
        f"Planning {len(step.ops)} ops",
        "Planning at several capacities",
        f"Reading {path}",
    ]
    assert bars[0].ticks >= 2  # one for each plan that is tried
    assert all(b.ticks == b.options["total"] for b in bars[1:])
