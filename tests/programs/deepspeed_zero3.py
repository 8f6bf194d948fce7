"""DeepSpeed's ZeRO-3: parameters come before each module and go behind it, and Adam steps group by group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

NEEDS = ("deepspeed",)
APART = "deepspeed"

DIM = 192
CONFIG = {
    "train_micro_batch_size_per_gpu": 16,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    # The defaults are for models a thousand times as large: buffers of 1 GB.
    "zero_optimization": {
        "stage": 3,
        "stage3_param_persistence_threshold": 0,
        "reduce_bucket_size": 65_536,
        "stage3_prefetch_bucket_size": 65_536,
        "sub_group_size": 65_536,
        "stage3_max_live_parameters": 100_000,
        "stage3_max_reuse_distance": 0,
    },
}


@contextmanager
def restored() -> Iterator[None]:
    """DeepSpeed sets environment variables, and replaces ``linear`` for as long as the process lives."""
    before, linear = dict(os.environ), nn.functional.linear
    try:
        yield
    finally:
        nn.functional.linear = linear
        os.environ.clear()
        os.environ.update(before)


def prepare() -> None:
    """DeepSpeed asks at its first import which accelerator there is."""
    with restored(), suppress(ImportError):
        os.environ["DS_ACCELERATOR"] = "cpu"
        import deepspeed

        # It would be compiled, into the user's home, for ranks that DeepSpeed's own launcher has started.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def trained(folder: Path, steps: int) -> Any:
    """On this rank of the default process group."""
    import deepspeed

    model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(DIM, DIM), nn.GELU())))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    losses = []
    for _ in range(steps):
        for _ in range(2):
            x, y = torch.randn(2, 16, DIM, dtype=torch.bfloat16)
            loss = nn.functional.mse_loss(engine(x), y)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    engine.save_checkpoint(str(folder))
    parts = [parameter.ds_tensor.clone() for parameter in model.parameters()]
    engine.destroy()
    return losses, parts


def run(folder: Path, steps: int) -> Any:
    """On one rank, which has all parts: nothing is gathered."""
    import deepspeed

    torch.manual_seed(0)
    with restored():
        os.environ["LOCAL_RANK"] = "0"
        store = f"file://{folder}/store"
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False, init_method=store, rank=0, world_size=1)
        try:
            return trained(folder, steps)
        finally:
            deepspeed.comm.destroy_process_group()
