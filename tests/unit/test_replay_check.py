"""The self-check of replays: its verdict is that of the machine, whatever modes the caller is in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from chameleon_lab.runtime import core, replay_check
from chameleon_lab.runtime.replay_check import Replayable, replayable

CPU = torch.device("cpu")
HOOKS = torch.autograd.graph.saved_tensors_hooks


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has checked nothing yet."""
    monkeypatch.setattr(replay_check, "_verdicts", {})


def checked() -> Replayable:
    """What may be replayed on the host."""
    return replayable(CPU, trusting=True)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def default_device(device: str) -> Any:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def deterministic() -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def test_an_op_is_checked_with_the_dtypes_that_it_takes() -> None:
    found = checked()
    assert found.dtypes["aten::_grouped_mm"] == ("float32", "bfloat16", "float16")
    assert "aten::_grouped_mm" not in found.refused


def refuse(*_: Any) -> Any:
    raise ZeroDivisionError


class Refusing(TorchFunctionMode):
    """Lets no function of torch through."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise ZeroDivisionError(f"the caller's mode has seen {func}")


class RefusingOps(TorchDispatchMode):
    """Lets no op through."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise ZeroDivisionError(f"the caller's mode has seen {func}")


SURROUNDINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "nothing": nullcontext,
    "meta device": lambda: torch.device("meta"),
    "default device meta": lambda: default_device("meta"),
    "fake tensors": FakeTensorMode,
    "function mode": Refusing,
    "dispatch mode": RefusingOps,
    "saved-tensor hooks": lambda: HOOKS(refuse, refuse),
    "no saved-tensor hooks allowed": lambda: torch.autograd.graph.disable_saved_tensors_hooks("no"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference": torch.inference_mode,
    "no grad": torch.no_grad,
    "float64 by default": lambda: default_dtype(torch.float64),
    "bfloat16 by default": lambda: default_dtype(torch.bfloat16),
    "deterministic": deterministic,
}


def state() -> tuple[Any, ...]:
    """What a check may leave otherwise than it has found it."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.get_default_dtype(),
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
        torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None,
        torch._C._autograd._saved_tensors_hooks_is_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch._C.default_generator.get_state().tolist(),
    )


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_the_verdict_is_that_of_the_machine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[tuple[str, torch.dtype, bool]] = Counter()
    bits = replay_check._bits

    def watched(tensor: torch.Tensor) -> torch.Tensor:
        seen[tensor.device.type, tensor.dtype, tensor.requires_grad] += 1
        return bits(tensor)

    monkeypatch.setattr(replay_check, "_bits", watched)
    expected, ran = checked(), Counter(seen)
    assert "aten::mm" in expected.dtypes and "aten::convolution" in expected.dtypes
    assert {dtype for _, dtype, _ in ran} == {torch.float32, torch.bfloat16, torch.float16, torch.float64}
    assert {grad for _, _, grad in ran} == {True, False}
    replay_check._verdicts.clear()
    seen.clear()
    before = torch._C.default_generator.get_state()
    with SURROUNDINGS[name]():
        with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
            were = state()
        found = checked()
        with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
            assert state() == were
    assert found == expected
    assert seen == ran, "other ops ran, or with other dtypes"
    assert torch.equal(torch._C.default_generator.get_state(), before)
    assert checked() == expected, "for the next session, too"


def test_the_callers_modes_and_hooks_are_there_again() -> None:
    packed = []
    with HOOKS(lambda t: packed.append(t) or t, lambda t: t), FlopCounterMode(display=False) as flops:
        checked()
        assert flops.get_total_flops() == 0 and not packed
        x = torch.ones(4, 4, requires_grad=True)
        (x @ x).sum().backward()
        assert flops.get_total_flops() > 0 and packed
    with torch.autocast("cpu", torch.bfloat16), torch.device("meta"), torch.no_grad():
        checked()
        assert torch.ones(2).is_meta and not torch.is_grad_enabled()
        with torch.device("cpu"):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16


@pytest.mark.parametrize("failure", [RuntimeError("out of memory"), TypeError("odd"), OSError("gone")])
def test_a_check_that_did_not_run_says_nothing_of_the_next_session(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = True

    def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if failing:
            raise failure
        return torch.mm(a, b)

    monkeypatch.setattr(replay_check, "_CASES", ((("aten::mm",), (replay_check._case(mm, (4, 3), (3, 2)),)),))
    found = checked()
    assert "aten::mm" not in found.dtypes
    assert (
        f"float32, bfloat16, float16, float64: the check did not run ({failure})" in found.refused["aten::mm"]
    )
    failing = False
    found = checked()
    assert len(found.dtypes["aten::mm"]) == 4 and "aten::mm" not in found.refused


def test_what_does_not_repeat_itself_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []

    def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        return torch.mm(a, b) + len(runs)

    monkeypatch.setattr(replay_check, "_CASES", ((("aten::mm",), (replay_check._case(mm, (4, 3), (3, 2)),)),))
    assert "not bit-identical" in checked().refused["aten::mm"]
    ran = len(runs)
    assert "not bit-identical" in checked().refused["aten::mm"]
    assert len(runs) == ran
    with deterministic():  # other settings may choose other kernels
        checked()
    assert len(runs) > ran


@contextmanager
def multiprocessors_left(count: int) -> Iterator[None]:
    before = torch._C._get_sm_carveout_experimental()
    torch._C._set_sm_carveout_experimental(count)
    try:
        yield
    finally:
        torch._C._set_sm_carveout_experimental(before)


MORE_SETTINGS = {
    ("_get_cudnn_depthwise_kernel", "_set_cudnn_depthwise_kernel"): "native",
    ("_get_cublaslt_prefer_grouped_gemm", "_set_cublaslt_prefer_grouped_gemm"): True,
    ("_get_fa3_sdp_enabled", "_set_sdp_use_fa3"): True,
    ("_get_fa4_sdp_enabled", "_set_sdp_use_fa4"): True,
    ("_get_native_aot_enabled", "_set_native_aot_enabled"): False,
    ("_get_native_aot_unconditional_masked", "_set_native_aot_unconditional_masked"): True,
}
"""Settings of the GPU's ops, most of which some torches lack: functions that tell and set them, another value."""


