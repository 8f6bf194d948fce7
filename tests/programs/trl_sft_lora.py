"""TRL's SFTTrainer with LoRA adapters of peft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

NEEDS = ("trl", "peft", "transformers", "datasets")


def run(folder: Path, steps: int) -> Any:
    from datasets import Dataset
    from peft import LoraConfig
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    torch.manual_seed(0)
    words = {
        word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *"abcdefghijklmnopqrstuvwxyz"])
    }
    plain = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=256,
            intermediate_size=640,
            num_hidden_layers=6,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=32,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=1,
        )
    )
    generator = torch.Generator().manual_seed(1)
    texts = [
        " ".join(
            "abcdefghijklmnopqrstuvwxyz"[i] for i in torch.randint(0, 26, (14,), generator=generator).tolist()
        )
        for _ in range(48)
    ]
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(
            output_dir=str(folder),
            max_steps=steps,
            per_device_train_batch_size=2,  # the loss fills 32,768 columns a token, however few words there are
            learning_rate=1e-2,
            logging_steps=1,
            max_length=14,
            save_steps=3,
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"text": texts}),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=8, target_modules=["q_proj", "v_proj", "up_proj"], task_type="CAUSAL_LM"),
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, trainer.model.state_dict()
