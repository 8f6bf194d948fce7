"""Recovery policies under random failures, simulated: 32 ranks, 8 pipelines of 4 stages of a Llama-like model.

Nothing here is measured. Each shape that a policy needs (more layers a stage, more micro-batches in flight) is traced
without a device, with an H100's roofline for op times, and planned at the capacity of a rank. Ranks then fail and come
back at random, exponentially; each policy goes on as it can, and the average throughput is compared with that of no
failure.

    python -m benchmarks.recovery --json FILE [--days N] [--seeds N] [--quick]

What the columns stand for:

- drop: whole pipelines go on alone, with a smaller batch (torchft);
- ReCycle-like: the micro-batches of a broken stage go to its peers, into their bubbles where two more micro-batches in
  flight fit, else one after another;
- Oobleck-like: the broken pipeline runs in fewer stages where that fits, else whole pipelines take all micro-batches;
- chooser: of all these but drop the one that loses least until the next change is expected: without headroom (a shape
  fits or it does not), with swaps, with swaps and replays, and the same without filling bubbles;
- lost ranks: what the ranks that are away cost alone, without a pause or a byte, were all the others as busy as before.
  What fills bubbles, which a run without failures leaves empty, can get above it.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import chameleon_lab as cl
from chameleon_lab.policy import Link
from chameleon_lab.recovery.scaling import micro_batches
from chameleon_lab.recovery.what_if import Load, load_of
from chameleon_lab.trace import Stage, Trace

from . import measure

PIPELINES, STAGES, LAYERS, MICRO = 8, 4, 12, 16
RANKS = PIPELINES * STAGES
TRACED_MICRO = 8
"""Micro-batches in a trace: the others take as long as these, and nothing more at once."""
NETWORK = 25e9
"""Bytes per second between ranks, for layers that move."""
PAUSE_S = {"drop": 2.0, "keep": 2.0, "reroute": 2.0, "fill": 2.0, "part": 15.0, "regroup": 15.0}
"""What a change to each policy takes, beside the bytes that move."""
MOVES = ("part", "regroup")
CAPACITIES = (1.0, 1.15, 1.3, 1.4)
"""Of a rank, times the peak of its step without a failure."""
LINKS = (55, 25, 12)
"""GB/s each way."""
TIMES = ((0.5, 1.0), (2.0, 1.0), (8.0, 4.0), (8.0, 0.5))
"""Hours between failures anywhere, and mean hours until a rank is back."""
COLUMNS = ("drop", "recycle", "oobleck", "chooser", "swap", "replay", "unfilled", "limit")
HEADERS = (
    "capacity",
    "link GB/s",
    "failure every",
    "back after",
    "drop",
    "ReCycle-like",
    "Oobleck-like",
    "chooser",
    "+ swaps",
    "+ replays",
    "unfilled",
    "lost ranks",
    "headroom",
)


class Block(nn.Module):
    """A layer of a Llama: attention and a gated MLP."""

    def __init__(self, dim: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.qkv, self.o = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.gate, self.up = nn.Linear(dim, inner, bias=False), nn.Linear(dim, inner, bias=False)
        self.down = nn.Linear(inner, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, time, dim) to the same."""
        batch, time, dim = x.shape
        q, k, v = (
            y.view(batch, time, self.heads, -1).transpose(1, 2) for y in self.qkv(self.n1(x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, time, dim))
        h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


@dataclass(frozen=True)
class Shape:
    """What a stage holds and has in flight."""

    layers: int
    in_flight: int
    micro: int = TRACED_MICRO

    def trace(self, quick: bool) -> Trace:
        """A step of the stage, under 1F1B, in bfloat16 with AdamW."""
        dim, heads, inner, time = (128, 2, 256, 256) if quick else (4096, 32, 11008, 4096)

        def build() -> Callable[[], None]:
            net = nn.Sequential(*[Block(dim, heads, inner) for _ in range(self.layers)]).bfloat16()
            optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)

            def backward(y: torch.Tensor) -> None:
                y.backward(torch.zeros_like(y))

            def step() -> None:
                optimizer.zero_grad()
                waiting = []
                for _ in range(self.micro):
                    x = torch.zeros(1, time, dim, dtype=torch.bfloat16).requires_grad_()
                    waiting.append(net(x))
                    if len(waiting) >= self.in_flight:
                        backward(waiting.pop(0))
                while waiting:
                    backward(waiting.pop(0))
                optimizer.step()

            return step

        return cl.trace_meta(build, device="H100")


