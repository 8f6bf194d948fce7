"""Lightning with an average of the weights (EMA), a scheduler, clipping, validation and checkpoints."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from torch import nn

NEEDS = ("lightning",)


def run(folder: Path, steps: int) -> Any:
    import lightning as L
    from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint

    class Classifier(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            layers: list[nn.Module] = []
            for _ in range(8):
                layers += [nn.Linear(96, 96), nn.LayerNorm(96), nn.GELU()]
            self.layers, self.head = nn.Sequential(*layers), nn.Linear(96, 10)
            self.losses: list[float] = []

        def loss(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            x, y = batch
            return nn.functional.cross_entropy(self.head(self.layers(x)), y)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            loss = self.loss(batch)
            self.log("train_loss", loss)
            self.losses.append(loss.item())
            return loss

        def validation_step(self, batch: Any, _: int) -> None:
            self.log("val_loss", self.loss(batch))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)]

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(1024, 96), torch.randint(0, 10, (1024,)))
    model = Classifier()
    trainer = L.Trainer(
        max_steps=steps,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=0.5,
        default_root_dir=folder,
        limit_val_batches=2,
        val_check_interval=2,
        callbacks=[EMAWeightAveraging(decay=0.9), ModelCheckpoint(folder, every_n_train_steps=3)],
    )
    loader = torch.utils.data.DataLoader(data, batch_size=128, shuffle=True)
    trainer.fit(model, loader, torch.utils.data.DataLoader(data, batch_size=128))
    return model.losses, model.state_dict()
