"""One replica of a small training under torchft. ``worker.py FOLDER NAME``; how it goes is in FOLDER/job.json.

It stops where it is told to: from the step of a file ``hold-NAME-STEP`` on it writes ``at-NAME-STEP``, and goes on
once there is ``go-NAME-STEP``.
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import chameleon_lab as cl
from chameleon_lab.integrations.torchft import FaultTolerant

FOLDER, NAME = Path(sys.argv[1]), sys.argv[2]
JOB = json.loads((FOLDER / "job.json").read_text())
DIM, LAYERS, TIME, VOCAB = 32, 3, 32, 64


class Block(nn.Module):
    """An MLP with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(DIM), nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + nn.functional.dropout(self.down(nn.functional.gelu(self.up(self.norm(x)))), 0.1)


def batch(step: int, grain: int) -> tuple[torch.Tensor, torch.Tensor]:
    dice = torch.Generator().manual_seed(1000 * step + grain)
    start, stride = torch.randint(VOCAB, (4, 1), generator=dice), torch.randint(1, 5, (4, 1), generator=dice)
    tokens = (start + stride * torch.arange(TIME + 1)) % VOCAB
    return tokens[:, :-1], tokens[:, 1:]


def hold(step: int) -> None:
    """Wait where the test says so: at this step or an earlier one that was passed while healing."""
    for file in sorted(FOLDER.glob(f"hold-{NAME}-*")):
        number = file.name.rpartition("-")[2]
        if int(number) <= step:
            (FOLDER / f"at-{NAME}-{number}").touch()
            while not (FOLDER / f"go-{NAME}-{number}").exists():
                time.sleep(0.02)


def killing(manager: object, step: int) -> None:
    """The process dies in the all-reduce of a step's gradients."""
    plain = manager.allreduce

    def allreduce(tensor: torch.Tensor, **arguments: object) -> object:
        if manager.current_step() == step and tensor.dim() == 2 and tensor.dtype == torch.float32:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(tensor, **arguments)

    manager.allreduce = allreduce


def main() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    losses = {}
    with cl.Session():
        torch.manual_seed(0)
        blocks = [Block() for _ in range(LAYERS)]
        model = nn.Sequential(nn.Embedding(VOCAB, DIM), *blocks, nn.Linear(DIM, VOCAB))
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        with FaultTolerant(
            model,
            optimizer,
            grains=JOB["grains"],
            bucket_bytes="48KiB",
            timeout=JOB["timeout_s"],
            min_replica_size=1,
            rank=0,
            world_size=1,
            store_addr="127.0.0.1",
            store_port=store.port,
            lighthouse_addr=JOB["lighthouse"],
            replica_id=f"replica_{NAME}_",
            hostname="127.0.0.1",
        ) as ft:
            if JOB["killed"] == NAME:
                killing(ft.manager, JOB["killed_at"])
            (FOLDER / f"up-{NAME}").touch()
            while ft.step < JOB["steps"]:
                hold(ft.step)
                for grain in ft.grains():
                    x, y = batch(ft.step, grain)
                    ft.backward(nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()))
                step = ft.step
                if ft.commit():
                    losses[step] = ft.loss
            digest = hashlib.sha256()
            for p in model.parameters():
                digest.update(p.detach().clone().numpy().tobytes())
            found = {
                "losses": losses,
                "weights": digest.hexdigest(),
                "failed": ft.failed_commits,
                "healed": ft.healed,
            }
            beside = FOLDER / f"found-{NAME}.tmp"
            beside.write_text(json.dumps(found))
            beside.rename(FOLDER / f"found-{NAME}.json")
    os._exit(0)  # torchft's threads may wait for a group that is gone


main()
