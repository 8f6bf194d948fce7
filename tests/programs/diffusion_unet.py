"""diffusers: a UNet that learns to take noise away, with an average of its weights, and samples at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

NEEDS = ("diffusers",)


def run(folder: Path, steps: int) -> Any:
    from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
    from diffusers.training_utils import EMAModel

    torch.manual_seed(0)
    model = UNet2DModel(
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
    scheduler = DDPMScheduler(num_train_timesteps=50)
    average = EMAModel(model.parameters(), decay=0.9)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        images, noise = torch.randn(8, 3, 16, 16), torch.randn(8, 3, 16, 16)
        times = torch.randint(0, 50, (8,))
        predicted = model(scheduler.add_noise(images, noise, times), times).sample
        loss = torch.nn.functional.mse_loss(predicted, noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        average.step(model.parameters())
        losses.append(loss.item())
    average.copy_to(model.parameters())
    pipeline = DDPMPipeline(model, scheduler)
    pipeline.set_progress_bar_config(disable=True)
    samples = pipeline(
        batch_size=1, num_inference_steps=3, generator=torch.Generator().manual_seed(0), output_type="np"
    ).images
    return losses, torch.from_numpy(samples), model.state_dict()
