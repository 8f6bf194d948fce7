"""``torch.compile`` beside a session: its graphs do not depend on an open session.

Its tracer cannot look into C functions, so the hooks that follow modules would end the graph at each of them, and other
graphs give other bits. It is told to take functions that do nothing in their place: inside a compiled region, modules
are not followed.

What Inductor has compiled runs as one op: its kernels take pointers, so its inputs, and what ops inside use, are
brought in and stay until it ends. Graphs of other back-ends run op by op, as without a compiler.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

from .. import core
from ..launching import OneOp
from .late import LatePatches
from .patch import Patches

_HOOK_WARNING = r"Using `torch\.compile\(module\)` when there are global hooks"


@functools.cache
def _tell_dynamo() -> None:
    def entered(module: Any, args: Any) -> None: ...

    def left(module: Any, args: Any, output: Any) -> None: ...

    torch.compiler.substitute_in_graph(core.enter_module, skip_signature_check=True)(entered)
    torch.compiler.substitute_in_graph(core.leave_module, skip_signature_check=True)(left)
    # The hooks fire once more for the compiled module, which is harmless.
    warnings.filterwarnings("ignore", message=_HOOK_WARNING, category=UserWarning)


def _telling(compile_: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(compile_)
    def compile_beside_a_session(*args: Any, **kwargs: Any) -> Any:
        _tell_dynamo()
        return compile_(*args, **kwargs)

    return compile_beside_a_session


def _one_op(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def run_as_one_op(graph: Any, inputs: Any) -> Any:
        written = getattr(graph, "mutated_input_idxs", ())
        tensors = [(number in written, t) for number, t in enumerate(inputs) if isinstance(t, torch.Tensor)]
        changed = [t for changes, t in tensors if changes]
        region = OneOp("chameleon::compiled_region", [t for _, t in tensors], changed)
        tensors.clear()  # the graph frees its inputs as it goes
        with region:
            results = call(graph, inputs)
            region.results = [t for t in results if isinstance(t, torch.Tensor)]
        return results

    return run_as_one_op


class _Telling(Patches):
    def install(self) -> None:
        # Importing Dynamo takes seconds, so that is left to whoever compiles something.
        if "torch._dynamo" in sys.modules:
            _tell_dynamo()
        super().install()


def compiling() -> list[Patches]:
    """For as long as a session is open."""
    graphs = LatePatches([("torch._inductor.output_code", "CompiledFxGraph.__call__", _one_op)])
    return [_Telling([(torch, "compile", _telling)]), graphs]
