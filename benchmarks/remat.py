"""Swapping and rematerializing, mixed, beside each alone and beside checkpointing, at the same capacities.

For every model, capacity and link, interleaved in one process, each variant trains a fresh copy from the same seed:

- **uncapped**: a session that records only; beside each group of the others.
- **checkpoint**, **reentrant**, **selective**: the model's blocks under ``torch.utils.checkpoint`` (non-reentrant,
  reentrant, and keeping what is dear to run again), uncapped. Their peak is what it is: they stand beside the others
  at the capacities that it fits in.
- **checkpoint + swap**: the non-reentrant one in a session of that capacity that may only swap, where it does not fit
  by itself.
- **swap**: a session that may only swap. **mixed**: one that chooses, as sessions do.
- **rematerialize**: a policy that drops and replays and copies nothing. It is planned for a link on which copies take
  forever, from two steps under eviction; if copies are left in it, or the run needed any, it cannot be done, and the
  row says so.

Links carry what does not fit in a given share of the time until the peak: *all* of it twice over, half, or a fifth; a
third where it is asked for.

    python -m benchmarks.remat --json FILE [--models a,b] [--only mixed,swap] [--fractions 1/2,1/3,1/4,1/6]
        [--links all,half,third,fifth] [--rounds N] [--steps N] [--threads N] [--quick]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import chameleon_lab as cl
from chameleon_lab.planner import floor, plan
from chameleon_lab.policy import Link, Policy
from chameleon_lab.policy.model import Action
from chameleon_lab.runtime.replay_check import replayable

from . import measure
from .campaign import UNCAPPED, Campaign, Cell, names_of, parsed
from .measure import Run, mib, milliseconds, progress, yes
from .models import Case
from .remat_models import CASES, CHECKPOINT, REENTRANT, SELECTIVE, checkpointed

SWAP, REMATERIALIZE, MIXED, CHECKPOINT_SWAP = "swap", "rematerialize", "mixed", "checkpoint + swap"
CHECKPOINTS = (CHECKPOINT, REENTRANT, SELECTIVE)
VARIANTS = (*CHECKPOINTS, SWAP, REMATERIALIZE, MIXED, CHECKPOINT_SWAP)

LINKS = {"all": 2.0, "half": 0.5, "third": 1 / 3, "fifth": 0.2}
"""How much of what does not fit can leave before the peak."""
_USUAL_LINKS = ("all", "half", "fifth")

_MARGIN = 0.02
_COPIES_NEVER_END = Link(1.0, 1.0)
_PLANS = 3
"""Times that rematerializing alone is planned for, each without the drops that were declined before."""


@dataclass
class Rival(Cell):
    """A row of this benchmark."""

    link_name: str | None = None
    infeasible: str = ""
    """Why the variant cannot do it at all."""
    policy: Policy | None = None
    """To be given to the session."""

    @property
    def label(self) -> str:
        """The row in words."""
        return super().label.replace(f"link {self.link}", f"link {self.link_name}")


@dataclass(frozen=True)
class Profile:
    """A model's uncapped step."""

    peak_bytes: int
    floor_bytes: int
    lead_s: float
    """From its begin to the op at which most bytes are alive."""
    step_s: float


