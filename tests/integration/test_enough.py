"""The error below the floor names a capacity that is enough, or says how to find out: what it names is tried."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_floor import Plain, Recurrent
from torch import nn
from training import HANGS_AFTER_S, ConvNet, Gpt, Loop, MiB, adamw, child, floor_bytes, sgd, train

import chameleon_lab as cl
from chameleon_lab.report.enough import above, typed
from chameleon_lab.util.units import parse_bytes

pytestmark = pytest.mark.full


class Batched(Plain):
    """The same, which makes its batches."""

    def batch(self, generator: torch.Generator) -> torch.Tensor:
        return torch.randn(32, 128, generator=generator)


NAMED = re.compile(r'give a capacity of "([\d.]+\w+)"')
PROGRAMS: dict[str, tuple[Any, Any, Loop]] = {
    "gpt": (Gpt, adamw, Loop(clip=True)),
    "plain-sgd": (Batched, sgd, Loop()),
    "lstm": (Recurrent, adamw, Loop()),
    "conv": (ConvNet, sgd, Loop()),
}


PINNED: dict[type, int | None] = {Gpt: 4, Batched: 4, Recurrent: 4, ConvNet: None}
"""Of how many weights something takes the address in the middle of the run; None: of all."""


def pins(number: int, model: nn.Module, kept: list[Any]) -> None:
    """As a library does that keeps raw addresses of weights."""
    if number == 2:
        kept.extend(parameter.data_ptr() for parameter in list(model.parameters())[: PINNED.get(type(model))])


def below(capacity: int | str, program: tuple[Any, Any, Loop]) -> str | None:
    """What the run says of a capacity that is too small; None if it runs to its end."""
    kept: list[Any] = []
    model, optimizer, loop = program
    try:
        train(
            *(model, optimizer, 4, {"capacity": capacity}),
            loop=loop,
            each_step=lambda number, model, _: pins(number, model, kept),
        )
    except cl.BelowFloorError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_the_error_names_is_enough(name: str) -> None:
    """The first steps run, and then weights may not leave any more: the step is known, and what it needs now."""
    program = PROGRAMS[name]
    said = below(above(floor_bytes(program[0], program[1], 4, program[2])), program)
    assert said is not None
    found = NAMED.search(said)
    assert found, said
    assert below(found[1], program) is None


def attempts(capacity: int | str, program: tuple[Any, Any, Loop]) -> list[str]:
    """As :func:`below`, in a loop that goes on after an error: what each of its errors says, read at once."""
    model_factory, optimizer_factory, loop = program
    torch.manual_seed(0)
    generator, kept = torch.Generator().manual_seed(0), []
    model, said = model_factory(), []
    with cl.Session(capacity):
        optimizer = optimizer_factory(model.parameters())
        for number in range(5):
            pins(number, model, kept)
            try:
                loss = model(model.batch(generator))
                loss.backward()
                if loop.clip:
                    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
            except torch.OutOfMemoryError as error:
                said.append(str(error))
            loss = None
            optimizer.zero_grad()
    return said


@pytest.mark.parametrize("name", ["gpt", "plain-sgd"])
def test_an_error_that_the_loop_catches_names_what_is_enough(name: str) -> None:
    """Steps that it has cut short are not taken for whole ones by the errors that follow."""
    program = PROGRAMS[name]
    said = attempts(above(floor_bytes(program[0], program[1], 4, program[2])), program)
    assert said
    found = [NAMED.search(text) for text in said]
    assert all(found), said
    for match in found:
        assert match is not None
        assert attempts(match[1], program) == []


def test_a_larger_batch_is_no_step_that_is_known() -> None:
    """Its first op is that of the steps before, and asks for more than they did."""
    for asked in (lambda rows: torch.randn(rows, 256), lambda rows: torch.stack([torch.ones(256)] * rows)):
        model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(6)])
        with pytest.raises(cl.BelowFloorError) as caught, cl.Session("1MiB") as session:
            for rows in (64, 64, 64, 64, 2048):
                model(asked(rows)).square().mean().backward()
                session.step()
        assert "2 MiB asked for" in str(caught.value) and not NAMED.search(str(caught.value)), str(
            caught.value
        )
        assert "Give a capacity of at least that" in str(caught.value)
        error = caught.value
        assert (
            error.capacity_bytes == MiB and error.needed_bytes is not None and error.needed_bytes >= 2 * MiB
        )
        assert error.op_name is not None and f"{error.op_name} needs " in str(error)


def test_what_an_op_needs_is_never_rounded_down() -> None:
    """Who gives the figure that is printed gets past the op, were it only 1 KiB more than a round one."""
    images = torch.ones(3 * MiB // 4)

    def stopped_at(capacity: str) -> tuple[str, str] | None:
        try:
            with cl.Session(capacity, planning=False), torch.no_grad():
                torch.cat([images[: MiB // 2], images[: MiB // 4 + 256]])
        except cl.BelowFloorError as error:
            found = re.search(r"floor: (\S+) needs ([\d.]+ \w+) at once", str(error))
            assert found, str(error)
            return found[1], found[2].replace(" ", "")
        return None

    op, figure = stopped_at("1MiB") or ("", "")
    assert op == "aten::cat" and figure == "3.01MiB", "3 MiB and 1 KiB"
    assert stopped_at(figure) is None


def test_an_error_in_a_session_that_was_started_by_hand_names_what_is_enough() -> None:
    """As in a notebook, whose cells are no ``with``."""
    child("""
        from test_enough import NAMED, PROGRAMS, above, pins

        make, optimizer_of, loop = PROGRAMS["plain-sgd"]
        capacity = above(floor_bytes(make, optimizer_of, 4, loop))
        unpatched = torch.OutOfMemoryError.__str__
        for stops_in_finally in (False, True):
            torch.manual_seed(0)
            model, generator, kept = make(), torch.Generator().manual_seed(0), []
            session = cl.Session(capacity).start()
            optimizer = optimizer_of(model.parameters())
            try:
                try:
                    for number in range(4):
                        pins(number, model, kept)
                        model(model.batch(generator)).backward()
                        optimizer.step()
                        optimizer.zero_grad()
                finally:
                    if stops_in_finally:
                        session.stop()
            except torch.OutOfMemoryError as error:
                said = str(error)
                session.stop()
                assert NAMED.search(said), said
                assert str(error) == said and torch.OutOfMemoryError.__str__ is unpatched
            else:
                raise AssertionError("it ran")
            del model, optimizer, kept
        with cl.Session(capacity):
            assert str(torch.OutOfMemoryError("CUDA out of memory")) == "CUDA out of memory"
    """)


def test_a_session_that_is_not_the_open_one_leaves_its_error_alone() -> None:
    child("""
        from contextlib import suppress

        import pytest

        other = cl.Session("1MiB")
        with pytest.raises(cl.BelowFloorError, match="below the floor") as caught:
            with cl.Session("1MiB"):
                try:
                    torch.zeros(2**20)
                except RuntimeError as error:
                    with suppress(cl.BelowFloorError):
                        other.close(error)
                    raise
        assert caught.value.needed_bytes == 2**22
    """)


def test_while_the_step_is_unknown_it_says_so_and_the_report_tells(capsys: Any) -> None:
    said = below("256KiB", PROGRAMS["lstm"])
    assert said is not None and "of at least that" in said and "is not known yet" in said
    assert "`chameleon run SCRIPT` without --capacity" in said
    model, optimizer, loop = PROGRAMS["lstm"]
    recorded = train(model, optimizer, 3, {"capacity": None}, loop=loop).report
    assert recorded is not None and recorded.enough_bytes is not None
    train(model, optimizer, 4, {"capacity": typed(recorded.enough_bytes)}, loop=loop)


SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(160, 160) for _ in range(8)))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    loss = model(torch.randn(512, 160)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


def chameleon(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "chameleon_lab", "run", *arguments, "train.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANGS_AFTER_S)


def test_one_command_says_how_much_is_enough(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    failed = chameleon(tmp_path, "--capacity", "100KiB")
    assert failed.returncode == 3 and "`chameleon run SCRIPT` without --capacity" in failed.stderr
    recorded = chameleon(tmp_path)
    found = re.search(r"a capacity of ([\d.]+\w+) is enough", recorded.stderr)
    assert found, recorded.stderr
    ran = chameleon(tmp_path, "--capacity", found[1])
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == recorded.stdout


def test_a_given_policy_knows_its_step(tmp_path: Path) -> None:
    """In a new process nothing has been recorded: the step that the policy was made for says what is enough."""
    sessions: list[Any] = []
    floor = floor_bytes(Gpt, adamw, 5)
    keep: Callable[..., None] = lambda _, __, session: sessions.append(session)  # noqa: E731
    train(Gpt, adamw, 5, {"capacity": 2 * floor}, each_step=keep)
    policy = sessions[-1].policy
    with pytest.raises(cl.BelowFloorError) as caught:
        train(Gpt, adamw, 5, {"capacity": floor // 2, "policy": policy})
    found = NAMED.search(str(caught.value))
    assert found, caught.value
    train(Gpt, adamw, 5, {"capacity": found[1], "policy": policy})


@pytest.mark.parametrize("size", [0, 1, 999, 1023, 1024, 5_400_000, 1_047_900, 10**9, 3 * 2**30])
def test_the_figure_that_is_named_is_no_less_when_it_is_typed(size: int) -> None:
    assert size <= parse_bytes(typed(above(size))) <= 1.04 * size + 2


@pytest.mark.parametrize("kind", [Exception, torch.OutOfMemoryError])
def test_an_error_that_cannot_say_what_it_is_ends_the_session_all_the_same(kind: type[Exception]) -> None:
    class Mute(kind):  # type: ignore[misc, valid-type]
        def __str__(self) -> str:
            raise ValueError("no words")

    with pytest.raises(Mute), cl.Session("64MiB"):
        raise Mute
    assert cl.current_session() is None
    session = cl.Session("64MiB").start()
    try:
        raise Mute
    except Mute:
        session.stop()
    assert not session.is_open and cl.current_session() is None
