"""Ours beside the field on one GPU: one model, one budget, every method in a process of its own.

For each budget (the memory of a smaller card, emulated by limiting torch's allocator): the largest batch, the longest
sequence and the deepest model that train, tokens per second at one batch for all, memory reserved and pinned, and
whether the losses are those of plain training in all of the device's memory, which is the first row. The common batch
comes first, of all methods; then the searches for the largest, of a few.

    python -m benchmarks.gpu.peers [--json FILE] [--budgets 24,16,40] [--methods "ours;checkpoint"]
        [--device cpu --tiny]
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import chameleon_lab as cl
from chameleon_lab.planner import plan
from chameleon_lab.policy import Link
from chameleon_lab.policy.model import Action
from chameleon_lab.runtime import core

from .. import measure
from ..host_memory import SHARE, available_bytes, guarded
from .common import (
    GIB,
    SHAPES,
    Decoder,
    Gpu,
    Shape,
    build,
    deterministic,
    gpu_of,
    parser,
    tokens_of,
    train_step,
    with_allocator,
    write,
)
from .ready import text_of, version_of
from .steps import TIMED_STEPS, Steps, pinned, same_losses

LEAST_TIMED_STEPS = 3  # of a method that is slower than its time
SETTLING_STEPS = 4  # ours plans after the second step; the others get as many

PLANS_BEFORE = (2, 4, 6)
"""Steps before which replays alone are planned for, each time without the drops that were declined until then."""

_GRACE_S = 60.0
"""That a method may take longer than its share, most of it to begin."""

_LAST_S = 35.0
"""How long before the end of that grace the last one is stopped: the check ends a part 40 s after its time."""

_COPIES_NEVER_END = Link(1.0, 1.0)
_MARGIN = 0.02

PLAIN = "nothing"
ALL_MEMORY = "nothing, all memory"


@dataclasses.dataclass(frozen=True)
class Most:
    """Where the search for the largest ends."""

    batch: int = 512
    length: int = 1 << 17
    layers: int = 1 << 10


# ------------------------------------------------------------------------------------------------------------- methods


@dataclasses.dataclass(frozen=True)
class Method:
    """One way to train in less memory. ``prepare`` changes the model; what ``around`` gives is entered each step."""

    about: str
    prepare: Callable[[Decoder], None] = lambda model: None
    around: Callable[[Gpu, Decoder], contextlib.AbstractContextManager[Any]] = lambda gpu, model: (
        contextlib.nullcontext()
    )
    rematerialize: bool | None = None
    """Of ours: may it replay? None: it is no session."""
    alone: bool = False
    """Of ours: must it get by with replays, and copy nothing?"""
    fsdp: bool = False
    """Does it need a process group, and hold its layers on the host from the beginning?"""

    @property
    def ours(self) -> bool:
        """Does it run in a session?"""
        return self.rematerialize is not None

    @property
    def settling_steps(self) -> int:
        """Untimed ones."""
        return PLANS_BEFORE[-1] + 2 if self.alone else SETTLING_STEPS

    def session(self, gpu: Gpu, budget: int) -> cl.Session:
        """The promise that "trusting" asks for holds here: nothing outside of ops writes to tensors."""
        replays = "trusting" if self.rematerialize and not core.SEES_RAW_ACCESS else bool(self.rematerialize)
        host_bytes = int(SHARE * available_bytes())
        return cl.Session(
            budget, device=gpu.device, margin=_MARGIN, rematerialize=replays, host_capacity=host_bytes
        )


def _checkpointed(model: Decoder) -> None:
    model.run_layer = lambda layer, x: checkpoint(layer, x, use_reentrant=False)


def _keep_products(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    name = str(op)
    keep = name.startswith(("aten.mm", "aten.addmm", "aten.bmm", "aten._scaled_dot_product"))
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


def _selective(model: Decoder) -> None:
    contexts = functools.partial(create_selective_checkpoint_contexts, _keep_products)
    model.run_layer = lambda layer, x: checkpoint(layer, x, use_reentrant=False, context_fn=contexts)


def _save_on_cpu(gpu: Gpu, model: Decoder) -> contextlib.AbstractContextManager[Any]:
    return torch.autograd.graph.save_on_cpu(pin_memory=gpu.real)


def _offloaded_by_transformers(model: Decoder) -> None:
    """Layers run through the function that transformers' own models get, made by one that has no layers."""
    from transformers import PretrainedConfig, PreTrainedModel

    class NoLayers(PreTrainedModel):
        config_class = PretrainedConfig
        supports_gradient_checkpointing = True
        main_input_name = "hidden"
        gradient_checkpointing = False

    theirs = NoLayers(PretrainedConfig())
    enable_offloading(theirs)
    run = theirs._gradient_checkpointing_func
    model.run_layer = lambda layer, x: run(layer, x)


