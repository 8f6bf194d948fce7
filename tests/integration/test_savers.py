"""Saving, exporting, hashing, pickling and copying leave a run as movable as it was, and write the right bytes."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from training import HANGS_AFTER_S, ROOT, MiB, pressure, state_bytes

import chameleon_lab as cl
from chameleon_lab.runtime import core

State = dict[str, torch.Tensor]
pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
    pytest.mark.filterwarnings("ignore:Detected an existing checkpoint:UserWarning"),
]
needs_hook = pytest.mark.skipif(
    not core.SEES_RAW_ACCESS,
    reason="before 2.13 numpy's arrays and what torch.load makes stay where they are",
)


def _saved(state: State, folder: Path) -> State:
    torch.save(state, folder / "t.pt")
    return torch.load(folder / "t.pt")


def _saved_without_zip(state: State, folder: Path) -> State:
    torch.save(state, folder / "t.pt", _use_new_zipfile_serialization=False)
    return torch.load(folder / "t.pt")


def _pickled(state: State, folder: Path) -> State:
    return pickle.loads(pickle.dumps(state))


def _deep_copied(state: State, folder: Path) -> State:
    return copy.deepcopy(state)


def _safetensors_file(state: State, folder: Path) -> State:
    from safetensors.torch import load_file, save_file

    save_file(state, folder / "t.safetensors")
    return load_file(folder / "t.safetensors")


def _safetensors_bytes(state: State, folder: Path) -> State:
    from safetensors.torch import load, save

    return load(save(state))


def _distributed(state: State, folder: Path) -> State:
    import torch.distributed.checkpoint as dcp

    dcp.save(state, checkpoint_id=folder / "dcp", no_dist=True)
    loaded = {name: torch.zeros_like(value) for name, value in state.items()}
    dcp.load(loaded, checkpoint_id=folder / "dcp", no_dist=True)
    return loaded


def _distributed_async(state: State, folder: Path) -> State:
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        dcp.async_save(state, checkpoint_id=folder / "dcp").result()
        loaded = {name: torch.zeros_like(value) for name, value in state.items()}
        dcp.load(loaded, checkpoint_id=folder / "dcp")
        return loaded
    finally:
        dist.destroy_process_group()


def _numpy_file(state: State, folder: Path) -> State:
    np.savez(folder / "t.npz", **{name: value.numpy() for name, value in state.items()})
    with np.load(folder / "t.npz") as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays}


class _Holder(nn.Module):
    """Something to export: it holds tensors, and shows them."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.names = {name: name.replace(".", "_") for name in state}
        for name, value in state.items():
            self.register_buffer(self.names[name], value)

    def forward(self) -> list[torch.Tensor]:
        return [getattr(self, name) + 0 for name in self.names.values()]


def _exported(state: State, folder: Path) -> State:
    holder = _Holder(state)
    torch.export.save(torch.export.export(holder, ()), folder / "t.pt2")
    loaded = torch.export.load(folder / "t.pt2").state_dict
    return {name: loaded[of] for name, of in holder.names.items()}


SAVERS: dict[str, Callable[[State, Path], State]] = {
    "torch.save": _saved,
    "torch.save without zip": _saved_without_zip,
    "pickle": _pickled,
    "deepcopy": _deep_copied,
    "safetensors file": _safetensors_file,
    "safetensors bytes": _safetensors_bytes,
    "distributed.checkpoint": _distributed,
    "distributed.checkpoint async": _distributed_async,
    "torch.export": _exported,
    "numpy file": _numpy_file,
}


