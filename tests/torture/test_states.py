"""The storage state machine against a model: random sequences of everything that moves, uses or ends a storage."""

from __future__ import annotations

import gc

import numpy as np
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from training import Gpt, KiB, adamw, child, reference

import chameleon_lab as cl
from chameleon_lab.runtime import core

# docs/architecture.md: resident -> leaving -> away -> returning -> resident, two ways back, and two without copies.
REPLAYED = {("resident", "dropped"), ("dropped", "resident")}
OVERWRITTEN = {("away", "resident")}
ALLOWED = (
    REPLAYED
    | OVERWRITTEN
    | {
        ("resident", "leaving"),
        ("leaving", "resident"),
        ("leaving", "away"),
        ("away", "returning"),
        ("returning", "resident"),
        ("returning", "away"),
    }
)
CAPACITY = 96 * KiB


def check_transitions(moves: list[tuple[int, str, str]], places: dict[int, str]) -> None:
    """Every move along an allowed edge, and each storage's from where its last one ended."""
    for uid, start, end in moves:
        assert (start, end) in ALLOWED, (uid, start, end)
        assert places.get(uid, "resident") == start, (uid, places.get(uid), start, end)
        places[uid] = end


class Storages(RuleBasedStateMachine):
    """Tensors of one number each, which is the model's; sessions open and close around them."""

    tensors = Bundle("tensors")

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[int, str] = {}
        self.views: list[tuple[np.ndarray, list]] = []
        self.session = cl.Session(CAPACITY, min_swap="1KiB").start()
        core.of().keep_producers(True)
        core.of().take_transitions()

    @rule(target=tensors, size=st.sampled_from([200, 700, 3000, 5000]), value=st.integers(-9, 9))
    def make(self, size, value):
        try:
            return [torch.full((size,), float(value)), float(value)]
        except torch.OutOfMemoryError:
            return [torch.full((1,), float(value)), float(value)]

    @rule(target=tensors, known=tensors)
    def view(self, known):
        return known  # another name, and a part that shares the storage

    @rule(known=tensors)
    def read(self, known):
        self._denied(lambda: self._same(known[0].sum().item(), known[1] * known[0].numel()))

    @rule(known=tensors, more=st.integers(1, 5))
    def write(self, known, more):
        def add():
            known[0].add_(more)
            known[1] += more

        self._denied(add)

    @rule(known=tensors, more=st.integers(1, 5))
    def write_through_a_view(self, known, more):
        def add():
            known[0].view(2, -1)[:].t().add_(more) if known[0].numel() % 2 == 0 else known[0][:].add_(more)
            known[1] += more

        self._denied(add)

    @rule(known=tensors, value=st.integers(-9, 9))
    def overwrite(self, known, value):
        def fill():
            known[0].fill_(value)
            known[1] = float(value)

        self._denied(fill)

    @rule(known=tensors, source=tensors)
    def overwrite_by_another(self, known, source):
        def copy():
            if known[0].numel() == source[0].numel():
                known[0].copy_(source[0])
                known[1] = source[1]

        self._denied(copy)

    @rule(known=tensors)
    def evict(self, known):
        if self.session is not None and self.session.evict(known[0]):
            assert self.session.where(known[0]) == "away"

    @rule(target=tensors, known=tensors, more=st.integers(1, 5))
    def make_from(self, known, more):
        try:
            return [known[0] + more, known[1] + more]
        except (torch.OutOfMemoryError, RuntimeError) as error:
            assert "Chameleon Lab" in str(error), error
            core.of().take_failure()
            return [torch.full((1,), known[1]), known[1]]

    @rule(known=tensors)
    def drop_the_bytes(self, known):
        if self.session is not None and core.drop(known[0]) == "":
            assert self.session.where(known[0]) == "dropped"

    @rule(known=tensors)
    def restore(self, known):
        if self.session is not None:
            self._denied(lambda: self.session.restore(known[0]))

    @rule(known=tensors)
    def read_to_a_list(self, known):
        self._denied(lambda: self._same(set(known[0].tolist()), {known[1]}))

    @rule(known=tensors)
    def take_a_pointer(self, known):
        def take():
            if len(self.views) < 3:
                self.views.append((known[0].numpy(), known))

        self._denied(take)

    @rule(known=consumes(tensors))
    def let_go(self, known):
        del known
        gc.collect()

    @rule(part=st.sampled_from([1, 2, 4]))
    def change_the_capacity(self, part):
        if self.session is not None:
            core.of().set_capacity(CAPACITY * part)

    @rule()
    def end_the_step(self):
        if self.session is not None:
            self.session.step()

    @rule(known=tensors)
    def save_it(self, known):
        import io

        file = io.BytesIO()
        self._denied(lambda: torch.save(known[0], file))
        if file.tell():
            file.seek(0)
            self._same(set(np.asarray(torch.load(file).double()).tolist()), {known[1]})

    @rule()
    def leave_and_come_back(self):
        if self.session is not None:
            self._look()
            self.session.stop()
            self.session = None
        else:
            try:
                self.session = cl.Session(2 * CAPACITY, min_swap="1KiB").start()
            except cl.SessionError as error:
                assert "cannot move" in str(error)
                return
            core.of().keep_producers(True)
            core.of().take_transitions()
            self.places.clear()

    @invariant()
    def nothing_is_lost(self):
        for view, known in self.views:
            assert set(view.tolist()) == {known[1]}, "a pointer that escaped sees what torch sees"
        self._look()
        if self.session is not None:
            counters = core.of().counters()
            assert counters["peak_reserved_bytes"] <= 4 * CAPACITY
            assert counters["live_bytes"] >= counters["resident_bytes"] >= 0

    def teardown(self):
        self.views.clear()
        if self.session is not None:
            self._look()
            self.session.stop()

    def _look(self):
        if self.session is not None:
            check_transitions(core.of().take_transitions(), self.places)

    def _same(self, got, want):
        assert got == want, (got, want)

    def _denied(self, run):
        """What does not fit beside pointers that escaped is refused, and does no harm."""
        try:
            run()
        except torch.OutOfMemoryError as error:
            assert "capacity" in str(error), error
            core.of().take_failure()
        except RuntimeError as error:
            assert "Chameleon Lab" in str(error), error
            core.of().take_failure()