class Remat(Campaign[Rival]):
    """The models of this benchmark."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__("remat", [CASES[name] for name in options.models], options)

    def train(self, case: Case, session: Callable[[], cl.Session] | None, **options: Any) -> Run:
        """One run at its best, whose process memory is not looked at."""
        return super().train(case, session, memory_steps=0, **options)

    # ------------------------------------------------------------------------------------------------- one model

    def measure_case(self, case: Case) -> None:
        """Train it in every variant."""
        self.references[case.name] = self.train(case, None)  # also takes what a first run costs
        profile = self._profile(case)
        alone = [Rival(checkpointed(case, how), how) for how in CHECKPOINTS if how in self.options.only]
        peaks = {}
        for cell in alone:
            peaks[cell.variant] = self._profile(cell.case).peak_bytes
        groups = [[Rival(case, UNCAPPED), *alone]] if alone else []
        for fraction in self.options.fractions:
            capacity = int(profile.peak_bytes * fraction)
            for number, name in enumerate(self.options.links):
                link = f"{int(LINKS[name] * (profile.peak_bytes - capacity) / profile.lead_s)}B/s"
                at = partial(Rival, fraction=fraction, link=link, capacity_bytes=capacity, link_name=name)
                group = [Rival(case, UNCAPPED, fraction, link, link_name=name)]
                group += [at(case, variant) for variant in (SWAP, MIXED) if variant in self.options.only]
                if number == 0 and REMATERIALIZE in self.options.only:
                    group.append(self._rematerializing(at(case, REMATERIALIZE), profile))
                if CHECKPOINT_SWAP in self.options.only and peaks.get(CHECKPOINT, 0) > capacity:
                    group.append(at(checkpointed(case, CHECKPOINT), CHECKPOINT_SWAP))
                groups.append(group)
        if any(cell.variant == CHECKPOINT_SWAP for group in groups for cell in group):
            self.references[CHECKPOINT] = self.train(checkpointed(case, CHECKPOINT), None)
        self.run_rounds(groups)
        self._collect(case, profile, peaks, groups)

    def _profile(self, case: Case) -> Profile:
        """Train it uncapped for a moment."""
        seen: list[Profile] = []

        def look(session: cl.Session) -> None:
            trace = session.trace()
            step = max(trace, key=lambda step: step.live_peak_bytes)
            at = int(step.ops.live_peak_bytes.argmax())
            # Of the steps the fastest: all links follow from it, and other programs only make a step longer.
            lead_s, step_s = min(
                (float(s.ops.start_s[at] - s.ops.start_s[0]), float(s.duration_s))
                for s in trace
                if len(s.ops) == len(step.ops)
            )
            seen.append(Profile(step.live_peak_bytes, floor(step).bytes, lead_s, step_s))

        self.train(case, partial(cl.Session, capacity=None, device="cpu"), on_end=look)
        progress(f"  peak {mib(seen[0].peak_bytes)} MiB, floor {mib(seen[0].floor_bytes)} MiB")
        return seen[0]

    def _rematerializing(self, cell: Rival, profile: Profile) -> Rival:
        """The row with its policy, or with the reason why there is none."""
        if profile.floor_bytes > (cell.capacity_bytes or 0):
            cell.infeasible = f"the floor is {mib(profile.floor_bytes)} MiB"
            return cell
        known = replayable(torch.device("cpu"))
        refused = {name for name in known.refused if name not in known.dtypes}
        session: Callable[[], cl.Session] = partial(
            cl.Session, cell.capacity_bytes, device="cpu", link=cell.link, planning=False
        )
        why = ""
        for _ in range(_PLANS):
            run = self.train(cell.case, session)
            if cell.policy is not None and not (why := _not_alone(run)):
                return cell
            step = run.step
            assert step is not None
            keys = step.storage_keys
            refused |= {keys[row] for row in step.declined.storage.tolist()}
            cell.policy = plan(
                step,
                cell.capacity_bytes or 0,
                _COPIES_NEVER_END,
                margin=_MARGIN,
                rematerialize=True,
                refused=refused,
            )
            copied = sum(d.bytes for d in cell.policy.decisions if d.action is Action.SWAP)
            if copied:
                cell.infeasible = f"{mib(copied)} MiB would have to be copied"
                return cell
            session = self.session(cell)
        cell.infeasible = why
        return cell

    # ----------------------------------------------------------------------------------------------- one run

    def session(self, cell: Rival) -> Callable[[], cl.Session]:
        """One that may do what the row's variant does; uncapped and under checkpointing it only records."""
        if cell.capacity_bytes is None:
            return partial(cl.Session, device="cpu")
        return partial(
            cl.Session,
            cell.capacity_bytes,
            device="cpu",
            link=cell.link,
            policy=cell.policy,
            margin=_MARGIN,
            rematerialize=cell.variant in (REMATERIALIZE, MIXED),
        )

    def reference(self, cell: Rival) -> Run:
        """Plain PyTorch; where a session swaps under checkpointing, that without a session."""
        if cell.variant == CHECKPOINT_SWAP:
            return self.references[CHECKPOINT]
        return super().reference(cell)

    def train_row(self, cell: Rival) -> Run | None:
        """One run; none where the variant cannot do it, and the row then says why."""
        if cell.infeasible:
            return None
        try:
            run = super().train_row(cell)
        except cl.BelowFloorError as error:
            cell.infeasible = str(error).splitlines()[0]
            return None
        assert run is not None
        if cell.variant == REMATERIALIZE and (why := _not_alone(run)):
            cell.infeasible = why
            return None
        return run

    def _collect(
        self, case: Case, profile: Profile, peaks: dict[str, int], groups: list[list[Rival]]
    ) -> None:
        """Make the rows of a model."""
        self.models[case.name] = {
            "unswapped_peak_bytes": profile.peak_bytes,
            "floor_bytes": profile.floor_bytes,
            "step_s": profile.step_s,
            "lead_s": profile.lead_s,
            "checkpointed_peak_bytes": peaks,
        }
        rows = []
        for base, *cells in groups:
            for cell in cells:
                cell.base = base.runs
                rows.append(row_of(cell, profile.peak_bytes, peaks))
            rows.append(row_of(base, profile.peak_bytes, peaks))
        for row in rows:
            if row["variant"] == MIXED:
                row |= beside_the_others(row, rows)
        self.rows += rows


