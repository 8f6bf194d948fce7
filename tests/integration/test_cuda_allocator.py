"""The allocator in front of torch's caching one, on two fake GPUs (tests/fake_cuda/allocator).

Runtime, swapper, device and the forwarding allocator are the real ones. Tensors are of CUDA's type, and the ops that
read and fill them go through the dispatcher. Torch's caching allocator is played by one that cuts blocks from segments
in torch's sizes, under the fraction of the GPU that it is given.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from fake_gpu import on_fake_gpu as on

pytestmark = pytest.mark.full

on_fake_gpus = partial(on, "fake_allocator")

SESSION = "cl.Session('64MiB', device='cuda', rematerialize=False, min_swap='4KiB')"


EXPANDABLE = 'torch._C._accelerator_setAllocatorSettings("expandable_segments:True")'


@pytest.mark.bits
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("inherited", "setting", "streams"),
    [
        (False, "", 1),
        (True, "", 1),
        (False, EXPANDABLE, 1),
        (False, "fake.set_nvml(False)", 1),
        (True, "", 3),
        (False, EXPANDABLE, 3),
    ],
    ids=[
        *("all memory is ours", "some was taken before", "expandable segments", "NVML does not answer"),
        *("three streams", "expandable segments and three streams"),
    ],
)
def test_random_requests_stay_within_the_capacity_and_fail_only_where_nothing_helps(
    inherited: bool, setting: str, streams: int, seed: int
) -> None:
    """The model: what cannot leave holds its segments; whatever fits beside them has to be given.

    Torch keeps a pool for each stream: what is free in that of another one serves nobody before it is given back.
    """
    found = on_fake_gpus(f"""
        import random

        {setting}
        # The limit is compared with the request; expandable segments then grow by whole pages.
        beyond = 20 * MiB if {setting == EXPANDABLE} else 0

        draw = random.Random({seed})
        streams = [0, *(fake.stream() for _ in range({streams - 1}))]
        KEPT = 40
        counts = dict.fromkeys(["given", "refused", "came back", "left for a workspace", "streams"], 0)
        before = [fake.Workspace(0, 12 * MiB), fake.Workspace(0, 100 * KiB)] if {inherited} else []
        fake.set_fraction(0, 0.5)
        base = fake.figures(0)["allocated_bytes"]
        capacity = 64 * MiB
        tensors, held, elsewhere, moved = {{}}, [], {{}}, set()

        def size():
            return draw.choice([draw.randrange(1, 4096), draw.randrange(4096, MiB), draw.randrange(MiB, 6 * MiB)])

        def fits(bytes):
            return fake.figures(0)["held_segment_bytes"] - base + fake.segment_bytes(bytes) <= capacity

        def attempt(bytes, action):
            possible = fits(bytes)
            try:
                result = action()
            except RuntimeError as error:
                assert "below the floor" in str(error) or "out of memory" in str(error), error
                assert not possible, f"{{bytes}} bytes were refused: {{fake.figures(0)}}, {{error}}"
                counts["refused"] += 1
                return None
            counts["given"] += 1
            return result if result is not None else True

        def within():
            reserved = fake.figures(0)["reserved_bytes"]
            assert reserved - base <= capacity + beyond, reserved

        def note_moves():
            moved.update(key for key, (tensor, _, _) in tensors.items() if tensor.where == "away")

        with {SESSION} as session:
            for number in range(1500):
                what = draw.random()
                key = draw.choice(list(tensors)) if tensors else None
                if len(streams) > 1:
                    fake.use(draw.choice(streams))
                if what < 0.3 and len(tensors) < KEPT:
                    value, bytes = draw.randrange(256), size()
                    tensor = attempt(bytes, lambda: fake.Tensor(0, bytes, value))
                    if tensor:
                        if bytes < 4096:
                            tensor.hold()
                        tensors[number] = [tensor, value, bytes]
                elif what < 0.4 and key is not None:
                    del tensors[key]
                elif what < 0.65 and key is not None:
                    tensor, value, bytes = tensors[key]
                    away = tensor.where == "away"
                    result = attempt(bytes, lambda: (tensor.holds(value),))
                    assert result is None or result[0], f"wrong bytes: {{tensor.where}}"
                    counts["came back"] += away and result is not None
                    if draw.random() < 0.1 and tensor.where == "resident":
                        tensor.record_stream()
                        counts["streams"] += 1
                elif what < 0.75 and key is not None:
                    tensor, _, bytes = tensors[key]
                    tensors[key][1] = value = draw.randrange(256)
                    if attempt(bytes, lambda: tensor.fill(value)) is None:
                        del tensors[key]
                elif what < 0.8 and key is not None:
                    tensors[key][0].evict()
                elif what < 0.87:
                    bytes = draw.choice([draw.randrange(1, MiB), draw.randrange(MiB, 24 * MiB)])
                    away = sum(t.where == "away" for t, _, _ in tensors.values())
                    workspace = attempt(bytes, lambda: fake.Workspace(0, bytes, draw.random() < 0.5))
                    counts["left for a workspace"] += sum(t.where == "away" for t, _, _ in tensors.values()) > away
                    held += [workspace] if workspace else []
                elif what < 0.95 and held:
                    held.pop(draw.randrange(len(held)))
                elif what < 0.98:
                    elsewhere[number] = fake.Tensor(1, 8 * MiB, number % 256)
                else:
                    assert all(tensor.holds(n % 256) for n, tensor in elsewhere.items())
                    assert all(tensor.where == "not ours" for tensor in elsewhere.values())
                    elsewhere.clear()
                within()
                note_moves()
            held.clear()
            assert fake.fraction(0) == 0.5, "as the user has set it"
            counts["recorded"] = fake.figures(0)["recorded_streams"]
        assert all(tensor.where == "not ours" for tensor, _, _ in tensors.values())
        assert all(tensor.holds(value) for tensor, value, _ in tensors.values())
        assert fake.figures(0)["fraction"] == 0.5
        handed_back = fake.figures(0)["recorded_streams"] - counts["recorded"]
        back = len(moved & tensors.keys())
        assert handed_back == back if len(streams) == 1 else back <= handed_back <= back * len(streams), (
            "each that has moved, along every stream that used it"
        )
        fake.use(0)
        counts["out of memory"] = fake.figures(0)["retries"]
        tensor = workspace = None
        for some in (tensors, elsewhere, before):
            some.clear()
        fake.empty_cache()
        left = [fake.figures(device)[name] for device in (0, 1) for name in ("allocated_bytes", "reserved_bytes")]
        print(json.dumps(counts | {{"left": left}}))
    """)
    assert found["left"] == [0, 0, 0, 0], "memory is not given back"
    assert all(found[what] > 3 for what in ("given", "came back", "left for a workspace", "out of memory")), (
        found
    )
    assert 0 < found["recorded"] <= found["streams"], "record_stream does not reach torch's allocator"


@pytest.mark.bits
@pytest.mark.parametrize("setting", ["", EXPANDABLE], ids=["default", "expandable segments"])
def test_what_is_free_in_another_stream_s_pool_is_given_back_once(setting: str) -> None:
    """It has the size that is asked for, and only a flush makes it usable. What follows finds its own stream's."""
    found = on_fake_gpus(f"""
        {setting}
        side = fake.stream()
        with {SESSION} as session:
            held = [fake.Tensor(0, 20 * MiB, number) for number in range(2)]
            fake.use(side)
            gone = fake.Tensor(0, 20 * MiB, 9)
            del gone  # its block stays in the side stream's pool
            fake.use(0)
            kept = fake.figures(0)["reserved_bytes"] - fake.figures(0)["allocated_bytes"]
            flushes = []
            for number in range(8):
                before = fake.figures(0)["retries"]
                tensor = fake.Tensor(0, 20 * MiB, number)
                assert tensor.holds(number)
                del tensor
                flushes.append(fake.figures(0)["retries"] - before)
            here = [tensor.where for tensor in held]
            assert all(tensor.holds(number) for number, tensor in enumerate(held))
        del held
        print(json.dumps({{"kept": kept, "flushes": flushes, "here": here}}))
    """)
    assert found["kept"] >= 20 << 20, "there is nothing in the other pool"
    assert sum(found["flushes"]) == found["flushes"][0] <= 1, found
    assert found["here"] == ["resident", "resident"], "nothing has to leave for memory that nobody uses"


