"""Do matrix products, convolutions and attention repeat themselves to the bit, on this machine?

Nothing promises that they do: a library may choose its kernel by what it finds in its caches, or add in the order in
which threads finish. So they are replayed only where a run of each, with autograd around it, and two more without, with
other work in between, gave the same bits: per op and dtype, once a process for each number of threads and the settings
that choose kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import _disable_current_modes

from ..trace.replay_ops import REPLAY_CLASS
from . import core

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_REPEATS = 2

Case = Callable[[torch.device, torch.dtype], tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]]


@dataclass(frozen=True)
class Replayable:
    """The ops that a session may replay."""

    dtypes: dict[str, tuple[str, ...]]
    """By op name, the dtypes with which it may be replayed; empty: all."""
    refused: dict[str, str]
    """By op name, why it is not replayed, or not with every dtype."""

    def why_declined(self, refusal: int, name: str) -> str:
        """Why a drop was declined, in words. ``refusal`` is the core's, ``name`` the storage's op."""
        text = core.REFUSALS[refusal]
        if refusal != core.OP_NOT_REPLAYED:
            return text
        if dtypes := self.dtypes.get(name):
            return f"{name} is replayed only with {', '.join(dtypes)}, and not inside dispatch modes"
        return f"{name} is not replayed ({self.refused[name]})" if name in self.refused else text


NOTHING = Replayable({}, {})


UNSEEN_WRITES = "torch before 2.13 does not report writes through raw pointers to the inputs of a replay"


def replayable(device: torch.device, *, trusting: bool = False, cheap: bool = False) -> Replayable:
    """The ops of :data:`~chameleon_lab.trace.replay_ops.REPLAY_CLASS` that may be replayed.

    The result holds for the settings now in force, the number of threads among them. Other settings may choose other
    kernels, and are checked anew.

    Args:
        device: of the session's tensors.
        trusting: no code outside of ops writes to tensors through pointers.
        cheap: keep to class 1, which needs no check.
    """
    if not core.SEES_RAW_ACCESS and not trusting:
        return Replayable({}, dict.fromkeys(REPLAY_CLASS, UNSEEN_WRITES))
    return Replayable(_class_1(), {}) if cheap else _checked(device)


def _class_1() -> dict[str, tuple[str, ...]]:
    return {name: () for name, kind in REPLAY_CLASS.items() if kind == 1}


_verdicts: dict[tuple[Any, ...], str | None] = {}
"""By op, dtype and settings, why the op is not replayed; None if it may be. Checks that could not run, as for
want of memory, are not remembered."""


def _checked(device: torch.device) -> Replayable:
    dtypes = _class_1()
    refused = {}
    conditions = (device, core.numerics_key(device))
    with _plain(device):
        for names, cases in _CASES:
            good: list[str] = []
            bad: dict[str, list[str]] = {}
            for dtype in _TAKES.get(names[0], _DTYPES):
                why = _verdict(names[0], cases, device, dtype, conditions)
                (bad.setdefault(why, []) if why else good).append(str(dtype).removeprefix("torch."))
            for name in names:
                if good:
                    dtypes[name] = tuple(good)
                if bad:
                    refused[name] = "; ".join(f"{', '.join(texts)}: {why}" for why, texts in bad.items())
    for name, kind in REPLAY_CLASS.items():
        if kind == 2 and name not in dtypes and name not in refused and name not in _MADE_OF_OTHERS:
            refused[name] = f"no check on {device} covers it"
    return Replayable(dtypes, refused)


@contextmanager
def _plain(device: torch.device) -> Iterator[None]:
    """Leaves the caller's modes: a session may start inside of any, and replays run below all of them.

    If settings change in an open session, ops are checked anew between two steps, and count in neither.
    """
    with ExitStack() as stack:
        stack.callback(core.stand_aside, False)  # first: Ctrl-C may come in between
        core.stand_aside(True)
        stack.enter_context(torch._C.DisableTorchFunction())
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.autocast(device.type, enabled=False))
        # The innermost ones alone are called. Torch's stub does not have the function.
        if torch._C._autograd._saved_tensors_hooks_is_enabled():  # type: ignore[attr-defined]
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(_itself, _itself))
        stack.enter_context(torch.no_grad())
        yield


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class _DidNotRunError(Exception):
    """The check could not run: no verdict on the op."""


def _verdict(
    name: str, cases: tuple[Case, ...], device: torch.device, dtype: torch.dtype, conditions: tuple[Any, ...]
) -> str | None:
    key = (name, dtype, *conditions)
    if key not in _verdicts:
        try:
            _verdicts[key] = next((why for case in cases if (why := _differs(case, device, dtype))), None)
        except _DidNotRunError as error:
            return str(error)
    return _verdicts[key]


def _differs(case: Case, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why a case's op is not replayed with a dtype; None if every run gave the same bits."""
    try:
        op, inputs = case(device, dtype)
        graph_inputs = [tensor.detach().requires_grad_() for tensor in inputs]
        with torch.enable_grad():
            first = _bits(op(*graph_inputs))
        for _ in range(_REPEATS):
            held = torch.full((257,), 1.0, dtype=dtype, device=device)  # moves the next allocations
            work = held.mul(2)
            if not torch.equal(_bits(op(*inputs)), first):
                return "repeated runs are not bit-identical"
            del held, work
    except NotImplementedError:
        return f"not implemented on {device.type}"
    except Exception as error:  # a session starts without it
        text = str(error).splitlines()
        raise _DidNotRunError(
            f"the check did not run ({text[0] if text else type(error).__name__})"
        ) from None
    return None


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().flatten().view(torch.uint8).clone()


