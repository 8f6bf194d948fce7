"""Does a policy fit the running ops, and how is the policy's own step recognized?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import torch

from ..policy import Link, Policy
from ..policy.model import fingerprint
from ..trace import Stage, StepTrace
from ..trace.model_ops import model_ops
from ..util.units import format_bytes

_SAME_LINK = 1.5
"""Bandwidths this many times as high, or as low, are another link's."""
_LIVE_PEAK_TOLERANCE = 0.02
"""Share by which the bytes of a step may differ from those that a policy was made for."""


def misfit(
    policy: Policy, step: StepTrace, capacity_bytes: int, host_capacity_bytes: int | None = None
) -> str | None:
    """Why a policy should be generated anew for a whole, steady step; None if it fits as it is.

    A policy that does not say what it was made for is taken as it is, and so is one that was made for more bytes: it
    keeps within the capacity, and was given on purpose.
    """
    if (reason := _misfit_of_conditions(policy, capacity_bytes, host_capacity_bytes)) is not None:
        return reason
    made_for = policy.assumed.get("fingerprint")
    if made_for is not None and made_for != (here := fingerprint(step)):
        return (
            f"it was made for another op sequence ({made_for}, {policy.assumed.get('ops', '?')} ops; "
            f"this one is {here}, {len(step.ops)} ops){_first_difference(policy.source, step)}"
        )
    live = policy.assumed.get("live_peak_bytes")
    if isinstance(live, int) and step.live_peak_bytes - live > _LIVE_PEAK_TOLERANCE * live:
        return (
            f"it was made for {format_bytes(live)} alive at once, and this step has "
            f"{format_bytes(step.live_peak_bytes)}"
        )
    return None


def misfit_at_start(
    policy: Policy, first: StepTrace, capacity_bytes: int, host_capacity_bytes: int | None = None
) -> str | None:
    """Why a policy does not fit a run whose first step has ended; None if it does.

    The optimizer's part of a first step differs from the later ones (it makes its states), and what comes before the
    loop is no part of the step: the ops of forward and backward in modules have to be the last ones of their kind.
    """
    if (reason := _misfit_of_conditions(policy, capacity_bytes, host_capacity_bytes)) is not None:
        return reason
    if policy.source is None:
        return "its file has no step"
    if policy.assumed.get("fingerprint") not in (None, fingerprint(policy.source)):
        return "its fingerprint is of another step than the one in its file"
    if not policy.source.ops.token.any():
        return "another tool recorded the step in its file: it cannot be compared"
    want, have = model_ops(policy.source), model_ops(first)
    if _op_signature(policy.source, want) != _op_signature(first, have[max(0, len(have) - len(want)) :]):
        return _difference(policy.source, want, first, have)
    here = {key: int(first.storages.block_bytes[row]) for row, key in enumerate(first.storage_keys)}
    for row, key in enumerate(policy.source.storage_keys):
        size = int(policy.source.storages.block_bytes[row])
        if key.startswith("parameter:") and here.get(key, size) != size:
            return f"{key} has {format_bytes(here[key])}, and it was made for {format_bytes(size)}"
    # A model that was built inside the session was built by ops of the first step, too.
    begin, its_begin = (int(ops[-len(want)]) if len(want) else 0 for ops in (have, want))
    ours, its = _model_peak(first, begin), _model_peak(policy.source, its_begin)
    if abs(ours - its) > _LIVE_PEAK_TOLERANCE * its:
        return (
            f"it was made for activations of {format_bytes(its)}, and the first step has {format_bytes(ours)}"
        )
    return None


def agreeing_ops(policy: Policy, step: StepTrace) -> int:
    """How many ops of the model agree with a policy's step from the first one on; -1 where its file has no step."""
    if policy.source is None:
        return -1
    want = _op_signature(policy.source, model_ops(policy.source))
    have = _op_signature(step, model_ops(step))
    pairs = zip(want, have, strict=False)
    return next((k for k, (its, ours) in enumerate(pairs) if its != ours), min(len(want), len(have)))


def differences(policy: Policy, link: Link | None) -> list[str]:
    """What a policy that fits was made for, and is otherwise here: it may cost time, and nothing else.

    ``link``: the one that was asked for; None where it was measured, which gives other figures each time.
    """
    found = []
    torch_then = policy.assumed.get("torch")
    if torch_then not in (None, torch.__version__):
        found.append(f"it was made with torch {torch_then}, and this is {torch.__version__}")
    if link is not None and (
        _apart(policy.link.out_bytes_per_s, link.out_bytes_per_s)
        or _apart(policy.link.in_bytes_per_s, link.in_bytes_per_s)
    ):
        found.append(f"it was made for a link of {policy.link}, and this one has {link}")
    return found


def _apart(then: float | None, now: float | None) -> bool:
    if then is None or now is None:
        return then is not now
    return not 1 / _SAME_LINK <= then / now <= _SAME_LINK


