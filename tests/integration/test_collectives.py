"""Collectives go on with their tensors, along streams of their own, when their ops have ended: those must not leave."""

from __future__ import annotations

import json

from training import child


def test_what_a_collective_was_given_never_leaves_again() -> None:
    """The process group does nothing, so no raw access shows what NCCL would be reading."""
    done = child("""
        import json
        import torch.distributed as dist
        import torch.distributed._functional_collectives as functional
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
        stayed, right = {}, []

        def made(value):
            return torch.full((MiB // 4,), float(value)) + 1

        with cl.Session("32MiB", min_swap="4KiB") as session:
            def check(name, *tensors):
                stayed[name] = [not session.evict(t) and session.where(t) == "resident" for t in tensors]

            other = made(0)
            assert session.evict(other)
            away = made(1)
            assert session.evict(away)
            work = dist.all_reduce(away, async_op=True)
            check("all_reduce", away)
            right.append(float(away[0] + away[-1]) == 4.0)

            parts, whole = [made(2), made(3)], made(4)
            assert session.evict(parts[1])
            dist.all_gather(parts, whole)
            check("all_gather", *parts, whole)

            pieces, piece = [made(5), made(6)], made(7)
            dist.reduce_scatter(piece, pieces)
            check("reduce_scatter", piece, *pieces)

            source = made(8)
            result = functional.all_reduce(source, "sum", dist.group.WORLD)
            check("functional all_reduce", source, functional.wait_tensor(result))
            report = session.report()
            assert session.where(other) == "away"
        dist.destroy_process_group()
        print(json.dumps({"stayed": stayed, "right": right, "escaped": report.escaped_storages}))
    """)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert all(all(each) for each in found["stayed"].values()), found
    assert found["right"] == [True] and found["escaped"] >= 9


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
