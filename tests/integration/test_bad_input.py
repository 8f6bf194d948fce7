"""Wrong arguments, small capacities, damaged files and runs that end in the middle: a clear error, and nothing lost."""

from __future__ import annotations

import json
import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training import (
    Gpt,
    MiB,
    adamw,
    child,
    in_thread,
    of_the_gate,
    pressure,
    raw,
    reference,
    state_bytes,
    train,
)

import chameleon_lab as cl
from chameleon_lab.runtime import core


@pytest.mark.parametrize(
    "arguments, error, names",
    [
        ({"capacity": "12 parsecs"}, ValueError, "12 parsecs"),
        ({"capacity": "-5MiB"}, ValueError, "-5MiB"),
        ({"capacity": -5}, ValueError, "-5"),
        ({"capacity": 0}, ValueError, "0"),
        ({"capacity": "0"}, ValueError, "0"),
        ({"capacity": True}, TypeError, "True"),
        ({"capacity": 1.5}, ValueError, "1.5"),
        ({"capacity": -0.5}, ValueError, "-0.5"),
        ({"capacity": "1.5"}, ValueError, "1.5"),
        ({"capacity": "150%"}, ValueError, "150%"),
        ({"host_capacity": "1.5"}, ValueError, "host_capacity"),
        ({"min_swap": "60%"}, ValueError, "min_swap"),
        ({"margin": "60%"}, ValueError, "margin"),
        ({"rematerialize": "dear"}, ValueError, "dear"),
        ({"capacity": float("nan")}, ValueError, "nan"),
        ({"capacity": ""}, ValueError, "capacity"),
        ({"capacity": "MiB"}, ValueError, "MiB"),
        ({"capacity": "1e400"}, ValueError, "1e400"),
        ({"capacity": "nan"}, ValueError, "nan"),
        ({"capacity": "99999999999TiB"}, ValueError, "99999999999TiB"),
        ({"capacity": 2**70}, ValueError, "capacity"),
        ({"capacity": 10**400}, ValueError, "capacity"),
        ({"capacity": [1]}, TypeError, "capacity"),
        ({"capacity": b"8MiB"}, TypeError, "capacity"),
        ({"link": "8GiB"}, ValueError, "8GiB"),
        ({"link": "fast"}, ValueError, "fast"),
        ({"link": "0GiB/s"}, ValueError, "0GiB/s"),
        ({"link": 0}, ValueError, "link"),
        ({"link": -1.0}, ValueError, "link"),
        ({"link": float("inf")}, ValueError, "link"),
        ({"link": True}, TypeError, "link"),
        ({"link": ("1GiB/s",)}, ValueError, "pair"),
        ({"link": ("1GiB/s", "1GiB/s", "1GiB/s")}, ValueError, "pair"),
        ({"link": ("1GiB/s", "slow")}, ValueError, "slow"),
        ({"min_swap": "-1"}, ValueError, "min_swap"),
        ({"min_swap": 1.5}, TypeError, "min_swap"),
        ({"min_swap": None}, TypeError, "min_swap"),
        ({"host_capacity": "lots"}, ValueError, "host_capacity"),
        ({"warmup_steps": -1}, ValueError, "warmup_steps"),
        ({"warmup_steps": 1.5}, ValueError, "warmup_steps"),
        ({"margin": 0.5}, ValueError, "margin"),
        ({"margin": -0.1}, ValueError, "margin"),
        ({"device": "cuda"}, cl.SessionError, "cpu"),
        ({"device": torch.device("cuda:1")}, cl.SessionError, "cpu"),
        ({"device": "tpu"}, cl.SessionError, "tpu"),
        ({"device": "meta"}, cl.SessionError, "meta"),
        ({"policy": "/nowhere/policy.json"}, FileNotFoundError, "/nowhere/policy.json"),
        ({"policy": 7}, TypeError, ""),
    ],
    ids=str,
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], error: type[Exception], names: str) -> None:
    with pytest.raises(error) as raised:
        cl.Session(**arguments)
    assert names in str(raised.value)
    assert cl.current_session() is None


