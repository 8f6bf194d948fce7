"""Triton's launches are ops, under its autotuner and heuristics as well. Its interpreter runs them, without a GPU."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
from triton_programs import NEEDS_TRITON, printed

pytestmark = [pytest.mark.full, pytest.mark.bits, NEEDS_TRITON]

PROGRAM = """
    import json, sys
    import torch
    import chameleon_lab as cl
    from chameleon_lab.runtime import core
    {imports_late}
    import triton, triton.language as tl
    {imports_early}
    N = 1 << 18

    @triton.jit
    def scale_kernel(x, y, n, factor, TILE: tl.constexpr):
        place = tl.program_id(0) * TILE + tl.arange(0, TILE)
        tl.store(y + place, tl.load(x + place, mask=place < n) * factor, mask=place < n)

    def grid(meta):
        return (triton.cdiv(N, meta["TILE"]),)

    def names(session):
        session.step()
        step = session.trace().last
        return [step.names[name] for name in step.ops.name if step.names[name].startswith("triton::")]
"""


def interpreted(tmp_path: Path, body: str, late: bool = False) -> Any:
    """What a program prints last, as JSON. With ``late`` Triton is imported within the session that is open then."""
    opened = "session = cl.Session('4MiB', device='cpu').start()"
    head = PROGRAM.replace("{imports_late}", opened if late else "").replace(
        "{imports_early}", "" if late else opened
    )
    return printed(tmp_path, textwrap.dedent(head) + textwrap.dedent(body), TRITON_INTERPRET="1")


@pytest.mark.gate
@pytest.mark.parametrize("late", [True, False])
def test_a_launch_is_an_op_and_keeps_nothing(tmp_path: Path, late: bool) -> None:
    found = interpreted(
        tmp_path,
        """
        x, y = torch.arange(float(N)), torch.zeros(N)
        sent = []
        for factor in (2.0, 3.0):  # the second time the host has a copy of y, which goes stale
            sent += [session.evict(x), session.evict(y)]
            scale_kernel[grid](x, y, N, factor, TILE=1 << 16)
        sent += [session.evict(x), session.evict(y)]
        ops = names(session)
        print(json.dumps([sent, y[997].item(), x[997].item(), ops, session.report().escaped_storages]))
        """,
        late,
    )
    assert found == [[True] * 6, 3 * 997, 997, ["triton::scale_kernel"] * 2, 0]


def test_the_search_for_a_configuration_is_an_op_a_configuration(tmp_path: Path) -> None:
    found = interpreted(
        tmp_path,
        """
        runs = []

        def bench(call, quantiles):
            runs.append([call() for _ in range(3)])
            return [float(len(runs))] * 3

        tuned = triton.autotune([triton.Config({"TILE": 1 << size}) for size in (15, 16)], ["n"], do_bench=bench)
        derived = triton.heuristics({"n": lambda args: N})
        x, y = torch.arange(float(N)), torch.zeros(N)
        sent = [session.evict(x), session.evict(y)]
        kernel = tuned(derived(scale_kernel))
        for _ in range(2):
            kernel[grid](x, y, n=N, factor=2.0)
        sent += [session.evict(x), session.evict(y)]
        ops = names(session)
        print(json.dumps([sent, len(runs), y[997].item(), ops, session.report().escaped_storages]))
        """,
    )
    assert found == [[True] * 4, 2, 2 * 997, ["triton::autotune"] * 2 + ["triton::scale_kernel"] * 2, 0]


def test_what_a_kernel_s_parameters_are_called_does_not_matter(tmp_path: Path) -> None:
    found = interpreted(
        tmp_path,
        """
        @triton.jit
        def copy_kernel(kernel, tuner, TILE: tl.constexpr):
            place = tl.program_id(0) * TILE + tl.arange(0, TILE)
            tl.store(tuner + place, tl.load(kernel + place))

        x, y = torch.arange(float(N)), torch.zeros(N)
        copy_kernel[grid](kernel=x, tuner=y, TILE=1 << 16)
        print(json.dumps([y[997].item(), names(session), session.report().escaped_storages]))
        """,
    )
    assert found == [997, ["triton::copy_kernel"], 0]


def test_a_tensor_behind_a_descriptor_may_leave(tmp_path: Path) -> None:
    found = interpreted(
        tmp_path,
        """
        from triton.tools.tensor_descriptor import TensorDescriptor

        @triton.jit
        def double_kernel(source, target):
            row = tl.program_id(0) * 16
            target.store([row, 0], 2 * source.load([row, 0]))

        x, y = torch.arange(float(N)).view(-1, 64), torch.zeros(N // 64, 64)
        sent = [session.evict(x), session.evict(y)]
        described = [TensorDescriptor.from_tensor(t, [16, 64]) for t in (x, y)]
        waits = [session.where(t) for t in (x, y)]
        double_kernel[(N // 64 // 16,)](*described)
        sent += [session.evict(x), session.evict(y)]
        print(json.dumps([sent, waits, y[997 // 64, 997 % 64].item(), session.report().escaped_storages]))
        """,
    )
    assert found == [[True] * 4, ["away"] * 2, 2 * 997, 0]


def test_a_tensor_without_data_fails_in_a_session_as_ever(tmp_path: Path) -> None:
    found = interpreted(
        tmp_path,
        """
        try:
            scale_kernel[grid](torch.empty(N, device="meta"), torch.zeros(N), N, 2.0, TILE=1 << 16)
            said = ""
        except NotImplementedError as error:
            said = str(error)
        print(json.dumps([said, core.regions_depth()]))
        """,
    )
    assert "meta tensor" in found[0] and found[1] == 0


@pytest.mark.parametrize("tuned", [False, True])
def test_kernels_without_data_are_traced_and_not_launched(tmp_path: Path, tuned: bool) -> None:
    found = interpreted(
        tmp_path,
        f"""
        session.stop()
        kernel, tile = scale_kernel, {{"TILE": 1 << 16}}
        if {tuned}:
            configs = [triton.Config({{"TILE": 1 << size}}) for size in (15, 16)]
            kernel, tile = triton.autotune(configs, ["n"])(scale_kernel), {{}}
        def step():
            weight = torch.nn.Parameter(torch.randn(N))
            optimizer = torch.optim.SGD([weight], lr=0.1)
            def train():
                scaled = torch.empty_like(weight)
                kernel[grid](weight, scaled, N, 2.0, **tile)
                (weight * scaled.detach()).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            return train
        trace = cl.trace_meta(step, device="H100")
        step = trace.last
        times = [
            float(s) for name, s in zip(step.ops.name, step.ops.duration_s)
            if step.names[name] == "triton::scale_kernel"
        ]
        print(json.dumps([times, len(getattr(kernel, "cache", ()))]))
        """,
    )
    (duration_s,), chosen = found
    assert chosen == 0, "nothing was timed"
    assert 3e-6 < duration_s < 5e-6, "2 MiB and a launch on an H100"
