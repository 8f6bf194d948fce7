"""Training that does not depend on how many replicas are alive: grains, tree, random numbers, healing.

A stand-in for torchft's manager follows a script of who is there in which attempt. Replicas are threads of which one
runs at a time, so nothing here depends on timing. `make recovery` has the same with torchft itself, and kill -9.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

import chameleon_lab as cl
from chameleon_lab.integrations.torchft import FaultTolerant

GRAINS, STEPS = 6, 8
HANGS_AFTER_S = 300


class Net(nn.Module):
    """With dropout, a parameter that few grains use, and one that none does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 256), nn.Linear(256, 4)
        self.rare, self.never = nn.Linear(256, 4), nn.Linear(256, 4)

    def forward(self, x: torch.Tensor, grain: int) -> torch.Tensor:
        x = nn.functional.dropout(torch.tanh(self.first(x)), 0.3)
        return self.second(x) + (self.rare(x) if grain == 4 else 0)


@dataclass
class Attempt:
    """Who is in an attempt at a step, and who dies in it: those take part in no sum."""

    alive: tuple[int, ...]
    die: tuple[int, ...] = ()


class Group:
    """Replicas that follow a script, one thread running at a time."""

    def __init__(self, script: list[Attempt]) -> None:
        self.script = script
        self.lock = threading.Condition()
        self.arrived: dict[tuple[int, int], dict[int, Any]] = {}
        self.turn = threading.Lock()

    def meet(self, attempt: int, number: int, rank: int, what: Any, who: tuple[int, ...]) -> dict[int, Any]:
        """Wait for all of ``who`` at a meeting of an attempt, and get what each has brought."""
        with self.lock:
            brought = self.arrived.setdefault((attempt, number), {})
            brought[rank] = what
            self.lock.notify_all()
            self.turn.release()
            try:
                done = self.lock.wait_for(lambda: len(brought) == len(who), HANGS_AFTER_S)
            finally:
                self.lock.release()
                self.turn.acquire()
                self.lock.acquire()
            assert done, f"{sorted(brought)} of {who} came to meeting {number} of attempt {attempt}"
            return brought


class Died(BaseException):
    """Ends a replica's thread where a process would be killed."""


class Done:
    """What an all-reduce returns."""

    def wait(self) -> bool:
        return True


class Manager:
    """Stands for torchft's: the calls that are used of it."""

    def __init__(self, group: Group, me: int, attempt: int, load_state_dict: Any, state_dict: Any) -> None:
        self.group, self.me, self.attempt = group, me, attempt - 1
        self.load, self.save = load_state_dict, state_dict
        self.number, self.step, self.failed = 0, 0, False

    @property
    def script(self) -> Attempt:
        return self.group.script[self.attempt]

    def meet(self, what: Any, who: tuple[int, ...]) -> dict[int, Any]:
        self.number += 1
        return self.group.meet(self.attempt, self.number, self.me, what, who)

    def start_quorum(self) -> None:
        self.attempt, self.number, self.failed = self.attempt + 1, 0, False
        if self.attempt == len(self.group.script) or self.me not in self.script.alive:
            raise Died
        steps = self.meet((self.step, self), self.script.alive)
        newest, of = max(steps.values(), key=lambda one: one[0])
        state = of.save() if any(step < newest for step, _ in steps.values()) else None
        states = self.meet(state, self.script.alive)
        if self.step < newest:
            self.load(states[of.me])
            self.step = newest

    def allreduce(self, tensor: torch.Tensor, reduce_op: Any) -> Done:
        if self.script.die and self.number > 3:  # in the middle of the gradients
            if self.me in self.script.die:
                raise Died
            self.failed = True
            tensor.fill_(float("nan"))
        if not self.failed:
            brought = self.meet(tensor.clone(), self.script.alive)
            tensor.copy_(sum(brought[rank] for rank in sorted(brought)))
        return Done()

    def should_commit(self) -> bool:
        self.step += not self.failed
        return not self.failed

    def errored(self) -> Exception | None:
        return RuntimeError("a replica is gone") if self.failed else None

    def current_step(self) -> int:
        return self.step

    def num_participants(self) -> int:
        return len(self.script.alive)

    def participating_rank(self) -> int:
        return self.script.alive.index(self.me)

    def shutdown(self, wait: bool = True) -> None:
        pass