SHAPES = {
    "normal": Shape(3, 4),
    "part3": Shape(4, 3),
    "part2": Shape(6, 2),
    "fill": Shape(3, 6, TRACED_MICRO + 2),
}
SHAPE_OF = {4: "normal", 3: "part3", 2: "part2"}
"""By the stages that a pipeline still has."""


class Loads:
    """The shapes, traced once, and planned at the capacities and links that are asked for."""

    def __init__(self, quick: bool) -> None:
        self.traces = {name: shape.trace(quick) for name, shape in SHAPES.items()}
        step = self.traces["normal"].last
        self.peak_bytes = step.live_peak_bytes
        model = float(step.ops.duration_s[step.ops.stage <= Stage.BACKWARD].sum())
        self.micro_s = model / TRACED_MICRO
        self.rest_s = float(step.ops.duration_s.sum()) - model
        storages = step.storages
        lasts = (storages.birth_op < 0) & (storages.death_op >= len(step.ops))
        self.layer_bytes = int(storages.block_bytes[lasts].sum()) // SHAPES["normal"].layers
        assert micro_batches(self.traces["part2"].last) > 1

    @cache  # noqa: B019  (lives as long as the run)
    def slowdown(self, shape: str, capacity: float, link: int, headroom: str) -> float:
        """Step time over compute; infinite where the shape does not fit."""
        load = self.load(shape, capacity, link, headroom)
        return load.slowdown

    @cache  # noqa: B019
    def load(self, shape: str, capacity: float, link: int, headroom: str) -> Load:
        """A shape at a capacity; without headroom nothing is planned."""
        step, room = self.traces[shape].last, int(capacity * self.peak_bytes)
        if headroom == "none" and room < step.live_peak_bytes:
            return Load(step.live_peak_bytes, 0, "does not fit", 1.0, math.inf)
        speed = Link(link * 1e9, link * 1e9)
        return load_of(step, room, speed, rematerialize=2 if headroom == "replay" else 0)


Dead = tuple[frozenset[int], ...]
"""By pipeline: the stages that are dead."""


class Job:
    """Throughput of each policy in each state, relative to no failure."""

    def __init__(self, loads: Loads, capacity: float, link: int, headroom: str) -> None:
        self.loads, self.at = loads, (capacity, link, headroom)
        self.normal_s = self.step_s(4, MICRO)
        self.total = PIPELINES * MICRO
        self._known: dict[tuple[Dead, str], float] = {}

    def step_s(self, stages: int, micro: float) -> float:
        """Of a pipeline that has so many stages left."""
        slow = self.loads.slowdown(SHAPE_OF[stages], *self.at)
        busy_s = (micro * self.loads.micro_s + self.loads.rest_s) * slow
        return (busy_s + (stages - 1) * self.loads.micro_s) * STAGES / stages

    def rate(self, dead: Dead, policy: str) -> float:
        """Samples per second, as a share of those without a failure."""
        key = (dead, policy)
        if key not in self._known:
            self._known[key] = self._rate(dead, policy)
        return self._known[key]

    def _rate(self, dead: Dead, policy: str) -> float:
        whole = sum(not stages for stages in dead)
        if whole == PIPELINES:
            return 1.0
        if policy == "drop":
            return whole / PIPELINES
        if policy in ("keep", "regroup"):
            alive = RANKS - sum(map(len, dead))
            pipelines = whole if policy == "keep" else alive // STAGES
            return self.normal_s / self.step_s(4, math.ceil(self.total / pipelines)) if pipelines else 0.0
        if policy in ("reroute", "fill"):
            peers = min(PIPELINES - sum(stage in stages for stages in dead) for stage in range(STAGES))
            if not peers:
                return 0.0
            micro = math.ceil(self.total / peers)
            if policy == "reroute":
                return self.normal_s / self.step_s(4, micro)
            slow = self.loads.slowdown("fill", *self.at)
            if micro - MICRO > 2 * STAGES or math.isinf(slow):  # deeper holes need more than two in flight
                return 0.0
            busy_s = max((MICRO + STAGES - 1) * self.loads.micro_s, micro * self.loads.micro_s * slow)
            return min(self.normal_s / (busy_s + self.loads.rest_s), 1.0)
        return self._shared(dead)

    def _shared(self, dead: Dead) -> float:
        """Broken pipelines run in fewer stages, and all take as many micro-batches as they can."""
        left = [STAGES - len(stages) for stages in dead if STAGES - len(stages) >= 2]
        kinds = []
        for stages in left:
            fixed_s = self.step_s(stages, 0)
            if math.isfinite(fixed_s):
                kinds.append((fixed_s, self.step_s(stages, 1) - fixed_s))
        if not kinds:
            return 0.0

        def runs(step_s: float) -> int:
            return sum(max(0, math.floor((step_s - fixed) / each + 1e-9)) for fixed, each in kinds)

        low, high = 0.0, 40 * self.normal_s
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if runs(middle) >= self.total else (middle, high)
        return min(1.0, self.normal_s / high)

    def pause_s(self, policy: str) -> float:
        """What a change to a policy takes."""
        return PAUSE_S[policy] + (3 * self.loads.layer_bytes / NETWORK if policy in MOVES else 0.0)