@pytest.mark.bits
def test_out_of_memory_is_seen_as_such_where_nvml_does_not_answer() -> None:
    """Torch's own error path then ends in an internal assertion, and no OutOfMemoryError (pytorch issue 112377)."""
    found = on_fake_gpus(f"""
        fake.set_nvml(False)
        said = {{}}

        def attempt(name, ask):
            try:
                ask()
            except RuntimeError as error:
                said[name] = [type(error).__name__, str(error).splitlines()[0]]

        attempt("no session", lambda: fake.Workspace(0, 65 * 1024 * MiB))
        with {SESSION} as session:
            tensors = [fake.Tensor(0, 4 * MiB, number) for number in range(20)]
            workspace = fake.Workspace(0, 24 * MiB)
            right = all(tensor.holds(number) for number, tensor in enumerate(tensors))
            attempt("workspace", lambda: fake.Workspace(0, 80 * MiB))
            attempt("tensor", lambda: fake.Tensor(0, 80 * MiB, 1))
            again = all(tensor.holds(number) for number, tensor in enumerate(tensors))
        print(json.dumps({{"said": said, "right": right, "again": again}}))
    """)
    assert found["right"] and found["again"]
    said = found["said"]
    assert "INTERNAL ASSERT" in said["no session"][1], "outside of a session it is torch's own affair"
    assert said["workspace"][0] == "OutOfMemoryError" and "out of memory" in said["workspace"][1], said
    assert "below the floor" in said["tensor"][1], said