@dataclass
class Replica:
    """What one has done: losses by step, its weights at the end, how often it repeated and healed."""

    losses: dict[int, float] = field(default_factory=dict)
    weights: list[torch.Tensor] = field(default_factory=list)
    failed: int = 0
    healed: int = 0
    draws: list[float] = field(default_factory=list)
    error: BaseException | None = None


def batch(step: int, grain: int) -> tuple[torch.Tensor, torch.Tensor]:
    dice = torch.Generator().manual_seed(1000 * step + grain)
    return torch.randn(5, 8, generator=dice), torch.randint(4, (5,), generator=dice)


def replica(group: Group, me: int, attempt: int, found: Replica, grains: int = GRAINS) -> None:
    """One replica's life, from an attempt on."""
    with group.turn:
        try:
            torch.manual_seed(me)  # its own: only the state that it heals from makes replicas equal
            model = Net()
            if attempt == 0:
                torch.manual_seed(0)
                model = Net()
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)

            def make_manager(pg: Any, load_state_dict: Any, state_dict: Any, **others: Any) -> Manager:
                return Manager(group, me, attempt, load_state_dict, state_dict)

            with FaultTolerant(
                model, optimizer, grains=grains, bucket_bytes="8KiB", make_manager=make_manager
            ) as ft:
                while ft.step < STEPS:
                    step = ft.step
                    for grain in ft.grains():
                        step = ft.step
                        x, y = batch(step, grain)
                        ft.backward(nn.functional.cross_entropy(model(x, grain), y))
                    if ft.commit():
                        found.losses[step] = ft.loss
                    found.failed, found.healed = ft.failed_commits, ft.healed
            found.weights = [p.detach().clone() for p in model.parameters()]
        except Died:
            pass
        except BaseException as error:
            found.error = error


