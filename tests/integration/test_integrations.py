"""The callbacks of Hugging Face Trainer and Lightning: real short trainings, compared to the bit."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from training import HANGS_AFTER_S, Gpt, KiB, raw, state_bytes

import chameleon_lab as cl

pytestmark = pytest.mark.full

LINK = "4GiB/s"


def resident_again(model: torch.nn.Module) -> bool:
    """Is no session open, and every parameter a plain, readable tensor?"""
    return cl.current_session() is None and all(p.isfinite().all() for p in model.parameters())


# ------------------------------------------------------------------------------------------------ Hugging Face


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Tokens(torch.utils.data.Dataset):
    def __init__(self, count: int = 64) -> None:
        generator = torch.Generator().manual_seed(1)
        self.rows = [torch.randint(0, 96, (64,), generator=generator) for _ in range(count)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[row], "labels": self.rows[row]}


def gpt2() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=96, n_positions=64, n_embd=64, n_layer=4, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel(config)  # with dropout


def hf_trainer(
    folder: Path, callback: Any = None, model: torch.nn.Module | None = None, **arguments: Any
) -> Any:
    from transformers import Trainer, TrainingArguments

    options = dict(
        output_dir=str(folder),
        max_steps=8,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=3,
        save_steps=4,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=5,
    )
    return Trainer(
        model=model or gpt2(),
        args=TrainingArguments(**(options | arguments)),
        train_dataset=Tokens(),
        eval_dataset=Tokens(4),
        callbacks=[callback] if callback else [],
    )


def losses(trainer: Any) -> list[float]:
    return [
        entry[key]
        for entry in trainer.state.log_history
        for key in ("loss", "eval_loss", "grad_norm")
        if key in entry
    ]


def checkpoint_bytes(folder: Path) -> dict[str, bytes]:
    from safetensors.torch import load_file

    saved = torch.load(folder / "optimizer.pt", weights_only=True)["state"]
    states = {
        f"{number}.{key}": raw(value) for number, state in saved.items() for key, value in state.items()
    }
    return states | {name: raw(value) for name, value in load_file(folder / "model.safetensors").items()}


@pytest.fixture(scope="module")
def hf_bare(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("bare")
    trainer = hf_trainer(folder)
    trainer.train()
    return trainer, folder


@pytest.mark.bits
def test_hugging_face_trains_the_same_in_less_memory(hf_bare, tmp_path):
    """Accumulation, clipping, dropout, evaluations and checkpoints in the midst of it, in 1/4 of the memory."""
    from chameleon_lab.integrations.transformers import ChameleonCallback

    bare, bare_folder = hf_bare
    capacity = 2000 * KiB
    callback = ChameleonCallback(
        capacity, link=LINK, save_policy="p.json", save_trace="t.parquet", save_report="r.json", log=True
    )
    trainer = hf_trainer(tmp_path / "out", callback)
    trainer.train()
    assert resident_again(trainer.model)
    assert losses(trainer) == losses(bare) and len(losses(bare)) >= 18
    assert state_bytes(trainer.model, trainer.optimizer.optimizer) == state_bytes(
        bare.model, bare.optimizer.optimizer
    )

    report = callback.report()
    assert report.steps == 8  # one an optimizer step, not one a micro-batch or evaluation
    assert report.peak_bytes <= capacity < report.live_peak_bytes / 2
    assert report.stage == "Stable" and report.decisions > 0
    assert report.escaped_storages == 0  # saving has kept no address
    for step in (4, 8):
        name = f"checkpoint-{step}"
        assert checkpoint_bytes(tmp_path / "out" / name) == checkpoint_bytes(bare_folder / name)

    logged = [entry for entry in trainer.state.log_history if "chameleon_peak_bytes" in entry]
    assert [entry["step"] for entry in logged] == list(range(1, 9))
    assert max(entry["chameleon_peak_bytes"] for entry in logged) <= capacity
    assert cl.Policy.load("p.json").swaps and len(cl.Trace.load("t.parquet")) == 4
    assert Path("r.json").exists()


@pytest.mark.bits
def test_hugging_face_resumes_with_a_policy_from_a_file(hf_bare, tmp_path):
    from chameleon_lab.integrations.transformers import ChameleonCallback

    bare, bare_folder = hf_bare
    first = ChameleonCallback("2000KiB", link=LINK, save_policy="p.json")
    hf_trainer(tmp_path / "out", first, save_steps=100).train()
    callback = ChameleonCallback("2000KiB", link=LINK, policy="p.json")
    trainer = hf_trainer(tmp_path / "out", callback, save_steps=100)
    trainer.train(resume_from_checkpoint=str(bare_folder / "checkpoint-4"))
    assert state_bytes(trainer.model) == state_bytes(bare.model)
    assert callback.report().steps == 4 and callback.report().peak_bytes <= 2000 * KiB
    assert callback.session.policy == first.session.policy
    # With logging_steps=1 the Trainer reads the loss between the optimizer and the next forward.
    report = callback.report()
    assert report.notes[0] == "the given policy fits: in force from the second step on"
    assert [step.stage for step in report.history[:2]] == ["WarmUp", "Stable"]  # then an evaluation comes


class StopError(Exception):
    pass


def test_an_exception_in_hugging_face_training_ends_the_session(tmp_path):
    """The files are written, tensors are valid, and the next training has a session of its own."""
    from transformers import TrainerCallback

    from chameleon_lab.integrations.transformers import ChameleonCallback

    class Failing(TrainerCallback):
        fail = True

        def on_step_begin(self, args, state, control, **kwargs):
            if self.fail and state.global_step == 4:
                raise StopError

    failing = Failing()
    callback = ChameleonCallback("2000KiB", link=LINK, save_trace="t.parquet")
    trainer = hf_trainer(tmp_path / "out", callback, save_steps=100, eval_strategy="no")
    trainer.add_callback(failing)
    with pytest.raises(StopError):
        trainer.train()
    assert resident_again(trainer.model)
    assert len(cl.Trace.load("t.parquet")) == 4
    failed = callback.session

    failing.fail = False
    trainer.train()
    assert callback.session is not failed and callback.report().steps == 8
    assert resident_again(trainer.model)


def test_hugging_face_below_the_floor(tmp_path):
    from chameleon_lab.integrations.transformers import ChameleonCallback

    trainer = hf_trainer(tmp_path / "out", ChameleonCallback("300KiB"))
    with pytest.raises(cl.BelowFloorError, match="is below the floor"):
        trainer.train()
    assert resident_again(trainer.model)


@pytest.mark.bits
def test_a_plain_module_under_the_trainer_is_saved_from_the_host(tmp_path):
    """Without save_pretrained the Trainer calls safetensors itself; tied weights are refused by it, as ever."""
    from safetensors.torch import load_file

    from chameleon_lab.integrations.transformers import ChameleonCallback

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gpt = Gpt()

        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.gpt(input_ids)}

    torch.manual_seed(0)
    callback = ChameleonCallback("2MiB", link=LINK)
    trainer = hf_trainer(tmp_path / "out", callback, Plain(), max_steps=4, save_steps=2, eval_strategy="no")
    trainer.train()
    assert callback.report().escaped_storages == 0
    saved = load_file(tmp_path / "out" / "checkpoint-4" / "model.safetensors")
    assert {name: raw(value) for name, value in saved.items()} == state_bytes(trainer.model)


# ------------------------------------------------------------------------------------------------ Lightning


def lightning_run(callback: Any = None, *, fail_at: int | None = None, **arguments: Any) -> Any:
    """Losses, the module, the trainer, and what ended it."""
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import CSVLogger

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.gpt = Gpt(dropout=0.1)
            self.losses: list[bytes] = []

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            if index == fail_at:
                raise StopError
            loss = self.gpt(batch["input_ids"])
            self.losses.append(raw(loss))
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.losses.append(raw(self.gpt(batch["input_ids"])))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    pl.seed_everything(3, verbose=False)
    module = Module()
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=8,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        val_check_interval=6,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=CSVLogger("logs", flush_logs_every_n_steps=1),
        callbacks=[callback] if callback else [],
        **arguments,
    )
    train = torch.utils.data.DataLoader(Tokens(), batch_size=2)
    valid = torch.utils.data.DataLoader(Tokens(4), batch_size=2)
    return module, trainer, lambda **kwargs: trainer.fit(module, train, valid, **kwargs)


@pytest.mark.bits
def test_lightning_trains_the_same_in_less_memory(tmp_path):
    """Accumulation, clipping, dropout, sanity check, validations, and a checkpoint that resumes to the same."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    from chameleon_lab.integrations.lightning import ChameleonCallback

    bare, bare_trainer, fit = lightning_run(enable_checkpointing=False)
    fit()
    capacity = 2000 * KiB
    callback = ChameleonCallback(capacity, link=LINK, save_policy="p.json", save_trace="t.parquet", log=True)
    module, trainer, fit = lightning_run(callback)
    trainer.callbacks.append(
        ModelCheckpoint("checkpoints", every_n_train_steps=4, save_top_k=-1, filename="{step}")
    )
    fit()
    assert resident_again(module)
    assert module.losses == bare.losses and len(bare.losses) >= 16
    assert state_bytes(module, *trainer.optimizers) == state_bytes(bare, *bare_trainer.optimizers)
    report = callback.report()
    assert report.steps == 8
    assert report.peak_bytes <= capacity < report.live_peak_bytes / 2
    assert report.stage == "Stable" and report.decisions > 0 and report.escaped_storages == 0
    trace = cl.Trace.load("t.parquet")
    assert cl.Policy.load("p.json").swaps and len(trace) == 4
    # Lightning runs forward and backward within the optimizer's step, as its closure.
    assert (trace.storages.category == cl.trace.Category.ACTIVATION).sum() > 50

    head, *rows = (Path(trainer.logger.log_dir) / "metrics.csv").read_text().splitlines()
    column = head.split(",").index("chameleon_peak_bytes")
    peaks = [float(row.split(",")[column]) for row in rows if row.split(",")[column]]
    assert len(peaks) == 8 and max(peaks) <= capacity

    plain, _, fit = lightning_run(enable_checkpointing=False)
    fit(ckpt_path="checkpoints/step=4.ckpt", weights_only=False)
    resumed, _, fit = lightning_run(ChameleonCallback(capacity, link=LINK), enable_checkpointing=False)
    fit(ckpt_path="checkpoints/step=4.ckpt", weights_only=False)
    assert resumed.losses == plain.losses and 8 <= len(plain.losses) < len(bare.losses)
    assert state_bytes(resumed) == state_bytes(plain) and resident_again(resumed)


