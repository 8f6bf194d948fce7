"""Every module of PyTorch's ModuleInfo database: made, called and trained, in training and in evaluation mode."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from .compare import attempt, seed_all
from .forced import Tries, by_name, compare
from .outcome import Outcome
from .pool import Options

_MOST_SAMPLES_OF_SHARE = 2


@cache
def _modules() -> dict[str, Any]:
    from torch.testing._internal.common_modules import module_db

    return by_name((module.formatted_name, module) for module in module_db)


def cases(options: Options) -> list[str]:
    """A case is a module."""
    return list(_modules())


def check(case: str, options: Options) -> Outcome:
    """All its dtypes."""
    info, outcome = _modules()[case], Outcome(case)
    dtypes = sorted(info.supported_dtypes("cpu"), key=str)
    for dtype in dtypes[:1] if options.share else dtypes:
        for training in (True, False):
            label = f"{str(dtype).removeprefix('torch.')} {'training' if training else 'evaluation'}"

            def run(dtype=dtype, training=training) -> Tries:
                return list(_tries(info, dtype, training, options))

            compare(outcome, label, run, options.seed)
    return outcome


def _tries(info: Any, dtype: torch.dtype, training: bool, options: Options) -> Iterator[tuple[bool, Any]]:
    seed_all(options.seed)
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=training, training=training
    )
    for sample in islice(inputs, _MOST_SAMPLES_OF_SHARE if options.share else None):
        if sample.forward_input is not None:
            yield attempt(lambda sample=sample: _train(info, sample, dtype, training))


def _train(info: Any, sample: Any, dtype: torch.dtype, training: bool) -> Any:
    module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
    module = module.to(dtype).train(training)
    given = (sample.forward_input.args, sample.forward_input.kwargs)
    out = module(*given[0], **given[1])
    ends = [t for t in tree_flatten(out)[0] if isinstance(t, torch.Tensor) and t.requires_grad]
    if ends:
        torch.autograd.backward(ends, [torch.randn_like(end) for end in ends])
    gradients = [p.grad for p in module.parameters()]
    inputs = [t.grad for t in tree_flatten(given)[0] if isinstance(t, torch.Tensor) and t.is_leaf]
    return out, gradients, inputs, list(module.state_dict().values())
