"""`session.dashboard()`: what it streams is what the session did, and nothing stays behind."""

from __future__ import annotations

import sys
import threading

import pytest
import torch

import chameleon_lab as cl
from chameleon_lab.lab.figures.packages import MissingPackageError


def job():
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(6)))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def step():
        model(torch.ones(256, 256)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def watchers():
    return [thread for thread in threading.enumerate() if thread.name == "chameleon-lab-dashboard"]


def session():
    return cl.Session("6MiB", device="cpu", link="1GiB/s")


def test_it_streams_every_step_and_the_bytes_within(monkeypatch):
    streamed = []
    with session() as running:
        dashboard = running.dashboard(every_s=0.01)
        stream = dashboard.steps.stream
        monkeypatch.setattr(
            type(dashboard.steps),
            "stream",
            lambda self, *args: (
                streamed.append(threading.current_thread().name) or stream.__func__(self, *args)
            ),
        )
        step = job()
        for _ in range(8):
            step()
    history = running.history
    data = dashboard.steps.data
    assert list(data["index"]) == list(range(8))
    for column, name in (
        ("peak_bytes", "peak_bytes"),
        ("out_bytes", "swapped_out_bytes"),
        ("in_bytes", "swapped_in_bytes"),
        ("step_s", "step_s"),
        ("stall_s", "stall_s"),
    ):
        assert list(data[column]) == [getattr(summary, name) for summary in history], column
    assert sum(data["out_bytes"]) > 0
    places, sizes = list(dashboard.resident.data["step"]), list(dashboard.resident.data["bytes"])
    assert places == sorted(places) and max(places) == 8
    for summary in history:
        within = [y for x, y in zip(places, sizes, strict=True) if summary.index < x <= summary.index + 1]
        assert max(within) == summary.peak_bytes <= running.capacity_bytes
    assert min(sizes[1:]) < max(sizes)
    assert streamed and set(streamed) <= {"chameleon-lab-dashboard", "MainThread"}


def test_the_curve_has_a_point_before_the_first_step_and_begins_where_a_late_one_looks():
    with session() as running:
        early = running.dashboard(every_s=60)
        # An area without points stops the page that draws it.
        assert early.resident.data == {"step": [0], "bytes": [0]}
        step = job()
        for _ in range(3):
            step()
        late = running.dashboard(every_s=60)
        assert late.resident.data["step"][0] == running.history[0].index
        assert len(late.resident.data["step"]) > 1


def test_the_thread_streams_while_the_main_one_trains():
    seen = threading.Event()
    with session() as running:
        dashboard = running.dashboard(every_s=0.01)
        update = dashboard.update

        def told():
            update()
            if threading.current_thread().name == "chameleon-lab-dashboard" and len(
                dashboard.steps.data["index"]
            ):
                seen.set()

        dashboard.update = told
        step = job()
        for _ in range(2000):
            step()
            if seen.is_set():
                break
        assert seen.is_set()
        assert running.is_open


def test_it_ends_with_the_session_and_leaves_no_thread():
    with session() as running:
        dashboard = running.dashboard(every_s=0.01)
        second = running.dashboard()
        assert len(watchers()) == 2
        second.stop()
        second.stop()
        assert len(watchers()) == 1
        job()()
    assert not watchers()
    assert "ended" in dashboard.summary_html()
    with pytest.raises(RuntimeError, match="on purpose"), session() as failing:
        failing.dashboard(every_s=0.01)
        raise RuntimeError("on purpose")
    assert not watchers() and cl.current_session() is None


@pytest.mark.bits
def test_training_is_the_same_with_it():
    def losses(watched):
        torch.manual_seed(0)
        model = torch.nn.Linear(64, 64)
        optimizer = torch.optim.AdamW(model.parameters())
        found = []
        with cl.Session("1MiB", device="cpu") as running:
            if watched:
                running.dashboard(every_s=0.001)
            for _ in range(6):
                loss = model(torch.ones(64, 64)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                found.append(loss.item())
        return found

    assert losses(True) == losses(False)


def test_words_and_capacity_follow_the_session():
    with session() as running:
        dashboard = running.dashboard(every_s=60)
        assert "WarmUp" in dashboard.summary_html() and "6.00 MiB" in dashboard.summary_html()
        step = job()
        for _ in range(4):
            step()
        dashboard.update()
        assert "Stable" in dashboard.summary_html()
        assert dashboard._capacity.location == 6 << 20
        draft = running.policy.draft().set_capacity("8MiB")
        running.enable(draft)
        step()
        dashboard.update()
        assert dashboard._capacity.location == 8 << 20 and "8.00 MiB" in dashboard.summary_html()


def test_an_ended_session_is_drawn_as_it_was(tmp_path):
    running = session()
    with pytest.raises(cl.SessionError, match="not started"):
        running.dashboard()
    with running:
        step = job()
        for _ in range(3):
            step()
    dashboard = running.dashboard()
    assert list(dashboard.steps.data["index"]) == [0, 1, 2] and not watchers()
    dashboard.save(tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text()
    assert "Capacity" in page and "peak_bytes" in page


def test_a_session_without_a_capacity_has_no_line():
    with cl.Session() as running:
        dashboard = running.dashboard(every_s=60)
        job()()
    assert not dashboard._capacity.visible
    assert "recording only" in dashboard.summary_html()


def test_a_thread_that_cannot_start_is_left_out(monkeypatch):
    def full(thread):
        raise RuntimeError("can't start new thread")

    step = job()
    with session() as s:
        monkeypatch.setattr(threading.Thread, "start", full)
        with pytest.raises(RuntimeError, match="new thread"):
            s.dashboard()
        monkeypatch.undo()
        step()
        s.step()
    assert not s.is_open and not watchers()


def test_bad_input_is_named(monkeypatch):
    with session() as running:
        with pytest.raises(ValueError, match="every_s .* got 0"):
            running.dashboard(every_s=0)
        monkeypatch.setitem(sys.modules, "bokeh.models", None)
        with pytest.raises(MissingPackageError, match="pip install bokeh"):
            running.dashboard()
    assert not watchers()
