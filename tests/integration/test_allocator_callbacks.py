"""What others have torch's CUDA allocator call, on two fake GPUs (tests/fake_cuda/allocator).

The stacks of torch's memory history and its observers of out-of-memory ask for Python's lock, as torch's own do. The
fake counts how often a thread that holds the core's lock did so: another one that has Python's would wait for ever.
"""

from __future__ import annotations

from functools import partial

import pytest
from fake_gpu import on_fake_gpu as on

from chameleon_lab.runtime import core

pytestmark = pytest.mark.full

on_fake_gpus = partial(on, "fake_allocator")

SESSION = "cl.Session('64MiB', device='cuda', rematerialize=False, min_swap='4KiB')"

# Tensors of 6 MiB, of which nine do not fit beside each other: each segment takes 20 MiB, and the capacity is 64.
MAKING = """
        def making(count):
            made = []
            for value in range(count):
                made.append(fake.Tensor(0, 6 * MiB, value))
            return made

        def all_right(tensors):
            return all(tensor.holds(value) for value, tensor in enumerate(tensors))
"""


@pytest.mark.bits
@pytest.mark.parametrize("context", ["all", "alloc", "state"])
@pytest.mark.parametrize("began", ["before", "inside"])
def test_a_memory_history_with_stacks_goes_on_beside_a_session(context: str, began: str) -> None:
    """What the program asks for and frees has its own stack, and what the session moves is named as such."""
    found = on_fake_gpus(f"""
        {MAKING}
        if {began == "before"}:
            cl.runtime.core.stand_in_front("cuda")
            fake.record_history(True, {context!r})
        with {SESSION} as session:
            if {began == "inside"}:
                fake.record_history(True, {context!r})
            fake.take_events()
            fake.set_user_metadata("warming up")
            tensors = making(16)
            made = fake.take_events()
            fake.set_user_metadata("")
            moved = [tensors[0].where, all_right(tensors)]
            returned = fake.take_events()

            def forgetting():
                tensors.pop()

            forgetting()
            freed = fake.take_events()
        fake.record_history(False, None)
        print(json.dumps([made, moved, returned, freed, fake.locks_asked_for_in_turn()]))
    """)
    made, moved, returned, freed, in_turn = found
    assert in_turn
    assert moved == ["away", True]
    assert sum(action == "alloc" for action, *_ in made) == 16
    for action, _, frames, label in made:
        if action == "alloc":
            assert [frames, label] == ["making", "warming up"], made
        else:
            assert [action, frames, label] == ["free_requested", "", "warming up, Chameleon Lab"], made
    assert len(returned) >= 6
    assert all([frames, label] == ["", "Chameleon Lab"] for _, _, frames, label in returned), returned
    assert freed == [["free_requested", 6 << 20, "forgetting" if context == "all" else "", ""]]


@pytest.mark.bits
def test_what_the_program_asks_for_has_its_stack_though_torch_refuses_it_first() -> None:
    found = on_fake_gpus(f"""
        {MAKING}
        cl.runtime.core.stand_in_front("cuda")
        fake.record_history(True, "all")
        with {SESSION} as session:
            fake.set_others_bytes(0, (64 * 1024 - 44) * MiB)  # another process takes memory: the session asks in vain
            fake.take_events()
            tensors = making(40)
            refused = fake.figures(0)["out_of_memory"]
            made = [event for event in fake.take_events() if event[0] == "alloc"]
            right = all_right(tensors)
        print(json.dumps([refused, made, right, fake.locks_asked_for_in_turn()]))
    """)
    refused, made, right, in_turn = found
    assert refused > 0 and right and in_turn
    assert [event[2:] for event in made] == [["making", ""]] * 40


