"""Time in which no op runs outside of the loop is a pause with a name, and no part of a step."""

import threading
import time
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from training import Gpt, adamw, reference

import chameleon_lab as cl
from chameleon_lab.report.trace_report import TraceReport
from chameleon_lab.runtime.patches import loop_pauses
from chameleon_lab.trace import Pause, Trace
from chameleon_lab.trace.stall_parts import parts_of_step

pytestmark = pytest.mark.full

SLEPT_S = 0.15

torch.optim.SGD([torch.zeros(1)])  # the first optimizer imports much, which is a pause too


class Slow(Dataset):
    """Two items a batch, each of which takes its time and runs an op."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(SLEPT_S / 2)
        return torch.full((4,), float(index))


def train(session, before=lambda: None, steps=3):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        before()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        session.step()


def check_clock(session):
    """Every time of a step lies within it, and the pauses with it are all the time that there was."""
    for step, log in zip(session.trace(), session._journal.logs(), strict=True):
        ends = step.ops.start_s + step.ops.duration_s
        assert step.ops.start_s.min() >= 0 and ends.max() <= step.duration_s + 1e-9
        assert (step.pauses.at_s >= 0).all() and (step.pauses.at_s <= step.duration_s + 1e-9).all()
        assert (step.pauses.op <= len(step.ops)).all()
        (told,) = (each for each in session.history if each.index == step.index)
        assert told.step_s == pytest.approx(step.duration_s, rel=1e-3) and told.paused_s == pytest.approx(
            step.paused_s(), rel=1e-3
        )
        wall_s = (log.end_ticks - log.start_ticks) * cl.runtime.core.seconds_per_tick()
        assert step.duration_s + step.paused_s() == pytest.approx(wall_s, rel=1e-3)


def test_a_sleep_is_a_pause_before_the_op_that_ends_it_and_no_part_of_the_step(tmp_path):
    with cl.Session(device="cpu") as session:
        train(session, lambda: time.sleep(SLEPT_S))
        trace = session.trace()
        check_clock(session)
    for step in trace:
        slept = (step.pauses.duration_s >= SLEPT_S) & (step.pauses.kind == Pause.IDLE)
        assert "aten::ones" in {step.op_name(int(op)) for op in step.pauses.op[slept]}
        assert step.paused_s(Pause.LOADING) == 0
    assert "Paused" in str(session.report())
    trace.save(str(tmp_path / "t.parquet"))
    again = Trace.load(str(tmp_path / "t.parquet"))
    assert again.last.paused_s() == trace.last.paused_s() >= SLEPT_S
    assert "Paused" in {name for name, *_ in TraceReport.of(again).rows()}


def test_what_a_loader_takes_is_a_row_of_the_report_less_the_ops_in_it():
    untouched = DataLoader.__iter__
    with cl.Session(device="cpu") as session:
        batches = iter(DataLoader(Slow(), batch_size=2))
        kind = type(batches)
        train(session, lambda: next(batches))
        trace = session.trace()
        check_clock(session)
    assert DataLoader.__iter__ is untouched
    names = [trace.last.op_name(op) for op in range(len(trace.last.ops))]
    assert "aten::stack" in names, "the loader's ops are the step's"
    for step in trace:
        assert step.paused_s(Pause.LOADING) >= SLEPT_S and (step.pauses.duration_s > 0).all()
        inside = step.pauses.op[step.pauses.kind == Pause.LOADING]
        assert len(set(inside.tolist())) > 1, "ops lie between the pauses of one batch"
    report = session.report()
    assert report.loading_s >= SLEPT_S and "Data loading" in str(report)
    assert "Data loading" in {name for name, *_ in TraceReport.of(trace).rows()}
    assert "load" not in next(k.__next__ for k in kind.__mro__ if "__next__" in vars(k)).__qualname__


def test_a_loader_that_another_thread_asks_is_no_pause_of_the_loop():
    loaded = []
    with cl.Session(device="cpu") as session:
        ahead = threading.Thread(target=lambda: loaded.extend(DataLoader(Slow(), batch_size=2)))
        train(session, ahead.start, steps=1)
        ahead.join()
        train(session, steps=1)
        trace = session.trace()
    assert loaded and not any((step.pauses.kind == Pause.LOADING).any() for step in trace)


def test_the_time_between_two_cells_is_a_pause(monkeypatch):
    told = {}
    events = SimpleNamespace(register=told.__setitem__, unregister=lambda name, _: told.pop(name))
    monkeypatch.setattr(loop_pauses, "_shell", lambda: SimpleNamespace(events=events))

    def another_cell():
        told["post_run_cell"](None)
        time.sleep(SLEPT_S)
        told["pre_run_cell"](None)

    with cl.Session(device="cpu") as session:
        train(session, another_cell)
        trace = session.trace()
        check_clock(session)
    assert not told
    for step in trace:
        chosen = step.pauses.kind == Pause.CELLS
        assert step.pauses.duration_s[chosen].sum() >= SLEPT_S


def test_planning_between_steps_is_no_pause(monkeypatch):
    planned = []

    def slow(self, log):
        time.sleep(SLEPT_S)
        planned.append(log.index)

    monkeypatch.setattr(cl.Session, "_foresee", slow)
    with cl.Session("64MiB", device="cpu") as session:
        train(session)
        check_clock(session)
        lasted_s = {step.index: step.duration_s for step in session.trace()}
    (index,) = planned
    assert lasted_s[index + 1] >= SLEPT_S, "it was taken out of the step's time, as a pause is"


@pytest.mark.parametrize("planning", [True, False])
def test_stalls_say_why_and_the_seconds_add_up(planning):
    _, live_peak = reference(Gpt, steps=4)
    torch.manual_seed(0)
    model, generator = Gpt(), torch.Generator().manual_seed(0)
    optimizer = adamw(model.parameters())
    link = "20MiB/s" if planning else "200MiB/s"  # so slow that a plan has to wait, whatever the machine
    with cl.Session(live_peak // 2, link=link, planning=planning, rematerialize=False) as session:
        for _ in range(4):
            model(model.batch(generator)).backward()
            optimizer.step()
            optimizer.zero_grad()
            session.step()
        trace = session.trace()
        report = session.report()
    step = trace.last
    assert len(step.stalls)
    parts = parts_of_step(step)
    total = sum(getattr(parts, f"{name}_s") for name in ("copy", "queue", "room", "late", "other"))
    assert total == pytest.approx(step.stalls.duration_s)
    assert sum(report.stall_parts.values()) == pytest.approx(step.stalls.duration_s.sum())
    assert planning or report.stall_parts["room"] > 0
    assert (step.transfers.due_s <= step.transfers.issue_s + 1e-9).all()
    known = step.stalls.copy_end_s
    assert (known >= step.stalls.copy_start_s).all() and (
        step.stalls.due_s <= step.stalls.issue_s + 1e-9
    ).all()
    out = step.stalls.room_bytes[step.stalls.cause == 1]
    assert planning or (len(out) and (out > 0).all())
