"""The models of the rematerialization benchmark, and the checkpointing that others would put into them.

Shapes are chosen so that a step takes about a tenth of a second on one core, and most of the peak is what the backward
pass needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from .models import Case, Job, convnet_job, gpt_job, llama_job

CHECKPOINT, REENTRANT, SELECTIVE = "checkpoint", "reentrant", "selective"

_BLOCKS = frozenset(("Block", "Residual", "LlamaDecoderLayer"))
"""Classes of the modules that repeat."""

_SAVED = [
    packet.default
    for name in (
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "convolution",
        "_scaled_dot_product_flash_attention_for_cpu",
    )
    if (packet := getattr(torch.ops.aten, name, None)) is not None
]
"""What selective checkpointing keeps: what is dear to run again. All else is recomputed."""


def checkpointed(case: Case, how: str) -> Case:
    """The case with every block of its model under ``torch.utils.checkpoint``.

    ``how`` is CHECKPOINT (non-reentrant), REENTRANT, or SELECTIVE: non-reentrant, and the results of matrix products,
    attention and convolutions are kept.
    """

    def make(tiny: bool) -> Job:
        job = case.make(tiny)
        for module in job.model.modules():
            if type(module).__name__ in _BLOCKS:
                module.forward = _checkpointed(module.forward, how)
        return job

    return replace(case, make=make)


def _checkpointed(forward: Callable[..., Any], how: str) -> Callable[..., Any]:
    options: dict[str, Any] = {"use_reentrant": how == REENTRANT}
    if how == SELECTIVE:
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _SAVED)

    def run(*inputs: Any, **others: Any) -> Any:
        return checkpoint(partial(forward, **others), *inputs, **options)

    return run


def _gpt(tiny: bool) -> Job:
    return gpt_job(*((4, 32, 64, 2, 3) if tiny else (4, 256, 96, 3, 6)), dropout=0.0)


def _dropout(tiny: bool) -> Job:
    shape = (4, 32, 64, 2, 3) if tiny else (4, 192, 96, 3, 4)
    return gpt_job(*shape, dropout=0.1, attention_dropout=0.1)


def _bfloat16(tiny: bool) -> Job:
    job = _gpt(tiny)
    loss = job.loss

    def in_bfloat16(model: nn.Module, *batch: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss(model, *batch)

    return replace(job, loss=in_bfloat16)


def _llama(tiny: bool) -> Job:
    return llama_job(4, 32, 64, 2, 128) if tiny else llama_job(4, 256, 96, 4, 256)


def _moe(tiny: bool) -> Job:
    shape = (4, 32, 64, 2, 2) if tiny else (4, 256, 64, 2, 6)
    return gpt_job(*shape, experts=4, dropout=0.0)


def _convnet(tiny: bool) -> Job:
    return convnet_job(16, 2, 4, 16) if tiny else convnet_job(16, 8, 8, 32)


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case("gpt", "character GPT of 6 layers and width 96 on 4 x 256 characters, float32", _gpt),
        Case("gpt-bf16", "the same under bfloat16 autocast", _bfloat16),
        Case("llama", "transformers' Llama: 4 layers of width 96, 4 x 256 tokens", _llama),
        Case("moe", "character GPT with 4 experts in every second layer, routed by the data", _moe),
        Case("convnet", "residual network with batch norm: 16 blocks, 8 images of 32 x 32", _convnet),
        Case(
            "dropout",
            "character GPT of 4 layers with dropout after every layer and within attention, made of plain ops",
            _dropout,
        ),
    )
}