HALF_THE_MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


@pytest.mark.parametrize(
    "capacity, expected_bytes",
    [
        (None, None),
        (123456789, 123456789),
        ("12MiB", 12 * MiB),
        ("1.5 GiB", 1536 * MiB),
        ("64k", 64 << 10),
        (0.5, HALF_THE_MACHINE),
        ("0.5", HALF_THE_MACHINE),
        ("50%", HALF_THE_MACHINE),
        (1.0, 2 * HALF_THE_MACHINE),
    ],
)
def test_right_capacities_are_taken(capacity: Any, expected_bytes: int | None) -> None:
    with cl.Session(
        capacity, device="cpu", link=("1GiB/s", 1e9), min_swap="1", host_capacity="1GiB"
    ) as session:
        torch.zeros(1000).add_(1)
        assert session.report().capacity_bytes == session.capacity_bytes == expected_bytes


@pytest.mark.parametrize("link", ["1GB/s,2GB/s", "1e9,2e9", (1e9, "2GB/s"), cl.policy.Link(1e9, 2e9)])
def test_links_fractions_and_replays_are_written_as_elsewhere(link: Any) -> None:
    session = cl.Session(
        "8MiB", device="cpu", link=link, host_capacity="50%", margin="5%", rematerialize="no"
    )
    assert session.link == cl.policy.Link(1e9, 2e9)
    assert (session.host_capacity_bytes, session.margin) == (HALF_THE_MACHINE, 0.05)
    assert session.rematerialize is False
    assert cl.Session("8MiB", device="cpu", rematerialize="all").rematerialize is True


def test_sessions_do_not_nest_and_do_not_run_twice() -> None:
    with cl.Session("8MiB") as session:
        with pytest.raises(cl.SessionError, match="already open"):
            cl.Session("8MiB").start()
        with pytest.raises(cl.SessionError, match="already open"), cl.Session():
            pass
        with pytest.raises(cl.SessionError):
            session.start()
        assert cl.current_session() is session and core.of().is_open()
    with pytest.raises(cl.SessionError, match="ended"):
        session.start()
    session.stop()
    for call in (session.step, lambda: session.adopt(torch.zeros(9)), lambda: session.evict(torch.zeros(9))):
        with pytest.raises(cl.SessionError, match="with"):
            call()
    with pytest.raises(cl.SessionError, match="with"):
        cl.Session().step()
    with pytest.raises(cl.SessionError):
        cl.Session().report()
    assert session.report().stage == "WarmUp" and "ended" in repr(session)


@pytest.mark.parametrize("thing", [None, 3, "model", [torch.zeros(9)], {"a": 1}, nn.Linear, lambda: None])
def test_adopt_refuses_what_is_no_tensor(thing: Any) -> None:
    with cl.Session("8MiB") as session, pytest.raises(TypeError, match=type(thing).__name__):
        session.adopt(thing)


def test_adopt_takes_odd_tensors_as_they_are() -> None:
    """None of these can be moved: each stays as it is, and is no reason to stop."""
    import numpy as np

    with cl.Session("8MiB") as session:
        array = torch.from_numpy(np.ones(9999))
        shared = torch.ones(9999).share_memory_()
        sparse = torch.eye(500).to_sparse()
        odd = [array, shared, sparse, torch.empty(9, device="meta"), torch.empty(0), torch.tensor(1.0)]
        session.adopt(*odd)
        assert [session.where(t) for t in odd[:3]] == [None] * 3
        assert not any(session.evict(t) for t in odd)
        embedding = nn.Embedding(5000, 8, sparse=True)
        embedding(torch.arange(9)).sum().backward()
        session.adopt(embedding)
        assert len(session.report().refused) >= 2
        assert array.sum() == shared.sum() == 9999 and sparse.to_dense().sum() == 500


