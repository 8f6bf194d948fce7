"""Ops whose kernels are in Python, as `torch.library.custom_op` makes them.

Since torch 2.14 a call of such an op goes to its kernel without the C++ dispatcher (Note [PyObject Dispatcher] in
``torch/_ops.py``), and so without RecordFunction: the op would not be recorded, and its inputs could leave while it
runs. While a session is open the call takes the dispatcher, as with older versions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._ops import OpOverload

from .patch import Patches


def _by_the_dispatcher(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def call_by_the_dispatcher(op: Any, /, *args: Any, **kwargs: Any) -> Any:
        return op._cpp_dispatch_handle(*args, **kwargs)

    return call_by_the_dispatcher


def custom_ops() -> Patches:
    """For as long as a session is open."""
    skips_it = hasattr(OpOverload, "_enable_pyobj_dispatch")  # and with it `_cpp_dispatch_handle`
    return Patches([(OpOverload, "__call__", _by_the_dispatcher)] if skips_it else [])