@contextmanager
def setting(getter: str, setter: str, value: object) -> Iterator[None]:
    before = getattr(torch._C, getter)()
    getattr(torch._C, setter)(value)
    try:
        yield
    finally:
        getattr(torch._C, setter)(before)


def test_another_setting_of_the_gpu_is_checked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two sessions in a process, the second may not go by what the first one's kernels did."""
    cases: list[str] = []

    def differs(case: replay_check.Case, device: torch.device, dtype: torch.dtype) -> None:
        cases.append(str(dtype))

    monkeypatch.setattr(replay_check, "_differs", differs)
    gpu = torch.device("cuda")
    replayable(gpu, trusting=True)
    every = len(cases)
    assert every
    replayable(gpu, trusting=True)
    assert len(cases) == every
    with multiprocessors_left(4):
        replayable(gpu, trusting=True)
        assert len(cases) == 2 * every
        checked()  # on the host nothing hangs on it
        on_host = len(cases) - 2 * every
    checked()
    assert on_host and len(cases) == 2 * every + on_host
    for (getter, setter), value in MORE_SETTINGS.items():
        if hasattr(torch._C, getter):
            ran = len(cases)
            with setting(getter, setter, value):
                replayable(gpu, trusting=True)
            assert len(cases) == ran + every, setter


def test_reasons_name_the_op_and_its_dtypes() -> None:
    known = Replayable(
        {"aten::mm": ("float32", "float64"), "aten::gelu": ()},
        {
            "aten::mm": "bfloat16: repeated runs are not bit-identical",
            "aten::bmm": "float32: the check did not run",
        },
    )
    code = core.OP_NOT_REPLAYED
    assert core.REFUSALS[code] == "the op that made it is not replayed"
    assert known.why_declined(code, "aten::mm").startswith("aten::mm is replayed only with float32, float64")
    assert (
        known.why_declined(code, "aten::bmm") == "aten::bmm is not replayed (float32: the check did not run)"
    )
    for name in ("aten::gelu", "aten::cumsum", ""):
        assert known.why_declined(code, name) == core.REFUSALS[code]
    for other, text in enumerate(core.REFUSALS):
        assert other == code or known.why_declined(other, "aten::mm") == text


def test_dtypes_of_one_reason_stand_together() -> None:
    why = checked().refused["aten::_scaled_dot_product_efficient_attention"]
    assert why == "float32, bfloat16, float16, float64: not implemented on cpu"