def _random(*shapes: Iterable[int]) -> Callable[[torch.device, torch.dtype], tuple[torch.Tensor, ...]]:
    def make(device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator("cpu").manual_seed(1)  # leaves the user's generators alone
        made = (torch.randn(tuple(s), generator=generator, dtype=torch.float64, device="cpu") for s in shapes)
        return tuple(tensor.to(device, dtype) for tensor in made)

    return make


def _case(op: Callable[..., torch.Tensor], *shapes: Iterable[int]) -> Case:
    make = _random(*shapes)
    return lambda device, dtype: (op, make(device, dtype))


def _attention(name: str, *before: Any) -> tuple[Case, ...]:
    """One back-end itself, whichever torch would choose. ``before`` are its arguments between the value and dropout."""
    op = getattr(torch.ops.aten, name)

    def case(causal: bool) -> Case:
        return _case(lambda q, k, v: op(q, k, v, *before, 0.0, causal)[0], *[(2, 3, 40, 32)] * 3)

    return case(True), case(False)


def _grouped(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Three groups of unlike sizes: of the rows of ``a``, as experts have; or, of two matrices, of what is summed."""
    ends = torch.tensor([16, 64, 96], dtype=torch.int32, device=a.device)
    product: torch.Tensor = torch._grouped_mm(a, b, ends)
    return product


def _aten(*names: str) -> tuple[str, ...]:
    return tuple(f"aten::{name}" for name in names)


_CASES: tuple[tuple[tuple[str, ...], tuple[Case, ...]], ...] = (
    (_aten("mm"), (_case(torch.mm, (96, 160), (160, 72)), _case(lambda a, b: a @ b.t(), (65, 33), (17, 33)))),
    (_aten("addmm", "_addmm_activation"), (_case(torch.addmm, (72,), (96, 160), (160, 72)),)),
    (_aten("bmm"), (_case(torch.bmm, (6, 48, 33), (6, 33, 40)),)),
    (_aten("baddbmm"), (_case(torch.baddbmm, (6, 48, 40), (6, 48, 33), (6, 33, 40)),)),
    (_aten("addbmm"), (_case(torch.addbmm, (48, 40), (6, 48, 33), (6, 33, 40)),)),
    (_aten("mv"), (_case(torch.mv, (96, 160), (160,)),)),
    (_aten("addmv"), (_case(torch.addmv, (96,), (96, 160), (160,)),)),
    (_aten("addr"), (_case(torch.addr, (96, 72), (96,), (72,)),)),
    (_aten("_grouped_mm"), (_case(_grouped, (96, 64), (3, 64, 48)), _case(_grouped, (64, 96), (96, 48)))),
    (_aten("dot", "vdot"), (_case(torch.dot, (5000,), (5000,)),)),
    (
        _aten("convolution"),
        (
            _case(lambda x, w, b: F.conv2d(x, w, b, padding=1), (4, 8, 14, 14), (12, 8, 3, 3), (12,)),
            _case(lambda x, w: F.conv2d(x, w, stride=2, groups=8), (2, 8, 13, 13), (8, 1, 3, 3)),
            _case(lambda x, w: F.conv1d(x, w, dilation=2), (4, 8, 40), (12, 8, 3)),
            _case(lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2), (2, 8, 9, 9), (8, 6, 3, 3), (6,)),
        ),
    ),
    *(
        (_aten(name), _attention(name, *before))
        for name, before in (
            ("_scaled_dot_product_flash_attention_for_cpu", ()),
            ("_scaled_dot_product_flash_attention", ()),
            ("_scaled_dot_product_efficient_attention", (None, True)),  # no bias; and what backward needs
            ("_scaled_dot_product_cudnn_attention", (None, True)),
        )
    ),
)
"""Ops and calls that run them."""

_TAKES = {"aten::_grouped_mm": (torch.float32, torch.bfloat16, torch.float16)}
"""The dtypes of ops that do not take all of them, and raise a RuntimeError for the others."""

_MADE_OF_OTHERS = frozenset(
    _aten(
        *(
            "conv1d",
            "conv2d",
            "conv3d",
            "conv_transpose1d",
            "conv_transpose2d",
            "conv_transpose3d",
        ),
        *("einsum", "inner", "linear", "matmul", "scaled_dot_product_attention", "tensordot"),
    )
)
