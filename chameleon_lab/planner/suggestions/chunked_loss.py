"""The head and the loss of a language model on parts of the tokens, so that the logits never exist as a whole.

Logits, their log-softmax and their gradients have a vocabulary's width for each token, and are in use at the same ops:
no plan can do with less than all of them at once.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from ...trace import Category, Stage, StepTrace
from ...util.units import format_bytes
from ..memory import LEAST_SWAP_BYTES, step_memory
from .chosen_bytes import chosen_bytes
from .suggestion import WORTHWHILE, Suggestion

MOST_CHUNKS = 64
_LOSS = re.compile(r"aten::(cross_entropy_loss|_?log_softmax|nll_loss|nll_loss_forward|nll_loss_nd)$")
_LEAST_SHARE = 0.7
"""Of the logits' elements: a model may leave the last token of each sequence out of the loss."""


@dataclass(frozen=True, kw_only=True)
class ChunkedLoss(Suggestion):
    """Compute the loss in parts, each checkpointed."""

    chunks: int
    head: str
    """Path of the module that makes the logits; empty where no module does."""
    floor_bytes: int
    """The smallest capacity that any plan can run the step in."""
    changed_floor_bytes: int
    """The same after the change."""

    @property
    def what(self) -> str:
        """The change."""
        return f"compute the loss in {self.chunks} chunks (torch.utils.checkpoint)"

    @property
    def benefit(self) -> str:
        """Peak and floor."""
        lower = f"the floor from {format_bytes(self.floor_bytes)} to {format_bytes(self.changed_floor_bytes)}"
        return f"{super().benefit}, and lowers {lower}"


_CODE = """\
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

def loss_of_part(hidden, targets):
    logits = model.{head}(hidden)
    return F.cross_entropy(logits, targets, reduction="sum")

# hidden: (tokens, width), what goes into model.{head}; targets: (tokens,), of which none is ignored.
parts = zip(hidden.chunk({chunks}), targets.chunk({chunks}))
loss = sum(checkpoint(loss_of_part, *part, use_reentrant=False) for part in parts) / targets.numel()
"""


def chunked_loss(step: StepTrace, times: np.ndarray, goal_bytes: int) -> list[ChunkedLoss]:
    """The suggestion, where what has the logits' shape makes a noticeable part of the peak, or of the floor."""
    found = _logits(step)
    if found is None:
        return []
    family, head_op = found
    storages, stage = step.storages, step.ops.stage
    memory = step_memory(step, LEAST_SWAP_BYTES, 0, yields_all=True)
    least = memory.least_bytes()
    live = step.ops.live_peak_bytes.astype(np.int64)
    logits = np.minimum(chosen_bytes(step, family), live)
    used = np.zeros(len(live), dtype=np.int64)
    of = family[step.uses.storage]
    np.add.at(used, step.uses.op[of], storages.block_bytes[step.uses.storage[of]])
    used = np.minimum(used, least)
    # Each part of the backward makes a gradient of the head's weight: it, the sum of those before, and the new sum.
    end = int(np.flatnonzero(logits)[-1])
    weight = _weight_bytes(step, head_op)
    sums = np.where((logits > 0) & (stage == Stage.BACKWARD), 2 * weight, 0)

    def peak(chunks: int) -> int:
        return int((live - logits + -(-logits // chunks) + sums).max())

    def lowest(chunks: int) -> int:
        return max(int((least - used + -(-used // chunks)).max()), 3 * weight + int(least.min()))

    def helps(chunks: int) -> bool:
        peak_falls, floor_falls = peak(chunks) - peak(2 * chunks), lowest(chunks) - lowest(2 * chunks)
        return bool(max(peak_falls / live.max(), floor_falls / least.max()) >= WORTHWHILE)

    chunks = 2
    while chunks < MOST_CHUNKS and peak(chunks) > goal_bytes and helps(chunks):
        chunks *= 2
    module = int(step.ops.module[head_op])
    forward = (np.arange(len(live)) >= head_op) & (np.arange(len(live)) <= end) & (stage == Stage.FORWARD)
    suggestion = ChunkedLoss(
        chunks=chunks,
        head=step.module_path(module),
        live_peak_bytes=step.live_peak_bytes,
        changed_peak_bytes=peak(chunks),
        floor_bytes=int(least.max()),
        changed_floor_bytes=lowest(chunks),
        compute_s=float(times.sum()),
        extra_s=float(times[forward].sum()),
        code=_CODE.format(chunks=chunks, head=step.module_path(module) or "head"),
        same_bits=False,
    )
    floor_falls = (
        suggestion.floor_bytes - suggestion.changed_floor_bytes >= WORTHWHILE * suggestion.floor_bytes
    )
    peak_falls = suggestion.saved_bytes >= WORTHWHILE * step.live_peak_bytes
    return [suggestion] if floor_falls or peak_falls else []


def _logits(step: StepTrace) -> tuple[np.ndarray, int] | None:
    """Storages with as many elements as the logits, bool (storages,), and the op that made the logits; None: none."""
    storages, uses, stage = step.storages, step.uses, step.ops.stage
    loss = [
        op
        for op in np.flatnonzero(stage == Stage.FORWARD).tolist()
        if _LOSS.match(step.op_name(op)) is not None
    ]
    if not loss:
        return None
    elements = np.array([_elements(form) for form in step.forms] + [0], dtype=np.int64)[storages.form]
    read = uses.storage[np.isin(uses.op, loss) & uses.reads]
    read = read[storages.birth_op[read] >= 0]
    if not len(read):
        return None
    count = int(elements[read].max())
    alike = (elements <= count) & (elements >= _LEAST_SHARE * count) & (count > 0)
    # From the matrix product on whose result the loss reads, through casts and copies of the same shape.
    first = min(int(storages.birth_op[row]) for row in read.tolist() if alike[row])
    before = np.flatnonzero(alike & (storages.birth_op >= 0) & (storages.birth_op <= first))
    for row in sorted(before.tolist(), key=lambda row: -int(storages.birth_op[row])):
        inputs = uses.storage[(uses.op == first) & uses.reads]
        if row in inputs:
            first = int(storages.birth_op[row])
    alive_late = storages.category != Category.PARAMETER
    family = alike & alive_late & (storages.birth_op >= first)
    return family, first


def _elements(form: str) -> int:
    """How many elements a form such as ``float32 [64, 256]`` has; 0 where it names no shape."""
    shape = re.search(r"\[([\d, ]*)\]", form)
    return math.prod(int(size) for size in shape[1].split(",")) if shape and shape[1] else 0


def _weight_bytes(step: StepTrace, op: int) -> int:
    """Of the parameters that an op reads."""
    rows = step.uses.storage[step.uses.op == op]
    parameters = rows[step.storages.category[rows] == Category.PARAMETER]
    return int(step.storages.block_bytes[parameters].sum())