@pytest.mark.bits
def test_memory_in_pieces_makes_more_leave_until_a_segment_is_free() -> None:
    found = on_fake_gpus(f"""
        with {SESSION} as session:
            tensors = [fake.Tensor(0, 4 * MiB, number) for number in range(15)]  # five in a segment of 20 MiB
            for number in (0, 5, 10):
                assert tensors[number].evict()  # room for 12 MiB, in three pieces
            split = core.of("cuda:0").counters()["split_bytes"]
            big = fake.Tensor(0, 12 * MiB, 77)
            away = sum(tensor.where == "away" for tensor in tensors)
            reserved = fake.figures(0)["reserved_bytes"]
            right = all(tensor.holds(number) for number, tensor in enumerate(tensors)) and big.holds(77)
        print(json.dumps({{"split": split, "away": away, "reserved": reserved, "right": right}}))
    """)
    assert found["split"] == 12 << 20
    assert found["away"] >= 5 and found["reserved"] <= 64 << 20 and found["right"]


@pytest.mark.bits
def test_a_request_that_nothing_helps_leaves_everything_as_it_was() -> None:
    found = on_fake_gpus(f"""
        said = []
        with {SESSION} as session:
            tensors = [fake.Tensor(0, 4 * MiB, number) for number in range(20)]
            for ask in (lambda: fake.Workspace(0, 80 * MiB), lambda: fake.Tensor(0, 80 * MiB, 1)):
                try:
                    ask()
                except RuntimeError as error:
                    said.append(str(error))
            right = all(tensor.holds(number) for number, tensor in enumerate(tensors))
            other = fake.Tensor(1, 80 * MiB, 3).holds(3)
        print(json.dumps({{"said": said, "right": right, "other": other}}))
    """)
    assert "out of memory" in found["said"][0] and "below the floor" in found["said"][1]
    assert found["right"] and found["other"], "another GPU has a capacity of its own"


@pytest.mark.parametrize(
    ("setting", "in_the_way", "asked_mib", "said"),
    [
        ("", "[fake.Workspace(0, 32 * MiB)]", 40, "32 MiB taken by others"),
        (EXPANDABLE, "[fake.Workspace(0, 40 * MiB)]", 40, "40 MiB taken by others"),
        ("", "in_pieces()", 40, "28 MiB free, but not to be had in one piece"),
        ("", "in_pieces()", 24, "32 MiB free, but not to be had in one piece"),
    ],
    ids=["a work space", "whole pages of expandable segments", "pieces", "pieces of enough bytes"],
)
def test_an_error_below_the_floor_counts_what_is_no_storage(
    setting: str, in_the_way: str, asked_mib: int, said: str
) -> None:
    """The capacity that it names is enough, beside the same work spaces and pieces."""
    found = on_fake_gpus(f"""
        import re

        {setting}

        def in_pieces():
            spaces = [fake.Workspace(0, 4 * MiB) for _ in range(15)]  # five in a segment of 20 MiB
            return spaces[::2]

        def attempt(capacity):
            with cl.Session(capacity, device="cuda", rematerialize=False) as session:
                kept = {in_the_way}
                tensors = [fake.Tensor(0, 4 * MiB, number) for number in range(5)]
                fake.Tensor(0, {asked_mib} * MiB, 1)
                return all(tensor.holds(number) for number, tensor in enumerate(tensors))

        try:
            attempt("64MiB")
        except cl.BelowFloorError as error:
            figures = [str(error), error.capacity_bytes, error.needed_bytes]
        named = re.search(r"needs ([\\d.]+ MiB) at once", figures[0])[1]
        print(json.dumps([*figures, attempt(named)]))
    """)
    message, capacity_bytes, needed_bytes, ran = found
    assert said in message and needed_bytes > capacity_bytes == 64 << 20, found
    assert ran


@pytest.mark.bits
def test_blocks_may_die_after_the_session_and_by_any_deleter() -> None:
    found = on_fake_gpus(f"""
        before = fake.Tensor(0, MiB, 1)
        with {SESSION} as session:
            made = [fake.Tensor(0, 4 * MiB, number) for number in range(20)]
            fake.delete_by_raw_deleter(0, 3 * MiB)
            fake.delete_by_raw_deleter(1, 3 * MiB)
            plain, ours = before.has_our_deleter, made[-1].has_our_deleter
            del before
        half, made = made[:10], made[10:]
        right = all(tensor.holds(10 + number) for number, tensor in enumerate(made))
        del made
        with {SESSION} as session:  # the rest was made in the one before
            again = all(tensor.holds(number) for number, tensor in enumerate(half))
            del half
            fake.delete_by_raw_deleter(0, 100)
        fake.empty_cache()
        print(json.dumps([plain, ours, right, again, fake.figures(0)["reserved_bytes"]]))
    """)
    assert found == [False, True, True, True, 0]


