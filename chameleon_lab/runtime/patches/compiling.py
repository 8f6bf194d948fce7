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
        core.enter_compiled_region([t for _, t in tensors], [t for changed, t in tensors if changed])
        tensors.clear()  # the graph frees its inputs as it goes
        results: Any = ()
        try:
            results = call(graph, inputs)
        finally:
            core.leave_compiled_region([t for t in results if isinstance(t, torch.Tensor)])
        return results

    return run_as_one_op


class _Compiling(Patches):
    def __init__(self) -> None:
        super().__init__(
            [(torch, "compile", _telling), (torch._TorchCompileInductorWrapper, "__call__", self._watching)]
        )
        self._graphs: Patches | None = None

    def places(self) -> list[tuple[Any, str]]:
        """And what is replaced once Inductor is there."""
        graphs = sys.modules.get("torch._inductor.output_code")
        return super().places() + ([(graphs.CompiledFxGraph, "__call__")] if graphs else [])

    def install(self) -> None:
        # Importing Dynamo and Inductor takes seconds, so that is left to whoever compiles something.
        if "torch._dynamo" in sys.modules:
            _tell_dynamo()
        if "torch._inductor.output_code" in sys.modules:
            self._watch_graphs()
        super().install()

    def remove(self) -> None:
        super().remove()
        if self._graphs is not None:
            self._graphs.remove()
            self._graphs = None

    def _watch_graphs(self) -> None:
        if self._graphs is not None:
            return
        from torch._inductor.output_code import CompiledFxGraph

        self._graphs = Patches([(CompiledFxGraph, "__call__", _one_op)])
        self._graphs.install()

    def _watching(self, compile_graph: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(compile_graph)
        def compile_and_watch(*args: Any, **kwargs: Any) -> Any:
            self._watch_graphs()
            return compile_graph(*args, **kwargs)

        return compile_and_watch


def compiling() -> Patches:
    """For as long as a session is open."""
    return _Compiling()
