"""Collectives go on with their tensors when their ops have ended: those stay until somebody has waited."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from several_ranks import ranks
from training import child

from chameleon_lab.runtime import core

pytestmark = [pytest.mark.full, pytest.mark.bits]

_FAKE = """
    import json
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional
    from torch.testing._internal.distributed.fake_pg import FakeStore

    # It does nothing, so no raw access shows what NCCL would be reading.
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)

    def made(value, parts=1):
        return torch.full((parts * MiB // 4,), float(value)) + 1
"""


def _alone(code: str) -> list[str]:
    """Run code in a process that takes itself for one of two ranks; what it has printed."""
    return child(textwrap.dedent(_FAKE) + textwrap.dedent(code)).stdout.splitlines()


def test_what_a_collective_was_given_stays_until_it_is_waited_for() -> None:
    printed = _alone(
        """
        stayed, left, right = {}, {}, []
        with cl.Session("48MiB", min_swap="4KiB") as session:
            def check(name, wait, *tensors):
                stayed[name] = [not session.evict(t) and session.where(t) == "resident" for t in tensors]
                wait()
                left[name] = [session.evict(t) and session.where(t) == "away" for t in tensors]

            away = made(1)
            assert session.evict(away)
            work = dist.all_reduce(away, async_op=True)
            check("all_reduce", work.wait, away)
            right.append(float(away[0] + away[-1]) == 4.0)

            parts, whole = [made(2), made(3)], made(4)
            assert session.evict(parts[1])
            check("all_gather", dist.all_gather(parts, whole, async_op=True).wait, *parts, whole)

            pieces, piece = [made(5), made(6)], made(7)
            check("reduce_scatter", dist.reduce_scatter(piece, pieces, async_op=True).wait, piece, *pieces)

            source = made(8)
            check("synchronize", dist.broadcast(source, 0, async_op=True).synchronize, source)

            source = made(9)
            result = torch.ops._c10d_functional.all_reduce(source, "sum", dist.group.WORLD.group_name)
            check("functional", lambda: torch.ops._c10d_functional.wait_tensor(result), result)
            report = session.report()
        print(json.dumps({"stayed": stayed, "left": left, "right": right, "escaped": report.escaped_storages}))
        """
    )
    found = json.loads(printed[-1])
    assert all(all(each) for each in found["stayed"].values()), found
    assert all(all(each) for each in found["left"].values()), found
    assert found["right"] == [True] and found["escaped"] == 0


def test_a_collective_that_is_no_asynchronous_one_is_over_when_it_returns() -> None:
    _alone(
        """
        with cl.Session("32MiB", min_swap="4KiB") as session:
            given, part = made(1, parts=2), made(2)
            dist.all_reduce(given)
            dist.reduce_scatter_tensor(part, given)
            dist.all_gather_into_tensor(given, part)
            assert session.evict(given) and session.evict(part)
        """
    )


def test_a_wait_that_nobody_sees_is_shown_by_the_next_use() -> None:
    """Inside of C++, as DDP does it: what the collective writes is read, or what it reads is written."""
    _alone(
        """
        with cl.Session("32MiB", min_swap="4KiB") as session:
            buffer, part = made(1, parts=2), made(2)
            work = dist.all_gather_into_tensor(buffer, part, async_op=True)
            part + 1  # others may read it meanwhile
            assert not session.evict(part) and not session.evict(buffer)
            buffer.storage_offset(), buffer.view(2, -1), buffer.detach()
            assert not session.evict(buffer)
            part.add_(1)
            assert session.evict(part) and session.evict(buffer)

            half, other = buffer[: MiB // 4], buffer[MiB // 4 :]
            work = dist.all_reduce(half, async_op=True)
            other.add_(1)  # the next bucket of the same buffer
            assert not session.evict(buffer)
            half + 1
            assert session.evict(buffer)

            work = dist.broadcast(buffer, 0, async_op=True)
            buffer + 1  # the root may read it meanwhile
            assert not session.evict(buffer)
            buffer.zero_()
            assert session.evict(buffer)

            first = dist.all_reduce(part, async_op=True)
            second = dist.all_reduce(part, async_op=True)  # behind the first, which nobody has waited for
            second.wait()
            assert not session.evict(part)
            first.wait()
            assert session.evict(part)
        """
    )


def test_a_work_that_nobody_waits_for_holds_what_it_has_to_the_end_of_the_step() -> None:
    _alone(
        """
        with cl.Session("32MiB", min_swap="4KiB", planning=False) as session:
            dropped, held, failed = made(1), made(2), made(3)
            dist.all_reduce(dropped, async_op=True)
            work = dist.all_reduce(held, async_op=True)
            for _ in range(2):
                assert not session.evict(dropped) and not session.evict(held)
                session.step()
                assert session.evict(dropped) and not session.evict(held)
                dist.all_reduce(dropped, async_op=True)
            work.wait()
            assert session.evict(held)

            work = dist.all_reduce(failed, async_op=True)
            try:
                work.wait("no time")
            except TypeError:
                pass
            else:
                raise AssertionError("that is no timeout")
            assert not session.evict(failed)  # whoever failed to wait has not waited
            work.wait()
            assert session.evict(failed)
            dist.all_reduce(failed, async_op=True)
        assert session.where(failed) is None or session.where(failed) == "resident"
        assert float(failed.sum()) == 4.0 * failed.numel()
        """
    )


def test_a_collective_uses_what_it_has_at_both_of_its_ends() -> None:
    """And writes only what it receives: a copy on the host of what is sent stays good."""
    printed = _alone(
        """
        with cl.Session(None, device="cpu") as session:
            net = torch.nn.Linear(64, 64)
            buffer, part = made(1, parts=2), made(2)
            session.step()
            work = dist.all_gather_into_tensor(buffer, part, async_op=True)
            other = made(3)
            work.wait()
            result = torch.ops._c10d_functional.all_reduce(other, "sum", dist.group.WORLD.group_name)
            torch.ops._c10d_functional.wait_tensor(result)
            session.step()
            step = session.trace().last
        of = {int(step.storages.bytes[row]): row for row in range(len(step.storages))}
        uses = step.uses
        def used(storage):
            mine = uses.storage == storage
            return [
                (step.op_name(op), bool(writes))
                for op, writes in zip(uses.op[mine].tolist(), uses.writes[mine].tolist(), strict=True)
            ]
        print(json.dumps({"buffer": used(of[2 * MiB]), "ops": [step.op_name(op) for op in range(len(step.ops))],
            "ends": [used(row) for row in range(len(step.storages)) if step.storages.bytes[row] == MiB]}))
        """
    )
    found = json.loads(printed[-1])
    assert found["buffer"] == [["c10d::_allgather_base_", True], ["c10d::wait", False]]
    assert [["c10d::_allgather_base_", False], ["c10d::wait", False]] in found["ends"], found["ends"]
    waited = [ends for ends in found["ends"] if ends and ends[-1][0] == "_c10d_functional::wait_tensor"]
    assert len(waited) == 1 and waited[0][0][0] == "_c10d_functional::all_reduce", found["ends"]
    assert found["ops"].count("c10d::wait") == 1


def test_gloo_only_reads_what_it_is_given_to_send(tmp_path: Path) -> None:
    """The core takes the name of an argument for it. And no op of gloo's own threads is one of the step."""
    results = ranks(
        """
        def sent(seed, *shape):
            return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + rank))

        def names(call):
            with cl.Session(None, device="cpu") as session:
                torch.zeros(3)
                session.step()
                call()
                session.step()
                step = session.trace().last
            return [step.op_name(op) for op in range(len(step.ops))]

        n = 1 << 14
        calls = {
            "all_gather": lambda a, b: dist.all_gather([b[:n].clone(), b[n:].clone()], a[:n]),
            "all_gather_into_tensor": lambda a, b: dist.all_gather_into_tensor(b, a[:n]),
            "reduce_scatter": lambda a, b: dist.reduce_scatter(b[:n].clone(), [a[:n], a[n:]]),
            "reduce_scatter_tensor": lambda a, b: dist.reduce_scatter_tensor(b[:n].clone(), a),
            "all_to_all_single": lambda a, b: dist.all_to_all_single(b, a),
            "send": lambda a, b: dist.send(a, 1) if rank == 0 else dist.recv(b, 0),
            "gather": lambda a, b: dist.gather(a[:n], [b[:n].clone(), b[n:].clone()] if rank == 0 else None),
        }
        changed, ops = [], {}
        for number, (name, call) in enumerate(calls.items()):
            given, got = sent(number, 2 * n), torch.zeros(2 * n)
            before = given.clone()
            ops[name] = names(lambda: call(given, got))
            if not torch.equal(given, before):
                changed.append(name)
        result = {"changed": changed, "ops": ops}
        """,
        tmp_path,
    )
    for found in results:
        assert found["changed"] == []
        assert found["ops"]["reduce_scatter_tensor"][-2:] == ["c10d::_reduce_scatter_base_", "c10d::wait"]
        assert found["ops"]["all_to_all_single"] == ["c10d::alltoall_base_", "c10d::wait"]


@pytest.mark.parametrize("kind", ["ddp", "ddp views", "fsdp", "fsdp kept", "tp"])
def test_ranks_train_to_the_bit_at_a_third_of_the_peak_and_nothing_is_stuck(
    kind: str, tmp_path: Path
) -> None:
    results = ranks(
        f"""
        import contextlib

        kind, steps = {kind!r}, 6

        def run(session):
            with session or contextlib.nullcontext():
                training = Training(kind)
                losses = [training.step() for _ in range(steps)]
                report = session.report() if session else None
                step = session.trace().last if session else None
            return losses + [training.digest()], report, step

        plain, _, _ = run(None)
        recorded, report, step = run(cl.Session(None, device="cpu", min_swap="2KiB"))
        fixed = stuck_at_peak(step)
        capacity = int(0.34 * report.live_peak_bytes)
        swapped, tight, step = run(cl.Session(capacity, device="cpu", link="4GiB/s", min_swap="2KiB"))
        result = {{
            "same": [plain == recorded, plain == swapped],
            "fixed": fixed,
            "held": tight.peak_bytes <= capacity,
            "moved": tight.swapped_out_bytes > 0,
            "escaped": [report.escaped_storages, tight.escaped_storages],
            "refused": {{**report.refused, **tight.refused}},
            "labels": sorted(name for name in step.labels if name.startswith("0.")),
            "modules": sorted(set(step.modules)),
        }}
        """,
        tmp_path,
    )
    for found in results:
        assert found["same"] == [True, True], found
        assert found["held"] and found["moved"], found
        assert found["escaped"] == [0, 0], found
        assert found["fixed"] <= 16 << 10, found
        assert found["refused"] == {}, found
        assert {"0.up.weight", "0.down.bias"} <= set(found["labels"]), found
        assert "0.up" in found["modules"] and not any("module" in name for name in found["modules"]), found


def test_parameters_of_ddp_are_adopted_and_none_is_said_not_to_be() -> None:
    """DDP holds each parameter too. Those made inside of the session are its own all the same."""
    child("""
        import torch.distributed as dist
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        for view in (False, True):
            with cl.Session("8MiB", planning=False) as session:
                model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)])
                parallel = DistributedDataParallel(model, gradient_as_bucket_view=view)
                optimizer = torch.optim.AdamW(parallel.parameters())
                for _ in range(2):
                    parallel(torch.ones(8, 256)).sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                assert not session.report().refused, session.report().refused
                assert all(session.evict(p) for p in model.parameters() if p.numel() > 4096)
        dist.destroy_process_group()
    """)


@pytest.mark.bits
@pytest.mark.parametrize("hook", [True, False])
@pytest.mark.parametrize("views", [True, False])
@pytest.mark.parametrize("steps_before", [0, 3])
def test_buckets_and_gradients_of_ddp_leave_and_come_back(steps_before: int, views: bool, hook: bool) -> None:
    """DDP asks both whether one is a view of the other: where one is away, that raised an error before torch 2.13.

    Buckets that DDP has made before the session are not its own, and stay.
    """
    child(f"""
        import contextlib
        import torch.distributed as dist
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        core.pretend_no_hook({not hook})

        class Training:
            def __init__(self):
                torch.manual_seed(0)
                self.net = nn.Sequential(*[nn.Linear(256, 256) for _ in range(6)])
                self.model = DistributedDataParallel(
                    self.net, bucket_cap_mb=0.25, gradient_as_bucket_view={views})
                self.optimizer = torch.optim.AdamW(self.model.parameters())
                for p in self.net.parameters():
                    p.register_hook(self.leave)  # before it is accumulated
                self.left = []

            def leave(self, gradient):
                if session.is_open:
                    self.left.append(session.evict(gradient))

            def step(self):
                loss = self.model(torch.ones(8, 256)).square().mean()
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                return loss.item().hex()

        def run(inside):
            made = Training() if {steps_before} else None
            losses = [made.step() for _ in range({steps_before})]
            with inside:
                if session.is_open and made:
                    session.adopt(made.net, made.optimizer)
                made = made or Training()
                losses += [made.step() for _ in range(4)]
            return [losses, [p.tolist() for p in made.net.parameters()]], made.left

        session = cl.Session("4.5MiB", planning=False)
        plain, _ = run(contextlib.nullcontext())
        found, left = run(session)
        assert found == plain
        assert any(left)
        report = session.report()
        assert report.evictions > 0 and report.peak_bytes <= 4.5 * MiB
        assert report.escaped_storages == 0, report
        dist.destroy_process_group()
    """)


def test_a_parallel_model_of_before_the_session_is_adopted_where_asked(tmp_path: Path) -> None:
    results = ranks(
        """
        result = {}
        for kind in ("ddp", "fsdp", "tp"):
            training = Training(kind)
            training.step()
            with cl.Session("64MiB", device="cpu", planning=False, min_swap="2KiB") as session:
                session.adopt(training.model, training.optimizer)
                training.step()
                parts = [getattr(p, "_local_tensor", p) for p in training.model.parameters() if p.numel() > 4096]
                result[kind] = {"refused": session.report().refused, "left": [session.evict(p) for p in parts]}
        """,
        tmp_path,
    )
    for rank in results:
        for kind, found in rank.items():
            assert found["refused"] == {}, (kind, found)
            assert found["left"] and all(found["left"]), (kind, found)


@pytest.mark.skipif(not core.SEES_RAW_ACCESS, reason="before torch 2.13 it has to be brought in")
def test_what_is_away_is_not_brought_in_to_be_freed() -> None:
    """As FSDP frees its gathered parameters: it resizes their storages to nothing, and back later."""
    child("""
        with cl.Session("8MiB", min_swap="4KiB") as session:
            tensor = torch.arange(1 << 18, dtype=torch.float32) + 0
            assert session.evict(tensor)
            storage = tensor.untyped_storage()
            storage.resize_(0)
            assert storage.nbytes() == 0 and session.counters()["live_bytes"] == 0
            storage.resize_(1 << 20)
            tensor.fill_(2.0)
            assert session.evict(tensor) and float(tensor.sum()) == 2.0 * (1 << 18)
            session.step()
            transfers = session.trace().last.transfers
            assert transfers.direction.tolist() == [0, 0, 1], transfers.direction  # out, and out and in again
            assert session.report().escaped_storages == 0
    """)