def enable_offloading(model: Any) -> None:
    """Have transformers offload what it checkpoints, by the name that its version has for it.

    Raises ImportError where it has none: an older version hands the setting on to torch's checkpoint, which does not
    know it.
    """
    for name in ("activation_checkpointing_enable", "gradient_checkpointing_enable"):
        enable = getattr(model, name, None)
        if enable is not None and "offload" in inspect.signature(enable).parameters:
            enable(offload=True)
            return
    raise ImportError(f"transformers {text_of(OFFLOADING_TRANSFORMERS)} or newer is not installed")


def _offload_activations(gpu: Gpu, model: Decoder) -> contextlib.AbstractContextManager[Any]:
    """As TRL's trainers do it: parameters and the output head's inputs stay."""
    try:
        from trl.models.activation_offloading import get_act_offloading_ctx_manager
    except ImportError as missing:
        try:
            from torchtune.training import OffloadActivations
        except ImportError:
            # TRL imports accelerate and psutil: what it lacks is to be read, not that torchtune is not here either.
            raise ImportError(f"no TRL that can be imported: {missing}") from None
        return OffloadActivations()
    return get_act_offloading_ctx_manager(model)


def _shard(model: Decoder) -> None:
    """Layer by layer: each is moved to the device, and back to the host, before the next one is."""
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    offload = CPUOffloadPolicy(pin_memory=model.embed.weight.is_cuda)
    for layer in model.layers:
        fully_shard(layer, offload_policy=offload)
    fully_shard(model, offload_policy=offload)


METHODS = {
    PLAIN: Method("plain PyTorch"),
    "checkpoint": Method("torch.utils.checkpoint of every layer", _checkpointed),
    "ours": Method("a session with the budget as its capacity: swaps and replays", rematerialize=True),
    "OffloadActivations": Method("TRL's or torchtune's, streamed", around=_offload_activations),
    "transformers offload": Method(
        "transformers' checkpoint(offload=True) of every layer", _offloaded_by_transformers
    ),
    "checkpoint in save_on_cpu": Method(
        "checkpoint of every layer, all in save_on_cpu", _checkpointed, _save_on_cpu
    ),
    "ours, swap only": Method("ours, and nothing is replayed", rematerialize=False),
    "selective": Method("checkpoint, but matrix products and attention are kept", _selective),
    "save_on_cpu": Method("torch.autograd.graph.save_on_cpu, pinned", around=_save_on_cpu),
    "FSDP2 offload": Method("fully_shard with CPUOffloadPolicy on one rank", _shard, fsdp=True),
    "ours + checkpoint": Method("ours, of a checkpointed model", _checkpointed, rematerialize=True),
    "ours, replay only": Method("ours, and nothing is copied", rematerialize=True, alone=True),
}
"""In order of interest: where the time ends too soon, the last ones are left out."""

SEARCHED = ("ours", "checkpoint", "OffloadActivations", "transformers offload")
"""Of these the largest batch, length and depth are searched for."""

SEARCH_SHARE = 0.55
"""Of the time, what is kept for the searches."""

OFFLOADING_TRANSFORMERS = (5, 17)


def usual_methods() -> list[str]:
    """All, but one of the two ways to offload checkpoints: ours only where transformers' own is not to be had."""
    try:
        found = version_of(metadata.version("transformers"))
    except metadata.PackageNotFoundError:
        found = (0, 0)
    theirs = found >= OFFLOADING_TRANSFORMERS
    left_out = "checkpoint in save_on_cpu" if theirs else "transformers offload"
    return [name for name in METHODS if name != left_out]


class CopiesNeededError(Exception):
    """Replays alone cannot do it."""


