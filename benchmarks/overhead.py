"""What recording costs: the recorder, and the hooks of a capacity that never binds, beside their peers.

Peers in the same run, interleaved: nothing at all, a TorchDispatchMode that passes every op through, and
torch.profiler with shapes and memory. A step of the GPT-2 (124M) shape gives the share of real work; loops of tiny
ops and a tiny GPT give microseconds an op.

    python -m benchmarks.overhead --json FILE [--rounds N] [--steps N] [--threads N] [--only TEXT]
        [--plain-malloc] [--quick]
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import chameleon_lab as cl

from . import measure
from .measure import median, milliseconds, progress, ratio
from .models import CASES, GPT, Job, next_token_job

BARE = "nothing"


class PassThrough(TorchDispatchMode):
    """The least that a tool in Python can do: see every op, and run it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op."""
        return func(*args, **(kwargs or {}))


def _profiler() -> AbstractContextManager[Any]:
    return torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, profile_memory=True
    )


@dataclass(frozen=True)
class Tool:
    """Something that watches ops; ``settle`` runs pass before its cost is that of a long run."""

    name: str
    open: Callable[[], AbstractContextManager[Any]]
    settle: int = 1


TOOLS = (
    Tool(BARE, nullcontext),
    Tool("recorder, no capacity", lambda: cl.Session(capacity=None, device="cpu")),
    Tool("capacity that never binds", lambda: cl.Session(capacity="1TiB", device="cpu"), settle=3),
    Tool("TorchDispatchMode", PassThrough),
    Tool("torch.profiler", _profiler),
)


@dataclass(frozen=True)
class Workload:
    """Something to run over and over. ``steps``: how many runs are timed each time a tool is opened."""

    name: str
    make: Callable[[], Callable[[], object]]
    steps: int
    marks_steps: bool
    """Does an optimizer tell the session where a step ends?"""


@dataclass
class Times:
    """Of one workload under one tool."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    per_round: list[float] = field(default_factory=list)
    """Median of each round, to be set against the same round's without a tool."""
    error: str = ""


def _job_runs(job: Job) -> Callable[[], object]:
    generator = torch.Generator().manual_seed(measure.SEED)
    return lambda: job.train_step(job.make_batch(generator))


def _gpt2_small() -> Callable[[], object]:
    from transformers import GPT2Config, GPT2LMHeadModel, logging

    logging.set_verbosity_error()
    torch.manual_seed(measure.SEED)
    model = GPT2LMHeadModel(GPT2Config())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(50257, (1, 64))

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()

    return step


def _tiny_gpt() -> Callable[[], object]:
    torch.manual_seed(measure.SEED)
    return _job_runs(next_token_job(GPT(64, 8, 32, 2, 6), vocabulary=64, batch=1, length=8))


def _python_loop(elements: int, ops: int) -> Callable[[], object]:
    x, y = torch.ones(elements), torch.ones(elements)

    def loop() -> None:
        add = torch.add
        for _ in range(ops):
            add(x, y)

    return loop


def _script_loop(elements: int, ops: int) -> Callable[[], object]:
    def loop(x: torch.Tensor, y: torch.Tensor, ops: int) -> torch.Tensor:
        z = x
        for _ in range(ops):
            z = torch.add(z, y)  # each needs the one before: the compiler leaves nothing out
        return z

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, and still the only loop over ops that runs in C++
        scripted = torch.jit.script(loop)
    x, y = torch.ones(elements), torch.ones(elements)
    return lambda: scripted(x, y, ops)


def workloads(quick: bool) -> list[Workload]:
    """All of them; with ``quick``, tiny ones."""
    ops = 2_000 if quick else 20_000
    small = 4  # 16 bytes: below what the runtime keeps books on
    tracked = 1024  # 4 KiB
    return [
        Workload(
            "char-gpt, tiny", lambda: _job_runs(CASES["char-gpt"].build(measure.SEED, tiny=True)), 2, True
        )
        if quick
        else Workload("GPT-2 small, 1 x 64 tokens, AdamW", _gpt2_small, 2, True),
        Workload("tiny GPT: width 32, 8 tokens, AdamW", _tiny_gpt, 10, True),
        Workload("C++ loop of adds, 16 bytes", lambda: _script_loop(small, ops), 2, False),
        Workload("C++ loop of adds, 4 KiB", lambda: _script_loop(tracked, ops), 2, False),
        Workload("Python loop of adds, 16 bytes", lambda: _python_loop(small, ops), 2, False),
        Workload("Python loop of adds, 4 KiB", lambda: _python_loop(tracked, ops), 2, False),
    ]


