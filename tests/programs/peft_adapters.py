"""An own loop over a model with LoRA adapters: most weights are frozen; the adapters are saved and merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

NEEDS = ("peft", "transformers")


def run(folder: Path, steps: int) -> Any:
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=128, n_positions=64, n_embd=96, n_layer=5, n_head=2, bos_token_id=0, eos_token_id=0
    )
    adapters = LoraConfig(r=8, target_modules=["c_attn", "c_fc"], task_type="CAUSAL_LM", fan_in_fan_out=True)
    model = get_peft_model(GPT2LMHeadModel(config), adapters)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    losses = []
    for number in range(steps):
        tokens = torch.randint(0, 128, (4, 64))
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if number == 2:
            model.save_pretrained(str(folder))
    return losses, model.merge_and_unload().state_dict()