@pytest.mark.parametrize(
    "floor_op, run",
    [
        ("aten::", lambda: torch.ones(MiB)),
        ("aten::", lambda: [torch.ones(2 * MiB // 16) @ torch.ones(2 * MiB // 16, 16) for _ in range(2)]),
        ("fits|adopt|aten::", lambda: nn.Linear(2048, 2048)(torch.ones(1, 2048)).sum().backward()),
    ],
)
def test_below_the_floor_it_says_so(floor_op: str, run: Callable[[], Any]) -> None:
    with pytest.raises(cl.BelowFloorError, match=f"(?s)({floor_op}).*(MiB|KiB)"), cl.Session("1MiB"):
        run()
    assert cl.current_session() is None and not core.of().is_open()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_below_the_floor_in_torchscript_it_says_so_too() -> None:
    """Its interpreter puts a traceback of its own before the message."""

    @torch.jit.script
    def loss_of(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).relu().sum()

    said = r"^Chameleon Lab: the capacity of 1 MiB is below the floor: aten::\w+ needs [\d.]+ MiB at once"
    with pytest.raises(cl.BelowFloorError, match=said), cl.Session("1MiB"):
        loss_of(torch.ones(400, 400))


def test_an_op_below_the_floor_is_caught_by_name_with_its_figures() -> None:
    """While the session is open: a loop may try a smaller batch."""
    net = nn.Linear(8, 8)
    with cl.Session("1MiB", device="cpu"):
        for _ in range(2):
            with pytest.raises(cl.BelowFloorError, match="aten::ones") as caught:
                torch.ones(MiB)
            error = caught.value
            assert (error.capacity_bytes, error.needed_bytes, error.op_name) == (MiB, 4 * MiB, "aten::ones")
        with pytest.raises(cl.BelowFloorError) as caught:
            net(torch.ones(4, 8)).sum().mul(torch.ones(1)).expand(MiB).exp().sum().backward()
        assert caught.value.op_name == "aten::exp"
        copied = pickle.loads(pickle.dumps(caught.value))
        assert type(copied) is cl.BelowFloorError and str(copied) == str(caught.value)

        class Own(torch.OutOfMemoryError):
            def __init__(self, *, kind: str) -> None:
                super().__init__(kind)

        assert str(Own(kind="mine")) == "mine"
        own = torch.OutOfMemoryError("of somebody else")
        assert (
            type(own) is torch.OutOfMemoryError and type(torch.OutOfMemoryError()) is torch.OutOfMemoryError
        )
    assert "__new__" not in vars(torch.OutOfMemoryError)


def test_a_report_of_a_session_that_is_over_wants_no_other_plan() -> None:
    """Ops behind the loop are no step that a plan could be made for."""
    net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with cl.Session("200KiB", device="cpu", min_swap="1KiB") as session:
        for _ in range(6):
            net(torch.ones(64, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        for number in range(400):
            torch.ones(number).sum()
        assert session.report().replan_reason
    assert session.report().replan_reason is None and "Replanning" not in str(session.report())


def test_eviction_by_hand_needs_a_capacity() -> None:
    child(
        """
        with cl.Session() as session:
            x = torch.ones(MiB)
            try:
                session.evict(x)
            except cl.SessionError as error:
                assert "capacity" in str(error), error
            else:
                raise AssertionError("nothing leaves a session without a capacity")
            assert session.where(x) == "resident" and x.sum().item() == MiB
        """
    )


@pytest.mark.bits
def test_below_the_floor_everything_stays_valid() -> None:
    """At ever smaller capacities: the error comes at any place of the step, and training goes on outside."""
    bare, live_peak = reference(Gpt)
    failed = 0
    for part in (10, 14, 20, 30, 60):
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(0)
        model, losses = Gpt(), []
        optimizer = adamw(model.parameters())
        done = 0
        kept: list[torch.Tensor] = []
        try:
            with cl.Session(live_peak // part):
                for _ in range(3):
                    before = generator.get_state(), state_bytes(model, optimizer)
                    loss = model(model.batch(generator))
                    kept.append(loss)
                    loss.backward()
                    losses.append(raw(loss))
                    optimizer.step()
                    optimizer.zero_grad()
                    done += 1
                    del loss
        except cl.BelowFloorError as error:
            failed += 1
            text = str(error)
            assert "capacity" in text and ("aten::" in text or "does not fit" in text), text
        # A step that failed before the optimizer began is done again, outside.
        if all(parameter.grad is None for parameter in model.parameters()) or done < 3:
            if state_bytes(model, optimizer) != before[1]:
                continue  # it failed halfway through the optimizer, as it would on a GPU
            optimizer.zero_grad()
            generator.set_state(before[0])
            losses = losses[:done]
        for _ in range(6 - done):
            loss = model(model.batch(generator))
            loss.backward()
            losses.append(raw(loss))
            optimizer.step()
            optimizer.zero_grad()
        assert tuple(losses) == bare.losses, part
        assert all(torch.isfinite(loss) for loss in kept)
    assert failed >= 2


@pytest.mark.bits
def test_out_of_memory_can_be_caught_and_training_goes_on() -> None:
    """Inside the session: a batch that is too large is skipped, as people do on a GPU."""
    bare, live_peak = reference(Gpt)
    large = 0

    def too_much(number: int, model: nn.Module, session: cl.Session | None) -> None:
        nonlocal large
        if session is None:
            return
        rng = torch.get_rng_state()
        try:
            model(torch.zeros(256, 65, dtype=torch.int64)).backward()
        except torch.OutOfMemoryError:
            large += 1
        model.zero_grad()
        torch.set_rng_state(rng)

    run = train(Gpt, session_kwargs={"capacity": live_peak // 4}, each_step=too_much)
    assert large == 6
    assert run.same(bare)


def policy_text() -> str:
    with cl.Session("4MiB") as session:
        model = Gpt()
        optimizer = adamw(model.parameters())
        for _ in range(3):
            model(torch.zeros(4, 65, dtype=torch.int64)).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert session.policy is not None
        return session.policy.to_json()


def test_damaged_policy_files_are_refused(tmp_path: Path) -> None:
    text = policy_text()
    data = json.loads(text)
    path = tmp_path / "policy.json"
    damaged = {
        "truncated": text[: len(text) // 2],
        "empty": "",
        "not JSON": "capacity: 5",
        "another thing": "[1, 2]",
        "a trace": '{"trace": 1}',
        "newer": json.dumps(data | {"chameleon_lab_policy": 99}),
        "older": json.dumps(data | {"chameleon_lab_policy": 0}),
        "text version": json.dumps(data | {"chameleon_lab_policy": "1"}),
        "missing": json.dumps({k: v for k, v in data.items() if k != "decisions"}),
        "unknown": json.dumps(data | {"extra": 1}),
        "decisions of text": json.dumps(data | {"decisions": "none"}),
        "bad decision": json.dumps(data | {"decisions": [{"storage": 1}]}),
        "deep": "[" * 100_000,
    }
    for name, content in damaged.items():
        path.write_text(content)
        with pytest.raises(cl.PolicyError) as raised:
            cl.Session("8MiB", policy=path)
        assert str(path) in str(raised.value), name
    path.write_bytes(b"\xff\xfe\x00binary")
    with pytest.raises(cl.PolicyError):
        cl.Session("8MiB", policy=path)
    with cl.Session("8MiB") as session:
        with pytest.raises(cl.PolicyError):
            session.policy = path
        with pytest.raises(FileNotFoundError):
            session.policy = tmp_path / "gone.json"
        assert session.policy is None
    with cl.Session() as session:
        path.write_text(text)
        with pytest.raises(cl.PolicyError, match="capacity"):
            session.policy = path


def leave_by(way: str) -> Callable[[cl.Session], None]:
    def leave(session: cl.Session) -> None:
        if way == "stop":
            session.stop()
        elif way == "interrupt":
            raise KeyboardInterrupt
        else:
            raise ZeroDivisionError

    return leave


PLACES = ("forward", "between", "backward", "optimizer", "grad hook")


@pytest.mark.bits
@pytest.mark.parametrize("way", ["stop", "interrupt", "error"])
@pytest.mark.parametrize(
    "place",
    of_the_gate("backward", "optimizer", all_of=["forward", "between", "backward", "optimizer", "grad hook"]),
)
def test_leaving_in_the_middle_of_a_step(place: str, way: str) -> None:
    """All tensors are right afterwards: the step is done again outside, and gives the same bits."""
    in_thread(lambda: leave_in_the_middle(place, way))


def leave_in_the_middle(place: str, way: str) -> None:
    bare, live_peak = reference(Gpt)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model, losses = Gpt(), []
    optimizer = adamw(model.parameters())
    leave = leave_by(way)
    session = cl.Session(live_peak // 4, link="1GiB/s")
    handles: list[Any] = []

    def step() -> None:
        loss = model(model.batch(generator))
        if place == "between" and armed:
            leave(session)
        loss.backward()
        losses.append(raw(loss))
        if place == "optimizer" and armed:
            leave(session)
        optimizer.step()
        optimizer.zero_grad()

    armed = False
    try:
        with session:
            step(), step(), step()
            before = generator.get_state(), state_bytes(model, optimizer)
            armed = True

            def hook(*_: Any) -> None:
                if armed:
                    leave(session)

            if place == "forward":
                handles.append(model.blocks[4].up.register_forward_hook(hook))
            elif place == "backward":
                handles.append(model.blocks[4].up.register_full_backward_hook(hook))
            elif place == "grad hook":
                handles.append(model.blocks[4].up.weight.register_post_accumulate_grad_hook(hook))
            step()
    except (KeyboardInterrupt, ZeroDivisionError):
        assert way != "stop"
    armed = False
    for handle in handles:
        handle.remove()
    assert cl.current_session() is None and not core.of().is_open()
    if way == "stop":
        assert len(losses) == 4
    else:
        assert state_bytes(model, optimizer) == before[1]
        generator.set_state(before[0])
        del losses[3:]
        optimizer.zero_grad()
        step()
    step()
    with cl.Session(live_peak // 4) as session:  # and a new session works, whatever was on the stacks
        step()
        session.step()
        outside = torch.ones(5000).add_(1)
        session.step()
        newest = session.trace().last
        assert {newest.module_path(module) for module in newest.ops.module} == {""}
        assert set(newest.ops.stage) == {0}
        assert outside[0] == 2
    assert tuple(losses) == bare.losses
    assert state_bytes(model, optimizer) == bare.state


@pytest.mark.parametrize("seed", range(10))
def test_ctrl_c_at_a_random_moment(seed: int) -> None:
    """A timer's signal anywhere in the loop, the session's own code too: no session stays open, all stays readable."""
    _, live_peak = reference(Gpt)
    torch.manual_seed(0)
    model = Gpt()
    optimizer = adamw(model.parameters())
    generator = torch.Generator().manual_seed(0)
    delay_s = 0.002 + 0.35 * float(torch.rand((), generator=torch.Generator().manual_seed(seed)))

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        session = cl.Session(live_peak // 4)
        with pytest.raises(KeyboardInterrupt), session:
            signal.setitimer(signal.ITIMER_REAL, delay_s)
            while True:
                model(model.batch(generator)).backward()
                optimizer.step()
                optimizer.zero_grad()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert cl.current_session() is None and not core.of().is_open() and not session.is_open
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    optimizer = adamw(model.parameters())  # the old one may have half of a state, as it may without a session
    with cl.Session(live_peak // 4) as session:
        for _ in range(2):
            loss = model(model.batch(generator))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert torch.isfinite(loss)
        assert session.report().steps == 2


@pytest.mark.full
def test_ctrl_c_anywhere_inside_the_session_itself() -> None:
    """Wherever Python looks for signals in start(), stop(), a hook or the end of a step: a session can still be left,
    and leaves no hook, no patch and no session behind."""
    child(
        """
        import torch.nn.utils.clip_grad as clip_grad
        model = Gpt(dim=32, layers=2, time=16)
        optimizer = adamw(model.parameters())
        generator = torch.Generator().manual_seed(0)
        count = limit = 0
        where = None
        # The interpreter looks for signals when calls begin, and after calls of C.
        def profiler(frame, event, argument):
            global count, where
            name = frame.f_code.co_filename
            if event in ("call", "c_return") and ("chameleon_lab/" in name or "contextlib" in name):
                count += 1
                if count == limit:
                    where = f"{name}:{frame.f_lineno}"
                    sys.setprofile(None)
                    raise KeyboardInterrupt
        def attempt(at):
            global count, limit
            count, limit = 0, at
            session = cl.Session("4MiB")
            interrupted = False
            sys.setprofile(profiler)
            try:
                with session:
                    for _ in range(2):
                        model(model.batch(generator)).backward()
                        optimizer.step()
                        optimizer.zero_grad()
            except KeyboardInterrupt:
                interrupted = True
            finally:
                sys.setprofile(None)
            if cl.current_session() is not None:
                cl.current_session().stop()  # interrupted inside stop(): calling it again must do
            left = []
            if core.of().is_open():
                left.append("open")
                core.of().close()
            if len(torch.nn.modules.module._global_forward_pre_hooks):
                left.append("module hooks")
            if "chameleon_lab" in clip_grad._group_tensors_by_device_and_dtype.__module__:
                left.append("patched clip_grad")
            if left:
                wrong.append((at, where, left))
            return interrupted
        wrong = []
        attempt(10**9)
        total = count
        between = range(130, total - 130, max(61, total // 200))
        interrupted = [attempt(at) for at in [*range(1, 130), *between, *range(total - 130, total)]]
        assert sum(interrupted) > 250, sum(interrupted)
        assert not wrong, (len(wrong), wrong[:4], wrong[-4:])
        """
    )


def test_a_parameter_added_later_is_no_surprise() -> None:
    """Parameters that no module owns, added after the first step; and an optimizer with the address of a dead one."""
    first, second = (nn.Parameter(torch.ones(5000)) for _ in range(2))
    with cl.Session("8MiB"):
        optimizer = torch.optim.SGD([first], lr=0.5)
        first.sum().backward()
        optimizer.step()
        optimizer.add_param_group({"params": [second]})
        (first.sum() + second.sum()).backward()
        optimizer.step()
        assert first[0].item() == -0.5 and second[0].item() == 0.5
        for _ in range(20):
            fresh = nn.Parameter(torch.ones(5000))
            optimizer = torch.optim.SGD([fresh], lr=0.5)
            fresh.sum().backward()
            optimizer.step()
            assert fresh[0].item() == 0.5
            del optimizer, fresh


def test_an_error_inside_the_optimizer_ends_its_stage() -> None:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> float:
        raise ZeroDivisionError

    with cl.Session("8MiB") as session:
        with pytest.raises(ZeroDivisionError):
            optimizer.step(closure)
        session.step()
        model(torch.ones(4, 64)).sum().backward()
        session.step()
        assert {int(stage) for stage in session.trace().last.ops.stage} == {0, 1}


def test_warmup_steps_are_counted() -> None:
    for warmup in (0, 1, 3):
        with cl.Session("8MiB", warmup_steps=warmup) as session:
            for _ in range(warmup + 2):
                pressure(session, 2)
                session.step()
            stages = [step.stage for step in session.report().history]
        assert stages == ["WarmUp"] * warmup + ["Profile", "Stable"]
