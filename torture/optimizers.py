"""Every optimizer of PyTorch's OptimizerInfo database: one tensor at a time, foreach and fused; capturable off."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from .compare import attempt, seed_all
from .forced import compare
from .outcome import Outcome
from .pool import Options

_STEPS = 4
_ONE_OF = 3  # sets of arguments, in the share
_SHAPES = ((24, 9), (130,), (3, 5, 2), (1,))


@cache
def _optimizers() -> dict[str, Any]:
    from torch.testing._internal.common_optimizers import optim_db

    return {info.optim_cls.__name__: info for info in optim_db}


def cases(options: Options) -> list[str]:
    """A case is an optimizer."""
    return list(_optimizers())


def check(case: str, options: Options) -> Outcome:
    """All its arguments, with every implementation."""
    info, outcome = _optimizers()[case], Outcome(case)
    ways: dict[str, dict[str, bool]] = {"each": {}}
    if "foreach" in info.supported_impls:
        ways = {"each": {"foreach": False}, "foreach": {"foreach": True}}
    if "cpu" in info.supports_fused_on:
        ways["fused"] = {"fused": True}
    for way, flags in ways.items():
        for dtype in (torch.float32,) if options.share else (torch.float32, torch.float64, torch.bfloat16):
            label = f"{way} {str(dtype).removeprefix('torch.')}"
            compare(outcome, label, lambda f=flags, d=dtype: list(_tries(info, f, d, options)), options.seed)
    return outcome


def _tries(
    info: Any, flags: dict[str, bool], dtype: torch.dtype, options: Options
) -> Iterator[tuple[bool, Any]]:
    for arguments in info.optim_inputs_func("cpu")[:: _ONE_OF if options.share else 1]:
        if any(arguments.kwargs.get(key) for key in ("capturable", "differentiable")):
            continue
        kwargs = {**arguments.kwargs, **flags}
        yield attempt(lambda kwargs=kwargs: _train(info, kwargs, dtype))


def _train(info: Any, kwargs: dict[str, Any], dtype: torch.dtype) -> Any:
    seed_all(0)
    kwargs = tree_map_only(torch.Tensor, torch.clone, kwargs)  # a learning rate may be one, and is written to
    parameters = [torch.nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in _SHAPES]
    if info.optim_cls is torch.optim.Muon:
        parameters = [p for p in parameters if p.dim() == 2]
    optimizer = info.optim_cls(parameters, **kwargs)
    scale = torch.randn((), dtype=dtype)
    losses = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.stack([(p * scale).tanh().pow(2).sum() for p in parameters]).sum()
        loss.backward()
        if info.only_supports_sparse_grads:
            for parameter in parameters:
                parameter.grad = parameter.grad.to_sparse()
        return loss

    for _ in range(_STEPS):
        if info.step_requires_closure:
            losses.append(optimizer.step(closure))
        else:
            losses.append(closure())
            optimizer.step()
    return parameters, losses, optimizer.state_dict()
