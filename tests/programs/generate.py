"""Text from a transformer, with a cache of keys and values: no gradient and no optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

NEEDS = ("transformers",)


def run(folder: Path, steps: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    written = []
    for _ in range(max(2, steps // 3)):
        prompt = torch.randint(2, 64, (4, 16))
        mask = torch.ones_like(prompt)
        written.append(model.generate(prompt, attention_mask=mask, max_new_tokens=12, do_sample=True))
    return written
