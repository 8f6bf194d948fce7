"""A small model made parallel in one of several ways, and its training on one rank."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from chameleon_lab.trace import StepTrace

DIM, BATCH = 64, 160


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def plain_model(layers: int = 4) -> nn.Module:
    """The same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(*[_Block() for _ in range(layers)])


def parallel(kind: str, net: nn.Module) -> nn.Module:
    """``"ddp"``, ``"ddp views"``, ``"fsdp"``, ``"fsdp kept"`` (no reshard), ``"tp"``."""
    if kind.startswith("ddp"):
        return nn.parallel.DistributedDataParallel(
            net, bucket_cap_mb=0.1, gradient_as_bucket_view=kind == "ddp views"
        )
    if kind.startswith("fsdp"):
        from torch.distributed.fsdp import fully_shard

        for block in net:
            fully_shard(block, reshard_after_forward=kind == "fsdp")
        return fully_shard(net, reshard_after_forward=kind == "fsdp")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in net:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return net


class Training:
    """Of one rank. Each has data of its own, but under tensor parallelism."""

    def __init__(self, kind: str, net: nn.Module | None = None) -> None:
        self.model = parallel(kind, plain_model() if net is None else net)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self._data = torch.Generator().manual_seed(0 if kind == "tp" else 1 + dist.get_rank())

    def step(self) -> str:
        """Train one step; returns the loss, to the bit."""
        self.optimizer.zero_grad()
        loss = self.model(torch.randn(BATCH, DIM, generator=self._data)).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item().hex()

    def digest(self) -> str:
        """Of this rank's weights and optimizer states, to the bit."""
        found = hashlib.sha256()
        for parameter in self.model.parameters():
            for tensor in (parameter, *_tensors(self.optimizer.state.get(parameter, {}))):
                local = getattr(tensor, "_local_tensor", tensor).detach().reshape(-1)
                found.update(bytes(local.contiguous().view(torch.uint8).tolist()))
        return found.hexdigest()


def stuck_at_peak(step: StepTrace) -> int:
    """Bytes that cannot leave at the op where most are alive."""
    rows, count = step.storages, len(step.ops)
    live, stuck = (np.zeros(count + 2, dtype=np.int64) for _ in range(2))
    for change, which in ((live, rows.block_bytes > 0), (stuck, ~rows.movable.astype(bool))):
        np.add.at(change, np.maximum(rows.birth_op[which], 0), rows.block_bytes[which])
        np.subtract.at(change, np.minimum(rows.death_op[which], count) + 1, rows.block_bytes[which])
    return int(stuck.cumsum()[live.cumsum()[:count].argmax()])


def _tensors(state: dict[str, Any]) -> list[torch.Tensor]:
    return [value for _, value in sorted(state.items()) if isinstance(value, torch.Tensor)]
