"""Keep list ops small: ops that touch every parameter at once would set the floor at the size of the whole model.

torch's ``foreach`` and ``fused`` optimizers and ``clip_grad_norm_`` first group tensors by device and dtype, and then
run one list op a group. Returning several smaller groups with distinct keys makes them run one list op a part: the
element-wise results are the same to the bit, and so is the order in which norms are combined. ``GradScaler`` and
``zero_grad`` call one list op themselves; those are split here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.utils.clip_grad as clip_grad
from torch.optim.optimizer import Optimizer

from .patches import Patches

_LIST_OPS = ("_amp_foreach_non_finite_check_and_unscale_", "_foreach_zero_")


def _spans(sizes: list[int], limit_bytes: int) -> list[tuple[int, int]]:
    """Consecutive ranges whose sizes add up to at most the limit, or hold a single element."""
    spans = []
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and total + size > limit_bytes:
            spans.append((start, index))
            start, total = index, 0
        total += size
    if start < len(sizes):
        spans.append((start, len(sizes)))
    return spans


def _nbytes(tensor: Any) -> int:
    return tensor.nbytes if isinstance(tensor, torch.Tensor) else 0


def _split_groups(group: Callable[..., dict], limit_bytes: Callable[[], int]) -> Callable[..., dict]:
    def grouped(tensor_lists: Any, with_indices: bool = False) -> dict:
        parts = {}
        for (device, dtype), (lists, indices) in group(tensor_lists, with_indices).items():
            sizes = [sum(_nbytes(column[i]) for column in lists if column) for i in range(len(lists[0]))]
            for part, (start, stop) in enumerate(_spans(sizes, limit_bytes())):
                # The second half of the key is only ever a dict key; making it a pair keeps the parts apart.
                parts[(device, dtype if part == 0 else (dtype, part))] = (
                    [column[start:stop] for column in lists],
                    indices[start:stop] if indices else indices,
                )
        return parts

    return grouped


def _split_list_op(op: Callable[..., Any], limit_bytes: Callable[[], int]) -> Callable[..., Any]:
    def split(tensors: Any, *args: Any, **kwargs: Any) -> None:
        tensors = list(tensors)
        for start, stop in _spans([_nbytes(t) for t in tensors], limit_bytes()):
            op(tensors[start:stop], *args, **kwargs)

    return split


def small_groups(limit_bytes: Callable[[], int]) -> Patches:
    """While installed, optimizers, gradient clipping, ``GradScaler`` and ``zero_grad`` work on parts of the model.

    Args:
        limit_bytes: asked at every use: the most bytes of tensors that one list op should touch. One parameter with
            its gradient and states is never split.
    """
    return Patches(
        [
            (
                Optimizer,
                "_group_tensors_by_device_and_dtype",
                lambda group: staticmethod(_split_groups(group, limit_bytes)),
            ),
            (
                clip_grad,
                "_group_tensors_by_device_and_dtype",
                lambda group: _split_groups(group, limit_bytes),
            ),
            *((torch, name, lambda op: _split_list_op(op, limit_bytes)) for name in _LIST_OPS),
        ]
    )
