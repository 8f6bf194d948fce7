"""Architectures that nobody here wrote, with random weights: 5 steps at a quarter of the peak, to the bit."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import chameleon_lab as cl

from .compare import bits, different, seed_all
from .outcome import Outcome
from .pool import Options, package

_STEPS = 5
_PART = 4
_MIN_SWAP = "2KiB"
_SHARE = ("GPT-2 (decoder)", "ViT (vision)")
_VOCABULARY, _LENGTH, _BATCH = 512, 48, 4
_ENCODER_DECODER = {
    "vocab_size": _VOCABULARY,
    "d_model": 64,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 160,
    "decoder_ffn_dim": 160,
}


@dataclass(frozen=True)
class Architecture:
    """How to make a model, and what to call it with. ``package``: what must be installed."""

    package: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Any]]


def _tokens() -> dict[str, Any]:
    tokens = torch.randint(10, _VOCABULARY, (_BATCH, _LENGTH))
    return {"input_ids": tokens, "labels": tokens}


def _sequences() -> dict[str, Any]:
    return _tokens() | {"labels": torch.randint(0, 2, (_BATCH,))}


def _images() -> dict[str, Any]:
    return {"pixel_values": torch.randn(_BATCH, 3, 64, 64), "labels": torch.randint(0, 2, (_BATCH,))}


def _mel() -> dict[str, Any]:
    return {
        "input_features": torch.randn(_BATCH, 80, 120),
        "labels": torch.randint(10, _VOCABULARY, (_BATCH, 20)),
    }


def _wave() -> dict[str, Any]:
    return {"input_values": torch.randn(_BATCH, 4000), "labels": torch.randint(0, 2, (_BATCH,))}


def _pairs() -> dict[str, Any]:
    return {
        "input_ids": torch.randint(10, _VOCABULARY, (_BATCH, 16)),
        "pixel_values": torch.randn(_BATCH, 3, 64, 64),
        "return_loss": True,
    }


_SMALL = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_KV = {"num_key_value_heads": 2}


def _hf(config: str, model: str, **kwargs: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        transformers.logging.set_verbosity_error()
        settings = getattr(transformers, config)(**kwargs)
        settings.use_cache = False
        return getattr(transformers, model)(settings)

    return make


def _clip() -> nn.Module:
    import transformers

    text = {**_SMALL, "max_position_embeddings": 64, "projection_dim": 32}
    vision = {**_SMALL, "image_size": 64, "patch_size": 8, "projection_dim": 32}
    for key in ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id"):
        vision.pop(key)
    return transformers.CLIPModel(
        transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=32)
    )


_VISION = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "image_size": 64,
    "patch_size": 8,
}


class _Called(nn.Module):
    """A model that returns no loss of its own."""

    def __init__(self, model: nn.Module, call: Callable[[nn.Module, dict[str, Any]], torch.Tensor]) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, **inputs: Any) -> Any:
        return self.call(self.model, inputs)


def _timm() -> nn.Module:
    import timm

    net = timm.create_model("regnetx_002", pretrained=False, num_classes=10)
    return _Called(net, lambda m, i: m(i["pixel_values"]).pow(2).mean())


def _unet() -> nn.Module:
    from diffusers import UNet2DConditionModel

    net = UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=2,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=32,
        norm_num_groups=8,
        attention_head_dim=8,
    )

    def call(model: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        noise = model(inputs["sample"], inputs["timestep"], encoder_hidden_states=inputs["text"]).sample
        return (noise - inputs["sample"]).pow(2).mean()

    return _Called(net, call)


def _noise() -> dict[str, Any]:
    return {
        "sample": torch.randn(_BATCH, 4, 16, 16),
        "timestep": torch.randint(0, 1000, (_BATCH,)),
        "text": torch.randn(_BATCH, 8, 32),
    }


def _vit(config: str, model: str, **kwargs: Any) -> Architecture:
    return Architecture("transformers", _hf(config, model, **{**_VISION, **kwargs}), _images)


def _decoder(config: str, model: str, **kwargs: Any) -> Architecture:
    return Architecture("transformers", _hf(config, model, **{**_SMALL, **kwargs}), _tokens)


ARCHITECTURES = {
    "GPT-2 (decoder)": Architecture(
        "transformers",
        _hf("GPT2Config", "GPT2LMHeadModel", vocab_size=_VOCABULARY, n_embd=64, n_layer=6, n_head=4),
        _tokens,
    ),
    "Llama (decoder)": _decoder("LlamaConfig", "LlamaForCausalLM", **_KV),
    "Qwen 3 (decoder)": _decoder("Qwen3Config", "Qwen3ForCausalLM", head_dim=16, **_KV),
    "Gemma 2 (decoder, soft caps)": _decoder("Gemma2Config", "Gemma2ForCausalLM", head_dim=16, **_KV),
    "Mixtral (mixture of experts)": _decoder(
        "MixtralConfig", "MixtralForCausalLM", num_local_experts=4, **_KV
    ),
    "OLMoE (mixture of experts)": _decoder("OlmoeConfig", "OlmoeForCausalLM", num_experts=8, **_KV),
    "Mamba (state-space)": _decoder("MambaConfig", "MambaForCausalLM", state_size=8),
    "BERT (encoder)": Architecture(
        "transformers", _hf("BertConfig", "BertForSequenceClassification", **_SMALL), _sequences
    ),
    "DeBERTa v2 (encoder)": Architecture(
        "transformers",
        _hf(
            "DebertaV2Config",
            "DebertaV2ForSequenceClassification",
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
            **_SMALL,
        ),
        _sequences,
    ),
    "T5 (encoder-decoder)": Architecture(
        "transformers",
        _hf(
            "T5Config",
            "T5ForConditionalGeneration",
            vocab_size=_VOCABULARY,
            d_model=64,
            d_kv=16,
            d_ff=160,
            num_layers=3,
            num_heads=4,
            decoder_start_token_id=0,
            pad_token_id=0,
        ),
        _tokens,
    ),
    "BART (encoder-decoder)": Architecture(
        "transformers",
        _hf(
            "BartConfig",
            "BartForConditionalGeneration",
            **_ENCODER_DECODER,
        ),
        _tokens,
    ),
    "ViT (vision)": _vit("ViTConfig", "ViTForImageClassification"),
    "ConvNeXt (vision)": Architecture(
        "transformers",
        _hf(
            "ConvNextConfig",
            "ConvNextForImageClassification",
            hidden_sizes=[16, 32, 48, 64],
            depths=[1, 1, 2, 1],
        ),
        _images,
    ),
    "CLIP (vision and text)": Architecture("transformers", _clip, _pairs),
    "Whisper (audio)": Architecture(
        "transformers",
        _hf(
            "WhisperConfig",
            "WhisperForConditionalGeneration",
            **_ENCODER_DECODER,
            max_source_positions=60,
            max_target_positions=40,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
        ),
        _mel,
    ),
    "wav2vec 2 (audio)": Architecture(
        "transformers",
        _hf(
            "Wav2Vec2Config",
            "Wav2Vec2ForSequenceClassification",
            hidden_size=64,
            intermediate_size=160,
            num_hidden_layers=3,
            num_attention_heads=4,
            conv_dim=(32, 32, 32),
            conv_stride=(5, 4, 2),
            conv_kernel=(10, 8, 4),
            num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4,
            classifier_proj_size=32,
            mask_time_prob=0.0,
        ),
        _wave,
    ),
    "timm RegNet": Architecture("timm", _timm, _images),
    "diffusers U-Net": Architecture("diffusers", _unet, _noise),
}


def cases(options: Options) -> list[str]:
    """A case is an architecture."""
    return [name for name in ARCHITECTURES if not options.share or name in _SHARE]


def check(case: str, options: Options) -> Outcome:
    """Train it thrice: plain, recorded only (for the peak), and at a quarter of the peak."""
    architecture, outcome = ARCHITECTURES[case], Outcome(case)
    with package(architecture.package):
        try:
            importlib.import_module(architecture.package)
        except (ImportError, RuntimeError) as error:
            outcome.skipped[f"{architecture.package} is not there ({str(error)[:60]})"] += 1
            return outcome
        _check(architecture, outcome)
    return outcome


def _check(architecture: Architecture, outcome: Outcome) -> None:
    want, _ = _train(architecture, None)
    recorded, report = _train(architecture, cl.Session(None))
    assert report is not None
    peak_bytes = report.live_peak_bytes
    outcome.tried += 1
    if difference := different(want, recorded):
        outcome.wrong.append(f"recorded only: {difference}")
    for label, planning in (("planned", True), ("eviction alone", False)):
        session = cl.Session(int(peak_bytes) // _PART, min_swap=_MIN_SWAP, planning=planning)
        outcome.tried += 1
        try:
            got, report = _train(architecture, session)
        except cl.BelowFloorError as error:
            outcome.named += 1
            outcome.notes["below the floor"] = 1
            outcome.skipped[f"{label}: {str(error).split(': ', 1)[-1][:90]}"] += 1
            continue
        if difference := different(want, got):
            outcome.wrong.append(f"{label}: {difference}")
        assert report is not None
        outcome.notes[f"{label}: MiB out a step"] = report.history[-1].swapped_out_bytes / 2**20
    outcome.notes["peak MiB"] = peak_bytes / 2**20


def _train(architecture: Architecture, session: cl.Session | None) -> tuple[list[Any], cl.Report | None]:
    gc.collect()
    seed_all(0)
    losses = []
    with session or nullcontext():
        model = architecture.make().train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(_STEPS):
            optimizer.zero_grad()
            found = model(**architecture.inputs())
            loss = found if isinstance(found, torch.Tensor) else found.loss
            loss.backward()
            losses.append(loss.detach())
            optimizer.step()
            del found, loss
        report = session.report() if session else None
    return bits([losses, list(model.state_dict().values()), optimizer.state_dict()["state"]]), report