def run(script: list[Attempt], more: Callable[[int], dict[str, Any]] = lambda me: {}) -> list[Replica]:
    """All lives of the script's replicas: one for each time that it comes."""
    group = Group(script)
    lives: list[Replica] = []
    threads = []
    for me in sorted({me for attempt in script for me in attempt.alive}):
        for k, attempt in enumerate(script):
            if me in attempt.alive and (k == 0 or me not in script[k - 1].alive or me in script[k - 1].die):
                lives.append(Replica())
                arguments = (group, me, k, lives[-1])
                threads.append(threading.Thread(target=replica, args=arguments, kwargs=more(me), daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANGS_AFTER_S)
        assert not thread.is_alive()
    return lives


@pytest.fixture(scope="module")
def alone() -> Replica:
    """The run of one replica that has all grains."""
    (found,) = run([Attempt((0,))] * STEPS)
    assert found.error is None and len(found.losses) == STEPS
    return found


def same(lives: list[Replica], alone: Replica) -> None:
    """Every loss that anybody has seen, and the weights of all who got to the end."""
    assert not [life.error for life in lives if life.error]
    seen = [life.losses for life in lives]
    assert set().union(*seen) == set(range(STEPS))
    assert all(losses[step] == alone.losses[step] for losses in seen for step in losses)
    ends = [life.weights for life in lives if life.weights]
    assert ends and all(torch.equal(a, b) for end in ends for a, b in zip(end, alone.weights, strict=True))


@pytest.mark.bits
@pytest.mark.parametrize("count", [2, 3, 4, 5, 6])
def test_any_number_of_replicas_has_the_same_bits(count: int, alone: Replica) -> None:
    same(run([Attempt(tuple(range(count)))] * STEPS), alone)


@pytest.mark.bits
def test_a_death_repeats_one_step_with_fewer(alone: Replica) -> None:
    all_, two = (0, 1, 2), (0, 1)
    lives = run([Attempt(all_)] * 3 + [Attempt(all_, die=(2,))] + [Attempt(two)] * (STEPS - 3))
    same(lives, alone)
    assert [life.failed for life in lives] == [1, 1, 0] and len(lives[2].losses) == 3


@pytest.mark.bits
def test_a_replica_that_comes_back_heals(alone: Replica) -> None:
    all_, two = (0, 1, 2), (0, 1)
    script = [Attempt(all_)] * 2 + [Attempt(all_, die=(2,))] + [Attempt(two)] * 2 + [Attempt(all_)] * 4
    lives = run(script)
    same(lives, alone)
    assert len(lives) == 4 and lives[3].healed == 1 and set(lives[3].losses) == {4, 5, 6, 7}
    assert all(life.healed == 0 for life in lives[:3])


@pytest.mark.bits
def test_one_that_comes_back_at_once_in_the_place_of_the_dead(alone: Replica) -> None:
    """The others see no change of their own rank or of the number of replicas."""
    all_ = (0, 1, 2)
    lives = run([Attempt(all_)] * 2 + [Attempt(all_, die=(0,))] + [Attempt(all_)] * (STEPS - 2))
    same(lives, alone)
    assert [life.healed for life in lives] == [0, 1, 0, 0]


@pytest.mark.bits
def test_two_deaths_at_once_and_all_but_one_dead(alone: Replica) -> None:
    all_ = (0, 1, 2)
    lives = run([Attempt(all_)] * 4 + [Attempt(all_, die=(0, 2))] + [Attempt((1,))] * (STEPS - 4))
    same(lives, alone)
    assert lives[1].failed == 1 and lives[1].weights


@pytest.mark.bits
def test_a_death_while_healing(alone: Replica) -> None:
    all_, two = (0, 1, 2), (0, 1)
    script = [Attempt(all_)] * 2 + [Attempt(all_, die=(2,))] + [Attempt(two)] + [Attempt(all_, die=(2,))]
    lives = run(script + [Attempt(two)] + [Attempt(all_)] * 4)
    same(lives, alone)
    assert [life.failed for life in lives[:2]] == [2, 2] and lives[-1].healed == 1


@pytest.mark.bits
def test_in_a_session_that_swaps(alone: Replica) -> None:
    with cl.Session("80KiB", link="2GiB/s") as session:
        (found,) = run([Attempt((0,))] * STEPS)
        history = session.report().history
    same([found], alone)
    assert all(step.peak_bytes <= 80 << 10 for step in history)
    assert sum(step.swapped_out_bytes for step in history) > 0


def test_replicas_with_other_grains_are_named() -> None:
    lives = run([Attempt((0, 1))] * STEPS, lambda me: {"grains": GRAINS + me})
    assert all("give all the same" in str(life.error) for life in lives)


# ------------------------------------------------------------------------------------------------ bad input


def lone(**arguments: Any) -> tuple[FaultTolerant, nn.Module]:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    group = Group([Attempt((0,))] * STEPS)
    group.turn.acquire()

    def make_manager(pg: Any, load_state_dict: Any, state_dict: Any, **others: Any) -> Manager:
        return Manager(group, 0, 0, load_state_dict, state_dict)

    defaults = {"grains": 2, "bucket_bytes": 256, "make_manager": make_manager}
    return FaultTolerant(model, optimizer, **defaults | arguments), model


@pytest.mark.bits
def test_generators_are_as_they_were_after_a_step() -> None:
    ft, model = lone()
    before = torch.get_rng_state()
    draws = []
    for _ in ft.grains():
        draws.append(torch.rand(1).item())
        ft.backward(model(torch.ones(3, 4)).sum())
    assert torch.equal(torch.get_rng_state(), before) and draws[0] != draws[1]
    assert ft.commit() and len(ft.losses) == 2


def test_calls_out_of_order_are_refused() -> None:
    ft, model = lone()
    with pytest.raises(cl.SessionError, match="belongs into the loop over grains"):
        ft.backward(model(torch.ones(3, 4)).sum())
    with pytest.raises(cl.SessionError, match="comes after a loop over grains"):
        ft.commit()
    for _ in ft.grains():
        break
    with pytest.raises(cl.SessionError, match="ended before its last grain, 1"):
        ft.commit()


def test_sparse_gradients_are_refused() -> None:
    model = nn.Embedding(4, 2, sparse=True)
    ft, _ = lone()
    ft._parameters = list(model.parameters())
    with pytest.raises(TypeError, match="is sparse"):
        for _ in ft.grains():
            ft.backward(model(torch.tensor([1])).sum())


@pytest.mark.parametrize("grains", [0, 1.5, True, "6"])
def test_grains_are_a_number(grains: Any) -> None:
    with pytest.raises(ValueError, match="grains is"):
        lone(grains=grains)


def test_an_optimizer_of_nothing_is_refused() -> None:
    model = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(ValueError, match="no parameters that are trained"):
        FaultTolerant(model, torch.optim.SGD(model.parameters(), lr=0.1), grains=2)


def test_without_torchft_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchft", None)
    with pytest.raises(ImportError, match="pip install --no-deps torchft-nightly"):
        lone(make_manager=None)


def test_a_version_that_lacks_a_call_is_named() -> None:
    class Old:
        def start_quorum(self) -> None:
            pass

    with pytest.raises(ImportError, match="manager without allreduce, current_step"):
        lone(make_manager=lambda **arguments: Old())