@pytest.mark.bits
@pytest.mark.skipif(
    not core.SEES_RAW_ACCESS, reason="before torch 2.13 an address that C++ takes brings nothing in"
)
def test_a_replay_that_takes_a_stack_is_waited_for_without_pythons_lock() -> None:
    """It allocates, and asks for Python's lock: who reads its result under that would wait for it for ever."""
    found = on_fake_gpus(f"""
        import threading

        cl.runtime.core.stand_in_front("cuda")
        fake.record_history(True, "all")
        with {SESSION} as session:
            core.of("cuda:0").allow_replays({{"fake_gpu::plus": ()}})
            core.of("cuda:0").keep_producers(True)
            x = fake.Tensor(0, 6 * MiB, 3)
            y = x.plus(4)
            dropped = y.drop()
            right = []
            thread = threading.Thread(target=lambda: right.append(y.holds(7)))
            read = y.read_beside_a_replay(thread.start)
            thread.join()
        fake.record_history(False, None)
        print(json.dumps([dropped, read, right, fake.locks_asked_for_in_turn()]))
    """)
    assert found == ["", True, [True], True]


def test_observers_hear_once_of_a_replay_that_finds_no_room() -> None:
    """Not of what it asks for inside, but where the op that needs it is refused."""
    found = on_fake_gpus(f"""
        heard = []
        with {SESSION} as session:
            fake.attach_observer(lambda *told: heard.append(told))
            core.of("cuda:0").allow_replays({{"fake_gpu::plus": ()}})
            core.of("cuda:0").keep_producers(True)
            x = fake.Tensor(0, 20 * MiB, 3)
            y = x.plus(4)
            dropped = y.drop()
            workspace = fake.Workspace(0, 40 * MiB)
            said = []
            try:
                y.holds(7)
            except RuntimeError as error:
                said.append(str(error))
            del workspace
            print(json.dumps([dropped, said, [told[:2] for told in heard], y.holds(7), len(heard)]))
    """)
    dropped, said, heard, right, count = found
    assert dropped == "" and right
    assert len(said) == 1 and len(heard) == count == 1, found


def test_a_memory_history_that_began_unseen_is_refused() -> None:
    """Its stacks would be taken under the core's lock."""
    found = on_fake_gpus(f"""
        said = []
        fake.record_history(True, "all")
        try:
            with {SESSION}:
                pass
        except RuntimeError as error:
            said.append(str(error))
        cl.runtime.core.stand_in_front("cuda")
        fake.record_history(True, "all")  # anew, as the error says
        with {SESSION}:
            fake.Tensor(0, MiB, 1)
        print(json.dumps([said, len(fake.take_events()) > 0, fake.locks_asked_for_in_turn()]))
    """)
    assert "Import chameleon_lab before that, or begin it anew" in found[0][0]
    assert found[1:] == [True, True]


def test_observers_hear_of_what_the_program_is_refused_and_of_nothing_else() -> None:
    """Not of the requests for which the session makes room: torch calls them at each of these."""
    found = on_fake_gpus(f"""
        {MAKING}
        heard, said = [], []
        cl.runtime.core.stand_in_front("cuda")
        fake.attach_observer(lambda *told: heard.append(told))

        def attempt(action):
            before = len(heard)
            try:
                result = action()
            except RuntimeError as error:
                said.append([str(error), len(heard) - before])
                return None
            said.append(["", len(heard) - before])
            return result

        attempt(lambda: fake.Workspace(0, 65 * 1024 * MiB))  # torch's own refusal
        own = heard.pop()
        with {SESSION} as session:
            fake.set_others_bytes(0, (64 * 1024 - 44) * MiB)  # another process takes memory: the session asks in vain
            tensors = attempt(lambda: making(40))
            right = attempt(lambda: all_right(tensors))
            workspace = attempt(lambda: fake.Workspace(0, 20 * MiB))
            soft = fake.figures(0)["out_of_memory"] - 1
            attempt(lambda: fake.Tensor(0, 80 * MiB, 0))
            attempt(lambda: fake.Workspace(0, 80 * MiB))
            again = attempt(lambda: all_right(tensors))
        print(json.dumps([own, said, heard, right, again, soft, fake.locks_asked_for_in_turn()]))
    """)
    own, said, heard, right, again, soft, in_turn = found
    assert in_turn and right and again
    assert own[1] == 65 << 30
    assert soft > 0, "torch has refused, and called its observers"
    assert [count for _, count in said] == [1, 0, 0, 0, 1, 1, 0], said
    assert "below the floor" in said[4][0] and "out of memory" in said[5][0]
    assert [told[:2] for told in heard] == [[0, 80 << 20], [0, 80 << 20]]


