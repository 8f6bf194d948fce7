"""timm: a small vision transformer with stochastic depth, mixup, label smoothing and timm's own optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

NEEDS = ("torchvision", "timm")
APART = "timm"


def run(folder: Path, steps: int) -> Any:
    import numpy as np
    import timm
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.utils import ModelEmaV3

    torch.manual_seed(0)
    np.random.seed(0)
    shape = dict(img_size=32, patch_size=4, embed_dim=64, depth=6, num_heads=2)
    model = timm.create_model("vit_tiny_patch16_224", **shape, num_classes=10, drop_path_rate=0.1)
    optimizer = create_optimizer_v2(model, opt="lamb", lr=1e-3, weight_decay=0.05)
    average = ModelEmaV3(model, decay=0.9)
    mixup, loss_of = Mixup(mixup_alpha=0.4, num_classes=10), SoftTargetCrossEntropy()
    losses = []
    for _ in range(steps):
        images, targets = mixup(torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,)))
        loss = loss_of(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model)
        losses.append(loss.item())
    return losses, model.state_dict(), average.module.state_dict()
