"""Sessions on several devices at once: two fake GPUs (tests/fake_cuda/allocator), and the host beside one."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from fake_gpu import on_fake_gpu as on

import chameleon_lab as cl
from chameleon_lab.runtime import core

pytestmark = pytest.mark.full

on_fake_gpus = partial(on, "fake_allocator")

PRELUDE = """
        import random

        def session(gpu, capacity="64MiB"):
            return cl.Session(capacity, device=f"cuda:{gpu}", rematerialize=False, min_swap="4KiB")

        def reserved(gpu):
            return fake.figures(gpu)["reserved_bytes"]
"""


@pytest.mark.bits
def test_random_programs_on_two_gpus_are_right_and_each_keeps_to_its_capacity() -> None:
    """With copies between them and ops on tensors of both, wherever the bytes are."""
    found = on_fake_gpus(f"""{PRELUDE}
        draw = random.Random(SEED)
        capacities = 128 * MiB, 96 * MiB  # what an op uses may lie in a segment of 20 MiB each
        tensors, counts, wrong = {{}}, dict.fromkeys(["copied", "came from away", "went away", "both"], 0), 0
        with session(0, capacities[0]) as a, session(1, capacities[1]) as b:
            for number in range(2000):
                what = draw.random()
                keys = list(tensors)
                if what < 0.3 and len(keys) < 140:
                    gpu, value = draw.randrange(2), draw.randrange(256)
                    tensors[number] = [fake.Tensor(gpu, draw.randrange(4096, 5 * MiB), value), value]
                elif not keys:
                    continue
                elif what < 0.35:
                    del tensors[draw.choice(keys)]
                elif what < 0.55:
                    tensor, value = tensors[draw.choice(keys)]
                    wrong += not tensor.holds(value)
                elif what < 0.65:
                    tensors[draw.choice(keys)][0].evict()
                elif what < 0.75:
                    one = tensors[draw.choice(keys)]
                    one[1] = draw.randrange(256)
                    one[0].fill(one[1])
                elif what < 0.9:
                    (to, _), (source, value) = to_one, _ = tensors[draw.choice(keys)], tensors[draw.choice(keys)]
                    if to is source:
                        continue
                    counts["came from away"] += "away" in (to.where, source.where)
                    to.fill(value)
                    to.copy_from(source)
                    to_one[1] = value
                    counts["copied"] += 1
                elif what < 0.95:
                    chosen = [tensors[key] for key in draw.sample(keys, min(3, len(keys)))]
                    value = draw.randrange(256)
                    fake.Tensor.fill_all([tensor for tensor, _ in chosen], value)
                    for one in chosen:
                        one[1] = value
                    counts["both"] += 1
                else:
                    draw.choice((a, b)).step()
                counts["went away"] += sum(tensor.where == "away" for tensor, _ in tensors.values())
                assert reserved(0) <= capacities[0] and reserved(1) <= capacities[1], [reserved(0), reserved(1)]
            steps = a.step_count, b.step_count
            reports = a.report(), b.report()
            devices = [report.device for report in reports]
        wrong += sum(not tensor.holds(value) for tensor, value in tensors.values())
        left = [tensor.where for tensor, _ in tensors.values() if tensor.where != "not ours"]
        print(json.dumps([wrong, left, steps, devices, counts]))
    """)
    wrong, left, steps, devices, counts = found
    assert wrong == 0 and left == []
    assert min(steps) > 10 and devices == ["cuda:0", "cuda:1"]
    assert min(counts.values()) > 20, counts


@pytest.mark.bits
def test_an_op_on_both_keeps_both_here_and_writes_of_the_other_count() -> None:
    found = on_fake_gpus(f"""{PRELUDE}
        with session(0) as a, session(1) as b:
            x, y = fake.Tensor(0, 8 * MiB, 1), fake.Tensor(1, 8 * MiB, 2)
            seen = []
            for source, to in ((x, y), (y, x)):
                assert source.evict() and to.evict()
                value = 1 if source is x else 3
                to.copy_from(source)
                seen += [source.where, to.where, to.holds(1 if source is x else 3)]
                # The copy on the host that eviction has left is of the bytes before: it must not come back.
                assert to.evict()
                seen.append(to.holds(1 if source is x else 3))
                y.fill(3)
            a.step()
            b.step()
            names = [
                {{step.names[name] for name in step.ops.name}} for step in (a.trace().last, b.trace().last)
            ]
            print(json.dumps([seen, ["fake_gpu::copy" in one for one in names]]))
    """)
    assert found == [["resident", "resident", True, True] * 2, [True, True]]


@pytest.mark.bits
def test_ops_and_steps_are_those_of_their_device() -> None:
    found = on_fake_gpus(f"""{PRELUDE}
        with session(0) as a, session(1) as b:
            for number in range(3):
                fake.Tensor(0, MiB, number)
                a.step()
            for number in range(5):
                fake.Tensor(1, MiB, number).holds(number)
            b.step()
            counts = [a.step_count, b.step_count, len(a.trace().last.ops), len(b.trace().last.ops)]
            newest = cl.current_session() is b and a.is_open and b.is_open
        print(json.dumps([counts, newest, cl.current_session() is None]))
    """)
    assert found == [[3, 1, 1, 10], True, True]


@pytest.mark.bits
def test_one_ends_while_the_other_goes_on() -> None:
    found = on_fake_gpus(f"""{PRELUDE}
        seen = []
        for first in (0, 1):
            sessions = [session(0), session(1)]
            for one in sessions:
                one.start()
            held = [[fake.Tensor(gpu, 8 * MiB, number) for number in range(20)] for gpu in (0, 1)]
            sessions[first].stop()
            seen.append([tensor.where for tensor in held[first]].count("not ours"))
            seen.append(cl.current_session() is sessions[1 - first])
            with session(first) as again:
                seen.append(all(t.holds(n) for part in held for n, t in enumerate(part)))
                seen.append([tensor.where for tensor in held[1 - first]].count("away") > 5)
            sessions[1 - first].stop()
            seen.append(all(t.holds(n) for part in held for n, t in enumerate(part)))
            seen.append(cl.current_session() is None and not core.torch_is_watched())
            del held
            fake.empty_cache()
        print(json.dumps(seen))
    """)
    assert found == [20, True, True, True, True, True] * 2


@pytest.mark.bits
def test_a_second_session_on_one_device_is_refused_and_disturbs_none() -> None:
    found = on_fake_gpus(f"""{PRELUDE}
        said = []
        with session(0) as a, session(1):
            for gpu in (0, 1):
                try:
                    session(gpu).start()
                except cl.SessionError as error:
                    said.append(str(error))
            try:
                core.of("cuda:0").open(core.Options())
            except RuntimeError as error:
                said.append(str(error).splitlines()[0])
            held = [fake.Tensor(0, 8 * MiB, number) for number in range(20)]
            right = all(tensor.holds(number) for number, tensor in enumerate(held)) and a.is_open
            del held
        print(json.dumps([said, right]))
    """)
    said, right = found
    assert right
    for gpu, text in zip((0, 1), said, strict=False):
        assert f"already open on 'cuda:{gpu}'" in text and "stop()" in text
    assert "cuda:0 already" in said[2]


@pytest.mark.bits
def test_two_threads_with_a_gpu_each_and_copies_between_them() -> None:
    found = on_fake_gpus(f"""{PRELUDE}
        wrong, errors = [0, 0], []
        shared = {{}}

        def work(gpu):
            try:
                draw = random.Random(SEED + gpu)
                mine = {{}}
                for number in range(600):
                    value = draw.randrange(256)
                    mine[number % 24] = fake.Tensor(gpu, draw.randrange(4096, 4 * MiB), value), value
                    tensor, value = mine[draw.choice(list(mine))]
                    wrong[gpu] += not tensor.holds(value)
                    draw.choice(list(mine.values()))[0].evict()
                    if number % 10 == 0:
                        given = fake.Tensor(gpu, MiB, value)
                        given.evict()
                        shared[gpu] = given, value
                        theirs = shared.get(1 - gpu)
                        if theirs is not None:
                            copy = fake.Tensor(gpu, MiB, 0)
                            copy.copy_from(theirs[0])
                            wrong[gpu] += not copy.holds(theirs[1])
                    if number % 50 == 49:
                        sessions[gpu].step()
            except BaseException as error:
                errors.append(repr(error))
                raise

        sessions = [session(0), session(1, "40MiB")]
        with sessions[0], sessions[1]:
            threads = [threading.Thread(target=work, args=(gpu,)) for gpu in (0, 1)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            steps = [one.step_count for one in sessions]
            moved = [sum(step.swapped_out_bytes for step in one.history) > 0 for one in sessions]
        print(json.dumps([wrong, errors, steps, moved]))
    """)
    assert found == [[0, 0], [], [12, 12], [True, True]]


@pytest.mark.bits
@pytest.mark.gate
def test_training_on_the_host_beside_a_gpu_is_bit_identical_and_each_has_its_steps() -> None:
    """The model's tensors go to the GPU and back; its optimizer ends the steps of its own session alone."""
    found = on_fake_gpus(f"""{PRELUDE}
        def run():
            torch.manual_seed(0)
            model = Gpt()
            optimizer = adamw(model.parameters())
            draw = torch.Generator().manual_seed(1)
            for number in range(8):
                optimizer.zero_grad()
                loss = model(model.batch(draw))
                loss.backward()
                yield number, model, loss
                optimizer.step()
            yield -1, model, loss

        def bits(model, loss):
            return [raw(t) for t in (*model.state_dict().values(), loss)]

        for *_, model, loss in run():
            pass
        bare = bits(model, loss)
        with cl.Session("unlimited", device="cpu") as recorded:
            for *_, model, loss in run():
                pass
        peak = recorded.report().live_peak_bytes
        capacity = int(0.6 * peak)
        with session(0) as gpu, cl.Session(capacity, device="cpu", link="64MiB/s") as cpu:
            held = []
            for number, model, loss in run():
                gradient = model.head.weight.grad.detach()
                there = fake.Tensor(0, gradient.nbytes, 0)
                there.copy_from_host(gradient._cdata)
                there.evict()
                gradient.zero_()
                there.copy_to_host(gradient._cdata)
                held.append(fake.Tensor(0, 8 * MiB, max(number, 0)))
                if number >= 0:
                    gpu.step()
            same = bits(model, loss) == bare
            right = all(t.holds(n) for n, t in enumerate(held[:-1]))
            report = cpu.report()
            print(json.dumps({{
                "same": same, "right": right, "steps": [gpu.step_count, cpu.step_count],
                "within": report.peak_bytes <= capacity, "stage": report.stage,
                "moved": [sum(s.swapped_out_bytes for s in one.history) > 0 for one in (gpu, cpu)],
                "gpu ops": max(s.ops for s in gpu.history) < 20,
            }}))
    """)
    assert found == {
        "same": True,
        "right": True,
        "steps": [8, 8],
        "within": True,
        "stage": "Stable",
        "moved": [True, True],
        "gpu ops": True,
    }


@pytest.mark.bits
def test_a_trace_without_memory_beside_a_gpu_s_session() -> None:
    found = on_fake_gpus(f"""{PRELUDE}
        def step():
            model = torch.nn.Linear(64, 64)
            optimizer = torch.optim.SGD(model.parameters())

            def one():
                model(torch.ones(8, 64)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

            return one

        alone = cl.trace_meta(step)
        with session(0) as gpu:
            held = [fake.Tensor(0, 8 * MiB, number) for number in range(20)]
            beside = cl.trace_meta(step)
            right = all(tensor.holds(number) for number, tensor in enumerate(held))
            steps = gpu.step_count
            del held
        names = [[one.last.names[name] for name in one.last.ops.name] for one in (alone, beside)]
        print(json.dumps([right, steps, names[0] == names[1], len(names[0]) > 5]))
    """)
    assert found == [True, 0, True, True]


@pytest.mark.bits
def test_an_error_is_that_of_the_session_whose_capacity_is_too_small() -> None:
    found = on_fake_gpus(f"""{PRELUDE}
        said = []
        with session(0, "200MiB") as a:
            held = [fake.Tensor(0, 8 * MiB, number) for number in range(20)]
            a.step()
            try:
                with session(1, "48MiB") as b:
                    fake.Tensor(1, MiB, 1)
                    b.step()
                    fake.Tensor(1, 100 * MiB, 0)
            except cl.BelowFloorError as error:
                said = [str(error), error.capacity_bytes, a.is_open, b.is_open]
            right = all(tensor.holds(number) for number, tensor in enumerate(held))
            failed = core.of("cuda:0").take_failure()
            del held
        print(json.dumps([said, right, failed]))
    """)
    (text, capacity_bytes, first, second), right, failed = found
    assert "the capacity of 48 MiB is below the floor" in text and capacity_bytes == 48 << 20
    assert (first, second) == (True, False) and right and failed is None


@pytest.mark.bits
def test_a_fork_beside_two_sessions_leaves_both_as_they_are() -> None:
    found = on_fake_gpus(f"""{PRELUDE}
        with session(0), cl.Session("8MiB", device="cpu"):
            held = [fake.Tensor(0, 8 * MiB, number) for number in range(20)]
            mine = [torch.full((MiB // 4,), float(number)) for number in range(16)]
            child = os.fork()
            if child == 0:
                os._exit(0 if all(bool((t == n).all()) for n, t in enumerate(mine)) else 1)
            status = os.waitpid(child, 0)[1]
            right = all(t.holds(n) for n, t in enumerate(held))
            right = right and all(bool((t == n).all()) for n, t in enumerate(mine))
            del held
        print(json.dumps([status, right]))
    """)
    assert found == [0, True]


@pytest.mark.skipif(
    not core.SEES_RAW_ACCESS, reason="before torch 2.13 the host's tensors raise where C++ reads them"
)
def test_what_is_kept_for_one_device_s_replays_is_no_memory_of_the_other_session() -> None:
    """The host's session takes storages of any size here, and producers of the GPU's ops keep bytes on the host."""
    found = on_fake_gpus(f"""{PRELUDE}
        from chameleon_lab import testing

        with testing.evict_always("cpu", capacity="8MiB"), session(0):
            core.of("cuda:0").keep_producers(True)
            small = torch.arange(8, dtype=torch.uint8)
            seen = []
            for number in range(200):
                tensor = fake.Tensor(0, 4096, number)
                tensor.copy_from_host(small._cdata)
                tensor.copy_to_host(small._cdata)
                small = small + 1
                seen.append(int(small[0]))
        print(json.dumps(seen == [(n + 1) % 256 for n in range(200)]))
    """)
    assert found is True


@pytest.mark.gate
@pytest.mark.bits
def test_each_gpu_replays_what_was_found_to_repeat_itself_on_it() -> None:
    """Two models of GPU may choose other kernels: what one may replay says nothing of the other's ops."""
    found = on_fake_gpus(f"""{PRELUDE}
        def dropped(gpu):
            source = fake.Tensor(gpu, MiB, 3)
            tensor = source.plus(4)
            return [tensor.drop() or tensor.where, tensor.holds(7), tensor.where]

        repeats = {{"fake_gpu::plus": ()}}
        seen = []
        with session(0), session(1):
            for gpu in (0, 1):
                core.of(f"cuda:{{gpu}}").keep_producers(True)
            for allowed, other in ((0, 1), (1, 0)):
                for last in (allowed, other):  # whichever is told last
                    for gpu in (allowed + other - last, last):
                        core.of(f"cuda:{{gpu}}").allow_replays(repeats if gpu == allowed else {{}})
                    seen.append([dropped(allowed), dropped(other)])
        print(json.dumps([seen, core.REFUSALS[core.OP_NOT_REPLAYED]]))
    """)
    seen, refusal = found
    assert seen == [[["dropped", True, "resident"], [refusal, True, "resident"]]] * 4


@pytest.mark.gate
@pytest.mark.bits
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rematerialize", [False, "cheap"])
def test_a_session_replays_as_before_beside_one_that_may_replay_less(
    threads: int, rematerialize: bool | str
) -> None:
    """Matrix products are replayed under settings that were checked, the host's number of threads among them."""
    found = on_fake_gpus(f"""{PRELUDE}
        torch.set_num_threads({threads})

        def dropped():
            made = torch.mm(x, x)
            before = made.clone()
            why = core.drop(made)
            return [why, core.residency(made), bool(torch.equal(made, before))]

        with cl.Session("64MiB", device="cpu", min_swap="4KiB") as host:
            core.of("cpu").keep_producers(True)
            x = torch.randn(128, 128)
            alone = dropped()
            with cl.Session("64MiB", device="cuda:0", rematerialize={rematerialize!r}) as gpu:
                beside = dropped()
                gpu.step()
                host.step()
                after_steps = dropped()
            after = dropped()
        print(json.dumps([alone, beside, after_steps, after]))
    """)
    if not core.SEES_RAW_ACCESS:
        assert found == [[core.REFUSALS[core.OP_NOT_REPLAYED], "resident", True]] * 4
    else:
        assert found == [["", "dropped", True]] * 4


@pytest.mark.gate
@pytest.mark.bits
@pytest.mark.parametrize("trusting", ["cpu", "cuda:0"])
def test_a_promise_that_is_made_for_one_session_holds_for_no_other(trusting: str) -> None:
    """As with torch 2.11 and 2.12, where a session replays nothing unless it is told "trusting"."""
    found = on_fake_gpus(f"""{PRELUDE}
        core.pretend_no_hook(True)
        core.SEES_RAW_ACCESS = False

        def how(device):
            return "trusting" if device == {trusting!r} else "cheap"

        def dropped():
            made = torch.relu(x)
            before = made.clone()
            why = core.drop(made)
            return [why, core.residency(made), bool(torch.equal(made, before))]

        with cl.Session("64MiB", device="cpu", min_swap="4KiB", rematerialize=how("cpu")) as host:
            core.of("cpu").keep_producers(True)
            x = torch.randn(128, 128)
            seen = [dropped()]
            with cl.Session("64MiB", device="cuda:0", rematerialize=how("cuda:0")) as gpu:
                seen.append(dropped())
                gpu.step()
                host.step()
                core.of("cpu").keep_producers(True)
                seen.append(dropped())
            seen.append(dropped())
        print(json.dumps(seen))
    """)
    expected = ["", "dropped"] if trusting == "cpu" else [core.REFUSALS[core.OP_NOT_REPLAYED], "resident"]
    assert found == [[*expected, True]] * 4


def test_a_model_that_was_elsewhere_and_has_been_moved_here_is_followed_from_the_next_step_on() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU())
    there = model.to("meta")
    with cl.Session("unlimited", device="cpu") as session:
        there(torch.ones(1, 512, device="meta"))
        here = there.to_empty(device="cpu")
        here(torch.ones(1, 512))
        session.step()
        here(torch.ones(1, 512))
        session.step()
        modules = set(session.trace().last.modules)
        assert session.where(here[0].weight) == "resident"
    assert {"0", "1"} <= modules, modules


def test_marks_and_pauses_are_noted_in_every_session() -> None:
    found = on_fake_gpus(f"""{PRELUDE}
        with session(0) as a, session(1) as b:
            with torch.profiler.record_function("a stretch"):
                fake.Tensor(0, MiB, 1)
                fake.Tensor(1, MiB, 1)
            a.step()
            b.step()
            steps = a.trace().last, b.trace().last
            names = [["a stretch" in step.mark_names, len(step.marks)] for step in steps]
        print(json.dumps(names))
    """)
    assert found == [[True, 1]] * 2