def _not_alone(run: Run) -> str:
    """Why a run did not get by with rematerializing alone; empty if it did."""
    moved = max(run.out_bytes + run.in_bytes, default=0)
    if not moved:
        return ""
    declined = max(run.declined_drops, default=0)
    return f"{mib(moved)} MiB were copied in a step, {declined} drops declined"


def row_of(cell: Rival, peak_bytes: int, checkpointed_peaks: dict[str, int]) -> dict[str, Any]:
    """The row's figures as plain values; see the README for what each is."""
    checkpointing = cell.variant in CHECKPOINTS
    row: dict[str, Any] = {
        "model": cell.case.name,
        "fraction": None if cell.fraction is None else str(cell.fraction),
        "link": None if cell.variant == REMATERIALIZE else cell.link_name,
        "link_bandwidth": cell.link,
        "variant": cell.variant,
        "capacity_bytes": cell.capacity_bytes,
        "unswapped_peak_bytes": peak_bytes,
        "peak_bytes": checkpointed_peaks[cell.variant]
        if checkpointing
        else max(cell.pooled("peaks"), default=None),
        "within_capacity": cell.within_capacity if cell.runs else None,
        **cell.times(),
        **cell.ratios(),
        "declined_drops": max(cell.pooled("declined_drops"), default=0),
        "predicted": cell.runs[-1].predicted if cell.runs else {},
        **cell.verdict(),
        "infeasible": cell.infeasible,
        "error": cell.error,
        **cell.medians(*_MEDIANS),
    }
    # What checkpointing changes is reported, and nobody's fault here: batch norm counts every batch twice.
    same = checkpointing or cell.bit_identical
    row["correct"] = not cell.error and (
        bool(cell.infeasible) or (same and row["within_capacity"] is not False)
    )
    return row


_MEDIANS = (
    "stall_s", "replay_s", "out_bytes", "in_bytes", "dropped_bytes", "drops", "replays", "evictions", "demand_swap_ins",
)  # fmt: skip


