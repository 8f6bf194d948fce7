"""A kernel that is launched by hand is an op: what it is given comes in, and nothing stays for good."""

from __future__ import annotations

import ctypes
import threading

import pytest
import torch
from training import MiB, pressure

import chameleon_lab as cl
from chameleon_lab.runtime import core

N = MiB // 4

pytestmark = pytest.mark.bits


def scale(x: torch.Tensor, y: torch.Tensor, factor: float) -> None:
    """A kernel behind addresses: y = factor * x."""
    source = (ctypes.c_float * N).from_address(x.data_ptr())
    target = (ctypes.c_float * N).from_address(y.data_ptr())
    for i in range(0, N, 997):
        target[i] = source[i] * factor


def launched(x: torch.Tensor, y: torch.Tensor, factor: float) -> None:
    with cl.launch("scale", read=[x], written=[y]):
        scale(x, y, factor)


def test_its_tensors_come_in_and_may_leave_again() -> None:
    with cl.Session("4MiB") as session:
        x, y = torch.arange(float(N)), torch.zeros(N)
        for factor in (2.0, 3.0):  # the second time, the host has a copy of y that the kernel makes stale
            assert session.evict(x) and session.evict(y)
            launched(x, y, factor)
            pressure(session, 8)
            assert session.where(x) == session.where(y) == "away"
            assert y[997].item() == 997 * factor and y[1].item() == 0
            assert x[997].item() == 997
        assert session.report().escaped_storages == 0


def test_it_is_an_op_of_the_step_that_uses_its_tensors() -> None:
    with cl.Session("8MiB") as session:
        x, y = torch.arange(float(N)), torch.zeros(N)
        session.step()
        launched(x, y, 2.0)
        y.sum()
        session.step()
        step = session.trace().last
        names = [step.names[name] for name in step.ops.name]
        assert names == ["kernel::scale", "aten::sum"]
        of_kernel = step.uses.op == 0
        assert sorted(step.uses.writes[of_kernel].tolist()) == [False, True]


def test_an_address_taken_inside_of_what_was_not_named_keeps_nothing_either() -> None:
    with cl.Session("4MiB") as session:
        x, y = torch.arange(float(N)), torch.zeros(N)
        assert session.evict(x)
        with cl.launch("scale", written=[y]):
            scale(x, y, 2.0)
        assert session.evict(x) and session.evict(y)
        assert (x[997].item(), y[997].item()) == (997, 2 * 997)


def test_what_is_written_to_what_was_not_named_is_not_lost() -> None:
    with cl.Session("4MiB") as session:
        x, y = torch.arange(float(N)), torch.zeros(N)
        assert session.evict(y)
        y.sum()  # and the host keeps its copy
        with cl.launch("scale"):
            scale(x, y, 2.0)
        pressure(session, 8)
        assert session.where(y) == "away" and y[997].item() == 2 * 997
        session.step()
        step = session.trace().last
        ops = [step.names[name] for name in step.ops.name]
        of_kernel = step.uses.op == ops.index("kernel::scale")
        assert step.uses.writes[of_kernel].tolist() == [True, True]


def test_an_address_taken_outside_still_keeps_its_storage() -> None:
    with cl.Session("4MiB") as session:
        x, y = torch.arange(float(N)), torch.zeros(N)
        address = x.data_ptr()
        launched(x, y, 2.0)
        pressure(session, 8)
        assert session.where(x) == "resident" and x.data_ptr() == address
        assert not session.evict(x) and session.evict(y)


def test_launches_nest_and_end_with_an_error_too() -> None:
    with cl.Session("4MiB") as session:
        x, y = torch.arange(float(N)), torch.zeros(N)
        with pytest.raises(ZeroDivisionError), cl.launch("outer", read=[x]):
            launched(x, y, 2.0)
            x.sum()
            raise ZeroDivisionError
        pressure(session, 8)
        assert session.where(x) == session.where(y) == "away"
        assert y[997].item() == 2 * 997


def test_what_interrupts_it_while_tensors_come_in_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    enter = core.enter_region

    def interrupted(*args: object) -> None:
        enter(*args)
        raise KeyboardInterrupt

    with cl.Session("8MiB") as session:
        x, y = torch.arange(float(N)), torch.zeros(N)
        session.step()
        assert session.evict(x)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(core, "enter_region", interrupted)
            launched(x, y, 2.0)
        assert core.regions_depth() == 0
        assert session.evict(x) and session.evict(y)
        x.sum()
        session.step()
        step = session.trace().last
        assert [step.names[name] for name in step.ops.name] == ["kernel::scale", "aten::sum"]


def test_a_block_is_entered_once_and_left_where_it_began() -> None:
    x = torch.zeros(N)
    block = cl.launch("once", written=[x])
    with block:
        pass
    with pytest.raises(RuntimeError, match="has been entered before"), block:
        pass
    block = cl.launch("elsewhere", written=[x])
    block.__enter__()
    said = []

    def leave() -> None:
        try:
            block.__exit__(None, None, None)
        except RuntimeError as error:
            said.append(str(error))

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert "on the thread on which it began" in said[0]
    block.__exit__(None, None, None)
    assert core.regions_depth() == 0


def test_threads_launch_at_once() -> None:
    with cl.Session("6MiB") as session:
        x = torch.arange(float(N))
        results = [torch.zeros(N) for _ in range(8)]
        threads = [
            threading.Thread(target=lambda y=y, factor=factor: launched(x, y, float(factor)))
            for factor, y in enumerate(results)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [y[997].item() for y in results] == [997 * factor for factor in range(8)]
        assert session.report().escaped_storages == 0


def test_what_does_not_fit_says_so_and_goes_on_later() -> None:
    x, y = torch.arange(float(N)), torch.zeros(N)
    with cl.Session("1500KiB") as session:
        a = torch.arange(float(N))
        assert session.evict(a)
        with pytest.raises((cl.BelowFloorError, torch.OutOfMemoryError, RuntimeError), match="floor"):
            b = torch.zeros(N)
            launched(a, b, 2.0)
        b = None
        assert a[997].item() == 997
    launched(x, y, 2.0)
    assert y[997].item() == 2 * 997


def test_without_a_session_it_is_the_block_alone() -> None:
    x, y = torch.arange(float(N)), torch.zeros(N)
    launched(x, y, 2.0)
    assert y[997].item() == 2 * 997


def test_no_tensor_is_kept_alive_by_it() -> None:
    with cl.Session("8MiB") as session:
        x = torch.zeros(N)
        before = session.counters()["live_bytes"]
        with cl.launch("frees", written=[x]):
            del x
            assert session.counters()["live_bytes"] == before - MiB


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="needs the kernel's name"):
        cl.launch("")
    with pytest.raises(TypeError, match=r"launch\('scale'\) takes tensors .* not int"):
        cl.launch("scale", read=[torch.zeros(2), 3])  # type: ignore[list-item]  # the error is the test
