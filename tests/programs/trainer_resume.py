"""Hugging Face Trainer: accumulation, evaluations, checkpoints, and a second run that resumes from one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

NEEDS = ("transformers", "accelerate")


class Tokens(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 64

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 96, (64,), generator=torch.Generator().manual_seed(row))
        return {"input_ids": tokens, "labels": tokens}


def trainer(folder: Path, steps: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=96, n_positions=64, n_embd=64, n_layer=4, n_head=2, bos_token_id=0, eos_token_id=0
        )
    )
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=4,
        save_steps=max(1, steps // 2),
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=5,
    )
    return Trainer(
        model, arguments, train_dataset=Tokens(), eval_dataset=torch.utils.data.Subset(Tokens(), range(4))
    )


def run(folder: Path, steps: int) -> Any:
    first = trainer(folder, steps)
    first.train()
    second = trainer(folder, steps + 1)
    second.train(resume_from_checkpoint=True)
    losses = [entry["loss"] for entry in second.state.log_history if "loss" in entry]
    return losses, first.model.state_dict(), second.model.state_dict()
