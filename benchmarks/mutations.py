"""Recorded steps under mutations: where a policy's triggers fire, with this matcher and with three others.

The others stand here and nowhere else: plain index matching, the same behind the paper's gate (arXiv 2509.11076: a
step is another one if the cosine similarity of its op counts is below 95 % or its length is off by more than 5 %), and
a port of the per-tensor signature of the open code (MindSpeed's smart swap): use count, op tags, the last eight ops and
argument positions of a tensor, and its stage.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

import chameleon_lab as cl
from chameleon_lab.planner import floor, plan
from chameleon_lab.planner.program import SWAP_OUT, compile_program
from chameleon_lab.policy import Link
from chameleon_lab.runtime import core
from chameleon_lab.trace import Category, Stage, StepTrace

from .models import CASES, Job

EARLY, LATE = 4, 16
"""A trigger hits if it fires so many ops before or after its place."""
GRACE = 12
RECENT = 64


@dataclass(frozen=True)
class LiveOp:
    """An op as a run shows it."""

    token: int
    name: str
    stage: str
    layer: int | None
    uses: tuple[object, ...]
    """Storages by argument."""
    truth: int | None
    """The op of the recorded step that it is."""
    free: bool = False
    """Nothing is wrong with firing here: the op is of a second pass over the same layers."""


@dataclass
class Recorded:
    """A step, its ops, and the triggers of a policy for it."""

    step: StepTrace
    ops: list[LiveOp]
    triggers: set[int]
    """Ops at which the policy acts."""
    outs: dict[int, list[object]]
    """Storages that leave after an op."""


def record(job: Job, batch: Callable[[], tuple[torch.Tensor, torch.Tensor]], steps: int = 3) -> StepTrace:
    """The last of a few steps of real training."""
    with cl.Session(device="cpu") as session:
        for _ in range(steps):
            job.train_step(batch())
        return session.trace().last


def live_ops(step: StepTrace) -> list[LiveOp]:
    """The ops of a step as a matcher sees them."""
    used: dict[int, list[object]] = defaultdict(list)
    for op, storage in zip(step.uses.op.tolist(), step.uses.storage.tolist(), strict=True):
        used[op].append(storage)
    ops = []
    for op in range(len(step.ops)):
        found = re.search(r"\.(\d+)\b", step.module_path(int(step.ops.module[op])))
        ops.append(
            LiveOp(
                token=int(step.ops.token[op]),
                name=step.op_name(op),
                stage=Stage(int(step.ops.stage[op])).name,
                layer=int(found.group(1)) if found else None,
                uses=tuple(used[op]),
                truth=op,
            )
        )
    return ops


def recorded(step: StepTrace) -> Recorded:
    """A step with the policy for a third of its peak."""
    capacity = max(step.live_peak_bytes // 3, floor(step).bytes)
    program = compile_program(plan(step, capacity, Link(8 << 30, 8 << 30)), step)
    outs: dict[int, list[object]] = defaultdict(list)
    for op, kind, storage in zip(
        program.action_op.tolist(), program.action_kind.tolist(), program.action_storage.tolist(), strict=True
    ):
        if kind == SWAP_OUT:
            outs[op].append(int(program.storage_row[storage]))
    return Recorded(step, live_ops(step), set(program.action_op.tolist()), outs)


# ------------------------------------------------------------------------------------------------------- mutations


def _extra(op: LiveOp) -> LiveOp:
    return replace(op, truth=None, uses=tuple(("extra", object()) for _ in op.uses))


def _insert(ops: list[LiveOp], rng: random.Random) -> Iterator[LiveOp]:
    for op in ops:
        if rng.random() < 0.01:
            yield _extra(rng.choice(ops))
        yield op


def _delete(ops: list[LiveOp], rng: random.Random) -> Iterator[LiveOp]:
    return (op for op in ops if rng.random() >= 0.01)


def _mix(rate: float) -> Callable[[list[LiveOp], random.Random], Iterator[LiveOp]]:
    def mix(ops: list[LiveOp], rng: random.Random) -> Iterator[LiveOp]:
        for op in ops:
            fate = rng.random()
            if rate / 3 <= fate < rate:
                yield _extra(rng.choice(ops))
            if not (fate < rate / 3 or 2 * rate / 3 <= fate < rate):
                yield op

    return mix


def _skip_layers(ops: list[LiveOp], rng: random.Random) -> Iterator[LiveOp]:
    layers = sorted({op.layer for op in ops if op.layer is not None})
    inner = layers[1:-1] or layers
    skipped = rng.sample(inner, min(2, len(inner)))
    return (op for op in ops if op.stage == "OPTIMIZER" or op.layer not in skipped)


def _evaluation_first(ops: list[LiveOp], rng: random.Random) -> Iterator[LiveOp]:
    for op in ops:
        if op.stage == "FORWARD":
            yield replace(_extra(op), token=op.token ^ 0x5A5A5A5A, stage="NO_GRAD", free=True)
    yield from ops


def _extra_micro_batch(ops: list[LiveOp], rng: random.Random) -> Iterator[LiveOp]:
    first = [op for op in ops if op.stage != "OPTIMIZER"]
    yield from first
    yield from (replace(_extra(op), free=True) for op in first)
    yield from (op for op in ops if op.stage == "OPTIMIZER")


def _no_optimizer(ops: list[LiveOp], rng: random.Random) -> Iterator[LiveOp]:
    return (op for op in ops if op.stage != "OPTIMIZER")


def _logging(ops: list[LiveOp], rng: random.Random) -> Iterator[LiveOp]:
    for number, op in enumerate(ops):
        yield op
        if op.stage == "FORWARD" and number % 40 == 39:
            for k in range(3):
                yield replace(op, token=k + 1, name=f"log{k}", uses=op.uses[:1], truth=None)


def _reorder(ops: list[LiveOp], rng: random.Random) -> Iterator[LiveOp]:
    block, at = 6, 0
    moved = list(ops)
    while at + 2 * block < len(moved):
        if rng.random() < 0.01:
            moved[at : at + 2 * block] = moved[at + block : at + 2 * block] + moved[at : at + block]
            at += 2 * block
        at += 1
    return iter(moved)


MUTATIONS: dict[str, Callable[[list[LiveOp], random.Random], Iterator[LiveOp]]] = {
    "none": lambda ops, rng: iter(ops),
    "insert 1 %": _insert,
    "delete 1 %": _delete,
    "mix 2 %": _mix(0.02),
    "mix 10 %": _mix(0.1),
    "two layers skipped": _skip_layers,
    "evaluation first": _evaluation_first,
    "extra micro-batch": _extra_micro_batch,
    "no optimizer step": _no_optimizer,
    "logging ops": _logging,
    "block reorder": _reorder,
}


def labeled(step: StepTrace, base: StepTrace) -> list[LiveOp]:
    """Another recorded step's ops. What each one truly is: the op of the same name, stage, module and named storages,
    counted within the step.
    """
    index = {key: op for op, key in enumerate(_identities(base))}
    ops = live_ops(step)
    return [replace(op, truth=index.get(key)) for op, key in zip(ops, _identities(step), strict=True)]


def _identities(step: StepTrace) -> list[tuple[object, int]]:
    named: dict[int, list[str]] = defaultdict(list)
    lasting = (Category.PARAMETER, Category.OPTIMIZER_STATE)
    for op, row in zip(step.uses.op.tolist(), step.uses.storage.tolist(), strict=True):
        if step.storages.name[row] >= 0 and step.storages.category[row] in lasting:
            named[op].append(step.labels[step.storages.name[row]])
    seen: Counter[object] = Counter()
    keys = []
    for op in range(len(step.ops)):
        key = (
            step.op_name(op),
            int(step.ops.stage[op]),
            step.module_path(int(step.ops.module[op])),
            tuple(named[op]),
        )
        keys.append((key, seen[key]))
        seen[key] += 1
    return keys


# ------------------------------------------------------------------------------------------------------- matchers


Fired = dict[int, list[int]]
"""By trigger: the live ops at which it fired."""


def ours(base: Recorded, live: list[LiveOp]) -> Fired:
    """The matcher, and the executor's grace before what a jump left out fires."""
    matcher = core.Matcher(base.step.ops.token)
    fired: Fired = defaultdict(list)
    waiting: deque[tuple[int, int, int]] = deque()
    passed = departed_at = 0
    departed = False
    triggers = sorted(base.triggers)

    def catch_up(begin: int, end: int, now: int) -> None:
        for op in triggers:
            if begin <= op < end and not (fired[op] and now - fired[op][-1] <= RECENT):
                fired[op].append(now)

    for now, op in enumerate(live):
        at, settled = matcher.match(op.token)
        if not settled and not departed:
            departed_at = now
        departed = not settled
        while waiting and waiting[0][0] <= now:
            _, begin, end = waiting.popleft()
            catch_up(begin, end, now)
        if at < 0:
            continue
        if settled:
            if at > passed:
                waiting.append((departed_at + GRACE, passed, at))
            passed = at + 1
        if at in base.triggers:
            fired[at].append(now)
    for _, begin, end in waiting:
        catch_up(begin, end, len(live) - 1)
    return fired