@pytest.mark.gate
@pytest.mark.bits
def test_a_library_s_work_space_does_not_count_in_the_next_session() -> None:
    """CuBLAS has one for each handle and stream, from the allocator, and keeps it to the end of the process."""
    found = on_fake_gpus("""
        def session(mib):
            return cl.Session(mib * MiB, device="cuda", rematerialize=False, min_swap="4KiB")

        def products():
            tensors = [fake.Tensor(0, 4 * MiB, number) for number in range(10)]
            tensors[0].product(32 * MiB)
            tensors[1].product(32 * MiB)
            for number, tensor in enumerate(tensors[:5]):
                assert tensor.evict() and tensor.holds(number)
            return tensors

        kept = []
        for mib in (512, 256):
            with session(mib):
                kept.append(products())
        counters = core.of("cuda:0").counters()
        left = [counters["resident_bytes"], counters["storages"]]
        right = all(tensor.holds(number) for tensors in kept for number, tensor in enumerate(tensors))
        for mib in (64, 128, 130, 256):
            with session(mib):
                more = [fake.Tensor(0, 8 * MiB, 40 + number) for number in range(12)]
                right &= all(tensor.holds(40 + number) for number, tensor in enumerate(more))
        kept.clear()
        more.clear()
        gc.collect()
        print(json.dumps([left, right, fake.figures(0)["allocated_bytes"]]))
    """)
    assert found == [[0, 0], True, 4 * 32 << 20], "the work spaces alone stay, and they are torch's"


@pytest.mark.gate
def test_what_the_host_computes_is_no_part_of_the_program() -> None:
    """As where a data loader's thread pins batches beside the training loop: other ops in every step."""
    found = on_fake_gpus(f"""
        with {SESSION} as session:
            tensors = [fake.Tensor(0, 4 * MiB, number) for number in range(20)]
            host = torch.arange(1024)
            names = []
            for step in range(4):
                for number, tensor in enumerate(tensors):
                    for _ in range((7 * step + number) % 3):
                        torch.empty(1024, dtype=torch.int64).copy_(host).add_(1)
                    assert tensor.holds(number)
                tensors[step].copy_to_host(host._cdata)
                tensors[step].fill(step)
                session.step()
                trace = session.trace().last
                names.append([trace.names[name] for name in trace.ops.name])
            recall = session.report().history[-1].match_rate
        print(json.dumps([names, recall]))
    """)
    names, recall = found
    assert {name for step in names for name in step} == {
        "fake_gpu::holds",
        "fake_gpu::copy",
        "fake_gpu::fill",
    }
    assert names[1] == names[2] == names[3] and recall == 1.0


@pytest.mark.gate
def test_what_another_thread_computes_on_the_host_is_no_part_of_the_program() -> None:
    """A data loader's thread that pins batches, at its own pace."""
    found = on_fake_gpus(f"""
        stop, computed = threading.Event(), []

        def load():
            host = torch.arange(1024)
            while not stop.is_set():
                torch.empty(1024, dtype=torch.int64).copy_(host).add_(1)
                computed.append(1)

        threading.Thread(target=load, daemon=True).start()
        with {SESSION} as session:
            tensors = [fake.Tensor(0, 4 * MiB, number) for number in range(20)]
            names = []
            for step in range(5):
                for number, tensor in enumerate(tensors):
                    before = len(computed)
                    while len(computed) == before:  # at least one op of the loader's between two of the step's
                        time.sleep(0)
                    assert tensor.holds(number)
                session.step()
                trace = session.trace().last
                names.append([trace.names[name] for name in trace.ops.name])
            stop.set()
            recall = session.report().history[-1].match_rate
        print(json.dumps([names, recall]))
    """)
    names, recall = found
    assert names[1:] == [["fake_gpu::holds"] * 20] * 4 and recall == 1.0


@pytest.mark.gate
def test_a_storage_that_dies_inside_of_torch_s_allocator_hangs_nobody() -> None:
    """CUDA IPC frees there what its consumers have let go of (FreeMemoryCallback)."""
    found = on_fake_gpus(f"""
        fake.collect_shared()
        with {SESSION} as session:
            shared = [fake.Tensor(0, 8 * MiB, number) for number in range(3)]
            for tensor in shared:
                tensor.share()
            tensor = None
            shared.clear()
            counters = core.of("cuda:0").counters
            before = counters()["storages"]
            other = fake.Tensor(0, 30 * MiB, 2)  # the cache has no such block
            more = fake.Tensor(0, 34 * MiB, 3)  # there is room once those have died
            workspace = fake.Workspace(0, 26 * MiB)
            after = counters()["storages"]
            right = other.holds(2) and more.holds(3)
        print(json.dumps([before, after, right, fake.misses() > 0]))
    """)
    assert found == [3, 2, True, True]