class _Run:
    """A model and AdamW in the session that is open, 6 MiB with gradients and states, and their steps."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(6)])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def step(self) -> None:
        self.model(torch.ones(8, 256)).pow(2).mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def tensors(self) -> State:
        """Weights and states, as a checkpoint holds them."""
        found = {name: value.detach() for name, value in self.model.state_dict().items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            found |= {f"{number}.{key}": value for key, value in state.items()}
        return found

    def bytes(self) -> dict[str, bytes]:
        return state_bytes(self.model, self.optimizer)


def _kept(session: cl.Session) -> int:
    return session.counters()["escaped_bytes"]


@pytest.mark.bits
@pytest.mark.parametrize(
    "saver",
    [pytest.param(name, marks=needs_hook) if name == "numpy file" else name for name in SAVERS],
)
def test_a_saver_leaves_the_run_as_movable_as_before(saver: str, tmp_path: Path) -> None:
    bare = _Run()
    for _ in range(4):
        bare.step()
    want = bare.bytes()
    # What numpy views is there at once, and before 2.13 what is being loaded.
    moves = core.SEES_RAW_ACCESS and saver != "numpy file"
    with cl.Session("3MiB" if moves else "6MiB", planning=False) as session:
        run = _Run()
        for _ in range(2):
            run.step()
        before = _kept(session)
        state = run.tensors()
        loaded = SAVERS[saver](state, tmp_path)
        assert all(torch.equal(loaded[name], value) for name, value in state.items())
        del loaded
        assert _kept(session) == before == 0
        moving = [name for name, value in state.items() if session.where(value) and session.evict(value)]
        assert len(moving) == 36  # the weights and biases with their two states each; not AdamW's step counts
        del state
        for _ in range(2):
            run.step()
        assert session.report().peak_bytes <= session.capacity_bytes
        assert _kept(session) == 0
    assert run.bytes() == want


def test_a_file_may_be_larger_than_the_capacity(tmp_path: Path) -> None:
    """safetensors takes the addresses of all tensors at once."""
    with cl.Session("4MiB") as session:
        state = {f"t{number}": torch.full((MiB // 4,), float(number)) for number in range(8)}
        loaded = _safetensors_bytes(state, tmp_path)
        assert all(t.min() == t.max() == int(name[1:]) for name, t in loaded.items())
        assert session.report().peak_bytes <= 4 * MiB and _kept(session) == 0


def test_tensors_that_share_memory_are_found_wherever_their_bytes_are(tmp_path: Path) -> None:
    """Also where the storage moves between the two questions for its address."""
    import safetensors.torch as st

    with cl.Session("4MiB") as session:
        x, y = torch.arange(float(MiB // 4)), torch.ones(MiB // 4)
        state = {"x": x, "tail": x[7:], "again": x.view(-1), "y": y}
        session.evict(x)
        first = st.storage_ptr(x)
        session.restore(x)
        assert first == st.storage_ptr(x[7:]) != st.storage_ptr(y)
        groups = sorted(sorted(group) for group in st._find_shared_tensors(state))
        assert groups == [["again", "tail", "x"], ["y"]]
        with pytest.raises(RuntimeError, match="share memory"):
            st.save(state)
        assert _kept(session) == 0
        assert x.data_ptr() == np.asarray(x).ctypes.data  # who asks for the address itself gets it


@pytest.mark.bits
@pytest.mark.filterwarnings("ignore:No complete tensor found:UserWarning")
def test_an_exported_program_has_the_bytes_of_views(tmp_path: Path) -> None:
    """torch.export.save writes whole storages: of views it finds what they share, and where in it they are."""
    with cl.Session("4MiB") as session:
        whole, apart = torch.arange(float(MiB // 4)).view(256, -1), torch.arange(4096.0).view(64, 64)
        state = {
            "whole": whole,
            "rows": whole[3:9],
            "turned": apart.t(),
            "part": torch.arange(4096.0)[100:300],
        }
        state |= {"nothing": torch.empty(0), "flags": torch.arange(2048) % 3 == 0}
        want = {name: value.clone() for name, value in state.items()}
        pressure(session, 8)
        assert session.where(whole) != "resident"
        loaded = _exported(state, tmp_path)
        assert all(loaded[name].equal(value) for name, value in want.items())
        assert _kept(session) == 0 and session.evict(whole) and session.evict(apart)


def test_only_the_savers_own_look_is_without_consequences() -> None:
    """A function of the user's that asks for an address may keep it."""
    with cl.Session("4MiB") as session:
        x = torch.zeros(MiB // 4)
        address = x.untyped_storage().data_ptr()
        torch.save(x, io.BytesIO())
        pickle.dumps(x)
        assert _kept(session) == MiB and not session.evict(x)
        pressure(session, 8)
        assert x.data_ptr() == address


def test_hashes_of_tensors_end_with_the_call() -> None:
    with cl.Session("4MiB") as session:
        x = torch.arange(float(MiB // 4))
        assert session.evict(x)
        digests = {
            hashlib.sha256(x.numpy()).hexdigest(),
            hashlib.sha256(memoryview(x.numpy())).hexdigest(),
            hashlib.sha256(x.numpy().tobytes()).hexdigest(),
            hashlib.sha256(np.arange(MiB // 4, dtype=np.float32)).hexdigest(),
        }
        if core.SEES_RAW_ACCESS:
            assert _kept(session) == 0 and session.evict(x)
    assert len(digests) == 1


def test_tensors_of_lists_move() -> None:
    """torch writes what it makes of numbers through a pointer, which ends with the call."""
    with cl.Session("4MiB") as session:
        made = [
            torch.tensor([float(number) for number in range(3000)]),
            torch.tensor([[number] * 8 for number in range(300)]),
            torch.as_tensor([1.5] * 3000),
            torch.zeros(3).new_tensor([2.5] * 3000),
        ]
        assert all(session.evict(x) for x in made) and _kept(session) == 0
        assert made[0].tolist() == list(range(3000)) and made[1][299].tolist() == [299] * 8


def _checkpoints(count: int, steps: int, folder: Path) -> None:
    """Many checkpoints, every second one asynchronous, and steps after them."""
    with cl.Session("3MiB" if core.SEES_RAW_ACCESS else "6MiB", planning=False) as session:
        run = _Run()
        for _ in range(2):
            run.step()
        before = session.counters()
        for number in range(count):
            run.step()
            names = (
                ("distributed.checkpoint async", "safetensors file")
                if number % 2
                else ("torch.save", "pickle")
            )
            for name in names:
                SAVERS[name](run.tensors(), folder)
        for _ in range(steps):
            run.step()
        after = session.counters()
        assert after["escaped_bytes"] == before["escaped_bytes"] == 0
        assert after["storages"] == before["storages"]
        assert session.report().peak_bytes <= session.capacity_bytes
    bare = _Run()
    for _ in range(2 + count + steps):
        bare.step()
    assert run.bytes() == bare.bytes()


def test_many_checkpoints_and_steps_after_them(tmp_path: Path) -> None:
    _checkpoints(6, 10, tmp_path)


@pytest.mark.soak
def test_fifty_checkpoints_and_a_thousand_steps(tmp_path: Path) -> None:
    _checkpoints(50, 1000, tmp_path)


TRAINER = """
import sys
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

class Tokens(torch.utils.data.Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.rows = [torch.randint(0, 96, (64,), generator=generator) for _ in range(64)]
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, row):
        return {"input_ids": self.rows[row], "labels": self.rows[row]}

torch.set_num_threads(1)
torch.manual_seed(0)
config = GPT2Config(vocab_size=96, n_positions=64, n_embd=64, n_layer=4, n_head=2, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config)
arguments = TrainingArguments(
    output_dir="out", max_steps=8, per_device_train_batch_size=4, save_steps=2, learning_rate=1e-2, report_to=[],
    use_cpu=True, disable_tqdm=True, seed=5,
)
Trainer(model=model, args=arguments, train_dataset=Tokens()).train()
"""


def _trainer_script(folder: Path, *words: str) -> dict[str, Any]:
    """The bytes of the last checkpoint, and the report if there is one."""
    from safetensors.torch import load_file

    folder.mkdir()
    (folder / "train.py").write_text(TRAINER)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-W", "ignore", *words, "train.py"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=HANGS_AFTER_S
    )
    assert done.returncode == 0, done.stderr[-3000:]
    last = folder / "out" / "checkpoint-8"
    return {name: value.numpy().tobytes() for name, value in load_file(last / "model.safetensors").items()}


def test_a_trainer_script_goes_on_behind_its_checkpoints(tmp_path: Path) -> None:
    """On the command line, without a callback, at 30 % of its peak."""
    bare = _trainer_script(tmp_path / "bare")
    options = ("-m", "chameleon_lab", "run", "--capacity", "3800000", "--report", "r.json")
    assert _trainer_script(tmp_path / "capped", *options) == bare
    report = json.loads((tmp_path / "capped" / "r.json").read_text())
    assert report["escaped_storages"] == 0 and report["steps"] == 8
    assert report["peak_bytes"] <= 3800000 < 0.31 * report["live_peak_bytes"]
