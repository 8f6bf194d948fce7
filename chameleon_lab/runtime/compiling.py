"""``torch.compile`` beside a session: what it compiles does not depend on whether one is open.

Its tracer cannot look into C functions, so the hooks that follow modules would end the graph at each of them, and other
graphs give other bits. It is told to take functions that do nothing in their place: inside a compiled region, modules
are not followed.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

from . import core
from .patches import Patches

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


class _Compiling(Patches):
    def install(self) -> None:
        # Importing Dynamo takes seconds, so that is left to whoever compiles something.
        if "torch._dynamo" in sys.modules:
            _tell_dynamo()
        super().install()


def compiling() -> Patches:
    """For as long as a session is open."""
    return _Compiling([(torch, "compile", _telling)])
