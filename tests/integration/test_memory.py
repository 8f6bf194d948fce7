"""The capacity is a hard limit, memory that is freed leaves the process, and nothing is kept when all is over."""

from __future__ import annotations

import gc
import random
import resource
import textwrap
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from training import Gpt, KiB, MiB, adamw, built, child, pressure, raw, reference, tight_bytes, train

import chameleon_lab as cl
from chameleon_lab.runtime import core

FOREACH = partial(adamw, foreach=True)


@pytest.fixture
def no_faults() -> Iterator[None]:
    yield
    core.set_faults()


@pytest.mark.bits
def test_counters_never_exceed_the_capacity_while_another_thread_watches() -> None:
    bare, live_peak = reference(Gpt)
    capacity = live_peak // 4
    samples: list[core.Counters] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            samples.append(core.of().counters())
            stop.wait(0.0002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        run = train(Gpt, session_kwargs={"capacity": capacity, "link": "2GiB/s"})
    finally:
        stop.set()
        watcher.join()
    assert run.same(bare)
    inside = [sample for sample in samples if sample["capacity_bytes"] == capacity]
    assert inside
    assert max(sample["resident_bytes"] + sample["cached_bytes"] for sample in inside) <= capacity
    assert max(sample["peak_reserved_bytes"] for sample in inside) <= capacity
    assert max(sample["live_bytes"] for sample in inside) > 2 * capacity
    assert max(sample["host_used_bytes"] for sample in inside) > capacity


def test_memory_does_not_grow_over_thirty_steps() -> None:
    _, live_peak = reference(Gpt)
    seen: list[tuple[int, ...]] = []

    def note(number: int, model: torch.nn.Module, session: cl.Session | None) -> None:
        counters = core.of().counters()
        seen.append(
            (
                counters["storages"],
                counters["live_bytes"],
                counters["resident_bytes"],
                counters["host_used_bytes"],
                counters["host_reserved_bytes"],
                counters["escaped"],
            )
        )

    train(Gpt, steps=30, session_kwargs={"capacity": live_peak // 4}, each_step=note)
    storages, live, resident, host, reserved, escaped = (list(column) for column in zip(*seen, strict=True))
    assert set(storages[5:]) == {storages[5]}
    assert set(live[5:]) == {live[5]}
    assert max(resident) <= live_peak // 4
    assert max(host[20:]) <= max(host[5:15]) + MiB // 4
    assert max(reserved[20:]) <= max(reserved[5:15]) + MiB // 4
    assert set(escaped) == {0}


def test_a_session_without_a_capacity_gives_no_pages_back_only_to_take_others() -> None:
    def churn() -> None:
        sizes, held = random.Random(1), []
        for _ in range(500):
            if len(held) > 6:
                held.pop(sizes.randrange(len(held)))
            held.append(torch.zeros(sizes.randrange(64, 320) * KiB, dtype=torch.uint8))

    gc.collect()
    with cl.Session(device="cpu"):
        # Tests before this one may have left tensors alive.
        held_bytes = core.of().counters()["peak_reserved_bytes"]
        churn()
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        churn()
        faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
        assert core.of().counters()["peak_reserved_bytes"] - held_bytes < 3 * MiB
    assert faults < 400, faults  # some are the interpreter's; without a slack there are 1359


def test_freed_memory_leaves_the_process() -> None:
    """RssAnon, less the host pool (which a GPU's host would hold too), follows the capacity."""
    child(
        """
        import re
        def rss_anon():
            return int(re.search(r"RssAnon:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * KiB

        def held():
            gc.collect()
            counters = core.of().counters()
            return rss_anon() - counters["host_reserved_bytes"]

        # A first small run, so that torch's own buffers are there.
        train(Gpt, steps=2, session_kwargs={"capacity": "64MiB"})
        base = held()
        counters = core.of().counters()
        assert counters["live_bytes"] == 0 and counters["cached_bytes"] == 0, counters

        with cl.Session("40MiB") as session:
            tensors = [torch.full((MiB,), float(k)) for k in range(50)]  # 200 MiB
            assert core.of().counters()["live_bytes"] >= 200 * MiB
            inside = held() - base
            assert inside < 48 * MiB, inside / MiB
            assert core.of().counters()["host_used_bytes"] >= 160 * MiB
        after = rss_anon() - base
        assert 190 * MiB < after < 215 * MiB, after / MiB  # all is back, and the host pool is gone
        assert all(t[0].item() == k for k, t in enumerate(tensors))
        del tensors
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # torch's own allocator has them by now, and malloc keeps some
        freed = rss_anon() - base
        assert freed < 15 * MiB, freed / MiB
        counters = core.of().counters()
        assert counters["live_bytes"] == counters["resident_bytes"] == counters["storages"] == 0, counters
        """
    )


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_too_large_a_tensor_is_refused_and_not_mapped() -> None:
    with cl.Session(device="cpu"):
        kept = torch.ones(1 << 18)
        for number in (1 << 50, (1 << 60) - 1):
            with pytest.raises((RuntimeError, MemoryError)):
                torch.empty(number, dtype=torch.float64)
        before = rss_bytes()
        sparse = torch.empty(1 << 28)  # 1 GiB, of which next to nothing is touched
        sparse[0] = 1.0
        assert rss_bytes() - before < 64 * MiB
        del sparse
        assert kept.sum().item() == 1 << 18


def test_blocks_of_all_sizes_share_the_capacity_and_keep_their_bytes() -> None:
    """What is free under a full capacity is in pieces: pages change hands, no block loses any, and no page is left."""
    child(
        """
        import random, re
        def rss_anon():
            return int(re.search(r"RssAnon:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * KiB

        draw = random.Random(0)
        with cl.Session("24MiB", planning=False, policy=None) as session:
            torch.ones(MiB)
            gc.collect()
            base, held, most = rss_anon(), [], 0
            for number in range(3000):
                while held and (draw.random() < 0.3 or sum(t.nbytes for t, _ in held) > 22 * MiB):
                    tensor, value = held.pop(draw.randrange(len(held)))
                    assert bool((tensor == value).all())
                    del tensor
                size = draw.choice([8 * KiB, 48 * KiB, 64 * KiB, 200 * KiB, MiB, 3 * MiB]) + 4 * draw.randrange(999)
                held.append((torch.full((size // 4,), float(number % 50)), float(number % 50)))
                if number % 50 == 0:
                    counters = core.of().counters()
                    assert counters["resident_bytes"] + counters["cached_bytes"] <= 24 * MiB, counters
                    most = max(most, rss_anon() - base - counters["host_reserved_bytes"])
            assert core.of().counters()["peak_reserved_bytes"] <= 24 * MiB
            assert 16 * MiB < most < 28 * MiB, most / MiB
            assert all(bool((t == value).all()) for t, value in held)
        del held
        gc.collect()
        assert core.of().counters()["cached_bytes"] == 0
        """
    )


def test_everything_is_released_at_the_end() -> None:
    gc.collect()
    before = core.of().counters()["storages"]
    train(Gpt, session_kwargs={"capacity": "4MiB"})
    gc.collect()
    counters = core.of().counters()
    assert counters["storages"] == before
    assert counters["host_used_bytes"] == counters["host_reserved_bytes"] == 0
    assert counters["cached_bytes"] == 0


@pytest.mark.bits
def test_a_second_session_starts_afresh() -> None:
    bare, live_peak = reference(Gpt)
    for part in (2, 4, 2):
        run = train(Gpt, session_kwargs={"capacity": live_peak // part})
        assert run.same(bare)
        assert run.report is not None and run.report.steps == 6
        assert run.report.peak_bytes <= live_peak // part


def test_a_second_session_makes_room_for_its_capacity() -> None:
    with cl.Session("16MiB"):
        tensors = [torch.full((MiB // 4,), float(k)) for k in range(12)]
    with cl.Session("6MiB") as session:
        assert core.of().counters()["resident_bytes"] <= 6 * MiB
        assert [float(t.sum()) for t in tensors] == [k * MiB / 4 for k in range(12)]
        assert session.report().peak_bytes <= 6 * MiB


@pytest.mark.bits
def test_tensors_outlive_their_session_and_go_on_training() -> None:
    bare, live_peak = reference(Gpt)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = Gpt()
    losses = []

    def step() -> None:
        loss = model(model.batch(generator))
        loss.backward()
        losses.append(raw(loss))
        optimizer.step()
        optimizer.zero_grad()

    with cl.Session(live_peak // 4):
        optimizer = adamw(model.parameters())
        step(), step()
    step()
    with cl.Session(tight_bytes(Gpt)):
        step(), step()
    step()
    assert tuple(losses) == bare.losses


@pytest.mark.parametrize("made", ["before", "inside"])
def test_tensors_of_either_origin_leave_and_return(made: str) -> None:
    def make() -> list[torch.Tensor]:
        return [torch.arange(MiB // 8) + k for k in range(6)]

    tensors = make() if made == "before" else []
    with cl.Session("4MiB") as session:
        if made == "before":
            assert session.where(tensors[0]) is None
            session.adopt(*tensors)
        else:
            tensors = make()
        views = [t[100:200] for t in tensors]
        assert "away" in {session.where(t) for t in tensors}
        assert core.of().counters()["resident_bytes"] <= 4 * MiB
        assert [int(v[0]) for v in views] == [100 + k for k in range(6)]
        pressure(session, 6)
        for t in tensors:
            t.mul_(2)
    assert [int(v[0]) for v in views] == [2 * (100 + k) for k in range(6)]
    assert {core.residency(t) for t in tensors} <= {"resident", None}


def test_steps_and_host_memory_are_reported() -> None:
    _, live_peak = reference(Gpt)
    run = train(Gpt, session_kwargs={"capacity": live_peak // 2})
    report = run.report
    assert report is not None
    assert report.host_peak_bytes > 0
    assert report.live_peak_bytes == pytest.approx(live_peak, rel=0.02)
    assert 0.9 * live_peak // 2 < report.peak_bytes <= live_peak // 2


def test_a_full_host_is_told_apart_from_a_small_capacity() -> None:
    options = {"capacity": "4MiB", "host_capacity": "1MiB"}
    with pytest.raises(RuntimeError, match="host"), cl.Session(**options, rematerialize=False) as session:
        pressure(session, 8)
    with pytest.raises(cl.BelowFloorError, match="below the floor"), cl.Session("1MiB"):  # not the host again
        torch.ones(MiB)


@pytest.mark.skipif(not core.SEES_RAW_ACCESS, reason="nothing is replayed before torch 2.13")
def test_what_a_full_host_has_no_room_for_is_made_again() -> None:
    with cl.Session("4MiB", host_capacity="1MiB") as session:
        pressure(session, 8)
        assert session.report().host_peak_bytes <= MiB


@pytest.mark.bits
def test_without_splitting_an_optimizer_touches_everything_at_once() -> None:
    """The floor of a foreach optimizer is the model's parameters, gradients and states; in parts it is not."""
    bare, live_peak = reference(Gpt, FOREACH)
    model_bytes = sum(p.nbytes for p in Gpt().parameters())
    capacity = live_peak // 4
    assert capacity < 4 * model_bytes, "else this test shows nothing"
    assert train(Gpt, FOREACH, session_kwargs={"capacity": capacity}).same(bare)
    whole = {"capacity": capacity, "split_optimizer": False}
    with pytest.raises(cl.BelowFloorError, match="_foreach"):
        train(Gpt, FOREACH, session_kwargs=whole)
    assert train(Gpt, FOREACH, session_kwargs=whole | {"capacity": live_peak}).same(bare)


def test_a_machine_without_memory_left_says_so_and_keeps_what_it_has() -> None:
    """Under a limit on the process's memory copies out find no host memory; what is there stays right."""
    child(
        """
        import resource
        held = []
        with cl.Session("64MiB", rematerialize=False) as session:
            held = [torch.full((4 * MiB // 4,), float(number)) for number in range(12)]
            used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + 24 * MiB, resource.RLIM_INFINITY))
            try:
                held += [torch.full((4 * MiB // 4,), float(number)) for number in range(12, 64)]
                raise SystemExit("no error, although the machine had no memory left")
            except RuntimeError as error:
                assert "memory" in str(error), error
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            assert all(x[0].item() == x[-1].item() == number for number, x in enumerate(held))
            held += [torch.full((4 * MiB // 4,), 5.0) for _ in range(12)]  # and it goes on
        assert all(x[0].item() == x[-1].item() for x in held)
        """
    )


def test_what_a_machine_without_memory_left_cannot_bring_back_stays_away() -> None:
    """The block that the swap-in asks for is host memory, too."""
    child(
        """
        import resource
        expected = torch.arange(6 * MiB, dtype=torch.int32)
        with cl.Session("1GiB", rematerialize=False) as session:
            t = torch.arange(6 * MiB, dtype=torch.int32)
            assert session.evict(t)
            rest = [torch.zeros(6 * MiB, dtype=torch.int32) for _ in range(2)]  # where it was
            resident = core.of().counters()["resident_bytes"]
            used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + 4 * MiB, resource.RLIM_INFINITY))
            for _ in range(2):
                try:
                    t[-1].item()
                    raise SystemExit("no error, although the machine had no memory left")
                except RuntimeError as error:
                    assert "could not be brought back: the host has no memory left" in str(error), error
                assert session.where(t) == "away"
            assert core.of().counters()["resident_bytes"] == resident
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            assert torch.equal(t, expected)
        assert torch.equal(t, expected)
        """
    )


@pytest.mark.gate
@pytest.mark.bits
def test_a_copy_that_could_not_be_begun_leaves_nothing_behind(no_faults: None) -> None:
    """As on a GPU (test_cuda_device.py); here it is the host that has no memory for it."""
    expected = torch.arange(1 << 18, dtype=torch.int32)
    away = "could not be brought back: the host has no memory left"
    with cl.Session("64MiB", min_swap=512, rematerialize=False) as session:
        t = torch.arange(1 << 18, dtype=torch.int32)
        before = core.of().counters()
        core.set_faults(refused_copies=1024)
        assert not session.evict(t)
        assert session.where(t) == "resident"
        assert torch.equal(t, expected)
        assert core.of().counters()["host_used_bytes"] == before["host_used_bytes"]
        with pytest.raises(RuntimeError, match=r"cannot be begun \(the host has no memory left\)"):
            [torch.zeros(8 * MiB, dtype=torch.uint8) for _ in range(9)]

        core.set_faults()
        assert session.evict(t)
        core.set_faults(refused_copies=1024)
        resident_bytes = core.of().counters()["resident_bytes"]
        for use in (t.sum, t.sum, lambda: session.restore(t)):
            with pytest.raises(RuntimeError, match=away):
                use()
            assert session.where(t) == "away"
        assert core.of().counters()["resident_bytes"] == resident_bytes
        core.set_faults()
        assert torch.equal(t, expected)

        t.add_(0)  # the host has no copy any more
        assert session.evict(t)
        core.set_faults(refused_copies=1024)
    with pytest.raises(RuntimeError, match=away):
        t.sum()
    core.set_faults()
    assert torch.equal(t, expected)


@pytest.mark.bits
def test_a_copy_that_is_refused_once_is_asked_for_again(no_faults: None) -> None:
    bare, live_peak = reference(Gpt)

    def refuse(*_: object) -> None:
        core.set_faults(refused_copies=300)  # never two in a row

    assert train(Gpt, session_kwargs={"capacity": live_peak // 3}, each_step=refuse).same(bare)


def refusing(code: str) -> None:
    """Run code in a process where ``refuse(after, in_a_row)`` refuses memory to the core's next requests.

    One that is refused is asked again 16 times, since that often there is something to spare: 17 in a row are the least
    that fail one request.
    """
    library = built("failing_new") / "csrc" / "libfailing_new.so"
    prelude = f"""
        from chameleon_lab import _C

        library = ctypes.CDLL({str(library)!r})
        watch, refuse = library.failing_new_watch, library.failing_new_refuse
        requests, refused = library.failing_new_requests, library.failing_new_refused
        watch.argtypes, refuse.argtypes = [ctypes.c_uint64] * 2, [ctypes.c_int64] * 2
        requests.restype = refused.restype = ctypes.c_int64
        ends = [line.split()[0].split("-") for line in open("/proc/self/maps") if _C.__file__ in line]
        watch(min(int(begin, 16) for begin, _ in ends), max(int(end, 16) for _, end in ends))
        never = 2**62

        def small():
            return Gpt(dim=32, layers=2, time=16)
    """
    child(textwrap.dedent(prelude) + textwrap.dedent(code), preload=library)


@pytest.mark.bits
def test_an_op_that_overwrites_and_gets_no_memory_for_a_record_leaves_old_bytes_or_new_ones() -> None:
    refusing("""
        came = 0
        for after in range(60):
            with cl.Session("8MiB", device="cpu") as session:
                tensor = torch.arange(MiB, dtype=torch.float32)
                assert session.evict(tensor)
                asked = refused()
                raised = False
                refuse(after, 17)
                try:
                    tensor.fill_(3)
                except (RuntimeError, MemoryError):
                    raised = True
                refuse(never, 0)
                came += refused() > asked
                expected = torch.arange(MiB, dtype=torch.float32) if raised else torch.full((MiB,), 3.0)
                assert torch.equal(tensor, expected), after
                del tensor
        assert 10 < came < 60, came
    """)


@pytest.mark.bits
def test_small_records_that_get_no_memory_change_no_bit_and_end_no_process() -> None:
    """See Note [The host has no memory left]: up to 16 requests in a row are served; more may fail the run."""
    refusing("""
        import random
        import re
        import warnings

        bare, live_peak = reference(small, steps=3)
        capacity = tight_bytes(small, steps=3)
        assert capacity < live_peak, "else nothing leaves"

        def run(after=never, in_a_row=0):
            def begin(number, model, session):
                if number == 0:
                    refuse(after, in_a_row)

            return train(small, steps=3, session_kwargs={"capacity": capacity}, each_step=begin)

        assert run().same(bare)
        in_all = requests()
        dice = random.Random(1)
        hit = failed = 0
        lost = "Chameleon Lab: records of step N were lost (the host has no memory left): "
        said = set()
        kinds = [1, 4, 16] * 5 + [18, 18, 60] * 5 + [18] * 60  # the last ones until one has met the records
        for number, in_a_row in enumerate(kinds):
            if number >= 30 and any(text.startswith(lost) for text in said):
                break
            try:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    assert run(dice.randrange(in_all), in_a_row).same(bare), in_a_row
            except (MemoryError, RuntimeError) as error:
                assert in_a_row > 16, error
                failed += 1
            assert in_a_row > 16 or not caught, caught
            said |= {re.sub("[0-9]+", "N", str(each.message)) for each in caught}
            refuse(never, 0)
            hit += refused() > 0  # a later run may ask for less
            if session := cl.current_session():  # its end had no memory
                session.stop()
            gc.collect()  # an op's output that got no record stays on the device while the error holds it
            assert run().same(bare), "the session after it"
            gc.collect()
            counters = core.of().counters()
            assert counters["live_bytes"] == counters["storages"] == 0, counters
        assert hit > 20 and failed > 0, (hit, failed)
        assert any(text.startswith(lost) for text in said), said
    """)


@pytest.mark.bits
def test_a_plan_that_gets_no_memory_is_not_half_followed() -> None:
    """What a program is followed with is asked for before the one that was followed is left."""
    refusing("""
        bare, _ = reference(small, steps=6)
        capacity = tight_bytes(small, steps=6)
        use = core.Runtime.use_program
        counts = []

        def run(nth):
            def use_program(self, id):
                refuse(nth, 17)
                try:
                    use(self, id)
                except MemoryError:
                    counts.append(nth)
                finally:
                    refuse(never, 0)

            core.Runtime.use_program = use_program
            try:
                return train(small, steps=6, session_kwargs={"capacity": capacity})
            finally:
                core.Runtime.use_program = use

        for nth in range(12):
            assert run(nth).same(bare), nth
        assert {0, 1, 2} <= set(counts), counts
    """)


def test_a_step_whose_end_gets_no_memory_goes_on_or_has_ended() -> None:
    """What has ended is read without a lock: nothing may be written to it."""
    refusing("""
        raised = 0
        with cl.Session() as session:
            for nth in range(24):
                torch.ones(1000).exp()
                refuse(nth, 17)
                try:
                    session.step()
                except MemoryError:
                    raised += 1
                refuse(never, 0)
                ended = [log.index for log in core.of().logs()]
                assert ended == sorted(set(ended)), (nth, ended)
                assert core.of().step_so_far().index not in ended, (nth, ended)
        assert raised > 3, raised
    """)


def test_what_python_gets_no_memory_to_note_is_not_freed() -> None:
    """Logs and programs are the core's as well."""
    refusing("""
        none = np.zeros(0)
        calls = {
            "a log": lambda: runtime.step_so_far(),
            "logs": lambda: runtime.logs(),
            "a program": lambda: core.make_program(*[none] * 7, np.zeros(1), *[none] * 7),
        }
        raised = dict.fromkeys(calls, 0)
        runtime = core.of()
        with cl.Session() as session:
            torch.ones(1000).exp()
            session.step()
            for nth in range(12):
                for name, call in calls.items():
                    refuse(nth, 17)
                    try:
                        call()
                    except MemoryError:
                        raised[name] += 1
                    refuse(never, 0)
                    call()
            torch.ones(1000).exp()
            session.step()
            assert [len(step.ops) for step in session.trace().steps] == [2, 2]
        assert all(raised.values()), raised
    """)


def test_a_mark_that_gets_no_memory_gives_its_name_to_no_other() -> None:
    refusing("""
        from torch.profiler import record_function

        name = "a name that is too long for a string without memory of its own: {}"
        began = []

        with cl.Session() as session:
            for number in range(64):
                refuse(number % 16, 17)
                mark = record_function(name.format(number // 2))
                mark.__enter__()
                refuse(never, 0)
                if not refused():
                    began.append(number // 2)
                torch.ones(1000)
                mark.__exit__(None, None, None)
            session.step()
            step = session.trace().steps[-1]
        named = [step.mark_names[row] for row in step.marks.name]
        assert 16 < len(began) < 48, began
        assert named == [name.format(number) for number in began], (named, began)
    """)
