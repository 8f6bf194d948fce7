"""Other memory savers beside a session: their weights and states move too, and nothing is kept for good.

tests/programs/test_programs.py has the programs in less memory.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))
sys.path.insert(0, str(Path(__file__).parent))
import runner
from _skipping import skip_without
from several_ranks import ranks

import chameleon_lab as cl

pytestmark = pytest.mark.bits

PROGRAMS = (
    "accelerate_offload",
    "bitsandbytes_qlora",
    "deepspeed_zero3",
    "diffusers_offload",
    "torchao_low_bits",
)

KEPT_BYTES = {"accelerate_offload": 2 * (256 * 256 + 256) * 4}
"""accelerate compares addresses of weights that it keeps in host memory, which a session on a GPU does not manage."""


def of_the_process() -> list[object]:
    """What DeepSpeed would change for good, so that other programs of the process run otherwise."""
    names = ("DS_ACCELERATOR", "LOCAL_RANK", "RANK", "WORLD_SIZE", "PYTORCH_NVML_BASED_CUDA_CHECK")
    return [nn.functional.linear, torch.distributed.is_initialized(), *map(os.environ.get, names)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_kept_and_each_training_step_is_one(name: str) -> None:
    """ZeRO-3 hands Adam one group of parameters after another, and the hooks call modules without gradients."""
    skip_without(name)
    before = of_the_process()
    report = runner.recorded(name, runner.STEPS).report
    assert report is not None
    assert (report.escaped_bytes, report.refused) == (KEPT_BYTES.get(name, 0), {})
    assert of_the_process() == before
    assert len(report.history) - runner.STEPS in (0, 1)  # what came behind the last step is one more


def test_int8_weights_older_than_the_session_move() -> None:
    skip_without("torchao_low_bits")
    with runner.path_of("torchao_low_bits"):
        net = runner.module_of("torchao_low_bits").model()
        base, head = net[0][0].base.weight, net[1][0].weight
        with cl.Session("4MiB", device="cpu") as session:
            before = net(torch.ones(2, 192))
            for weight, data in ((base, base.qdata), (head, head.int_data)):
                assert session.evict(weight)
                assert session.where(weight) == session.where(data) == "away"
            assert torch.equal(net(torch.ones(2, 192)), before)
            session.step()
            names = set(session.trace().steps[-1].labels)
        assert {"qdata of 0.0.base.weight", "int_data of 1.0.weight"} <= names


def test_weights_of_four_bits_and_their_scales_older_than_the_session_move() -> None:
    skip_without("bitsandbytes_qlora")
    with runner.path_of("bitsandbytes_qlora"):
        net = runner.module_of("bitsandbytes_qlora").model()
        with cl.Session("4MiB", device="cpu") as session:
            before = net(torch.ones(2, 192))
            for layer, scales in ((net[0], "absmax"), (net[1], "absmax"), (net[2], None)):
                weight = layer.base.weight
                moved = [weight] if scales is None else [weight, getattr(weight.quant_state, scales)]
                assert [session.evict(tensor) for tensor in moved] == [True] * len(moved)
            assert torch.equal(net(torch.ones(2, 192)), before)
            session.step()
            names = set(session.trace().steps[-1].labels)
        assert {"0.base.weight", "quant_state.absmax of 0.base.weight", "2.base.weight"} <= names


@pytest.mark.parametrize(
    ("name", "library", "key", "label"),
    [
        ("bitsandbytes_qlora", "bitsandbytes.optim", "state1", "state1 of 0.down.weight"),
        ("torchao_low_bits", "torchao.optim", "exp_avg", "exp_avg.codes of 0.0.down.weight"),
    ],
)
def test_states_of_eight_bits_move(name: str, library: str, key: str, label: str) -> None:
    skip_without(name)
    with runner.path_of(name), cl.Session("4MiB", device="cpu") as session:
        net = runner.module_of(name).model()
        trained = [parameter for path, parameter in net.named_parameters() if path.endswith("down.weight")]
        optimizer = importlib.import_module(library).AdamW8bit(trained, lr=1e-3)
        for _ in range(3):
            net(torch.ones(4, 192)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            net.zero_grad()
        states = [optimizer.state[parameter][key] for parameter in trained]
        assert {getattr(state, "codes", state).dtype for state in states} == {torch.uint8}
        assert [session.evict(state) for state in states] == [True] * len(states)
        assert {session.where(state) for state in states} == {"away"}
        assert label in session.trace().steps[-1].labels


def test_zero3_on_two_ranks_gives_the_same_bits_at_a_third_of_the_peak(tmp_path: Path) -> None:
    skip_without("deepspeed_zero3")
    programs = str(Path(__file__).parent)
    results = ranks(
        f"""
        import contextlib, pathlib
        sys.path.append({programs!r})
        os.environ["LOCAL_RANK"] = str(rank)
        import runner
        zero3 = runner.module_of("deepspeed_zero3")
        zero3.prepare()

        def run(session, name):
            torch.manual_seed(rank)
            with session or contextlib.nullcontext(), runner.path_of("deepspeed_zero3"):
                losses, parts = zero3.trained(pathlib.Path(folder, name), 5)
                return losses, [part.float().tolist() for part in parts]

        plain = run(None, "plain")
        recording = cl.Session(None, device="cpu", min_swap="2KiB")
        recorded = run(recording, "recorded")
        report = recording.report()
        tight = cl.Session(report.peak_bytes // 3, device="cpu", link="4GiB/s", min_swap="2KiB")
        swapped = run(tight, "tight")
        result = {{
            "same": [plain == recorded, plain == swapped],
            "kept": [report.escaped_storages, tight.report().escaped_storages],
            "held": tight.report().peak_bytes <= report.peak_bytes // 3,
            "moved": tight.report().swapped_out_bytes > 0,
        }}
        """,
        tmp_path,
    )
    for found in results:
        assert found == {"same": [True, True], "kept": [0, 0], "held": True, "moved": True}