def beside_the_others(mixed: dict[str, Any], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The best of the others at a mixed row's capacity and link, and by how much the row is slower than that."""
    if not mixed["ratio"]:
        return {}
    rivals = []
    for row in rows:
        here = row["fraction"] == mixed["fraction"] and row["link"] in (mixed["link"], None)
        by_itself = row["variant"] in (CHECKPOINT, REENTRANT) and row["peak_bytes"] <= mixed["capacity_bytes"]
        rival = row["variant"] in (SWAP, REMATERIALIZE, CHECKPOINT_SWAP) and here
        if row["ratio"] and (by_itself or rival):
            rivals.append(row)
    if not rivals:
        return {}

    def over_best(figure: str) -> float:
        return mixed[figure] / min(row[figure] for row in rivals)

    best = min(rivals, key=lambda row: row["ratio"])
    return {
        "best_other": best["variant"],
        "over_best": over_best("ratio"),
        "over_best_of_minima": over_best("ratio_of_minima"),
        "over_best_of_cpu": over_best("ratio_of_cpu"),
    }


# ------------------------------------------------------------------------------------------------ what is printed

HEADERS = (
    "model", "of peak", "link", "variant", "peak MiB", "step ms", "ratio", "min ratio", "cpu ratio", "stall ms",
    "replay ms", "out MiB", "in MiB", "dropped MiB", "declined", "losses =", "weights =",
)  # fmt: skip


def screen_row(row: dict[str, Any]) -> list[str]:
    """A row as it is printed."""
    cells = [row["model"], row["fraction"] or "-", row["link"] or "-", row["variant"]]
    why = row["error"] or row["infeasible"]
    if why:
        return [*cells, "FAILED" if row["error"] else "infeasible", *["-"] * (len(HEADERS) - 5)]
    return [
        *cells,
        mib(row["peak_bytes"]),
        milliseconds(row["step_s"]),
        f"{row['ratio']:.3f}" if row["ratio"] else "-",
        f"{row['ratio_of_minima']:.3f}" if row["ratio"] else "-",
        f"{row['ratio_of_cpu']:.3f}" if row["ratio"] else "-",
        milliseconds(row["stall_s"]),
        milliseconds(row["replay_s"]),
        mib(row["out_bytes"]),
        mib(row["in_bytes"]),
        mib(row["dropped_bytes"]),
        str(row["declined_drops"]),
        yes(row["losses_identical"]),
        yes(row["weights_identical"]),
    ]


def summary(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The ratio to uncapped of every variant, a line for each model, capacity and link."""
    lines = []
    for mixed in rows:
        if mixed["variant"] != MIXED:
            continue

        def shown(variant: str, mixed: dict[str, Any] = mixed) -> str:
            for row in rows:
                here = row["fraction"] == mixed["fraction"] and row["link"] in (mixed["link"], None)
                if row["model"] == mixed["model"] and row["variant"] == variant:
                    if variant in CHECKPOINTS:
                        fits = row["peak_bytes"] <= mixed["capacity_bytes"]
                        return f"{row['ratio']:.3f}" if fits else "too big"
                    if here:
                        return (
                            f"{row['ratio']:.3f}"
                            if row["ratio"]
                            else "FAILED"
                            if row["error"]
                            else "infeasible"
                        )
            return "-"

        others = [variant for variant in VARIANTS if variant != MIXED]
        over = f"{mixed['over_best'] - 1:+.1%} to {mixed['best_other']}" if "over_best" in mixed else "-"
        lines.append(
            [mixed["model"], mixed["fraction"], mixed["link"], shown(MIXED), *map(shown, others), over]
        )
    return lines


SUMMARY_HEADERS = (
    "model", "of peak", "link", MIXED, *(variant for variant in VARIANTS if variant != MIXED), "mixed beside the best",
)  # fmt: skip


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = measure.parser_of("remat")
    parser.add_argument(
        "--models", type=names_of(list(CASES), "model"), help=f"default: {','.join(CASES)}; with --quick gpt"
    )
    parser.add_argument(
        "--only", type=names_of(VARIANTS, "variant"), default=list(VARIANTS), help=f"of {','.join(VARIANTS)}"
    )
    parser.add_argument(
        "--links", type=names_of(list(LINKS), "link"), help=f"default: {','.join(_USUAL_LINKS)}"
    )
    options = parsed(
        parser,
        arguments,
        fractions="1/2,1/3,1/4,1/6",
        steps=4,
        quick="a tiny model, 1 round, 2 steps, 1/2 and half",
    )
    options.models = options.models or (["gpt"] if options.quick else list(CASES))
    options.links = options.links or (["half"] if options.quick else list(_USUAL_LINKS))
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 if every row is correct, else 1."""
    options = parse_arguments(arguments)
    torch.set_num_threads(options.threads)
    job = Remat(options)
    environment = job.run(links=LINKS)
    print(measure.table(HEADERS, [screen_row(row) for row in job.rows], left=4))
    for row in job.rows:
        if row["infeasible"]:
            where = " ".join(str(row[key]) for key in ("model", "fraction", "link", "variant") if row[key])
            print(f"infeasible: {where}: {row['infeasible']}")
    if lines := summary(job.rows):
        print(f"\nSteps to uncapped ones\n{measure.table(SUMMARY_HEADERS, lines, left=3)}")
    print(f"\n{measure.device_line(environment)}")
    print("Ratios are to the uncapped runs of the row's group.")
    if options.json:
        print(f"Written to {options.json}")
    for row in job.rows:
        if not row["correct"]:
            where = " ".join(str(row[key]) for key in ("model", "fraction", "link", "variant") if row[key])
            print(f"WRONG: {where}: {row['error'] or row['first_difference'] or 'over its capacity'}")
    return 0 if job.correct else 1


if __name__ == "__main__":
    sys.exit(main())
