"""The frame of benchmarks that train models in variants, interleaved: their rows, their runs, and what ends one."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Generic, TypeVar

import chameleon_lab as cl

from . import measure
from .measure import Comparison, Run, median, milliseconds, progress, ratio
from .models import Case

UNCAPPED = "uncapped"


@dataclass
class Cell:
    """One row: a model in one variant; of a capped one, also at one fraction of the peak on one link."""

    case: Case
    variant: str
    fraction: Fraction | None = None
    link: str | None = None
    capacity_bytes: int | None = None
    runs: list[Run] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    base: list[Run] = field(default_factory=list)
    """The uncapped runs that were interleaved with this row's."""
    error: str = ""

    @property
    def label(self) -> str:
        """The row in words."""
        parts = [self.case.name]
        if self.fraction is not None:
            parts.append(f"{self.fraction} of the peak")
        if self.link is not None:
            parts.append(f"link {self.link}")
        return ", ".join([*parts, self.variant])

    @property
    def bit_identical(self) -> bool:
        """Was every run the same as the first plain one, to the last bit?"""
        return bool(self.comparisons) and not self.error and all(c.identical for c in self.comparisons)

    @property
    def within_capacity(self) -> bool | None:
        """Did the peak of every step stay within the capacity? None where there is none."""
        if self.capacity_bytes is None:
            return None
        return all(peak <= self.capacity_bytes for run in self.runs for peak in run.peaks)

    def pooled(self, name: str) -> list[Any]:
        """A list field of all runs as one list."""
        return pooled(self.runs, name)

    # Those below are parts of a row, as plain values.

    def medians(self, *names: str) -> dict[str, float]:
        """The median of each list field over all runs."""
        return {name: median(self.pooled(name)) for name in names}

    def times(self) -> dict[str, Any]:
        """What a step took."""
        steps = self.pooled("step_s")
        return {
            "step_s": median(steps),
            "step_min_s": min(steps, default=0.0),
            "steps_s": [run.step_s for run in self.runs],
        }

    def ratios(self) -> dict[str, float]:
        """What a step took, to the uncapped one."""
        steps, base_steps = self.pooled("step_s"), pooled(self.base, "step_s")
        return {
            "ratio": ratio(steps, base_steps),
            "ratio_of_minima": ratio(steps, base_steps, min),
            "ratio_of_cpu": ratio(busy_s(self.runs), busy_s(self.base)),
        }

    def verdict(self) -> dict[str, Any]:
        """How the bits compare."""
        return {
            "losses_identical": bool(self.comparisons) and all(c.losses for c in self.comparisons),
            "weights_identical": bool(self.comparisons) and all(c.weights for c in self.comparisons),
            "first_difference": next(
                (c.first_difference for c in self.comparisons if c.first_difference), ""
            ),
            "bit_identical": self.bit_identical,
        }


def pooled(runs: Sequence[Run], name: str) -> list[Any]:
    """A list field of all runs as one list."""
    return [value for run in runs for value in getattr(run, name)]


def busy_s(runs: Sequence[Run]) -> list[float]:
    """Per step, the processor time of the training thread and its stalls: the step without other programs' share."""
    stalls = pooled(runs, "stall_s") or [0.0] * len(pooled(runs, "cpu_s"))
    return [cpu + stall for cpu, stall in zip(pooled(runs, "cpu_s"), stalls, strict=True)]


Row = TypeVar("Row", bound=Cell)