@pytest.mark.gate
def test_a_storage_dies_inside_of_torch_s_allocator_while_a_session_waits_for_that() -> None:
    """One thread has the allocator's lock, and the other the session's."""
    found = on_fake_gpus(f"""
        with {SESSION} as session:
            shared = [fake.Tensor(0, 8 * MiB, number) for number in range(3)]
            for tensor in shared:
                tensor.share()
            tensor = None
            shared.clear()
            counters = core.of("cuda:0").counters
            before = counters()["storages"]
            fake.collect_shared(beside_another=True)
            workspace = fake.Workspace(0, 26 * MiB)  # there is no such block
            right = fake.join()
            other = fake.Tensor(0, 30 * MiB, 2)
            right &= other.holds(2)
            after = counters()["storages"]
        print(json.dumps([before, after, right]))
    """)
    assert found == [3, 1, True]


@pytest.mark.gate
def test_no_storage_leaves_while_a_stream_is_recorded_for_it() -> None:
    """Torch would be told of a block that is none any more, and its assertion fails."""
    found = on_fake_gpus(f"""
        with {SESSION} as session:
            tensor = fake.Tensor(0, 8 * MiB, 3)
            left_before = tensor.record_stream_beside_eviction()
            print(json.dumps([left_before, tensor.where, tensor.holds(3), fake.figures(0)["recorded_streams"]]))
    """)
    assert found == [False, "away", True, 1]


@pytest.mark.gate
def test_the_driver_is_asked_as_often_for_many_tensors_as_for_one() -> None:
    """Each question takes a millisecond, and a session begins with thousands of tensors."""
    found = on_fake_gpus(f"""
        held = [fake.Tensor(0, 16 << 10, number % 256) for number in range(500)]
        asked = []
        for count in (1, 500):
            before = fake.figures(0)["memory_questions"]
            with {SESSION} as session:
                for tensor in held[:count]:
                    tensor.adopt()
                more = fake.Tensor(0, 4 * MiB, 1)
                where = {{tensor.where for tensor in held[:count]}}
            asked.append(fake.figures(0)["memory_questions"] - before)
        print(json.dumps([asked, sorted(where), all(t.holds(n % 256) for n, t in enumerate(held))]))
    """)
    (one, many), where, right = found
    assert one == many > 0 and where == ["resident"] and right


@pytest.mark.gate
def test_far_from_its_limit_the_allocator_is_asked_for_memory_and_for_no_statistics() -> None:
    """Each time they take its lock, and a copy of a kilobyte."""
    found = on_fake_gpus("""
        with cl.Session("256MiB", device="cuda", rematerialize=False) as session:
            warm = fake.Tensor(0, MiB, 1)
            before = fake.figures(0)
            held = [fake.Tensor(0, MiB, number) for number in range(100)]
            after = fake.figures(0)
        print(json.dumps([after[name] - before[name] for name in ("requests", "statistics")]))
    """)
    requests, statistics = found
    assert requests == 100 and statistics == 0


@pytest.mark.gate
@pytest.mark.bits
def test_where_not_all_fits_back_at_the_end_the_allocator_flushes_once() -> None:
    """Each refusal makes torch give back all that it keeps, and wait for the GPU."""
    found = on_fake_gpus(f"""
        session = {SESSION}.start()
        held = [fake.Tensor(0, 4 * MiB, number) for number in range(60)]
        away = [sum(tensor.where == "away" for tensor in held)]
        fake.set_total_bytes(0, 96 * MiB)
        before = fake.figures(0)
        session.stop()
        after = fake.figures(0)
        away.append(sum(tensor.where == "away" for tensor in held))
        right = all(tensor.holds(number) for number, tensor in enumerate(held))
        fake.set_total_bytes(0, 1 << 36)
        with {SESSION}:
            pass
        left = {{tensor.where for tensor in held}}
        print(json.dumps([away, right, *(after[n] - before[n] for n in ("out_of_memory", "retries")), sorted(left)]))
    """)
    away, right, refused, flushed, left = found
    assert away[0] > away[1] > 20 and right and left == ["not ours"]
    assert refused <= 1 and flushed <= 1


