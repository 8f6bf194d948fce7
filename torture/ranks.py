"""One rank of a training over gloo: ``python -m torture.ranks ddp|fsdp plain|swapped|killed RANK STORE``.

Its last line is a digest of the weights; of a rank whose peer was killed, that it has survived. A rank that should swap
and moves no bytes fails.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import chameleon_lab as cl

from .compare import bits

_STEPS = 6
_KILLED_AT = 3
_CAPACITY = "1536KiB"


def _model(kind: str) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Sequential(nn.Linear(128, 128), nn.GELU()) for _ in range(6)])
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.1)
    from torch.distributed.fsdp import fully_shard

    for block in net:
        fully_shard(block)
    return fully_shard(net)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _after(steps: int, optimizer: torch.optim.Optimizer) -> str:
    """What this rank holds of the weights after some steps, in a line."""
    own = [getattr(p, "_local_tensor", p).detach() for p in optimizer.param_groups[0]["params"]]
    return f"after {steps} steps: {hashlib.sha256(repr(bits(own)).encode()).hexdigest()}"


def main(kind: str, ending: str, rank: int, store: str) -> None:
    """Train; see the module."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=30),
    )
    session = (
        None if ending == "plain" else cl.Session(_CAPACITY, device="cpu", link="1GiB/s", min_swap="2KiB")
    )
    generator = torch.Generator().manual_seed(rank)
    model, died, done = None, "", 0
    try:
        with session or nullcontext():
            model = _model(kind)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            for step in range(_STEPS):
                if ending == "killed" and rank == 1 and step == _KILLED_AT:
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.zero_grad()
                model(torch.randn(128, 128, generator=generator)).pow(2).mean().backward()
                optimizer.step()
                done = step + 1
                if ending == "plain":
                    print(_after(done, optimizer))
            if session is not None and ending == "swapped":
                report = session.report()
                moved = (report.swapped_out_bytes, report.swapped_in_bytes)
                assert all(moved), f"bytes out and in: {moved}: nothing was swapped"
                print("bytes out and in:", *moved)
    except RuntimeError as error:
        died = str(error).splitlines()[0]
    if ending != "killed":
        if died:
            sys.exit(died)
        whole = bits([_whole(parameter.detach()) for parameter in model.parameters()])
        print(hashlib.sha256(repr(whole).encode()).hexdigest())
        dist.destroy_process_group()
        return
    assert died, "nobody noticed that a rank was killed"
    assert cl.current_session() is None
    print(_after(done, optimizer))
    with cl.Session(_CAPACITY, min_swap="2KiB"):
        net = nn.Linear(128, 128)
        net(torch.ones(9, 128)).sum().backward()
    print("survived", died[:80])
    sys.stdout.flush()
    os._exit(0)  # the group cannot be left in good order any more


if __name__ == "__main__":
    Path(sys.argv[4]).parent.mkdir(parents=True, exist_ok=True)
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
