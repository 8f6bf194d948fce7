"""What programs with Triton's kernels need where there is no GPU: its interpreter, as Liger's kernels want it."""

from __future__ import annotations

from typing import Any


def interpret_liger() -> None:
    """Triton 3.9's interpreter hands kernels floats as Python's, and has no libdevice: both as on a GPU."""
    import numpy as np
    import triton.language as tl
    import triton.runtime.interpreter as interpreter

    convert = interpreter._implicit_cvt
    if getattr(convert, "converts_floats", False):
        return

    def converting(value: Any) -> Any:
        if type(value) is not float:
            return convert(value)
        handle = interpreter.TensorHandle(np.array([value], dtype=np.float32), tl.float32)
        return tl.tensor(handle, tl.float32)

    converting.converts_floats = True
    interpreter._implicit_cvt = converting

    import liger_kernel.ops.rms_norm

    liger_kernel.ops.rms_norm.rsqrt = lambda value: tl.math.rsqrt(value)  # the interpreter's, at each call