ALL = ("keep", "reroute", "fill", "part", "regroup")
POLICIES: dict[str, tuple[str, tuple[str, ...], bool]] = {
    "drop": ("none", ("drop",), False),
    "recycle": ("none", ("fill", "reroute"), False),
    "oobleck": ("none", ("part", "keep"), False),
    "chooser": ("none", ALL, True),
    "swap": ("swap", ALL, True),
    "replay": ("replay", ALL, True),
    "unfilled": ("replay", tuple(policy for policy in ALL if policy != "fill"), True),
}
"""By column: headroom, policies, and whether one is chosen; else it is the first that runs at all."""


def changes(failure_h: float, repair_h: float, days: float, seed: int) -> list[tuple[float, Dead, float]]:
    """Failures and repairs of a run: how long each state lasts, the state, and the expected time to the next change."""
    dice = random.Random(seed)
    dead: list[set[int]] = [set() for _ in range(PIPELINES)]
    found, at_s, end_s = [], 0.0, days * 86400
    while at_s < end_s:
        gone = sum(map(len, dead))
        failing = (RANKS - gone) / (RANKS * failure_h * 3600)
        rate = failing + gone / (repair_h * 3600)
        lasts_s = min(dice.expovariate(rate), end_s - at_s)
        found.append((lasts_s, tuple(sorted(map(frozenset, dead), key=sorted)), 1 / rate))
        at_s += lasts_s
        fails = dice.random() < failing / rate
        there = [(p, s) for p in range(PIPELINES) for s in range(STAGES) if (s in dead[p]) != fails]
        pipeline, stage = dice.choice(there)
        (dead[pipeline].add if fails else dead[pipeline].discard)(stage)
    return found


def throughput(
    job: Job, policies: Sequence[str], choose: bool, run: Sequence[tuple[float, Dead, float]]
) -> float:
    """Average of a run, relative to no failure."""
    work_s = total_s = 0.0
    used = ""
    for lasts_s, dead, expected_s in run:
        if not any(dead):
            policy, rate = "", 1.0
            pause_s = job.pause_s(used) if used in MOVES else PAUSE_S["keep"] if used else 0.0
        else:
            if choose:
                policy = min(policies, key=lambda p: job.pause_s(p) + (1 - job.rate(dead, p)) * expected_s)
            else:
                policy = next((p for p in policies if job.rate(dead, p) > 0), policies[-1])
            rate, pause_s = job.rate(dead, policy), job.pause_s(policy)
        work_s += max(lasts_s - pause_s, 0.0) * rate
        total_s += lasts_s
        used = policy
    return work_s / total_s


def limit(run: Sequence[tuple[float, Dead, float]]) -> float:
    """Of the ranks that are there, on average."""
    total_s = sum(lasts_s for lasts_s, _, _ in run)
    return sum(lasts_s * (1 - sum(map(len, dead)) / RANKS) for lasts_s, dead, _ in run) / total_s


def row_of(
    loads: Loads, capacity: float, link: int, hours: tuple[float, float], days: float, seeds: int
) -> dict[str, Any]:
    """One line of the table."""
    runs = [changes(*hours, days, seed) for seed in range(seeds)]
    row: dict[str, Any] = {
        "capacity": capacity,
        "link_gb_per_s": link,
        "failure_h": hours[0],
        "repair_h": hours[1],
        "limit": sum(map(limit, runs)) / seeds,
    }
    for column, (headroom, policies, choose) in POLICIES.items():
        job = Job(loads, capacity, link, headroom)
        row[column] = sum(throughput(job, policies, choose, run) for run in runs) / seeds
    return row


def one_death(loads: Loads, capacity: float, link: int) -> dict[str, Any]:
    """Throughput with one rank of the job dead, by policy and headroom."""
    dead: Dead = (frozenset(), *[frozenset()] * (PIPELINES - 2), frozenset({1}))
    rates = {
        headroom: {
            policy: Job(loads, capacity, link, headroom).rate(dead, policy) for policy in ("drop", *ALL)
        }
        for headroom in ("none", "swap", "replay")
    }
    return {"capacity": capacity, "link_gb_per_s": link, "rates": rates}