class Campaign(ABC, Generic[Row]):
    """All runs of all models, in the order in which they are interleaved."""

    def __init__(self, name: str, cases: Sequence[Case], options: argparse.Namespace) -> None:
        self.name, self.cases, self.options = name, cases, options
        self.rows: list[dict[str, Any]] = []
        self.models: dict[str, dict[str, Any]] = {}
        """What was found out of each model, before its rows."""
        self.references: dict[str, Run] = {}
        """The plain run of each model."""

    @abstractmethod
    def measure_case(self, case: Case) -> None:
        """Measure a model: its facts to ``models``, its rows to ``rows``."""

    @abstractmethod
    def session(self, cell: Row) -> Callable[[], cl.Session] | None:
        """What makes the session that a row's runs are in; None: they are plain PyTorch."""

    def reference(self, cell: Row) -> Run:
        """The run that those of a row must be the same as."""
        return self.references[cell.case.name]

    @property
    def correct(self) -> bool:
        """Is every row so far as it should be?"""
        return all(row["correct"] for row in self.rows)

    def run(self, **facts: Any) -> Mapping[str, Any]:
        """Measure everything and return the environment. The JSON has ``facts`` too, where one is asked for."""
        environment = measure.environment(vars(self.options))
        for case in self.cases:
            progress(f"{case.name}: {case.about}")
            self.measure_case(case)
            if self.options.json:  # after every model: a long run that is stopped leaves what it has measured
                complete = case is self.cases[-1]
                document = {"benchmark": self.name, "environment": environment, "complete": complete}
                document |= {"correct": self.correct} | facts | {"models": self.models, "rows": self.rows}
                measure.write_json(self.options.json, document)
        return environment

    def train(self, case: Case, session: Callable[[], cl.Session] | None, **options: Any) -> Run:
        """One run at its best: what is planned again is, before it counts."""
        options = {"tiny": self.options.quick, "skipped": measure.SETTLING_STEPS} | options
        return measure.train(case, self.options.steps, session, **options)

    def train_row(self, cell: Row) -> Run | None:
        """One run of a row; None where there is nothing to compare."""
        return self.train(cell.case, self.session(cell))

    def run_rounds(self, groups: Sequence[Sequence[Row]]) -> None:
        """All rounds over all groups."""
        for number in range(self.options.rounds):
            for group in groups:
                # Another one begins in every round, so that none always finds the machine as its forerunner left it.
                for k in range(len(group)):
                    self.run_row(group[(k + number) % len(group)], number)

    def run_row(self, cell: Row, number: int) -> None:
        """One run of a row in a round, beside its reference. One that has failed before is not run again."""
        if cell.error:
            return
        try:
            run = self.train_row(cell)
        except (
            Exception
        ) as error:  # the other rows still count; this one is reported, and fails the benchmark
            cell.error = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            progress(f"  {cell.label}: {cell.error}")
            return
        if run is None:
            return
        reference = self.reference(cell)
        comparison = measure.compare(run.losses, reference.losses, run.digests, reference.digests)
        cell.runs.append(run)
        cell.comparisons.append(comparison)
        verdict = "bit-identical" if comparison.identical else f"differs: {comparison.first_difference}"
        progress(
            f"  round {number + 1}/{self.options.rounds} {cell.label}: {milliseconds(median(run.step_s))} ms a step, "
            f"{verdict}"
        )


def fractions_of(text: str) -> list[Fraction]:
    """A command-line argument that lists fractions between 0 and 1."""
    try:
        fractions = [Fraction(part.strip()) for part in text.split(",")]
    except (ValueError, ZeroDivisionError):
        fractions = []
    if not fractions or not all(0 < fraction < 1 for fraction in fractions):
        raise argparse.ArgumentTypeError(f"{text!r}: write fractions between 0 and 1 like 1/2,1/4")
    return fractions


def names_of(known: Sequence[str], what: str) -> Callable[[str], list[str]]:
    """A command-line argument that lists some of the known names."""

    def parse(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",")]
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(
                    f"there is no {what} {name!r}: choose from {', '.join(known)}"
                )
        return names

    return parse


def parsed(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    *,
    fractions: str,
    steps: int,
    quick: str,
) -> argparse.Namespace:
    """The command line with the arguments of every campaign: their defaults, smaller ones with ``--quick``."""
    parser.add_argument(
        "--fractions", type=fractions_of, help=f"capacities as fractions of the peak ({fractions})"
    )
    parser.add_argument("--rounds", type=measure.count, help="runs of each row (3)")
    parser.add_argument("--steps", type=measure.count, help=f"timed steps of each run ({steps})")
    parser.add_argument(
        "--threads", type=measure.count, default=1, help="threads of an op (1: the copies have the rest)"
    )
    parser.add_argument("--quick", action="store_true", help=quick)
    options = parser.parse_args(arguments)
    options.fractions = options.fractions or fractions_of("1/2" if options.quick else fractions)
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.steps = options.steps or (2 if options.quick else steps)
    return options
