"""A driver with which Triton compiles for a GPU that is not there, and Python runs in place of its kernels."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.runtime import driver


class Driver:
    """To Triton, an H100. What a kernel is to do, ``kernels`` says by its name, on addresses."""

    utils = SimpleNamespace(
        load_binary=lambda name, kernel, shared, device: (1, 1, 0, 0, 1024),
        unload_module=lambda module: None,
        get_device_properties=lambda device: {"max_shared_mem": 1 << 18},
    )

    def __init__(self, kernels: dict[str, Callable[..., None]]) -> None:
        self.kernels = kernels
        driver.set_active(self)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        kernel = self.kernels[source.fn.__name__]
        before = 9  # the grid, the stream, the function, metadata and hooks

        def launch(*arguments: Any) -> None:
            kernel(*arguments[before:])

        return launch
