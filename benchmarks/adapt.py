"""Op sequences that change: triggers on mutated steps, and live training whose steps are not alike.

The first part takes recorded steps of real training, mutates them, and counts which triggers of a policy would fire in
their place (see :mod:`benchmarks.mutations`). The second trains at a third of the peak while lengths, layers, routes,
batches or the loop change, each beside plain PyTorch, beside the same steps once more in the same session (every
sequence is known by then: the oracle), and beside the paper's gate with profiling anew. The
third is :mod:`benchmarks.beside_planning`.

    python -m benchmarks.adapt --json FILE [--only TEXT] [--seeds N] [--steps N] [--rounds N] [--threads N] [--quick]
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import chameleon_lab as cl
from chameleon_lab.report.session_report import Report, StepSummary
from chameleon_lab.runtime import core
from chameleon_lab.session.plan_cache import PlanCache

from . import beside_planning, measure, mutations
from .measure import median, progress, yes
from .models import GPT

LINK = "8GiB/s"
FIRST_SCALE = 1024.0
FIRST = 3
"""Steps that are not compared: those before the first plan is in force."""
SETTLED = 1.1


class Changing(GPT):
    """A GPT that can leave layers out."""

    dropped: frozenset[int] = frozenset()

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (batch, length) to logits (batch, length, vocabulary)."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for number, block in enumerate(self.blocks):
            if number not in self.dropped:
                x = block(x)
        return self.head(self.norm(x))


@dataclass
class Trainer:
    """What a scenario's step works on."""

    model: Changing
    optimizer: torch.optim.Optimizer
    length: int
    batch: int
    steps: int
    generator: torch.Generator
    scaler: torch.amp.GradScaler = field(
        default_factory=lambda: torch.amp.GradScaler("cpu", init_scale=FIRST_SCALE)
    )
    losses: list[float] = field(default_factory=list)

    def loss(self, batch: int | None = None, length: int | None = None) -> Tensor:
        """Of random tokens."""
        shape = (batch or self.batch, (length or self.length) + 1)
        tokens = torch.randint(64, shape, generator=self.generator)
        logits = self.model(tokens[:, :-1].contiguous())
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.losses.append(loss.item())
        return loss

    def update(self) -> None:
        """The optimizer's part."""
        self.optimizer.step()
        self.optimizer.zero_grad()


Step = Callable[[Trainer, int], str]
"""Trains step N, and returns what kind of step it was."""