def by_index(base: Recorded, live: list[LiveOp]) -> Fired:
    """The op of the same number."""
    return {op: [op] for op in base.triggers if op < len(live)}


def gate_trips(base: Recorded, live: list[LiveOp]) -> bool:
    """Does the paper's gate call the step another one?"""
    a, b = Counter(op.name for op in base.ops), Counter(op.name for op in live)
    dot = sum(a[name] * b[name] for name in a)
    norm = np.sqrt(sum(v * v for v in a.values()) * sum(v * v for v in b.values()))
    return bool(dot / norm < 0.95 or abs(len(live) - len(base.ops)) > 0.05 * len(base.ops))


def by_gate(base: Recorded, live: list[LiveOp]) -> Fired:
    """By index, unless the gate trips: then nothing fires, and the step is profiled again."""
    return {} if gate_trips(base, live) else by_index(base, live)


def by_signature(base: Recorded, live: list[LiveOp]) -> Fired:
    """The open code's fuzzy match. It knows swap-outs only; swap-ins hang on the stage."""
    ids = {name: number for number, name in enumerate(sorted({op.name for op in base.ops}))}
    mask = 2**64 - 1

    def stages(ops: list[LiveOp]) -> Iterator[tuple[str, int]]:
        counts: Counter[str] = Counter()
        current: tuple[str, int | None] | None = None
        for op in ops:
            if op.layer is not None and (op.stage, op.layer) != current:
                current = (op.stage, op.layer)
                counts[op.stage] += 1
            yield op.stage, counts[op.stage]

    def update(history: dict[object, tuple[int, ...]], op: LiveOp) -> None:
        number = ids.get(op.name, 255)
        for argument, storage in enumerate(op.uses):
            uses, tags, ops, arguments = history.get(storage, (0, 0, 0, 0))
            history[storage] = (
                uses + 1, tags | 1 << number % 60, (ops << 8 | number % 256) & mask, (arguments << 8 | argument) & mask,
            )  # fmt: skip

    history: dict[object, tuple[int, ...]] = {}
    wanted: dict[object, list[int]] = defaultdict(list)
    for number, (op, stage) in enumerate(zip(base.ops, stages(base.ops), strict=True)):
        update(history, op)
        for storage in base.outs.get(number, ()):
            wanted[(history.get(storage), stage)].append(number)
    history = {}
    fired: Fired = defaultdict(list)
    for now, (op, stage) in enumerate(zip(live, stages(live), strict=True)):
        update(history, op)
        for storage in op.uses:
            found = wanted.get((history[storage], stage))
            if found:
                fired[found.pop(0)].append(now)
    return fired


