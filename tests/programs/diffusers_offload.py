"""diffusers' offloading to disk, by blocks and by layers, and its casting by layers: three teachers of a UNet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

NEEDS = ("diffusers",)


def run(folder: Path, steps: int) -> Any:
    from diffusers import UNet2DModel
    from diffusers.hooks import apply_group_offloading, apply_layerwise_casting

    def unet() -> UNet2DModel:
        return UNet2DModel(
            sample_size=16,
            in_channels=3,
            out_channels=3,
            layers_per_block=1,
            block_out_channels=(16, 32),
            norm_num_groups=8,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            attention_head_dim=8,
        )

    torch.manual_seed(0)
    blocks, leaves, cast = unet().eval(), unet().eval(), unet().eval()
    where = {"onload_device": torch.device("cpu"), "offload_device": torch.device("cpu")}
    for teacher, kind in ((blocks, "block_level"), (leaves, "leaf_level")):
        apply_group_offloading(
            teacher,
            **where,
            offload_type=kind,
            num_blocks_per_group=1 if teacher is blocks else None,
            offload_to_disk_path=str(folder / kind),
        )
    apply_layerwise_casting(cast, storage_dtype=torch.bfloat16, compute_dtype=torch.float32)
    student = unet()
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        images, times = torch.randn(8, 3, 16, 16), torch.randint(0, 50, (8,))
        with torch.no_grad():
            wanted = torch.stack([teacher(images, times).sample for teacher in (blocks, leaves, cast)])
        loss = torch.nn.functional.mse_loss(student(images, times).sample, wanted.mean(0))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, student.state_dict()