def test_lightning_below_the_floor():
    from chameleon_lab.integrations.lightning import ChameleonCallback

    module, _, fit = lightning_run(ChameleonCallback("300KiB"), enable_checkpointing=False)
    with pytest.raises(RuntimeError, match="is below the floor"):
        fit()
    assert resident_again(module)


def test_an_exception_in_lightning_ends_the_session():
    from chameleon_lab.integrations.lightning import ChameleonCallback

    callback = ChameleonCallback("2000KiB", link=LINK, save_trace="t.parquet")
    module, _, fit = lightning_run(callback, fail_at=9, enable_checkpointing=False)
    with pytest.raises(StopError):
        fit()
    assert resident_again(module)
    assert callback.report().steps == 4 and len(cl.Trace.load("t.parquet")) == 4


# ------------------------------------------------------------------------------------------------ both


@pytest.mark.parametrize(
    ("name", "missing", "way_out"),
    [
        ("transformers", "transformers", "pip install 'transformers[torch]'"),
        ("transformers", "accelerate", "pip install 'transformers[torch]'"),
        ("lightning", "lightning", "pip install lightning"),
    ],
)
def test_a_missing_framework_is_named_with_the_way_out(name, missing, way_out):
    code = f"""
import sys
sys.modules[{missing!r}] = None
try:
    import chameleon_lab.integrations.{name}
except ImportError as error:
    print(error)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=HANGS_AFTER_S,
        check=True,
    )
    assert f"chameleon_lab.integrations.{name} needs" in done.stdout and way_out in done.stdout


@pytest.mark.parametrize("name", ["transformers", "lightning"])
def test_bad_arguments_are_refused_before_the_training(name, tmp_path):
    module = importlib.import_module(f"chameleon_lab.integrations.{name}")
    with pytest.raises(ValueError, match="capacity 'lots' is not a size"):
        module.ChameleonCallback("lots")
    with pytest.raises(FileNotFoundError, match="no such folder"):
        module.ChameleonCallback("2MiB", save_policy=tmp_path / "gone" / "p.json")
    with pytest.raises(FileNotFoundError):
        module.ChameleonCallback("2MiB", policy=tmp_path / "gone.json")
    with pytest.raises(TypeError, match="capcity"):
        module.ChameleonCallback(capcity="2MiB")


def test_offloaded_checkpoints_are_run_by_transformers() -> None:
    """What benchmarks.gpu.peers takes from them is their own, and does what its name says."""
    from torch.autograd.graph import save_on_cpu

    from benchmarks.gpu import common, peers, ready

    pytest.importorskip("transformers", minversion=ready.text_of(peers.OFFLOADING_TRANSFORMERS))
    entered = []
    model = common.Decoder(common.SHAPES["tiny"])
    peers._offloaded_by_transformers(model)

    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            entered.append(x.shape)
            return x * x

    with pytest.MonkeyPatch.context() as patch:  # there is no pinned memory without a GPU
        original = save_on_cpu.__init__
        asked = []

        def unpinned(self: save_on_cpu, pin_memory: bool = False, device_type: str = "cuda") -> None:
            asked.append(pin_memory)
            original(self, pin_memory=False)

        patch.setattr(save_on_cpu, "__init__", unpinned)
        model.run_layer(Layer(), torch.ones(4, requires_grad=True)).sum().backward()
    assert asked == [True], "nothing was kept in pinned memory"
    assert len(entered) == 2, "nothing was computed again: that is no checkpoint"