def rebound(step: StepTrace, live: StepTrace, label_id: Callable[[str], int]) -> StepTrace:
    """A step of another time or process, in this one's ids of labels and of the storages that are alive here."""
    uids = dict(zip(live.storage_keys, live.storages.uid.tolist(), strict=True))
    labels = np.array([label_id(text) for text in step.labels] + [-1], dtype=np.int32)  # -1 is the last
    carried = (step.storages.birth_op < 0) & (step.storages.death_op >= len(step.ops))
    uid = [uids.get(key, -1) if lasts else -1 for key, lasts in zip(step.storage_keys, carried, strict=True)]
    return dataclasses.replace(
        step,
        labels=tuple(_texts(labels, step.labels)),
        storages=dataclasses.replace(
            step.storages, uid=np.array(uid, dtype=np.int64), name=labels[step.storages.name]
        ),
    )


def _texts(ids: np.ndarray, texts: Sequence[str]) -> list[str]:
    table = [""] * (int(ids.max(initial=-1)) + 1)
    for number, text in zip(ids.tolist(), texts, strict=False):
        table[number] = text
    return table


def _misfit_of_conditions(policy: Policy, capacity_bytes: int, host_capacity_bytes: int | None) -> str | None:
    if not policy.is_current:
        return "its edits were changed after its decisions were made"
    if policy.disobeyed and policy.capacity_bytes < capacity_bytes:
        numbers = ", ".join(str(index + 1) for index in policy.disobeyed)
        return f"it could not obey edit {numbers} in {format_bytes(policy.capacity_bytes)}, and there is more now"
    if "fingerprint" in policy.assumed and policy.capacity_bytes > capacity_bytes:
        return f"it was made for {format_bytes(policy.capacity_bytes)}, and there are {format_bytes(capacity_bytes)}"
    on_host = policy.predicted.get("host_peak_bytes")
    if host_capacity_bytes is not None and on_host is not None and on_host > host_capacity_bytes:
        return f"its copies take {format_bytes(on_host)} on the host, and there are {format_bytes(host_capacity_bytes)}"
    return None


def _op_signature(step: StepTrace, chosen: np.ndarray) -> list[tuple[str, int]]:
    """Name and stage of ops."""
    names, stages = step.ops.name[chosen].tolist(), step.ops.stage[chosen].tolist()
    return [(step.names[name], stage) for name, stage in zip(names, stages, strict=True)]


def _difference(made_for: StepTrace, want: np.ndarray, first: StepTrace, have: np.ndarray) -> str:
    """The first op that differs, both steps being compared from their first one on."""
    pairs = zip(_op_signature(made_for, want), _op_signature(first, have), strict=False)
    differ = next((k for k, (ours, its) in enumerate(pairs) if ours != its), min(len(want), len(have)))
    its = _placed(made_for, int(want[differ])) if differ < len(want) else "none"
    ours = _placed(first, int(have[differ])) if differ < len(have) else "none"
    return f"op {differ + 1} of the model's forward and backward is {ours}, and it was made for {its}"


def _first_difference(made_for: StepTrace | None, step: StepTrace) -> str:
    """The first op of a whole step that differs, to be added to what is said; nothing where it is not known."""
    if made_for is None:
        return ""
    count = min(len(made_for.ops), len(step.ops))
    every = np.arange(count)
    pairs = zip(_op_signature(step, every), _op_signature(made_for, every), strict=True)
    other = np.array([ours != its for ours, its in pairs], dtype=bool)
    other |= step.ops.token[:count] != made_for.ops.token[:count]
    differ = int(other.argmax()) if other.any() else count
    ours = _placed(step, differ) if differ < len(step.ops) else "none"
    its = _placed(made_for, differ) if differ < len(made_for.ops) else "none"
    if ours == its:
        return f": op {differ}, {ours}, has tensors of other ranks, dtypes or names"
    return f": op {differ} is {ours}, and it was made for {its}"


def _placed(step: StepTrace, op: int) -> str:
    module = step.module_path(int(step.ops.module[op]))
    return f"{step.op_name(op)} in {module}" if module else step.op_name(op)


def _model_peak(step: StepTrace, begin_op: int = 0) -> int:
    """Most bytes alive in forward and backward of storages made there, from ``begin_op`` on."""
    n = len(step.ops)
    made = step.storages.birth_op >= begin_op
    made[made] = step.ops.stage[step.storages.birth_op[made]] <= Stage.BACKWARD
    change = np.zeros(n + 2, dtype=np.int64)
    size = step.storages.block_bytes[made].astype(np.int64)
    np.add.at(change, step.storages.birth_op[made], size)
    np.subtract.at(change, np.minimum(step.storages.death_op[made], n) + 1, size)
    return int(np.cumsum(change).max(initial=0))
