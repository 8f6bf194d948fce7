from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import optimizer

import chameleon_lab as cl
from chameleon_lab.planner import floor, plan, simulate
from chameleon_lab.policy import Link
from chameleon_lab.trace import Category, Stage, StepTrace


def build(**options: object) -> Callable[[], Callable[[], None]]:
    def make() -> Callable[[], None]:
        model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Dropout(0.1), nn.Linear(1024, 256))
        optimizer = torch.optim.AdamW(model.parameters(), **options)  # type: ignore[arg-type]
        x = torch.randn(512, 256)

        def step() -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        return step

    return make


def names_in(step: StepTrace, stage: Stage | None = None) -> list[str]:
    return [step.op_name(op) for op in range(len(step.ops)) if stage is None or step.ops.stage[op] == stage]


def test_a_step_has_states_stages_and_times() -> None:
    trace = cl.trace_meta(build(), device="A100", steps=3)
    assert floor(trace).kernels == ""
    step = trace.last
    assert len(trace) == 3 and trace.meta["capacity_bytes"] == 80_000_000_000
    labels = {step.labels[label] for label in step.storages.name if label >= 0}
    assert {"0.weight", "grad of 0.weight", "exp_avg of 0.weight", "exp_avg_sq of 3.weight"} <= labels
    assert {Stage(int(stage)) for stage in step.ops.stage} >= {
        Stage.FORWARD,
        Stage.BACKWARD,
        Stage.OPTIMIZER,
    }
    weight = 256 * 1024 * 4
    states = step.storages.category == Category.OPTIMIZER_STATE
    assert sorted(step.storages.bytes[states].tolist())[-4:] == [weight] * 4
    assert step.duration_s == pytest.approx(step.ops.duration_s.sum())
    np.testing.assert_allclose(step.ops.start_s[1:], np.cumsum(step.ops.duration_s)[:-1])
    assert len(step.transfers) == len(step.stalls) == 0
    persistent = (step.storages.birth_op < 0) & (step.storages.death_op == len(step.ops))
    assert step.storages.bytes[persistent].sum() > 3 * 2 * weight


def test_the_trace_serves_planner_and_files(tmp_path: Path) -> None:
    trace = cl.trace_meta(build(), device="H100")
    link = Link(trace.meta["link_out_bytes_per_s"], trace.meta["link_in_bytes_per_s"])
    capacity = (floor(trace).bytes + trace.last.live_peak_bytes) // 2
    policy = plan(trace, capacity, link)
    assert simulate(trace, policy, capacity, link).peak_bytes <= capacity
    trace.save(str(tmp_path / "meta.parquet"))
    again = cl.Trace.load(str(tmp_path / "meta.parquet")).last
    assert again.storage_keys == trace.last.storage_keys
    assert plan(again, capacity, link).decisions == policy.decisions


def test_an_optimizer_is_split_as_on_a_gpu() -> None:
    whole = cl.trace_meta(build(), device="H100").last
    lists = [name for name in names_in(whole, Stage.OPTIMIZER) if name == "aten::_foreach_lerp_"]
    assert len(lists) == 1
    split = cl.trace_meta(build(), device="H100", capacity="16MiB").last
    assert names_in(split, Stage.OPTIMIZER).count("aten::_foreach_lerp_") == 4  # one a tensor
    assert floor(split) == replace(
        floor(whole), op=floor(split).op
    )  # the whole one knows that it may be split
    single = cl.trace_meta(build(foreach=False), device="H100").last
    assert "aten::addcdiv_" in names_in(single, Stage.OPTIMIZER)
    fused = cl.trace_meta(build(fused=True), device="H100").last
    assert "aten::_fused_adamw_" in names_in(fused, Stage.OPTIMIZER)
    assert "aten::_foreach_lerp_" not in names_in(cl.trace_meta(build(), device="cpu").last)


def test_dropout_keeps_the_gpus_mask() -> None:
    def bytes_of(device: str) -> list[int]:
        step = cl.trace_meta(build(), device=device).last
        made = [key.startswith("2/aten::dropout") for key in step.storage_keys]
        return sorted(step.storages.bytes[made].tolist())

    assert bytes_of("H100") == [512 * 1024, 512 * 1024 * 4]
    assert bytes_of("cpu") == [512 * 1024 * 4] * 2


@pytest.mark.parametrize(
    ("dtype", "mask", "width", "kernel"),
    [
        (torch.bfloat16, False, 64, "_scaled_dot_product_flash_attention_backward"),
        (torch.bfloat16, False, 60, "_scaled_dot_product_flash_attention_backward"),
        (torch.bfloat16, True, 64, "_scaled_dot_product_efficient_attention_backward"),
        (torch.float32, False, 64, "_scaled_dot_product_efficient_attention_backward"),
    ],
)
def test_attention_never_holds_its_scores(dtype: torch.dtype, mask: bool, width: int, kernel: str) -> None:
    length = 512

    def step() -> None:
        q, k, v = (torch.randn(2, 4, length, width, dtype=dtype, requires_grad=True) for _ in range(3))
        bias = torch.ones(length, length, dtype=torch.bool) if mask else None
        out = F.scaled_dot_product_attention(q, k, v, bias, is_causal=not mask)
        assert out.shape == q.shape and out.dtype == dtype
        out.sum().backward()
        assert q.grad is not None and q.grad.shape == q.shape

    last = cl.trace_meta(step, device="H100").last
    assert f"aten::{kernel}" in names_in(last)
    assert last.storages.bytes.max() < 2 * 4 * length * length * dtype.itemsize