@pytest.mark.gate
@pytest.mark.bits
def test_wherever_a_call_fails_sessions_open_or_say_why_and_end_with_all_that_they_had() -> None:
    """Also those by which torch's allocator has its memory, and is limited."""
    found = on_fake_gpus(f"""
        import random

        draw = random.Random(SEED)
        told, wrong, left, open_still = [], 0, [], 0
        session = cl.Session("unlimited", device="cuda").start()
        fake.fail_call(1, in_a_row=50)
        session.stop()
        open_still += session.is_open

        def told_of(attempt):
            try:
                return attempt()
            except (RuntimeError, cl.SessionError) as error:
                told.append(str(error).splitlines()[0])

        for number in range(60):
            fake.fail_call(draw.randrange(1, 80), in_a_row=draw.choice((1, 1, 2, 6)))
            session = {SESSION}
            told_of(session.start)
            held = {{}}
            for value in range(24):
                held[value] = told_of(lambda: fake.Tensor(0, 4 * MiB, value))
                if (used := held.get(draw.randrange(24))) is not None:
                    told_of(lambda: used.holds(0))
            fake.fail_call(draw.randrange(1, 12), in_a_row=draw.choice((1, 2, 6)))
            session.stop()
            fake.fail_call(0)
            wrong += sum(tensor is not None and not tensor.holds(value) for value, tensor in held.items())
            used = None
            held.clear()
            open_still += session.is_open
            counters, figures = core.of("cuda:0").counters(), fake.figures(0)
            left.append([counters["storages"], counters["host_used_bytes"]])
            left[-1] += [figures["allocated_bytes"], figures["fraction"]]
        print(json.dumps([fake.failed_calls(), len(told), wrong, open_still, left]))
    """)
    failed, told, wrong, open_still, left = found
    assert failed > 60 and told > 8 and wrong == open_still == 0
    assert left == [[0, 0, 0, 1.0]] * 60


@pytest.mark.gate
def test_a_session_of_a_gpu_alone_handles_no_faults() -> None:
    """Others do (debuggers, Java, compute-sanitizer), and it could not put a GPU's bytes there."""
    found = on_fake_gpus(f"""
        import faulthandler

        def handled():
            lines = open("/proc/self/status").read().splitlines()
            caught = int(next(line.split()[1] for line in lines if line.startswith("SigCgt")), 16)
            return bool(caught & 1 << 10)  # SIGSEGV

        faulthandler.disable()
        seen = [handled()]
        with {SESSION}:
            tensor = fake.Tensor(0, 4 * MiB, 1)
            seen += [tensor.evict(), handled()]
        seen.append(handled())
        with cl.Session("64MiB", device="cpu"):
            seen.append(handled())
        print(json.dumps(seen))
    """)
    assert found == [False, True, False, False, True]


@pytest.mark.gate
@pytest.mark.bits
def test_a_fork_waits_for_nothing_and_brings_nothing_back() -> None:
    """A child can do nothing with CUDA: what was dropped stays so, and what is being copied goes on."""
    found = on_fake_gpus(f"""
        with {SESSION} as session:
            core.of("cuda:0").allow_replays({{"fake_gpu::plus": ()}})
            core.of("cuda:0").keep_producers(True)
            source = fake.Tensor(0, MiB, 3)
            dropped, leaving = source.plus(4), fake.Tensor(0, MiB, 5)
            fake.be_lazy()
            assert leaving.evict() and dropped.drop() == ""
            before = fake.host_waits()
            child = os.fork()
            if child == 0:
                os._exit(0)
            waited = sum(fake.host_waits().values()) - sum(before.values())
            status = os.waitpid(child, 0)[1]
            where = dropped.where
            right = dropped.holds(7) and leaving.holds(5)
        print(json.dumps([status, waited, where, right]))
    """)
    assert found == [0, 0, "dropped", True]


@pytest.mark.gate
def test_one_queue_for_all_streams_is_warned_of_and_noted() -> None:
    found = on_fake_gpus(f"""
        import warnings

        seen = []
        for connections in ("1", "8"):
            os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = connections
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                with {SESSION} as session:
                    notes = list(session.report().notes)
                with cl.Session("64MiB", device="cpu") as host:
                    notes += host.report().notes
            texts = [str(one.message) for one in caught]
            seen.append([sum("CUDA_DEVICE_MAX_CONNECTIONS=1" in text for text in part) for part in (texts, notes)])
        print(json.dumps(seen))
    """)
    assert found == [[1, 1], [0, 0]]


@pytest.mark.skipif(not hasattr(torch.cuda.memory, "_annotate_tensor"), reason="torch 2.14 or newer")
def test_what_a_snapshot_shows_of_a_block_reaches_torchs_allocator() -> None:
    said = on_fake_gpus(f"""
        with {SESSION} as session:
            said = fake.annotate("activations")
        print(json.dumps(said))
    """)
    assert said == "activations"