def _plan_replays_alone(session: cl.Session, budget: int, refused: set[str]) -> None:
    """Have everything dropped that does not fit. Raises CopiesNeededError if it cannot all be made again."""
    step = session.trace().steps[-1]
    refused.update(step.storage_keys[row] for row in step.declined.storage.tolist())
    policy = plan(step, budget, _COPIES_NEVER_END, margin=_MARGIN, rematerialize=True, refused=refused)
    copied = sum(d.bytes for d in policy.decisions if d.action is Action.SWAP)
    if copied:
        raise CopiesNeededError(f"{copied / GIB:.3g} GiB would have to be copied")
    session.policy = policy


def _copied(session: cl.Session, steps: int) -> int:
    return max(step.swapped_out_bytes + step.swapped_in_bytes for step in session.history[-steps:])


@contextlib.contextmanager
def _one_rank(gpu: Gpu) -> Iterator[None]:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # where the machine's own name has no address
    backend = "cpu:gloo,cuda:nccl" if gpu.real else "gloo"
    store = torch.distributed.HashStore()  # no port is needed for one rank
    torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


# ------------------------------------------------------------------------------------------------------------ one trial


def attempt(
    gpu: Gpu, method: Method, shape: Shape, budget: int, batch: int, length: int, timed: bool
) -> dict[str, Any]:
    """Train a fresh model for a few steps; what it took, or why it did not run."""
    steps = Steps(gpu, method.settling_steps)
    session = method.session(gpu, budget) if method.ours else None
    result: dict[str, Any] = {"batch": batch, "length": length, "layers": shape.layers}
    try:
        result |= {"ok": True, **_trained(gpu, method, session, steps, shape, batch, length, timed)}
    except (torch.OutOfMemoryError, cl.BelowFloorError) as error:
        result |= {"ok": False, "why": f"out of memory: {str(error).splitlines()[0]}"}
    except CopiesNeededError as error:
        result |= {"ok": False, "why": f"replays alone: {error}"}
    except Exception as error:  # a peer that does not run here is a row too
        result |= {"ok": False, "why": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
    gpu.clean()
    return with_allocator(result, session)


def _trained(
    gpu: Gpu,
    method: Method,
    session: cl.Session | None,
    steps: Steps,
    shape: Shape,
    batch: int,
    length: int,
    timed: bool,
) -> dict[str, Any]:
    """A fresh model's steps, in figures. The model is gone when this returns."""
    losses: list[torch.Tensor] = []
    refused: set[str] = set()
    with session or contextlib.nullcontext():
        model, optimizer = build(gpu, shape, prepare=method.prepare, layers_on="cpu" if method.fsdp else None)
        around = method.around(gpu, model)

        def step(tokens: torch.Tensor) -> None:
            with around:
                losses.append(train_step(gpu, model, optimizer, tokens, True))

        def prepare(number: int) -> Callable[[], object]:
            if session and method.alone and number in PLANS_BEFORE:
                _plan_replays_alone(session, session.capacity_bytes or 0, refused)
            return functools.partial(step, tokens_of(gpu, shape, batch, length, number))

        steps.run(prepare, TIMED_STEPS if timed else 0, LEAST_TIMED_STEPS)
        found = pinned(gpu, session)
        if session:
            found |= _session_figures(session)
            copied = _copied(session, max(1, len(losses) - method.settling_steps))
            if method.alone and copied:
                raise CopiesNeededError(f"{copied / GIB:.3g} GiB were copied in a step")
        if timed:
            steps.sample(prepare)
        found |= steps.figures()
    return found | {
        "tokens_per_s": batch * length / found["step_s"],
        "losses": [float(loss).hex() for loss in losses],
    }


def _session_figures(session: cl.Session) -> dict[str, Any]:
    """Of its newest step."""
    report = session.report()
    names = (
        "stall_s",
        "live_peak_bytes",
        "swapped_out_bytes",
        "dropped_bytes",
        "replays",
        "replay_s",
        "replays_off",
    )
    return {name: report[name] for name in names}


def largest(runs: Callable[[int], bool], most: int, left_s: Callable[[], float]) -> tuple[int, bool]:
    """The largest number up to ``most`` that runs, to an eighth, taken that all smaller ones do; 0 if 1 does not.

    And whether the search came to its end: where the time or ``most`` ended it, larger ones may run too.
    """
    good, bad = 0, None
    size = 1
    while size <= most and left_s() > 0:
        if not runs(size):
            bad = size
            break
        good, size = size, size * 2
    while bad is not None and bad - good > max(1, good // 8) and left_s() > 0:
        middle = (good + bad) // 2
        if runs(middle):
            good = middle
        else:
            bad = middle
    return good, bad is not None and bad - good <= max(1, good // 8)


def reference(gpu: Gpu, shape: Shape, length: int, batch: int) -> dict[str, Any]:
    """Plain training at the common batch without a budget: the losses that all others must have."""
    budget = gpu.total_bytes()
    common = attempt(gpu, METHODS[PLAIN], shape, budget, batch, length, timed=True)
    return {"method": ALL_MEMORY, "budget_bytes": budget, "common": common}


def common(gpu: Gpu, name: str, budget: int, shape: Shape, length: int, batch: int) -> dict[str, Any]:
    """One method at one budget and the batch that all have in common, in this process."""
    method = METHODS[name]
    _limit(gpu, budget)
    with _one_rank(gpu) if method.fsdp else contextlib.nullcontext():
        found = attempt(gpu, method, shape, budget, batch, length, timed=True)
    return {"method": name, "budget_bytes": budget, "common": found}


def _limit(gpu: Gpu, budget: int) -> None:
    if gpu.real:
        torch.cuda.set_per_process_memory_fraction(min(1.0, budget / gpu.total_bytes()))


def searches(gpu: Gpu, name: str, budget: int, shape: Shape, length: int, most: Most) -> dict[str, Any]:
    """The largest that one method trains at one budget, in this process."""
    method = METHODS[name]
    _limit(gpu, budget)
    begun_s, all_s = time.monotonic(), gpu.left_s()

    def until(share: float) -> Callable[[], float]:
        """Seconds left of a share of the time."""
        return lambda: begun_s + share * all_s - time.monotonic()

    found: dict[str, Any] = {"method": name, "budget_bytes": budget}
    try_at = functools.partial(attempt, gpu, method, shape, budget)
    reasons: list[str] = []

    def ok(result: dict[str, Any]) -> bool:
        if not result["ok"]:
            reasons.append(result["why"])
        return result["ok"]

    ended = {}
    found["largest_batch"], ended["largest_batch"] = largest(
        lambda b: ok(try_at(b, length, timed=False)), most.batch, until(0.45)
    )
    unit = 256 if gpu.real else 16
    longest, ended["longest"] = largest(
        lambda units: ok(try_at(1, units * unit, timed=False)), most.length // unit, until(0.7)
    )
    found["longest"] = longest * unit
    per_layer = max(1, shape.layers // 4)

    def deep(layers: int) -> bool:
        deeper = dataclasses.replace(shape, layers=layers * per_layer)
        return ok(attempt(gpu, method, deeper, budget, 1, min(length, 1024), timed=False))

    layers, ended["deepest"] = largest(deep, most.layers // per_layer, until(0.9))
    found["deepest"] = per_layer * layers
    found["at_least"] = [name for name, at_end in ended.items() if not at_end]
    found["stopped_by"] = sorted(set(reasons))
    if found["largest_batch"]:
        found["at_largest"] = attempt(gpu, method, shape, budget, found["largest_batch"], length, timed=True)
    # Weights, gradients and AdamW's two states, 4 bytes each.
    deepest = dataclasses.replace(shape, layers=found["deepest"])
    found["deepest_bytes"] = 16 * _parameters(deepest) if found["deepest"] else 0
    return found


def _parameters(shape: Shape) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in Decoder(shape).parameters())


# ------------------------------------------------------------------------------------------------------------ all of it


def run_trials(options: Any, gpu: Gpu) -> Iterator[dict[str, Any]]:
    """One process a method and budget: what one leaves behind must not be the next one's."""
    methods = [name.strip() for name in options.methods.split(";")] if options.methods else usual_methods()
    unknown = [name for name in methods if name not in METHODS]
    if unknown:
        raise SystemExit(f"there is no method {unknown[0]!r}: there are {', '.join(METHODS)}")
    budgets = [float(budget) for budget in options.budgets.split(",")]
    jobs = [(ALL_MEMORY, gpu.total_bytes() / GIB, False)]
    jobs += [(name, budget, False) for budget in budgets for name in methods]
    searched = [(name, budget, True) for budget in budgets for name in SEARCHED if name in methods]
    search_s = SEARCH_SHARE * gpu.left_s() if searched else 0.0
    for number, (name, budget, search) in enumerate(jobs + searched):
        if search:
            seconds = gpu.left_s() / (len(jobs) + len(searched) - number)
        else:
            seconds = (gpu.left_s() - search_s) / (len(jobs) - number)
        if min(seconds, gpu.left_s()) < 5:
            yield {"method": name, "budget_bytes": int(budget * GIB), "error": "no time left"}
            continue
        what = "the largest of " if search else ""
        measure.progress(f"{what}{name} in {budget:g} GiB ({seconds:.0f} s) ...")
        yield _in_a_process(options, gpu, name, budget, search, seconds)


def _in_a_process(
    options: Any, gpu: Gpu, name: str, budget: float, search: bool, seconds: float
) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.gpu.peers", "--device", options.device, "--one", name]
    command += ["--budgets", str(budget), "--batch", str(options.batch), "--length", str(options.length)]
    command += [*(["--search"] if search else []), *(["--tiny"] if options.tiny else [])]
    command += ["--seconds", str(0.8 * seconds)]
    done = None
    try:
        # Who is slow takes from the others' time, but the rows there are must not be lost with the part.
        timeout_s = min(seconds, gpu.left_s() - _LAST_S) + _GRACE_S
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
        return json.loads(done.stdout.strip().splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        tail = getattr(error, "stderr", None) or (done.stderr if done else "")
        tail = tail.decode(errors="replace") if isinstance(tail, bytes) else tail
        last = (str(tail).strip().splitlines() or [type(error).__name__])[-1]
        return {"method": name, "budget_bytes": int(budget * GIB), "error": last}


def merge(rows: list[dict[str, Any]], row: dict[str, Any]) -> dict[str, Any]:
    """Put what a search found into the row of its method and budget, or add a row. Returns the row.

    A search that failed does not take away what the row has.
    """
    key = (row["method"], row["budget_bytes"])
    there = next((r for r in rows if (r["method"], r["budget_bytes"]) == key), None)
    if there is None:
        rows.append(row)
        return row
    there |= {"search_error": row["error"]} if "error" in row else row
    return there


def judge(rows: list[dict[str, Any]]) -> None:
    """Set each method beside plain training and beside full checkpointing at its budget."""
    plain = (r["common"]["losses"] for r in rows if r["method"] in (ALL_MEMORY, PLAIN) and _ran(r))
    losses = next(plain, None)
    for row in rows:
        if not _ran(row):
            continue
        same = losses is not None and same_losses(row["common"]["losses"], losses)
        row["losses_identical"] = None if losses is None else same
        base = next(
            (
                r
                for r in rows
                if r["method"] == "checkpoint" and r["budget_bytes"] == row["budget_bytes"] and _ran(r)
            ),
            None,
        )
        if base is not None:
            row["speed_to_checkpoint"] = row["common"]["tokens_per_s"] / base["common"]["tokens_per_s"]


def _ran(row: dict[str, Any]) -> bool:
    return row.get("common", {}).get("ok", False)


def _is_wrong(row: dict[str, Any]) -> bool:
    """Is it of ours, and did it not run or give other losses? That replays alone do not suffice is no fault."""
    method = METHODS.get(row["method"])
    if method is None or method.rematerialize is None or method.alone:
        return False
    return not _ran(row) or row["losses_identical"] is False


HEADERS = (
    *(
        "method",
        "GiB",
        "tokens/s",
        "steps",
        "from to",
        "x checkpoint",
        "reserved GiB",
        "driver GiB",
        "pinned GiB",
        "pinning s",
        "losses =",
        "out GiB",
        "dropped GiB",
    ),
    *("largest batch", "longest", "deepest", "states/budget"),
)


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    head = [row["method"], f"{row['budget_bytes'] / GIB:g}"]
    if "error" in row:
        return [*head, row["error"][:60], *[""] * (len(HEADERS) - 3)]
    common = row.get("common", {"ok": False, "why": "-"})
    speed = f"{common['tokens_per_s']:.0f}" if common["ok"] else common["why"][:30]
    identical = row.get("losses_identical")
    return [
        *head,
        speed,
        str(common["timed_steps"]) if common["ok"] else "-",
        _speeds(common) if common["ok"] else "-",
        f"{row['speed_to_checkpoint']:.2f}" if "speed_to_checkpoint" in row else "-",
        f"{common['reserved_bytes'] / GIB:.2f}" if common["ok"] else "-",
        f"{common['driver_bytes'] / GIB:.2f}" if common["ok"] else "-",
        f"{common['pinned_bytes'] / GIB:.2f}" if common["ok"] else "-",
        f"{common['pinning_s']:.2f}" if common["ok"] else "-",
        "-" if identical is None else measure.yes(identical),
        *_away(common),
        *(_largest(row) if "largest_batch" in row else ["-"] * 4),
    ]


def _speeds(common: dict[str, Any]) -> str:
    """Tokens per second of the slowest timed step and of the fastest."""
    tokens = common["batch"] * common["length"]
    return f"{tokens / common['step_max_s']:.0f} to {tokens / common['step_min_s']:.0f}"


def _away(common: dict[str, Any]) -> list[str]:
    """Of a step of ours: copied out, and dropped."""
    names = ("swapped_out_bytes", "dropped_bytes")
    return [f"{common[name] / GIB:.2f}" if name in common else "-" for name in names]


def _largest(row: dict[str, Any]) -> list[str]:
    """With a plus where the search was cut short."""
    sign = {name: "+" for name in row["at_least"]}
    return [
        *(f"{row[name]}{sign.get(name, '')}" for name in ("largest_batch", "longest", "deepest")),
        f"{row['deepest_bytes'] / row['budget_bytes']:.2f}{sign.get('deepest', '')}",
    ]


def _one(gpu: Gpu, shape: Shape, budget: int, options: Any) -> dict[str, Any]:
    """What this process was started for."""
    if options.one == ALL_MEMORY:
        return reference(gpu, shape, options.length, options.batch)
    if options.search:
        most = Most(2, 32, 4) if options.tiny else Most()
        return searches(gpu, options.one, budget, shape, options.length, most)
    return common(gpu, options.one, budget, shape, options.length, options.batch)


def _end(name: str, budget: int, left_bytes: int) -> None:
    """The host's memory is about to run out: this method has taken it."""
    error = f"host memory guard: {left_bytes / GIB:.1f} GiB were left"
    print(json.dumps({"method": name, "budget_bytes": budget, "error": error}), flush=True)
    os._exit(1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; the exit code is 1 if one of ours did not run or gave other losses."""
    options = parser("gpu.peers", __doc__.splitlines()[0])
    options.add_argument("--budgets", default="24,16,40", help="GiB, in order of interest")
    options.add_argument("--methods", default="", help="separated by semicolons; all where left out")
    options.add_argument("--batch", type=measure.count, default=2, help="of the common comparison")
    options.add_argument("--length", type=measure.count, default=2048)
    options.add_argument("--one", help=argparse.SUPPRESS)
    options.add_argument("--search", action="store_true", help=argparse.SUPPRESS)
    options = options.parse_args(arguments)
    gpu = gpu_of(options)
    shape = SHAPES["tiny" if options.tiny else "llama-1b"]
    if options.tiny:
        options.batch, options.length = 2, 32
    if options.one:
        deterministic()
        if not gpu.real:
            torch.set_num_threads(1)
        budget = int(float(options.budgets) * GIB)
        with guarded(int((1 - SHARE) / 2 * available_bytes()), functools.partial(_end, options.one, budget)):
            row = _one(gpu, shape, budget, options)
            print(json.dumps(row | {"fills_new_memory": torch.utils.deterministic.fill_uninitialized_memory}))
        return 0
    rows: list[dict[str, Any]] = []
    result = {
        "environment": gpu.environment(vars(options)),
        "model": dataclasses.asdict(shape) | {"parameters": _parameters(shape)},
        "methods": {name: method.about for name, method in METHODS.items()},
        "rows": rows,
    }
    for row in run_trials(options, gpu):
        row = merge(rows, row)
        judge(rows)
        print(" | ".join(cells(row)), flush=True)
        write(options, result)
    print(
        f"{result['environment']['device']}: {result['model']['parameters'] / 1e9:.2f} billion parameters, bf16"
    )
    print(measure.table(HEADERS, [cells(row) for row in rows]))
    return int(any(_is_wrong(row) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
