"""Full-size models for benchmarks of planning: built for :func:`chameleon_lab.trace_meta`, never with memory.

Weights, gradients and optimizer states are bfloat16, attention is torch's scaled_dot_product_attention, the loss is
transformers' own, which works on float32 logits in the models of texts. ``python -m benchmarks.shapes`` prints what
their traces hold.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import chameleon_lab as cl
from chameleon_lab.planner import floor
from chameleon_lab.util.units import format_percent


@dataclass(frozen=True)
class Shape:
    """A model with its batch. ``build()`` makes it with AdamW and returns its training step, for ``trace_meta``."""

    name: str
    about: str
    make_model: Callable[[], torch.nn.Module]
    batch: int
    length: int
    accumulated: int = 1
    """Batches whose gradients are added up for one step of the optimizer."""

    vocabulary: int = 32000
    classifies: bool = False
    """Is it a model of images, of ``length`` pixels each way, and not of tokens?"""

    def build(self, tokens_of: Callable[[], torch.Tensor] | None = None) -> Callable[[], torch.Tensor]:
        """Model, optimizer and tokens, where torch makes tensors; the function that trains one step, and gives its last
        loss. ``tokens_of`` makes a batch's tokens, (batch, length); else they are all the same.
        """
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            model = self.make_model().train()
        finally:
            torch.set_default_dtype(before)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        same = self._images() if self.classifies else self._texts()

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            for _ in range(self.accumulated):
                batch = same if tokens_of is None else self._texts(tokens_of())
                loss = model(**batch).loss
                loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    def _texts(self, tokens: torch.Tensor | None = None) -> dict[str, Any]:
        if tokens is None:
            tokens = torch.zeros(self.batch, self.length, dtype=torch.long)
        return {"input_ids": tokens, "labels": tokens, "use_cache": False}

    def _images(self) -> dict[str, Any]:
        pixels = torch.zeros(self.batch, 3, self.length, self.length, dtype=torch.bfloat16)
        return {"pixel_values": pixels, "labels": torch.zeros(self.batch, dtype=torch.long)}

    def trace(self, device: str | cl.Roofline = "H100") -> cl.Trace:
        """A steady step of it on a device."""
        return cl.trace_meta(self.build, device=device)


def _gpt2_small() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=50304, n_positions=1024, bos_token_id=0, eos_token_id=0))


def _llama(
    width: int, inner: int, layers: int, heads: int, key_heads: int, vocabulary: int, length: int
) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=key_heads, max_position_embeddings=length,
            tie_word_embeddings=False, bos_token_id=0, eos_token_id=0, pad_token_id=None,
        )
    )  # fmt: skip


def _mixtral() -> torch.nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=32000, hidden_size=2048, intermediate_size=7168, num_hidden_layers=12, num_attention_heads=16,
        num_key_value_heads=4, num_local_experts=8, num_experts_per_tok=2, max_position_embeddings=4096,
        bos_token_id=0, eos_token_id=0, pad_token_id=None,
    )  # fmt: skip
    model = MixtralForCausalLM(config)
    model.set_experts_implementation("grouped_mm")  # else the experts' shapes depend on the data
    return model


def _vit_large() -> torch.nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16, num_labels=1000
        )
    )  # fmt: skip


SHAPES: dict[str, Shape] = {
    shape.name: shape
    for shape in (
        Shape("gpt2", "GPT-2 small, 16 x 1024 tokens", _gpt2_small, 16, 1024),
        Shape(
            "llama-1b",
            "Llama of 1.5 B parameters (vocabulary 128256), 4 x 2048 tokens",
            lambda: _llama(2048, 8192, 16, 32, 8, 128256, 2048),
            4,
            2048,
        ),
        Shape(
            "llama-7b",
            "Llama of 6.7 B parameters, 2 x 4096 tokens",
            lambda: _llama(4096, 11008, 32, 32, 32, 32000, 4096),
            2,
            4096,
        ),
        Shape(
            "moe",
            "Mixtral of 4.5 B parameters, 8 experts, 2 of them a token, 4 x 4096 tokens",
            _mixtral,
            4,
            4096,
        ),
        Shape("vit-l", "ViT-L/16, 128 images of 224 x 224 pixels", _vit_large, 128, 224, classifies=True),
        Shape(
            "llama-3-8b",
            "Llama-3-8B's shape, 8.0 B parameters, 4 times 1 x 8192 tokens",
            lambda: _llama(4096, 14336, 32, 32, 8, 128256, 8192),
            1,
            8192,
            4,
            128256,
        ),
    )
}


def tiny_llama() -> Shape:
    """One of no interest, in seconds."""
    return Shape("tiny", "tiny, no figure", lambda: _llama(64, 128, 3, 4, 2, 256, 32), 2, 32, 2, 256)


def main() -> None:
    """Trace each shape and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shapes", nargs="*", default=list(SHAPES), help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--device", default="H100", help="whose op times (default: %(default)s)")
    parser.add_argument("--save", metavar="FOLDER", help="save each trace there, as NAME.parquet")
    arguments = parser.parse_args()
    print(f"{'shape':10} {'ops':>6} {'storages':>8} {'peak':>9} {'floor':>9} {'step':>8} {'traced in':>9}")
    for name in arguments.shapes:
        begin = time.perf_counter()
        trace = SHAPES[name].trace(arguments.device)
        traced_s = time.perf_counter() - begin
        step = trace.last
        peak = step.live_peak_bytes
        print(
            f"{name:10} {len(step.ops):6} {len(step.storages):8} {peak / 1e9:6.1f} GB "
            f"{format_percent(floor(step).bytes / peak):>9} {step.duration_s * 1e3:5.0f} ms {traced_s:7.1f} s"
        )
        if arguments.save:
            trace.save(f"{arguments.save}/{name}.parquet")


if __name__ == "__main__":
    main()