def test_a_fraction_that_is_set_in_a_session_is_the_user_s() -> None:
    found = on_fake_gpus(f"""
        fake.set_total_bytes(0, 256 * MiB)
        fake.set_fraction(0, 0.75)
        seen = []

        def look():
            seen.append([fake.fraction(0), fake.figures(0)["fraction"]])

        with {SESSION} as session:
            look()
            fake.set_fraction(0, 0.5)
            look()
            fake.set_fraction(0, 0.125)
            look()
            try:
                fake.set_fraction(0, 1.5)
            except RuntimeError as error:
                seen.append(str(error))
            fake.set_fraction(0, 0.625)
            look()
        look()
        print(json.dumps(seen))
    """)
    refused = found.pop(3)
    assert "invalid fraction" in refused
    assert found == [[0.75, 0.25], [0.5, 0.25], [0.125, 0.125], [0.625, 0.25], [0.625, 0.625]]


def test_what_the_allocator_refuses_and_says_why() -> None:
    found = on_fake_gpus(f"""
        said = {{}}

        def attempt(name, action):
            try:
                action()
            except (RuntimeError, ValueError, cl.SessionError) as error:
                said[name] = str(error)

        def start():
            with {SESSION}:
                pass

        attempt("gpu 7", lambda: cl.Session("64MiB", device="cuda:7"))
        for name, wrong, right in [
            ("backend", lambda: fake.set_name("cudaMallocAsync"), lambda: fake.set_name("native")),
            ("not initialized", lambda: fake.set_initialized(False), lambda: fake.set_initialized(True)),
            ("history", lambda: fake.set_history(True), lambda: fake.set_history(False)),
            ("capture", lambda: fake.set_capturing(True), lambda: fake.set_capturing(False)),
            (
                "no caching",
                lambda: os.environ.__setitem__("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),
                lambda: os.environ.__delitem__("PYTORCH_NO_CUDA_MEMORY_CACHING"),
            ),
        ]:
            wrong()
            attempt(name, start)
            right()
        fake.begin_pool(0)
        with {SESSION}:
            attempt("pool", lambda: fake.begin_pool(0))
            fake.begin_pool(1)
        fake.begin_pool(0)
        pools = fake.figures(0)["pools"]
        fake.trace_calls()
        attempt("sanitizer", start)
        print(json.dumps({{"said": said, "pools": pools}}))
    """)
    said = found["said"]
    assert "torch finds 2 GPUs" in said["gpu 7"]
    assert "'cudaMallocAsync': unset backend:cudaMallocAsync" in said["backend"]
    assert "torch.cuda.init()" in said["not initialized"]
    assert "torch.cuda.memory._record_memory_history()" in said["history"]
    assert "being captured" in said["capture"]
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING" in said["no caching"]
    assert "keep the addresses" in said["pool"]
    assert "TORCH_CUDA_SANITIZER" in said["sanitizer"]
    assert found["pools"] == 3, "outside of sessions, and on other GPUs, it goes on"


TRAINING = """
        import random

        SIZES = [3 * MiB + 7 * 512, 6 * MiB, 12 * MiB + 3 * 512, 3 * MiB // 2, 700 * 1024, 200 * 1024]
        LAYERS = 12
        draw = random.Random(5)
        layers = [[size * draw.choice([4, 5, 6, 7]) // 5 // 512 * 512 for size in SIZES] for _ in range(LAYERS)]
        parameters = []

        def step():
            kept = []
            for layer, sizes in enumerate(layers):
                assert parameters[layer].holds(layer)
                temporary = fake.Tensor(0, 2 * sizes[2], 99)
                kept.append([fake.Tensor(0, size, 7 * layer + n) for n, size in enumerate(sizes)])
                assert temporary.holds(99)
                del temporary
            while kept:
                layer, here = len(kept) - 1, kept.pop()
                gradient = fake.Tensor(0, layers[layer][1], 200)
                for n in reversed(range(len(here))):
                    assert here[n].holds(7 * layer + n)
                    work = fake.Tensor(0, layers[layer][n], 50)
                    here.pop()
                    del work
                parameters[layer].fill(layer)
                del gradient

        with cl.Session("unlimited", device="cuda") as session:
            parameters += [fake.Tensor(0, 4 * MiB, layer) for layer in range(LAYERS)]
            step()
            session.step()
            live_peak = session.report().live_peak_bytes
        fake.empty_cache()
"""


