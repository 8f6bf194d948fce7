"""Replays of ops in place, and of draws from the default generator: the same bits, and nobody else's are touched."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from training import HANGS_AFTER_S, child, pressure, raw

import chameleon_lab as cl
from chameleon_lab.runtime import core

pytestmark = pytest.mark.skipif(not core.SEES_RAW_ACCESS, reason="nothing is replayed before torch 2.13")

ROWS, COLUMNS = 64, 256  # 64 KiB in float32


@pytest.fixture
def session() -> Iterator[cl.Session]:
    """A session that keeps producers although no program drops anything."""
    with cl.Session("64MiB", min_swap="1KiB", planning=False) as session:
        core.of().keep_producers(True)
        yield session


def made(seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """A resident tensor that an op has used."""
    tensor = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(seed)).to(dtype)
    tensor.sum()
    return tensor


def dropped(tensor: Tensor) -> bytes:
    """Its bytes, which are given up."""
    before = raw(tensor.detach().clone())
    why = core.drop(tensor)
    assert why == "" and core.residency(tensor) == "dropped", why
    return before


def same(tensor: Tensor, before: bytes) -> bool:
    """Same bytes, NaN and all; and it is whole again."""
    return raw(tensor) == before and core.residency(tensor) == "resident"


def replayed() -> list[str]:
    """The ops replayed since the last call."""
    names = core.op_names()
    return [names[name] for name in core.of().end_step().replays()["name"]]


# ---------------------------------------------------------------------------------------------------- in place

IN_PLACE: dict[str, Callable[[Tensor], object]] = {
    "number": lambda t: t.mul_(0.5),
    "tensor": lambda t: t.add_(torch.ones(ROWS, COLUMNS), alpha=2),
    "row": lambda t: t[3].zero_(),
    "columns": lambda t: t[:, ::2].add_(1),
    "transposed": lambda t: t.t()[5:9].mul_(3),
    "expanded argument": lambda t: t.add_(torch.ones(COLUMNS)),
    "clamped": lambda t: t.clamp_(-0.5, 0.5),
    "flat": lambda t: t.view(-1)[7:9000].neg_(),
    "data": lambda t: t.data.mul_(2),
    "out of autograd": lambda t: torch.no_grad()(t.add_)(1),
    "as_strided": lambda t: t.as_strided((10, 10), (20, 1), 3).exp_(),
    "relu": lambda t: F.relu(t, inplace=True),
    "half of it filled": lambda t: t[: ROWS // 2].fill_(4),
    "all of it filled": lambda t: t.fill_(4),
    "filled by a view": lambda t: t.t().fill_(4),
    "operator": lambda t: t.__iadd__(1),
}


@pytest.mark.bits
@pytest.mark.parametrize("change", IN_PLACE.values(), ids=IN_PLACE)
def test_what_an_op_in_place_has_changed_is_made_again(
    session: cl.Session, change: Callable[[Tensor], object]
) -> None:
    x = made()
    out = x * 1.5
    change(out)
    version = out._version
    before = dropped(out)
    assert same(out, before) and out._version == version
    out = torch.tanh(x)
    change(out)
    change(out)
    twice = F.gelu(out)
    expected = dropped(twice)
    before = dropped(out)
    assert same(twice, expected) and same(out, before)


@pytest.mark.bits
def test_memory_is_given_back_and_the_value_before_is_made_in_the_results(session: cl.Session) -> None:
    x = made()
    out = (x * 1.5).add_(1)
    resident, block = core.of().counters()["resident_bytes"], out.nbytes
    before = dropped(out)
    assert core.of().counters()["resident_bytes"] == resident - block
    core.of().end_step()
    storages = core.of().counters()["storages"]
    assert core.restore(out)
    assert core.of().counters()["resident_bytes"] == resident and core.of().counters()["storages"] == storages
    log = core.of().end_step()
    assert log.peak_resident_bytes == resident, "one block for both"
    names = core.op_names()
    assert [names[name] for name in log.replays()["name"]] == ["aten::mul", "aten::add_"]
    assert same(out, before)


@pytest.mark.bits
def test_what_is_only_overwritten_is_not_made_first(session: cl.Session) -> None:
    out = torch.cumsum(made(), -1).fill_(3)  # nothing makes cumsum again
    before = dropped(out)
    core.of().end_step()
    assert same(out, before) and replayed() == ["aten::fill_"]
    out = torch.cumsum(made(), -1)
    out[1:].fill_(3)
    assert "cannot be made again" in core.drop(out)
    out = torch.cumsum(made(), -1).mul_(2)
    assert "cannot be made again" in core.drop(out)


@pytest.mark.bits
def test_dependents_come_back_before_the_write(session: cl.Session) -> None:
    x = made()
    base = x * 1.5
    out = F.gelu(base)
    chained = torch.tanh(out)
    expected = dropped(chained), dropped(out)
    base.mul_(2)
    assert core.residency(out) == "resident" and core.residency(chained) == "dropped", "that is made of out"
    before = dropped(base)
    assert same(out, expected[1]) and same(chained, expected[0]) and same(base, before)
    # What was made of the old value and is dropped only now goes back to that.
    before = dropped(base), dropped(out)
    assert same(out, before[1]) and same(base, before[0])


@pytest.mark.bits
def test_an_input_of_both_versions(session: cl.Session) -> None:
    x = made()
    base = x * 1.5
    old = base + 1
    base.add_(2)
    new = old * base
    del old
    before = dropped(new)
    assert same(new, before)
    before = dropped(new), dropped(base)
    assert same(new, before[0]) and same(base, before[1])


def test_an_op_in_place_that_reads_what_it_writes_twice(session: cl.Session) -> None:
    x = made()
    out = x * 1.5
    out.mul_(out)
    assert "arguments that cannot be kept" in core.drop(out)
    out = x * 1.5
    out[1:2].add_(out[3:4])
    assert "arguments that cannot be kept" in core.drop(out)


def test_a_chain_in_place_has_an_end(session: cl.Session) -> None:
    """The runtime counts ops in place as others."""
    x = made()
    for ops, fits in ((core.LONGEST_CHAIN - 1, True), (core.LONGEST_CHAIN, False)):
        out = x * 1.5
        for _ in range(ops):
            out.add_(1)
        assert (core.drop(out) == "") == fits
    out.fill_(1)
    assert core.drop(out) == "", "that is a new beginning"
    assert float(out.sum()) == out.numel()


def test_records_in_place_do_not_pile_up(session: cl.Session) -> None:
    x, mean, counts = made(), torch.zeros(ROWS, COLUMNS), []
    for number in range(40):
        for _ in range(5):
            mean.mul_(0.9).add_(x, alpha=0.1)
        if number % 2:
            core.of().end_step()
        counts.append((core.of().counters()["producers"], core.of().counters()["live_bytes"]))
    assert counts[-1] == counts[9]


@pytest.mark.bits
def test_an_op_that_fails_leaves_nothing_to_replay(session: cl.Session) -> None:
    x = made()
    out = x * 1.5
    with pytest.raises(RuntimeError):
        out.add_(torch.ones(3))  # of another shape
    expected = out.clone()
    assert core.drop(out) != "", "who knows what it wrote"
    assert torch.equal(out, expected)
    index = torch.zeros(ROWS, COLUMNS, dtype=torch.int64) + COLUMNS  # out of bounds, found halfway
    out = x * 1.5
    with pytest.raises((RuntimeError, IndexError)):
        out.scatter_(1, index, 1.0)
    assert core.drop(out) != ""


@pytest.mark.bits
def test_ops_with_out_are_not_replayed(session: cl.Session) -> None:
    x = made()
    out = x * 1.5
    torch.mul(x, 3, out=out)
    assert "was written after" in core.drop(out)
    grown = torch.empty(0)
    torch.mul(x, 3, out=grown)
    expected = grown.clone()
    core.drop(grown)
    assert torch.equal(grown, expected)


def test_raw_writes_end_a_value_in_place(session: cl.Session) -> None:
    out = (made() * 1.5).add_(1)
    out.numpy()[:] = 7
    assert core.drop(out) != "" and float(out.sum()) == 7 * out.numel()


@pytest.mark.bits
def test_inputs_that_die_leave_ghosts_or_are_made(session: cl.Session) -> None:
    x = made()
    factor = torch.cumsum(x, -1)  # nothing makes it again
    out = (x * 1.5).mul_(factor)
    before = dropped(out)
    del factor
    assert core.of().counters()["ghosts"] == 1
    assert same(out, before) and core.of().counters()["ghosts"] == 0
    factor = x + 1
    out = (x * 1.5).mul_(factor)
    before = dropped(out)
    del factor
    assert core.of().counters()["ghosts"] == 0
    assert same(out, before)


@pytest.mark.bits
def test_the_write_of_an_input_brings_back_what_was_changed_in_place(session: cl.Session) -> None:
    x = made()
    out = (x * 1.5).add_(1)
    before = dropped(out)
    x.zero_()
    assert same(out, before)
    assert "an input was written" in core.drop(out)


@pytest.mark.bits
def test_a_ghost_beside_a_draw_leaves_under_pressure_and_comes_back() -> None:
    with cl.Session("4MiB", planning=False) as session:
        core.of().keep_producers(True)
        x = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
        x.sum()
        out = F.dropout(x, 0.2)
        before = dropped(out)
        del x
        assert core.of().counters()["ghosts"] == 1
        pressure(session, 8)
        assert same(out, before) and core.of().counters()["ghosts"] == 0


def test_no_room_for_a_replay_says_so() -> None:
    with cl.Session("3MiB", min_swap="1KiB", planning=False):
        core.of().keep_producers(True)
        mask = torch.empty(1 << 18).bernoulli_(0.5).mul_(2)
        before = mask.clone()
        assert core.drop(mask) == ""
        del before
        views = [torch.zeros(1 << 17).numpy() for _ in range(5)]  # numpy's memory stays
        with pytest.raises((RuntimeError, torch.OutOfMemoryError), match="below the floor|capacity"):
            mask + 1
        assert core.residency(mask) == "dropped"
        del views
        assert 0 < int(mask.count_nonzero()) < mask.numel()
        core.of().take_failure()


def test_versions_and_gradients_survive(session: cl.Session) -> None:
    def run(drop: bool) -> tuple[bytes, ...]:
        torch.manual_seed(3)
        x = made().requires_grad_()
        hidden = F.relu(x * 1.5, inplace=True)
        out = F.dropout(hidden, 0.3)
        loss = (out * out).sum()
        if drop:
            dropped(out)
            dropped(hidden)
        loss.backward()
        assert x.grad is not None
        return raw(x.grad), raw(out), raw(hidden)

    assert run(False) == run(True)


@pytest.mark.bits
def test_inference_tensors(session: cl.Session) -> None:
    x = made()
    with torch.inference_mode():
        out = F.relu(x * 1.5, inplace=True)
        before = dropped(out)
        assert same(out, before)
    before = dropped(out)
    assert same(out, before)
    out = F.relu(x * 1.5, inplace=True)
    before = dropped(out)
    with torch.inference_mode():
        assert same(out, before)


# ---------------------------------------------------------------------------------------------------- draws

DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "mask": lambda x: torch.empty_like(x).bernoulli_(0.7),
    "scaled mask": lambda x: torch.empty_like(x).bernoulli_(0.7).div_(0.7),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "bernoulli of one probability": lambda x: torch.bernoulli(x, 0.3),
    "mask of probabilities": lambda x: torch.empty_like(x).bernoulli_(x.sigmoid()),
    "a part": lambda x: x.clone()[3:9, ::2].bernoulli_(0.5)._base,
    "bool": lambda x: torch.empty(ROWS, COLUMNS, dtype=torch.bool).bernoulli_(0.5),
    "integers": lambda x: torch.empty(ROWS, COLUMNS, dtype=torch.int64).bernoulli_(0.5),
    "strided": lambda x: torch.empty(COLUMNS, ROWS).t().bernoulli_(0.5),
    "channels": lambda x: F.dropout2d(x.view(4, 16, 16, 16), 0.5),
    "normal": lambda x: torch.empty_like(x).normal_(1.0, 2.0),
    "few normal": lambda x: x.clone()[:3, :5].normal_()._base,  # one by one, in pairs
    "uniform": lambda x: torch.empty_like(x).uniform_(-1.0, 3.0),
    "exponential": lambda x: torch.empty_like(x).exponential_(2.0),
    "many exponential": lambda x: torch.empty(1 << 17, dtype=x.dtype).exponential_(),
    "log normal": lambda x: torch.empty_like(x).log_normal_(),
    "Cauchy": lambda x: torch.empty_like(x).cauchy_(),
    "geometric": lambda x: torch.empty_like(x).geometric_(0.3),
    "random": lambda x: torch.empty_like(x).random_(100),
    "random integers": lambda x: torch.empty(ROWS, COLUMNS, dtype=torch.int64).random_(3, 9),
}


@pytest.mark.bits
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_draws_are_repeated_and_the_generator_is_left_alone(
    session: cl.Session, draw: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    x = made(dtype=dtype)
    torch.manual_seed(11)
    torch.rand(5)
    out = draw(x)
    plain = torch.get_rng_state()
    before = dropped(out)
    assert torch.equal(torch.get_rng_state(), plain)
    for between in (lambda: None, lambda: torch.manual_seed(4), lambda: torch.rand(7), torch.seed):
        if core.residency(out) != "dropped":
            dropped(out)
        between()
        state = torch.get_rng_state()
        assert same(out, before)
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.bits
def test_the_state_may_be_set_around_the_draw(session: cl.Session) -> None:
    x = made()
    state = torch.get_rng_state()
    one = F.dropout(x, 0.3)
    torch.set_rng_state(state)
    two = F.dropout(x, 0.3)
    with torch.random.fork_rng():
        torch.manual_seed(9)
        three = F.dropout(x, 0.3)
    assert torch.equal(one, two) and not torch.equal(one, three)
    before = [dropped(t) for t in (one, two, three)]
    assert all(same(t, b) for t, b in zip((three, one, two), (before[2], before[0], before[1]), strict=True))


@pytest.mark.bits
def test_a_generator_of_its_own_is_as_good(session: cl.Session) -> None:
    generator = torch.Generator().manual_seed(2)
    mask = torch.empty(ROWS, COLUMNS).bernoulli_(0.5, generator=generator)
    before, state, default = dropped(mask), generator.get_state(), torch.get_rng_state()
    assert same(mask, before)
    assert torch.equal(generator.get_state(), state) and torch.equal(torch.get_rng_state(), default)


@pytest.mark.bits
def test_draws_of_two_threads_are_refused_or_right(session: cl.Session) -> None:
    """They share the generator: where another one's may have come in between, nothing is replayed."""
    wrong: list[str] = []
    start = threading.Barrier(3)

    def run(number: int) -> None:
        x = made(number)
        start.wait()
        for _ in range(60):
            out = F.dropout(x, 0.3)
            before = raw(out)
            why = core.drop(out)
            if why == "" and raw(out) != before:
                wrong.append("other bits")
            elif why and "random numbers" not in why and "cannot be made again" not in why:
                wrong.append(why)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANGS_AFTER_S)
        assert not thread.is_alive()
    assert not wrong, wrong
    x = made()
    alone = F.dropout(x, 0.3)
    before = dropped(alone)
    assert same(alone, before), "with nobody beside it is sure again"