def test_autocast_casts_as_on_a_gpu_and_keeps_weights_until_the_region_ends() -> None:
    def make() -> Callable[[], None]:
        model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(128, 64, device="cuda")

        def step() -> None:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                hidden = model[0](x)
                normed = model[1](hidden)
                out = model[2](normed)
                again = model[0](x)
                assert hidden.dtype == out.dtype == again.dtype == torch.bfloat16
                assert normed.dtype == out.softmax(-1).dtype == out.sum().dtype == torch.float32
                assert torch.cat([normed, out]).dtype == torch.float32
                with torch.autocast("cuda", enabled=False):
                    assert model[0](x).dtype == torch.float32
            assert model[0](x).dtype == torch.float32
            (out.float().mean() + again.float().mean()).backward()
            assert model[0].weight.grad.dtype == torch.float32
            optimizer.step()
            optimizer.zero_grad()

        return step

    step = cl.trace_meta(make, device="H100").last
    copies = (step.storages.bytes == 64 * 64 * 2) & (step.storages.category == Category.ACTIVATION)
    assert copies.sum() == 2  # of two weights, although three layers ran
    assert not torch.is_autocast_enabled("cpu")


def test_checkpoints_run_again_in_backward() -> None:
    def make() -> Callable[[], None]:
        block = nn.Sequential(nn.Linear(64, 64), nn.GELU())
        x = torch.randn(128, 64, requires_grad=True)

        def step() -> None:
            torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False).sum().backward()

        return step

    step = cl.trace_meta(make, device="H100").last
    assert names_in(step, Stage.FORWARD).count("aten::gelu") == 1
    assert names_in(step, Stage.BACKWARD).count("aten::gelu") == 1


def test_what_the_host_reads_is_there() -> None:
    seen = []

    def step() -> None:
        loss = torch.randn(4, 4, device="cuda:0").sum()
        if loss > 0:
            seen.append((loss.item(), float(loss), loss.cpu().tolist(), loss.detach().numpy().tolist()))
        host = torch.empty(2, device="cpu")
        host.copy_(torch.zeros(2))
        assert host.tolist() == [1.0, 1.0] and not host.is_meta

    last = cl.trace_meta(step).last
    assert seen == [(1.0, 1.0, 1.0, 1.0)] * 2
    assert "aten::item" in names_in(last)
    with pytest.raises(RuntimeError, match="meta tensors"):
        torch.ones(1, device="meta").item()  # as before


def test_ops_that_need_data_say_so_and_take_a_stand_in() -> None:
    def step() -> None:
        x = torch.randn(64, 8)
        x[x[:, 0] > 0].exp()

    with pytest.raises(cl.TraceError, match="aten::index needs data.*stand_ins"):
        cl.trace_meta(step)

    def half(mask: torch.Tensor) -> torch.Tensor:
        return torch.empty(mask.numel() // 2, mask.dim(), dtype=torch.long, device="meta")

    last = cl.trace_meta(step, stand_ins={"aten::nonzero": half}).last
    made = [key.startswith("/aten::exp") for key in last.storage_keys]
    assert last.storages.bytes[made].tolist() == [32 * 8 * 4]


def test_a_model_that_moves_to_the_host_is_refused() -> None:
    def make() -> Callable[[], None]:
        nn.Linear(1024, 1024).to("cpu")
        return lambda: None

    with pytest.raises(cl.TraceError, match=r"4.00 MiB.*\(1024, 1024\).*cuda"):
        cl.trace_meta(make)


def test_errors_and_sessions_leave_nothing_behind() -> None:
    def broken() -> None:
        torch.ones(3) @ torch.ones(4)

    with pytest.raises(RuntimeError, match="inconsistent tensor size|size mismatch"):
        cl.trace_meta(broken)
    assert torch.ones(2).device.type == "cpu"
    assert "meta" not in optimizer._get_foreach_kernels_supported_devices()
    with cl.Session(), pytest.raises(cl.SessionError, match="stop the session"):
        cl.trace_meta(build())
    cl.trace_meta(build())
    with cl.Session():
        pass


def test_bad_arguments_are_named() -> None:
    with pytest.raises(TypeError, match="without calling it"):
        cl.trace_meta(nn.Linear(2, 2)(torch.ones(2)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="steps must be a number from 2 up, got 1"):
        cl.trace_meta(build(), steps=1)
    with pytest.raises(cl.TraceError, match="no op on meta tensors"):
        cl.trace_meta(lambda: None)