def _lengths(t: Trainer, number: int) -> str:
    length = random.Random(number).choice([t.length * k // 8 for k in range(1, 9)])
    t.loss(length=length).backward()
    t.update()
    return f"length {length}"


def _evaluation(t: Trainer, number: int) -> str:
    evaluates = number % 5 == 4
    if evaluates:
        t.model.eval()
        with torch.no_grad():
            t.loss()
        t.model.train()
    t.loss().backward()
    t.update()
    return "with evaluation" if evaluates else "without"


def _accumulation(t: Trainer, number: int) -> str:
    count = 2 if number % 5 == 4 else 4
    for _ in range(count):
        (t.loss(batch=max(1, t.batch // 2)) / count).backward()
    t.update()
    return f"{count} micro-batches"


def _depth(t: Trainer, number: int) -> str:
    rng = random.Random(number)
    t.model.dropped = frozenset(k for k in range(len(t.model.blocks)) if rng.random() < 0.1)
    t.loss().backward()
    t.update()
    return f"without {sorted(t.model.dropped)}"


def _routing(t: Trainer, number: int) -> str:
    if number % 10 == 0:
        rng = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for name, parameter in t.model.named_parameters():
                if name.endswith("router.bias"):
                    parameter.copy_(torch.randn(parameter.shape, generator=rng) * 3)
    t.loss().backward()
    # An expert that no token has chosen runs no ops: which ones do makes the op sequence.
    idle = [
        name.removesuffix(".0.weight")
        for name, parameter in t.model.named_parameters()
        if name.endswith(".0.weight") and ".experts." in name and parameter.grad is None
    ]
    t.update()
    return f"routing {number // 10}{' set' if number % 10 == 0 else ''}, idle: {' '.join(idle) or 'none'}"


def _scaler(t: Trainer, number: int) -> str:
    overflows = number % 9 == 8
    scale = t.scaler.get_scale()
    (t.scaler.scale(t.loss()) * (math.inf if overflows else 1.0)).backward()
    t.scaler.step(t.optimizer)
    t.scaler.update()
    t.optimizer.zero_grad()
    return "skipped" if t.scaler.get_scale() < scale else "updated"


def _frozen(t: Trainer, number: int) -> str:
    frozen = number >= t.steps // 2
    for block in list(t.model.blocks)[: len(t.model.blocks) // 2]:
        block.requires_grad_(not frozen)
    t.loss().backward()
    t.update()
    return "half frozen" if frozen else "whole"


def _batch(t: Trainer, number: int) -> str:
    doubled = number >= t.steps // 2
    t.loss(batch=2 * t.batch if doubled else t.batch).backward()
    t.update()
    return "doubled" if doubled else "single"


def _branch(t: Trainer, number: int) -> str:
    taken = number % 7 == 6
    loss = t.loss()
    if taken:
        loss = loss + 1e-3 * sum(p.pow(2).mean() for p in t.model.parameters() if p.dim() > 1)
    loss.backward()
    t.update()
    return "branch" if taken else "straight"


SCENARIOS: dict[str, Step] = {
    "lengths of 8": _lengths,
    "evaluation every 5": _evaluation,
    "accumulation, ragged": _accumulation,
    "stochastic depth": _depth,
    "routing drifts": _routing,
    "scaler skips": _scaler,
    "half frozen": _frozen,
    "batch doubled": _batch,
    "branch 1 in 7": _branch,
}


class GatePlanCache(PlanCache):
    """The paper's gate in the place of the session's judgment: a step that trips it is profiled anew, and planned for.

    Within a step the executor follows its plan as ever, which is more than the paper's does.
    """

    counts: np.ndarray | None = None
    profiling = False

    def step_ended(self, log: core.StepLog, summary: StepSummary, least_compute_s: float = math.inf) -> None:
        """Compare the counts of ops with those of the profiled step."""
        counts = np.bincount(log.ops()["name"], minlength=4096).astype(float)
        if self.profiling:
            self.force(self._make(log), log.index, "profiled anew")
            self.counts, self.profiling = counts, False
            return
        if self.counts is None:
            self.counts = counts
        norm = np.linalg.norm(counts) * np.linalg.norm(self.counts)
        off = abs(counts.sum() - self.counts.sum()) > 0.05 * self.counts.sum()
        if off or (norm and counts @ self.counts / norm < 0.95):
            self.clear("the gate tripped")
            self.profiling = True


@dataclass
class Pass:
    """One pass over a scenario's steps."""

    losses: list[float] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)


@dataclass
class Round:
    """A session's passes over a scenario's steps, and the gate's."""

    ours: Pass
    oracle: Pass
    gate: Pass
    middle: Report
    """Between the session's two passes."""
    report: Report

    def bits(self) -> list[tuple[list[float], dict[str, str]]]:
        """Losses and digests of ours, the oracle and the gate."""
        return [(run.losses, run.digests) for run in (self.ours, self.oracle, self.gate)]


class Scenario:
    """A scenario in all its runs."""

    def __init__(self, name: str, steps: int, tiny: bool) -> None:
        self.name, self.step, self.steps, self.tiny = name, SCENARIOS[name], steps, tiny

    def _trainer(self) -> Trainer:
        torch.manual_seed(measure.SEED)
        experts = 4 if self.name == "routing drifts" else 0
        length, width, layers, batch = (32, 64, 4, 4) if self.tiny else (128, 128, 6, 8)
        model = Changing(64, length, width, width // 32, layers, experts)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        return Trainer(model, optimizer, length, batch, self.steps, torch.Generator())

    def _session(self, capacity: int) -> cl.Session:
        # Of a tiny model hardly a storage would be big enough to leave.
        return cl.Session(capacity, device="cpu", link=LINK, min_swap="2KiB" if self.tiny else "16KiB")

    def _run(self, trainer: Trainer, session: cl.Session | None) -> Pass:
        torch.manual_seed(measure.SEED)  # dropout
        trainer.generator.manual_seed(measure.SEED)
        trainer.losses = []
        done = Pass()
        for number in range(self.steps):
            start = time.perf_counter()
            done.kinds.append(self.step(trainer, number))
            if session:
                session.step()
            done.step_s.append(time.perf_counter() - start)
        done.losses = trainer.losses
        done.digests = measure.fingerprint(trainer.model, trainer.optimizer)
        return done

    def _rewind(self, trainer: Trainer, weights: dict[str, Tensor]) -> None:
        """Back to the beginning, in the same storages."""
        with torch.no_grad():
            for name, value in trainer.model.state_dict().items():
                value.copy_(torch.from_numpy(weights[name]))
            for state in trainer.optimizer.state.values():
                for value in state.values():
                    value.zero_()
        for parameter in trainer.model.parameters():
            parameter.grad = None
            parameter.requires_grad_(True)
        trainer.model.dropped = frozenset()
        trainer.scaler.load_state_dict(torch.amp.GradScaler("cpu", init_scale=FIRST_SCALE).state_dict())

    def measure(self, rounds: int) -> dict[str, Any]:
        """Run it plain, in a session twice over, and under the gate, all that so many times.

        The steps are the same each time, to the bit, and so each counts with the shortest time that it took: what
        other programs do to one of them is not in it.
        """
        plain = self._run(self._trainer(), None)
        with cl.Session(device="cpu") as session:
            self._run(self._trainer(), session)
            live_peak = max(step.peak_bytes for step in session.report().history)
        capacity = live_peak // 3
        runs = [self._round(capacity) for _ in range(rounds)]
        same = [run == (plain.losses, plain.digests) for round_ in runs for run in round_.bits()]
        ours, oracle, gate = (
            replace(passes[0], step_s=[min(times) for times in zip(*(p.step_s for p in passes), strict=True)])
            for passes in ([r.ours for r in runs], [r.oracle for r in runs], [r.gate for r in runs])
        )
        history = [step for run in runs for step in run.report.history]
        middle = runs[0].middle
        steps = slice(FIRST, None)
        steps_of_ours = middle.history[1 + FIRST : 1 + self.steps]
        settle, known, known_settled, oracle_settled = self._settling(ours, oracle)
        ours_s, oracle_s, gate_s = (sum(run.step_s[steps]) for run in (ours, oracle, gate))
        return {
            "scenario": self.name,
            "steps": self.steps,
            "capacity_bytes": capacity,
            "unswapped_peak_bytes": live_peak,
            "rounds": rounds,
            "peak_bytes": max(step.peak_bytes for step in history),
            "within_capacity": max(step.peak_bytes for step in history) <= capacity,
            "bit_identical": all(same[0::3]),
            "oracle_bit_identical": all(same[1::3]),
            "gate_bit_identical": all(same[2::3]),
            "plain_s": sum(plain.step_s[steps]),
            "ours_s": ours_s,
            "oracle_s": oracle_s,
            "gate_s": gate_s,
            "over_oracle": ours_s / oracle_s,
            "gate_over_oracle": gate_s / oracle_s,
            "steps_to_settle": settle,
            "steps_to_settle_of_rounds": [self._settling(run.ours, oracle)[0] for run in runs],
            "known_steps": known,
            "known_steps_settled": known_settled,
            "known_steps_settled_of_oracle": oracle_settled,
            "match_rate": median([step.match_rate for step in steps_of_ours]),
            "least_match_rate": min(step.match_rate for step in steps_of_ours),
            "plans": len(middle.plans),
            "steps_s": {
                "plain": plain.step_s, "ours": ours.step_s, "oracle": oracle.step_s, "gate": gate.step_s,
            },
            "steps_s_of_rounds": {
                name: [getattr(run, name).step_s for run in runs] for name in ("ours", "oracle", "gate")
            },
            "kinds": ours.kinds,
        }  # fmt: skip

    def _round(self, capacity: int) -> Round:
        with self._session(capacity) as session:
            trainer = self._trainer()
            weights = {name: value.numpy().copy() for name, value in trainer.model.state_dict().items()}
            session.step()
            ours = self._run(trainer, session)
            middle = session.report()
            session._plans.wait()
            self._rewind(trainer, weights)
            session.step()
            oracle = self._run(trainer, session)
            report = session.report()
        with self._session(capacity) as session:
            make = session._plan_for
            session._plans = GatePlanCache(session._runtime, make, make, session._note, lambda: capacity)
            session.step()
            gate = self._run(self._trainer(), session)
        return Round(ours, oracle, gate, middle, report)

    def _settling(self, ours: Pass, oracle: Pass) -> tuple[int, int, int, int]:
        """Most steps of a new kind until one takes no more than 1.1 times its settled time; how many steps of a known
        kind came after another kind; how many of those were settled at once; and how many of the oracle's same steps,
        which says what the machine's unrest takes.
        """
        settled = {
            kind: median([s for s, k in zip(oracle.step_s, oracle.kinds, strict=True) if k == kind])
            for kind in set(oracle.kinds)
        }
        worst = known = known_settled = oracle_settled = 0
        count: dict[str, int] = {}
        seen: set[str] = set()
        for number, (kind, step_s) in enumerate(zip(ours.kinds, ours.step_s, strict=True)):
            if number < FIRST:
                seen.add(kind)
                continue
            fine = step_s <= SETTLED * settled[kind]
            if kind not in seen:
                count.setdefault(kind, 0)
                if fine:
                    seen.add(kind)
                else:
                    count[kind] += 1
            elif kind != ours.kinds[number - 1]:
                known += 1
                known_settled += fine
                oracle_settled += oracle.step_s[number] <= SETTLED * settled[kind]
        worst = max(count.values(), default=0)
        return worst, known, known_settled, oracle_settled


MUTATION_HEADERS = ("case", "mutation", "ops", "triggers", *mutations.MATCHERS, "gate trips", "ns/op")
LIVE_HEADERS = (
    "scenario", "same bits", "in capacity", "plain s", "ours s", "oracle s", "gate s", "ours/oracle", "gate/oracle",
    "settles in", "known, at once", "match", "plans",
)  # fmt: skip


def mutation_row(row: dict[str, Any]) -> list[str]:
    """A row as it is printed: precision/recall of every matcher."""
    return [
        row["case"],
        row["mutation"],
        f"{row['ops']:.0f}",
        f"{row['triggers']:.0f}",
        *(f"{row[f'{name}_precision']:.3f}/{row[f'{name}_recall']:.3f}" for name in mutations.MATCHERS),
        f"{row['gate_trips']:.2f}",
        f"{row['ns_per_op']:.0f}",
    ]


def live_row(row: dict[str, Any]) -> list[str]:
    """A row as it is printed."""
    return [
        row["scenario"],
        yes(row["bit_identical"] and row["oracle_bit_identical"] and row["gate_bit_identical"]),
        yes(row["within_capacity"]),
        *(f"{row[key]:.2f}" for key in ("plain_s", "ours_s", "oracle_s", "gate_s")),
        f"{row['over_oracle']:.2f}",
        f"{row['gate_over_oracle']:.2f}",
        f"{row['steps_to_settle']} ({', '.join(map(str, row['steps_to_settle_of_rounds']))})",
        f"{row['known_steps_settled']}/{row['known_steps']} ({row['known_steps_settled_of_oracle']})",
        f"{row['match_rate']:.3f}",
        str(row["plans"]),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it. Fails where a run has other bits than plain PyTorch, or leaves the capacity; timing never fails it."""
    parser = measure.parser_of("adapt", __doc__.splitlines()[0])
    parser.add_argument(
        "--only", metavar="TEXT", default="", help="models and scenarios with this in their name"
    )
    parser.add_argument("--seeds", type=measure.count, default=None, help="runs of each mutation (3)")
    parser.add_argument("--steps", type=measure.count, default=None, help="steps of each scenario (60)")
    parser.add_argument("--rounds", type=measure.count, default=None, help="runs of each scenario (2)")
    parser.add_argument("--threads", type=measure.count, default=1, help="threads of an op")
    parser.add_argument("--quick", action="store_true", help="tiny models, 20 steps, one seed")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    measure.keep_freed_memory()
    environment = measure.environment(vars(options))
    mutated: list[dict[str, Any]] = []
    live: list[dict[str, Any]] = []
    planning: list[dict[str, Any]] = []

    def write() -> None:
        if options.json:
            rows = {"mutations": mutated, "live": live, "planning": planning}
            measure.write_json(options.json, {"benchmark": "adapt", "environment": environment} | rows)

    for case in ("gpt2", "llama", "moe"):
        if options.only.lower() in case:
            progress(f"mutations of {case}")
            seeds = range(options.seeds or (1 if options.quick else 3))
            mutated += mutations.measure_case(case, seeds, options.quick)
            write()
    for name in SCENARIOS:
        if options.only.lower() in name:
            progress(name)
            live.append(
                Scenario(name, options.steps or (20 if options.quick else 60), options.quick).measure(
                    options.rounds or (1 if options.quick else 2)
                )
            )
            write()
    steps, rounds = (
        options.steps or (12 if options.quick else 60),
        options.rounds or (2 if options.quick else 4),
    )
    for row in beside_planning.measured(options.only, steps, rounds, options.quick):
        planning.append(row)
        write()
    if mutated:
        print(measure.table(MUTATION_HEADERS, [mutation_row(row) for row in mutated], left=2))
        print(
            "\nPrecision/recall of triggers, within -4 to +16 ops; the signature's is of swap-outs alone.\n"
        )
    if live:
        print(measure.table(LIVE_HEADERS, [live_row(row) for row in live]))
        print(
            f"\nA third of the peak, {LINK}. Times are sums over all steps but the first {FIRST}. The oracle is the "
            "same steps again,\nwith every plan made. A step counts (not the plain one) with the shortest of "
            "its times in the rounds.\nSettles in: most steps of a new kind until one is within "
            f"{SETTLED} of its settled time; in brackets, in each round by itself.\n"
            "Known, at once: steps of a kind seen before that follow another kind, "
            "and how many are settled at once; in\nbrackets, how many of the oracle's are."
        )
    if planning:
        print(measure.table(beside_planning.HEADERS, [beside_planning.printed(row) for row in planning]))
        print(beside_planning.ABOUT)
    print(f"\n{measure.device_line(environment)}")
    if options.json:
        print(f"Written to {options.json}")
    kept = ("bit_identical", "oracle_bit_identical", "gate_bit_identical", "within_capacity")
    rows = [*([row[promise] for promise in kept] for row in live), [row["same_losses"] for row in planning]]
    return 0 if all(promise for row in rows for promise in row) else 1


if __name__ == "__main__":
    sys.exit(main())