GENERATORS: dict[str, Callable[[], tuple[torch.Generator | None, torch.Generator | None, bool]]] = {
    "default": lambda: (None, None, False),
    "default by name": lambda: (torch.default_generator, None, False),
    "default by the other's name": lambda: (None, torch.default_generator, False),
    "one by name": lambda: (torch.Generator().manual_seed(3),) * 2 + (False,),
    "a default and an own one": lambda: (None, torch.Generator().manual_seed(3), True),
    "an own one and a default": lambda: (torch.Generator().manual_seed(3), None, True),
}


@pytest.mark.bits
@pytest.mark.parametrize("generators", GENERATORS.values(), ids=GENERATORS)
def test_a_draw_while_another_thread_draws_is_refused(
    session: cl.Session, generators: Callable[[], tuple[torch.Generator | None, torch.Generator | None, bool]]
) -> None:
    """The other thread's op is held in the middle by a sampler that it has to wait for."""
    mine, others, apart = generators()
    inside, leave = threading.Event(), threading.Event()

    class Slow(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
            inside.set()
            leave.wait(HANGS_AFTER_S)
            return func(*args, **(kwargs or {}))

    def other() -> None:
        with Slow():
            torch.rand(10, generator=others)

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(HANGS_AFTER_S)
    mask = torch.empty(ROWS, COLUMNS).bernoulli_(0.5, generator=mine)
    leave.set()
    thread.join(HANGS_AFTER_S)
    assert not thread.is_alive()
    if apart:
        assert same(mask, dropped(mask))
    else:
        assert "random numbers" in core.drop(mask)
    mask = torch.empty(ROWS, COLUMNS).bernoulli_(0.5, generator=mine)
    assert same(mask, dropped(mask))


@pytest.mark.bits
@pytest.mark.full
@pytest.mark.parametrize("own", [False, True], ids=["default by name", "own"])
def test_a_draw_during_the_swap_in_before_an_op_is_refused(own: bool) -> None:
    """The generator's state is taken before the op waits for its inputs, and others may draw until it draws itself."""
    generator = torch.Generator().manual_seed(3) if own else torch.default_generator
    with cl.Session("64MiB", min_swap="1KiB", link="2MiB/s") as session:
        core.of().keep_producers(True)
        odds = torch.full((512, 512), 0.5)
        odds.sum()
        for _ in range(2):
            begins, done, drawn = threading.Event(), threading.Event(), [0]

            def draw(
                begins: threading.Event = begins, done: threading.Event = done, drawn: list[int] = drawn
            ) -> None:
                while not done.is_set():
                    begins.wait()
                    time.sleep(0.05)  # noqa: TID251 - the op waits for its input ten times as long
                    if begins.is_set() and not done.is_set():
                        drawn[0] += 1
                        torch.rand(7, generator=generator)

            thread = threading.Thread(target=draw)
            thread.start()
            try:
                while not drawn[0]:  # the other thread did not get to run meanwhile
                    assert session.evict(odds)
                    begins.set()
                    mask = torch.bernoulli(odds, generator=generator)
                    begins.clear()
            finally:
                done.set()
                begins.set()
                thread.join(HANGS_AFTER_S)
                assert not thread.is_alive()
            assert "random numbers" in core.drop(mask)
        mask = torch.bernoulli(odds, generator=generator)
        assert same(mask, dropped(mask))


@pytest.mark.parametrize("own", [False, True], ids=["default", "own"])
def test_a_state_that_is_set_while_an_op_draws_gives_no_other_numbers(session: cl.Session, own: bool) -> None:
    """No op tells of it. What cannot be drawn again says so, and is never something else."""
    generator = torch.Generator() if own else torch.default_generator
    states = [torch.Generator().manual_seed(seed).get_state() for seed in (1, 2)]
    done = threading.Event()

    def disturb() -> None:
        while not done.wait(0.0002):  # or nobody else gets the generator's lock
            for state in states:
                generator.set_state(state)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(100):
            mask = torch.empty(ROWS, COLUMNS, dtype=torch.float64)
            mask.bernoulli_(0.5, generator=generator if own else None)
            before = raw(mask)
            if core.drop(mask) == "":
                try:
                    after = raw(mask)
                except RuntimeError as error:
                    assert "cannot draw its numbers again" in str(error)
                else:
                    assert after == before
    finally:
        done.set()
        thread.join(HANGS_AFTER_S)
        assert not thread.is_alive()


def test_other_random_ops_are_refused(session: cl.Session) -> None:
    x = made().sigmoid()
    for refused in (
        torch.native_dropout(x, 0.3, True)[0],
        torch.rand_like(x),
        torch.randn(ROWS, COLUMNS),
        torch.normal(x, 1.0),
    ):
        assert core.drop(refused) != ""


@pytest.mark.bits
def test_a_fork_keeps_what_was_drawn() -> None:
    child(
        """
        import os
        import torch.nn.functional as F
        with cl.Session("16MiB", min_swap="1KiB", planning=False) as session:
            core.of().keep_producers(True)
            x = torch.randn(512, 512)
            x.sum()
            out = F.dropout(x, 0.3)
            expected = out.clone()
            assert core.drop(out) == ""
            state = torch.get_rng_state()
            pid = os.fork()
            if pid == 0:
                good = session.where(out) == "resident" and bool((out == expected).all())
                os._exit(0 if good and torch.equal(torch.get_rng_state(), state) else 1)
            assert os.waitpid(pid, 0)[1] == 0
            assert bool((out == expected).all())
            assert core.drop(out) == "" and bool((out == expected).all())
        """
    )


@pytest.mark.bits
def test_the_end_of_a_session_restores_masks() -> None:
    with cl.Session("16MiB", min_swap="1KiB", planning=False):
        core.of().keep_producers(True)
        x = made()
        mask = torch.empty_like(x).bernoulli_(0.7).div_(0.7)
        out = x * mask
        before = [dropped(t) for t in (out, mask)]
        del x
    assert raw(out) == before[0] and raw(mask) == before[1]
    assert core.of().counters()["producers"] == 0 and core.of().counters()["ghosts"] == 0


# ---------------------------------------------------------------------------------------------------- the trace


def test_the_trace_says_what_values_are_made_from(session: cl.Session) -> None:
    x = made()
    session.step()
    noise = torch.empty_like(x).bernoulli_(0.7)
    noise.div_(0.7)
    out = x * noise
    torch.add(out, 1, out=out)
    session.step()
    step = session.trace().last
    makings, keys = (
        step.makings,
        dict(zip(step.storages.uid.tolist(), range(len(step.storages)), strict=True)),
    )
    assert len(keys) == len(step.storages)
    told = []
    for name, storage, read, refusal in zip(
        makings.name.tolist(),
        makings.storage.tolist(),
        makings.input.tolist(),
        makings.refusal.tolist(),
        strict=True,
    ):
        text = step.names[name].removeprefix("aten::") if name >= 0 else ""
        told.append(
            (text, "self" if read == storage else "other" if read >= 0 else "", core.REFUSALS[refusal])
        )
    assert told == [
        ("empty_like", "", "the op that made it is not replayed"),
        ("bernoulli_", "", ""),
        ("div_", "self", ""),
        ("mul", "other", ""),
        ("mul", "other", ""),
        ("", "", "it was written after it was made"),
    ]
    assert makings.making.tolist() == [0, 1, 2, 3, 3, 4]


def test_makings_are_of_whole_steps(session: cl.Session) -> None:
    x = made()
    session.step()
    core.of().keep_producers(False)
    F.gelu(x)
    session.step()
    assert not len(session.trace().last.makings)
    F.gelu(x)
    core.of().keep_producers(True)
    F.gelu(x)
    session.step()
    assert not len(session.trace().last.makings), "half a step says less than none"
    F.gelu(x)
    session.step()
    assert len(session.trace().last.makings) == 1


def test_makings_cost_nothing_where_nothing_is_replayed() -> None:
    for settings in ({"rematerialize": False}, {"planning": False}):
        with cl.Session("16MiB", min_swap="1KiB", **settings) as session:  # type: ignore[arg-type]
            F.gelu(made())
            session.step()
            assert not len(session.trace().last.makings) and core.of().counters()["producers"] == 0
