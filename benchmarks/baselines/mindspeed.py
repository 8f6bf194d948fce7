"""A port of the rule of MindSpeed's smart swap, version 1 (github.com/Ascend/MindSpeed, core/memory/smart_swap).

What it keeps: every op takes the same time; forward and backward are cut into layers of equally many ops, each with
one budget of link time for both directions; candidates are activations and optimizer states of at least 20 MB; the
highest peak is served first, by the candidates of the best static score that no layer's budget forbids; copies come
back a layer before their use, and blocks are freed four layers after their copy has ended. What it leaves out: the
2 GiB kept in reserve, the swaps that an out-of-memory error forces, and one stream for both directions of the link.
"""

from __future__ import annotations

import numpy as np

from chameleon_lab.planner.memory import StepMemory, Swaps
from chameleon_lab.policy import Link
from chameleon_lab.trace import Stage, StepTrace

from .naive import forward_to_backward
from .placement import Choice, place

LEAST_BYTES = 20 << 20
LEAST_LAYERS = 11
FREE_LAYERS = 4
"""Layers after the one in which a copy out ends."""


def mindspeed(
    step: StepTrace, memory: StepMemory, capacity_bytes: int, link: Link, times: np.ndarray
) -> Swaps:
    """Serve the highest peak until none is above the capacity, or no candidate is left."""
    n = memory.ops
    first = _layers(step)
    count = len(first)
    op_s = float(times.sum()) / n
    layer_of = np.searchsorted(first, np.arange(n), "right") - 1
    layer_s = np.bincount(layer_of, minlength=count) * op_s
    states = np.flatnonzero(
        memory.gap_returns
        & (memory.gap_bytes >= LEAST_BYTES)
        & (memory.gap_use >= n)
        & (step.ops.stage[memory.gap_use % n] == Stage.OPTIMIZER)
    )
    gaps = np.concatenate([forward_to_backward(step, memory, LEAST_BYTES), states])
    is_state = np.arange(len(gaps)) >= len(gaps) - len(states)
    size = memory.gap_bytes[gaps]
    # A state leaves at the start of forward, and is away until the optimizer of that step.
    out_layer = np.where(is_state, 0, layer_of[memory.gap_out[gaps]])
    in_layer = layer_of[memory.gap_use[gaps] % n] - 1
    away_from, away_to = first[np.minimum(out_layer + 1, count - 1)], first[in_layer]
    needed = memory.live_bytes - int(memory.block_bytes[memory.dormant].sum()) - capacity_bytes
    over = np.concatenate([[0], np.cumsum(needed > 0)])
    coverage = over[np.maximum(away_to, away_from)] - over[away_from]
    usable = np.flatnonzero((coverage > 0) & (in_layer > out_layer + 1))
    score = _scaled(coverage[usable].astype(float)) + 2.0 * _scaled(np.cbrt(size[usable]))
    order = usable[np.argsort(-score, kind="stable")]

    copy_s = np.array([max(link.out_s(b), link.in_s(b)) for b in size.tolist()])
    left_s = layer_s.copy()
    taken: dict[int, int] = {}  # candidate to the layer in which it comes back
    while len(needed) and needed.max() > 0:
        peak = int(needed.argmax())
        here = [k for k in order.tolist() if k not in taken and away_from[k] <= peak < away_to[k]]
        if not here:
            break
        chosen, still_needed = [], int(needed[peak])
        for k in here:
            if left_s[out_layer[k]] < copy_s[k] or left_s[in_layer[k]] < copy_s[k]:
                continue
            left_s[out_layer[k]] -= copy_s[k]
            left_s[in_layer[k]] -= copy_s[k]
            chosen.append((k, int(in_layer[k])))
            still_needed -= int(size[k])
            if still_needed <= 0:
                break
        if not chosen:
            # None fits its layers: the best one, back in the last layer before that has time for it.
            k = here[0]
            left_s[out_layer[k]] -= copy_s[k]
            layers = range(int(in_layer[k]), int(out_layer[k]), -1)
            back = next((layer for layer in layers if left_s[layer] > copy_s[k]), int(in_layer[k]))
            left_s[back] -= copy_s[k]
            chosen = [(k, back)]
        for k, back in chosen:
            taken[k] = back
            needed[away_from[k] : max(first[back], away_from[k])] -= size[k]
    picked = np.array(sorted(taken), dtype=np.int64)
    back_layer = np.array([taken[k] for k in picked.tolist()], dtype=np.int64)
    return place(
        memory, _choice(memory, gaps[picked], is_state[picked], first, back_layer, link, op_s), capacity_bytes
    )


def _layers(step: StepTrace) -> np.ndarray:
    """First op of each layer, ascending, the step's own first op among them."""
    n = len(step.ops)
    layers = len({path.split(".")[i] for path in step.modules for i in _numbers(path)}) or 1
    slices = (10 // layers + 1) * layers
    borders = [0, *(np.flatnonzero(np.diff(step.ops.stage)) + 1).tolist(), n]
    first: list[int] = []
    for begin, end in zip(borders, borders[1:], strict=False):
        cut = slices if step.ops.stage[begin] in (Stage.FORWARD, Stage.BACKWARD) else 1
        first += np.linspace(begin, end, min(cut, end - begin), endpoint=False).astype(int).tolist()
    return np.unique(first)


def _numbers(path: str) -> list[int]:
    """Where the first number of a module path stands: the layer's."""
    return [i for i, part in enumerate(path.split(".")) if part.isdigit()][:1]


def _scaled(values: np.ndarray) -> np.ndarray:
    return (values - values.min(initial=np.inf)) / max(np.ptp(values), 1e-3) if len(values) else values


def _choice(
    memory: StepMemory,
    gap: np.ndarray,
    is_state: np.ndarray,
    first: np.ndarray,
    back_layer: np.ndarray,
    link: Link,
    op_s: float,
) -> Choice:
    """Free points: layers after the simulated end of the copy out, the earliest issued first."""
    n = memory.ops
    issue = np.where(is_state, n, memory.gap_out[gap] + 1)
    order = np.argsort(issue % n, kind="stable")
    free_op = np.empty(len(gap), dtype=np.int64)
    busy_s = 0.0
    for k in order.tolist():
        busy_s = max(busy_s, (issue[k] % n) * op_s) + link.out_s(int(memory.gap_bytes[gap[k]]))
        layer = int(np.searchsorted(first, busy_s / op_s if op_s else 0.0, "right")) - 1 + FREE_LAYERS
        free_op[k] = (first[layer] if layer < len(first) else n) + (n if is_state[k] else 0)
    free_op = np.clip(free_op, memory.gap_out[gap] + 1, memory.gap_use[gap])
    in_op = np.clip(
        first[back_layer] + np.where(is_state, n, 0), memory.gap_out[gap] + 1, memory.gap_use[gap]
    )
    return Choice(gap, free_op, in_op)