Storages.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestStorages = Storages.TestCase


def test_all_edges_are_taken_in_training_and_no_other() -> None:
    """A planned run over a slow link: copies are touched, cancelled and waited for."""
    _, live_peak = reference(Gpt)
    torch.manual_seed(0)
    generator, model = torch.Generator().manual_seed(0), Gpt()
    seen: set[tuple[str, str]] = set()
    places: dict[int, str] = {}
    with cl.Session(live_peak // 3, link="300MiB/s") as session:
        optimizer = adamw(model.parameters())
        core.of().take_transitions()
        for step in range(8):
            core.of().set_capacity(live_peak // 3 if step != 5 else live_peak // 4)
            model(model.batch(generator, time=64 if step % 3 else 48)).backward()
            optimizer.step()
            optimizer.zero_grad()
            moves = core.of().take_transitions()
            check_transitions(moves, places)
            seen |= {(start, end) for _, start, end in moves}
        assert session.policy is not None
    assert seen >= ALLOWED - REPLAYED - OVERWRITTEN - {("returning", "away"), ("leaving", "resident")}


def test_the_log_of_two_threads_is_linear() -> None:
    child(
        """
        sys.path.insert(0, "tests/torture")
        from test_states import check_transitions
        moves = []
        def churn(size, count):
            for _ in range(60):
                held = [torch.full((size,), float(k)) for k in range(count)]
                assert all(block.sum().item() == k * size for k, block in enumerate(held))
        with cl.Session("3MiB") as session:
            core.of().take_transitions()
            threads = [threading.Thread(target=churn, args=a) for a in ((16384, 40), (65536, 20))]
            [thread.start() for thread in threads]
            while any(thread.is_alive() for thread in threads):
                moves += core.of().take_transitions()
                time.sleep(0.01)
            [thread.join() for thread in threads]
            moves += core.of().take_transitions()
        assert len(moves) > 1000
        check_transitions(moves, {})
        """
    )
