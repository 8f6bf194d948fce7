"""A BERT classifier: groups of weights with decay of their own, a warm-up, early stopping on evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

NEEDS = ("transformers",)


def run(folder: Path, steps: int) -> Any:
    from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=128,
        hidden_size=64,
        num_hidden_layers=5,
        num_attention_heads=2,
        intermediate_size=192,
        max_position_embeddings=64,
        num_labels=3,
    )
    model = BertForSequenceClassification(config)
    bare = ("bias", "LayerNorm.weight")
    groups = [
        {"params": [p for n, p in model.named_parameters() if not n.endswith(bare)], "weight_decay": 0.01},
        {"params": [p for n, p in model.named_parameters() if n.endswith(bare)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    schedule = get_linear_schedule_with_warmup(optimizer, 2, steps)
    losses, best, best_state = [], float("inf"), {}
    for number in range(steps):
        length = 32 + 16 * (number % 2)
        tokens, labels = torch.randint(0, 128, (4, length)), torch.randint(0, 3, (4,))
        loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if number % 3 == 2:
            model.eval()
            with torch.no_grad():
                found = model(input_ids=torch.ones(4, 48, dtype=torch.long), labels=labels).loss.item()
            model.train()
            if found < best:
                best, best_state = found, {k: v.clone() for k, v in model.state_dict().items()}
    return losses, best, best_state, model.state_dict()