@pytest.mark.parametrize("setting", ["", EXPANDABLE], ids=["default", "expandable segments"])
def test_a_settled_plan_near_the_limit_makes_the_allocator_refuse_and_flush_nothing(setting: str) -> None:
    found = on_fake_gpus(f"""
        import numpy
        import chameleon_lab.session
        from chameleon_lab.testing import wait_for_plans

        {setting}
        {TRAINING}
        seen, looked = [], []
        with cl.Session(live_peak // 2, device="cuda", rematerialize=False) as session:
            # Plans depend on no time: whatever is copied is there at once, and ops take what they take everywhere.
            session.link, session._measures_link = cl.Link(1e15, 1e15), False
            chameleon_lab.session.session.step_op_times = lambda step: 1e-9 * numpy.bincount(
                step.uses.op, step.storages.block_bytes[step.uses.storage], len(step.ops)
            )
            for _ in range(14):
                before = fake.figures(0)
                step()
                session.step()
                wait_for_plans(session)
                after = fake.figures(0)
                names = ["retries", "out_of_memory", "device_allocs", "device_frees", "synchronizations"]
                seen.append([after[name] - before[name] for name in names])
                looked.append([after[name] - before[name] for name in ("requests", "looked_at", "statistics")])
            steps = [
                [s.alloc_retries, s.soft_ooms, s.device_allocs, s.device_frees, s.device_syncs, s.refusals]
                for s in session.history
            ]
            settled = [
                [s.plan, s.alloc_retries, s.soft_ooms, s.device_frees, s.refusals, s.demand_swap_ins, s.evictions]
                for s in session.history[-3:]
            ]
            last = session.trace().last
            traced = [last.alloc_retries, last.soft_ooms, last.device_frees, last.refusals]
            report = session.report()
            rows = [row[1:] for row in report.rows() if row[0] == "Allocator"]
            moved = session.history[-1].swapped_out_bytes
        reserve, bound = report.reserve_bytes, report.capacity_bytes // 4
        print(json.dumps([seen, steps, settled, traced, rows, moved, reserve, bound, report.allocator, looked]))
    """)
    seen, steps, settled, traced, rows, moved, reserve, bound, allocator, looked = found
    # The first step has the blocks as well with which the link was measured.
    assert [step[:5] for step in steps[1:]] == seen[1:], "what the report says is what the allocator did"
    assert sum(step[5] for step in steps) > 0 and moved > 0, "the run is near its limit"
    assert traced == settled[-1][1:5]
    assert allocator == ("expandable_segments" if setting else "default")
    assert rows[0][0] == allocator and "newest step" in rows[0][1]
    assert 0 <= reserve <= bound
    plans, *counts = zip(*settled, strict=True)
    assert len(set(plans)) == 1 and plans[0] > 0
    assert [sum(count) for count in counts] == [0] * 6, settled
    # It is not asked for its largest free block at every allocation: it has to look at all of them for that.
    assert all(requests > 200 and looked_at < requests for requests, looked_at, _ in looked[-3:]), looked
    # Nor for its statistics more than twice, however many blocks it keeps.
    assert all(statistics < 2 * requests for requests, _, statistics in looked[-3:]), looked


def test_where_the_reserve_does_not_suffice_segments_are_laid_anew_between_two_steps() -> None:
    """Those that the warm-up has left serve this plan badly, whatever it leaves free."""
    found = on_fake_gpus(f"""
        import numpy
        import chameleon_lab.session
        from chameleon_lab.testing import wait_for_plans

        {TRAINING}
        flushes, rows = [], []
        torch.cuda.empty_cache = lambda: flushes.append(len(rows)) or fake.empty_cache()  # a CPU build has none
        with cl.Session(live_peak // 2, device="cuda", rematerialize=False) as session:
            session.link, session._measures_link = cl.Link(1e15, 1e15), False
            chameleon_lab.session.session.step_op_times = lambda step: numpy.full(len(step.ops), 1e-3)
            for _ in range(16):
                step()
                session.step()
                wait_for_plans(session)
                s = session.history[-1]
                rows.append([s.plan, s.refusals, s.demand_swap_ins, s.evictions, s.soft_ooms, s.device_frees])
            report = session.report()
        print(json.dumps([flushes, rows, report.reserve_bytes, report.capacity_bytes]))
    """)
    flushes, rows, reserve, capacity = found
    assert len(flushes) == 1 and reserve == capacity // 4, found
    before, after = rows[flushes[0]], rows[-1]
    assert before[0] == after[0], "one plan"
    assert before[1] > 8 and before[3] > 0, rows
    assert after[1] < before[1] / 3 and after[2:] == [0, 0, 0, 0], rows


@pytest.mark.parametrize("part", [2, 3])
def test_of_expandable_segments_it_is_known_what_a_flush_does_not_give_back(part: int) -> None:
    """Parts of pages, which torch does not count: each request that counts on them ends in an error that it counts."""
    found = on_fake_gpus(f"""
        {EXPANDABLE}
        {TRAINING}
        with cl.Session(live_peak // {part}, device="cuda", rematerialize=False, planning=False) as session:
            for _ in range(4):
                step()
                session.step()
            steps = [[s.soft_ooms, s.alloc_retries, s.evictions] for s in session.history]
        print(json.dumps(steps))
    """)
    assert all(evictions > 20 for *_, evictions in found), found
    assert found[0][0] <= 12, "it is learned in the first step"
    assert all(soft_ooms <= 4 for soft_ooms, *_ in found[1:]), found
