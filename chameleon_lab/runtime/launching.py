"""Kernels that no op launches: a library's behind ctypes, CuPy's, one's own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from . import core
from .tensor_parts import parts


def launch(
    name: str, *, read: Iterable[torch.Tensor] = (), written: Iterable[torch.Tensor] = ()
) -> AbstractContextManager[object]:
    """What is launched inside is one op of the step, which uses these tensors.

    A kernel that is given addresses is out of a session's sight: each tensor of which one is taken has to stay on the
    device for good. With this, its tensors come in first, stay until the end of the block, and may then leave;
    addresses that are taken inside keep nothing. The op is in the trace, with its device time, and is planned for like
    any other. Triton's launches are found without it. Where no session is open, the block runs as it is::

        with chameleon_lab.launch("scale", read=[x], written=[y]):
            library.scale(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), x.numel())

    The kernel has to be queued on the current stream of the tensors' device, and no address may be used after the
    block. The block ends on the thread on which it began, and waits for no other thread that may need memory: its
    tensors cannot leave meanwhile. ``trace_meta`` runs it as well: leave the kernel out where ``x.is_meta``.

    Args:
        name: of the kernel. The op is called ``kernel::NAME``.
        read: tensors that the kernel reads.
        written: tensors that it writes, whether or not it reads them too. What it writes to one that is in ``read``
            alone may be lost when that leaves the device. One that is in neither counts as written once its address is
            taken in the block.

    Raises:
        ValueError: there is no name.
        TypeError: what is given is no tensor.
    """
    if not name:
        raise ValueError("launch() needs the kernel's name: it is what the op is called in traces")
    return OneOp(f"kernel::{name}", _tensors(name, read), _tensors(name, written))


def _tensors(name: str, values: Iterable[Any]) -> list[torch.Tensor]:
    tensors = []
    for value in values:
        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"launch({name!r}) takes tensors in read= and written=, not {type(value).__name__}: "
                "numbers and addresses are the kernel's own business"
            )
        tensors += [part for _, part in parts(value)]
    return tensors


class OneOp(AbstractContextManager["OneOp"]):
    """An op made of what runs in its block, on one thread. The two lists are emptied: no tensor is kept alive."""

    def __init__(self, name: str, read: list[torch.Tensor], written: list[torch.Tensor]) -> None:
        self._name = name
        self._tensors: tuple[list[torch.Tensor], list[torch.Tensor]] | None = (read, written)
        self._outside = 0
        self.results: Sequence[torch.Tensor] = ()
        """What the op has made, if it is to be known by then."""

    def __enter__(self) -> OneOp:
        if self._tensors is None:
            raise RuntimeError(f"the block of {self._name} has been entered before: make a new one")
        self._outside = core.regions_depth()
        read, written = self._tensors
        self._tensors = None
        try:
            core.enter_region(self._name, read, written)
        except BaseException:  # such as Ctrl-C while tensors come in
            core.leave_regions(self._outside)
            raise
        read.clear()
        written.clear()
        return self

    def __exit__(self, *_: object) -> None:
        if core.regions_depth() <= self._outside:
            raise RuntimeError(f"the block of {self._name} has to end on the thread on which it began")
        core.leave_regions(self._outside, self.results)
        self.results = ()