def count_events(run: Callable[[], object]) -> int:
    """Ops that the dispatcher announces in one run, those inside other ops included: what a recorder is called for."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        run()
    return sum(event.scope == 0 and not event.name.startswith("[") for event in profiler.events())


def measure_workload(workload: Workload, rounds: int, steps: int | None) -> list[dict[str, Any]]:
    """Run it under every tool, in turns, and set the times against those of the same run without a tool."""
    run = workload.make()
    for _ in range(2):
        run()
    events = count_events(run)
    progress(f"{workload.name}: {events} ops a run")
    times = {tool.name: Times() for tool in TOOLS}
    for number in range(rounds):
        for k in range(len(TOOLS)):
            tool = TOOLS[(k + number) % len(TOOLS)]
            result = times[tool.name]
            if not result.error:
                try:
                    _run_block(workload, tool, run, steps or workload.steps, result)
                except Exception as error:  # a peer that cannot run this is reported, and no reason to stop
                    result.error = f"{type(error).__name__}: {error}".splitlines()[0]
        progress(f"  round {number + 1}/{rounds}")
    bare = times[BARE]
    rows = []
    for tool in TOOLS:
        result = times[tool.name]
        rows.append(
            {
                "workload": workload.name,
                "tool": tool.name,
                "ops": events,
                "run_s": median(result.wall_s),
                "run_min_s": min(result.wall_s, default=0.0),
                "runs_s": result.wall_s,
                "cpu_runs_s": result.cpu_s,
                "ratio": ratio(result.wall_s, bare.wall_s),
                "ratio_of_minima": ratio(result.wall_s, bare.wall_s, min),
                "ratio_of_rounds": median(
                    [a / b for a, b in zip(result.per_round, bare.per_round, strict=False)]
                ),
                "ratio_of_cpu": ratio(result.cpu_s, bare.cpu_s),
                "us_per_op": _microseconds(median, result.wall_s, bare.wall_s, events),
                "us_per_op_of_minima": _microseconds(min, result.wall_s, bare.wall_s, events),
                "us_per_op_of_cpu": _microseconds(min, result.cpu_s, bare.cpu_s, events),
                "error": result.error,
            }
        )
    return rows


def _microseconds(
    of: Callable[[Sequence[float]], float], values: Sequence[float], base: Sequence[float], ops: int
) -> float:
    return (of(values) - of(base)) / ops * 1e6 if values and base else 0.0


def _run_block(workload: Workload, tool: Tool, run: Callable[[], object], steps: int, result: Times) -> None:
    with tool.open() as opened:
        mark_step = opened.step if isinstance(opened, cl.Session) and not workload.marks_steps else None
        walls = []
        for index in range(tool.settle + steps):
            start, cpu_start = time.perf_counter(), time.thread_time()
            run()
            wall_s, cpu_s = time.perf_counter() - start, time.thread_time() - cpu_start
            if index >= tool.settle:
                walls.append(wall_s)
                result.cpu_s.append(cpu_s)
            if mark_step:
                mark_step()
        result.wall_s += walls
        result.per_round.append(median(walls))


HEADERS = (
    "workload", "tool", "ops", "run ms", "ratio", "min ratio", "round ratio", "cpu ratio", "+us/op", "min +us/op",
    "cpu +us/op",
)  # fmt: skip


def screen_row(row: dict[str, Any]) -> list[str]:
    """A row as it is printed."""
    if row["error"]:
        return [row["workload"], row["tool"], str(row["ops"]), row["error"], *[""] * (len(HEADERS) - 4)]
    return [
        row["workload"],
        row["tool"],
        str(row["ops"]),
        milliseconds(row["run_s"]),
        *(f"{row[key]:.3f}" for key in ("ratio", "ratio_of_minima", "ratio_of_rounds", "ratio_of_cpu")),
        *(f"{row[key]:.2f}" for key in ("us_per_op", "us_per_op_of_minima", "us_per_op_of_cpu")),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it. Timing never fails it."""
    parser = measure.parser_of("overhead", __doc__.splitlines()[0])
    parser.add_argument(
        "--rounds", type=measure.count, default=None, help="times that each tool is opened (10)"
    )
    parser.add_argument("--steps", type=measure.count, default=None, help="timed runs each time")
    parser.add_argument("--threads", type=measure.count, default=1, help="threads of an op")
    parser.add_argument("--only", metavar="TEXT", default="", help="workloads with this in their name")
    parser.add_argument(
        "--plain-malloc",
        action="store_true",
        help="let malloc give large blocks back at once, as it does by default; a session's device keeps them, which "
        "can save more than recording costs",
    )
    parser.add_argument("--quick", action="store_true", help="tiny workloads, 2 rounds")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own messages
    if not options.plain_malloc:
        measure.keep_freed_memory()
    environment = measure.environment(vars(options))
    rows: list[dict[str, Any]] = []
    for workload in workloads(options.quick):
        if options.only.lower() not in workload.name.lower():
            continue
        rows += measure_workload(workload, options.rounds or (2 if options.quick else 10), options.steps)
        if options.json:
            measure.write_json(
                options.json, {"benchmark": "overhead", "environment": environment, "rows": rows}
            )
    print(measure.table(HEADERS, [screen_row(row) for row in rows], left=2))
    print(f"\n{measure.device_line(environment)}")
    print(f'Ratios and +us/op are to "{BARE}" in the same rounds; ops count those inside other ops.')
    if options.json:
        print(f"Written to {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