MATCHERS = {"ours": ours, "index": by_index, "gate": by_gate, "signature": by_signature}


def score(fired: Fired, live: list[LiveOp], triggers: set[int]) -> tuple[float, float]:
    """Precision and recall of triggers whose ops ran; a firing within -4 to +16 ops of its place is a hit."""
    place = {op.truth: now for now, op in enumerate(live) if op.truth is not None}
    hits = wrong = missed = 0
    for trigger in triggers:
        if trigger not in place:
            continue
        near = [-EARLY <= now - place[trigger] <= LATE for now in fired.get(trigger, ())]
        hits += any(near)
        missed += not any(near)
        wrong += sum(
            not hit and not live[now].free for hit, now in zip(near, fired.get(trigger, ()), strict=True)
        )
    return hits / max(hits + wrong, 1), hits / max(hits + missed, 1)


def cost_ns(base: Recorded, live: list[LiveOp], rounds: int = 9) -> float:
    """Nanoseconds an op that the matcher takes, the best of some rounds."""
    tokens = np.array([op.token for op in live], dtype=np.uint32)
    best = min(core.Matcher(base.step.ops.token).match_all(tokens)[1] for _ in range(rounds))
    return best / max(len(live), 1)


# ------------------------------------------------------------------------------------------------------- all of it