def test_observers_hear_of_an_input_for_which_there_is_no_room() -> None:
    """The op raises where it reads it, and torch's allocator was asked by nobody but the session."""
    found = on_fake_gpus(f"""
        heard = []
        with {SESSION} as session:
            fake.attach_observer(lambda *told: heard.append(told))
            tensor = fake.Tensor(0, 40 * MiB, 7)
            assert tensor.evict()
            workspace = fake.Workspace(0, 50 * MiB)
            try:
                tensor.holds(7)
                said = ""
            except RuntimeError as error:
                said = str(error)
            told = list(heard)
            del workspace
            print(json.dumps([said, told, tensor.holds(7), len(heard), fake.locks_asked_for_in_turn()]))
    """)
    said, told, right, count, in_turn = found
    assert "below the floor" in said
    assert [one[:2] for one in told] == [[0, 40 << 20]]
    assert right and count == 1 and in_turn


def test_an_observer_that_raises_takes_no_error_away() -> None:
    found = on_fake_gpus(f"""
        def broken(*told):
            raise ValueError("no disk left for the snapshot")

        with {SESSION} as session:
            fake.attach_observer(broken)
            said = []
            for make in (lambda: fake.Tensor(0, 80 * MiB, 0), lambda: fake.Workspace(0, 80 * MiB)):
                try:
                    make()
                except RuntimeError as error:
                    said.append(str(error))
            print(json.dumps([said, fake.Tensor(0, MiB, 3).holds(3)]))
    """)
    assert "below the floor" in found[0][0] and "out of memory" in found[0][1] and found[1]


def test_observers_of_rejections_hear_of_torchs_policy_alone() -> None:
    """torch 2.12 and newer."""
    found = on_fake_gpus(f"""
        {MAKING}
        if not hasattr(fake, "attach_rejection_observer"):
            print(json.dumps(None))
            raise SystemExit
        heard, rejected = [], []
        with {SESSION} as session:
            fake.attach_observer(lambda *told: heard.append(told))
            fake.attach_rejection_observer(lambda *told: rejected.append(told))
            fake.set_rejects(True)
            tensors = making(40)
            right = all_right(tensors)
            silent = [len(heard), len(rejected)]
            try:
                fake.Workspace(0, 80 * MiB)
            except RuntimeError:
                pass
        print(json.dumps([right, silent, heard, [told[:2] for told in rejected], fake.locks_asked_for_in_turn()]))
    """)
    if found is None:
        pytest.skip("torch before 2.12 has none")
    assert found == [True, [0, 0], [], [[0, 80 << 20]], True]


@pytest.mark.bits
def test_threads_beside_a_recorded_history_do_not_wait_for_each_other() -> None:
    """One drops tensors under Python's lock while others, without it, make room in the allocator."""
    found = on_fake_gpus(f"""
        import threading

        {MAKING}
        heard, right = [], []
        cl.runtime.core.stand_in_front("cuda")
        fake.record_history(True, "all")
        fake.attach_observer(lambda *told: heard.append(told))

        def work():
            for _ in range(25):
                right.append(all_right(making(6)))

        with {SESSION} as session:
            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        print(json.dumps([all(right), len(right), len(heard), fake.locks_asked_for_in_turn()]))
    """)
    assert found == [True, 75, 0, True]