def headroom(row: dict[str, Any]) -> str:
    """What swapping and replaying add to the chooser, in points."""
    points = 100 * (max(row["swap"], row["replay"]) - row["chooser"])
    return f"{points:+.1f}" if abs(points) >= 0.05 else "nothing"


def screen_row(row: dict[str, Any]) -> list[str]:
    """A line as printed."""
    return [
        f"x {row['capacity']:.2f}",
        str(row["link_gb_per_s"]),
        f"{row['failure_h']:g} h",
        f"{row['repair_h']:g} h",
        *(f"{row[column]:.3f}" for column in COLUMNS),
        headroom(row),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, print the tables, and write them with ``--json``."""
    parser = measure.parser_of("recovery", __doc__)
    parser.add_argument("--days", type=float, default=25.0, help="of each run (25)")
    parser.add_argument("--seeds", type=measure.count, default=3, help="runs of each line (3)")
    parser.add_argument("--quick", action="store_true", help="a tiny model, to see that it works")
    options = parser.parse_args(arguments)
    environment = measure.environment(vars(options))
    environment["device"] = "CPU: a simulation, and nothing was measured; op times are an H100's roofline"
    capacities, links, times = (
        ((1.0, 1.15), (25,), TIMES[:1]) if options.quick else (CAPACITIES, LINKS, TIMES)
    )
    loads = Loads(options.quick)
    days = min(options.days, 2.0) if options.quick else options.days
    rows, deaths = [], []
    for capacity in capacities:
        for link in links:
            deaths.append(one_death(loads, capacity, link))
            for hours in times:
                rows.append(row_of(loads, capacity, link, hours, days, options.seeds))
                measure.progress(f"x {capacity} {link} GB/s, {hours[0]} h, {hours[1]} h")
    below = [
        row
        for row in rows
        if row["replay"] < max(row[c] for c in ("drop", "recycle", "oobleck", "chooser")) - 5e-4
    ]
    best = {
        (one["capacity"], one["link_gb_per_s"]): max(one["rates"]["replay"][policy] for policy in ALL)
        for one in deaths
    }
    shapes = {
        name: {
            "peak_bytes": trace.last.live_peak_bytes,
            "floor_bytes": cl.floor(trace).bytes,
            "layers": SHAPES[name].layers,
            "in_flight": SHAPES[name].in_flight,
        }
        for name, trace in loads.traces.items()
    }
    if options.json:
        measure.write_json(
            options.json,
            {
                "benchmark": "recovery",
                "simulated": True,
                "environment": environment,
                "assumed": {
                    "ranks": RANKS,
                    "pipelines": PIPELINES,
                    "stages": STAGES,
                    "layers": LAYERS,
                    "micro_batches": MICRO,
                    "network_bytes_per_s": NETWORK,
                    "pause_s": PAUSE_S,
                    "micro_batch_s": loads.micro_s,
                    "optimizer_s": loads.rest_s,
                    "days": days,
                    "seeds": options.seeds,
                },
                "shapes": shapes,
                "one_death": deaths,
                "rows": rows,
            },
        )
    print("Average throughput, relative to no failure. SIMULATED; nothing was measured.\n")
    print(measure.table(HEADERS, [screen_row(row) for row in rows], left=1))
    print(
        f"\nAssumed: {PIPELINES} pipelines of {STAGES} stages, {LAYERS} layers, {MICRO} micro-batches each, 1F1B; no "
        f"communication in the step; failures and repairs exponential for each rank; a change takes "
        f"{PAUSE_S['keep']:g} s, with new groups {PAUSE_S['part']:g} s and three layers at {NETWORK / 1e9:g} GB/s. "
        "Bubbles are filled perfectly, which flatters ReCycle-like and the choosers. Capacity: times the step's peak."
    )
    for name, shape in shapes.items():
        print(
            f"{name}: {shape['layers']} layers, {shape['in_flight']} in flight, "
            f"peak {shape['peak_bytes'] / 1e9:.2f} GB, floor {shape['floor_bytes'] / 1e9:.2f} GB"
        )
    print(
        f"One death in {RANKS}, with swaps and replays: {min(best.values()):.3f} to {max(best.values()):.3f} "
        f"of no failure; the lost rank alone leaves {1 - 1 / RANKS:.3f}."
    )
    print(f"Lines in which the chooser with headroom is below another: {len(below)} of {len(rows)}.")
    print(f"\nDevice: {environment['device']}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
