"""Train a while, export in every way there is in the middle of it, and train on."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_model
from torch import nn

NEEDS = ("safetensors",)


def run(folder: Path, steps: int) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(96, 96), nn.ReLU())))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses, results = [], []
    for number in range(steps):
        x = torch.randn(128, 96)
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if number == steps // 2:
            model.eval()
            example = torch.ones(2, 96)
            exported = torch.export.export(model, (example,))
            torch.export.save(exported, folder / "model.pt2")
            traced = torch.jit.trace(model, example)
            traced.save(str(folder / "model.pt"))
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "all.pt")
            save_model(model, str(folder / "model.safetensors"))
            results += [
                exported.module()(example),
                traced(example),
                torch.load(folder / "all.pt"),
                load_file(folder / "model.safetensors"),
                pickle.loads(pickle.dumps(model.state_dict())),
                copy.deepcopy(model).state_dict(),
            ]
            del exported, traced
            model.train()
    return losses, results, model.state_dict()
