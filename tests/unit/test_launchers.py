"""``chameleon run`` in front of a launcher: the command that it becomes."""

from __future__ import annotations

import sys

import click
import pytest

from chameleon_lab.cli.launchers import launch
from chameleon_lab.ranks.identity import ALONE, Identity

OWN = ["--capacity", "1GiB", "-q"]
INNER = ["-m", "chameleon_lab", "run", *OWN]


def command(*words: str, is_module: bool = False) -> list[str] | None:
    found = launch(words[0], words[1:], is_module, OWN)
    if found is None:
        return None
    assert found.command[0] == sys.executable
    return list(found.command[1:])


@pytest.mark.parametrize(
    ("before", "is_module"),
    [
        (["torchrun"], False),
        (["/usr/bin/torchrun"], False),
        (["torch.distributed.run"], True),
        (["accelerate", "launch"], False),
        (["accelerate.commands.launch"], True),
    ],
)
def test_the_session_goes_into_each_rank(before, is_module):
    if "accelerate" in before[0]:
        pytest.importorskip("accelerate")
        of = ["--num_processes", "2"]
    else:
        of = ["--nproc-per-node", "2"]
    python = {
        "torchrun": ["-m", "torch.distributed.run"],
        "accelerate": ["-m", "accelerate.commands.accelerate_cli", "launch"],
    }.get(before[0].rpartition("/")[2], ["-m", before[0]])
    script = ["train.py", "--nproc-per-node", "7", "-m", "--", "x"]
    assert command(*before, *of, *script, is_module=is_module) == [*python, *of, *INNER, *script]
    module = ["pack.train", "--steps", "3"]
    assert command(*before, *of, "-m", *module, is_module=is_module) == [
        *(*python, *of, *INNER),
        *("-m", *module),
    ]


def test_what_is_no_launcher_is_a_script(tmp_path, monkeypatch):
    assert command("train.py", "--nproc-per-node", "2") is None
    assert command("pack.train", is_module=True) is None
    assert command("accelerate", "config") is None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "srun").write_text("")
    assert command("srun") is None, "a script may have any name"


@pytest.mark.parametrize(
    ("words", "is_module", "error"),
    [
        (["torchrun", "--nproc-per-node", "2"], False, "training_script"),
        (["torchrun", "--nproc", "two", "--no-such", "1", "train.py"], False, "error: "),
        (["torchrun", "--no-python", "sh", "x.sh"], False, "leave --no-python out.*chameleon run --capacity"),
        (["torchrun", "--run-path", "/x.py"], False, "leave --run-path out"),
        (["torch.distributed.launch", "train.py"], True, "use torchrun"),
        (
            ["mpirun", "-n", "2", "python", "x.py"],
            False,
            "write mpirun OPTIONS chameleon run --capacity 1GiB",
        ),
        (["python", "train.py"], False, "leave python out"),
    ],
)
def test_what_cannot_be_taken_says_what_to_write(words, is_module, error):
    with pytest.raises(click.UsageError, match=error):
        command(*words, is_module=is_module)


def test_each_rank_has_the_gpu_of_its_local_rank(monkeypatch):
    import torch

    from chameleon_lab.cli.run import _device_of
    from chameleon_lab.runtime import core

    second = Identity(5, 8, 1, 4)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert _device_of(second) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(core, "missing_device", lambda name: "")
    assert _device_of(second) == "cuda:1"
    assert _device_of(ALONE) is None and _device_of(Identity(5, 8)) is None
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # CUDA_VISIBLE_DEVICES shows each rank its own
    assert _device_of(second) is None