def _batches(job: Job, seed: int) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return lambda: job.make_batch(generator)


def _shorter(
    batch: Callable[[], tuple[torch.Tensor, torch.Tensor]],
) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    def cut() -> tuple[torch.Tensor, torch.Tensor]:
        tokens, targets = batch()
        length = tokens.shape[1] * 5 // 8
        return tokens[:, :length].contiguous(), targets[:, :length].contiguous()

    return cut


def _reroute(job: Job, strength: float) -> None:
    with torch.no_grad():
        for name, parameter in job.model.named_parameters():
            if "router" in name:
                parameter.add_(torch.randn_like(parameter) * strength)


def runs(case: str, seed: int, tiny: bool) -> tuple[Recorded, dict[str, list[LiveOp]]]:
    """A recorded step of a case, and the live ops under every mutation."""
    job = CASES[case].build(seed, tiny)
    if case == "moe":
        _reroute(job, 3.0)  # so that some experts get no token
    base = recorded(record(job, _batches(job, seed)))
    lives = {name: list(mutate(base.ops, random.Random(seed))) for name, mutate in MUTATIONS.items()}
    lives["other lengths"] = labeled(record(job, _shorter(_batches(job, seed + 1)), 1), base.step)
    if case == "moe":
        for name, strength in (("rerouted lightly", 0.1), ("rerouted heavily", 3.0)):
            _reroute(job, strength)
            lives[name] = labeled(record(job, _batches(job, seed + 2), 1), base.step)
    return base, lives


def measure_case(case: str, seeds: range, tiny: bool) -> Iterator[dict[str, object]]:
    """One row a mutation: precision and recall of every matcher, averaged over the seeds."""
    rows: dict[str, list[dict[str, object]]] = defaultdict(list)
    for seed in seeds:
        base, lives = runs(case, seed, tiny)
        for name, live in lives.items():
            row: dict[str, object] = {
                "ops": len(live), "triggers": len(base.triggers), "gate_trips": gate_trips(base, live),
                "ns_per_op": cost_ns(base, live),
            }  # fmt: skip
            for matcher, fire in MATCHERS.items():
                triggers = set(base.outs) if matcher == "signature" else base.triggers
                row[f"{matcher}_precision"], row[f"{matcher}_recall"] = score(
                    fire(base, live), live, triggers
                )
            rows[name].append(row)
    for name, found in rows.items():
        yield {
            "case": case,
            "mutation": name,
            **{key: float(np.mean([row[key] for row in found])) for key in found[0]},  # type: ignore[list-item]
        }
