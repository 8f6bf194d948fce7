"""Predicted beside measured: peak, step, stall and bytes of every model and capacity of the main job.

Each model trains under a plan. What the simulator foretells comes from the trace of one timed step (of the first three
the one of median duration) and the policy that it followed, with the op times recorded there and eviction where the
policy leaves too much; what is measured are the timed steps after the first three. The MoE routes its tokens
differently in each.

    python -m benchmarks.predict --json FILE [--models a,b] [--fractions 1/2,1/4,1/8]
        [--link 8GiB/s] [--slow-link 0.2GiB/s] [--steps N] [--threads N] [--quick]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

import chameleon_lab as cl
from chameleon_lab.planner import StallCause, simulate
from chameleon_lab.trace import Cause, Direction, StepTrace

from . import measure
from .main_job import parse_arguments
from .measure import median, mib, milliseconds, progress
from .models import CASES, Case

PEAK_WITHIN, STEP_WITHIN = 0.01, 0.15
"""What is wanted: predictions no further off than this."""
STALL_FROM = 0.02
"""Share of the step: of shorter stalls nobody asks the cause."""
MOST_STEPS = 24
"""Steps that a model trains at most."""
PROBES = 3
"""Timed steps that the prediction is chosen from."""


def stalls_by_cause(step: StepTrace) -> dict[str, float]:
    """Measured stall seconds, under the names that the simulator gives."""
    out = step.stalls.direction == Direction.OUT
    demand = ~out & (step.stalls.cause != Cause.PLANNED)
    kinds = {StallCause.SWAP_OUT: out, StallCause.PREFETCH: ~out & ~demand, StallCause.DEMAND: demand}
    return {kind.name.lower(): float(step.stalls.duration_s[rows].sum()) for kind, rows in kinds.items()}


class Trained:
    """One model under a plan: the steps that were timed, and the policy that they followed.

    A session plans again once it has seen which drops are declined and how long ops take under a plan. Steps count
    from when that is over; a model whose ops change from step to step, until its time is up.
    """

    def __init__(self, case: Case, capacity_bytes: int, link: str, steps: int, tiny: bool) -> None:
        self.steps: list[StepTrace] = []
        generator = torch.Generator().manual_seed(measure.SEED)
        measure.give_memory_back()
        with cl.Session(capacity_bytes, device="cpu", link=link) as session:
            job = case.build(measure.SEED, tiny)
            for number in range(MOST_STEPS):
                job.train_step(job.make_batch(generator))
                if number < measure.SKIPPED_STEPS:
                    continue
                if not self.steps or (
                    session.policy is not self.policy and number < MOST_STEPS - PROBES - steps
                ):
                    self.steps, self.policy = [], session.policy
                self.steps.append(session.trace().last)
                if len(self.steps) == PROBES + steps:
                    break
            self.stage = session.stage


def row_of(case: Case, fraction: Any, link: str, capacity_bytes: int, trained: Trained) -> dict[str, Any]:
    """Predicted and measured figures."""
    probes, others = trained.steps[:PROBES], trained.steps[PROBES:]
    first = sorted(probes, key=lambda step: step.duration_s)[PROBES // 2]
    assert trained.policy is not None
    prediction = simulate(first, trained.policy, capacity_bytes, evict=True)
    measured = {
        "peak_bytes": max(int(step.ops.resident_peak_bytes.max()) for step in others),
        "step_s": median([step.duration_s for step in others]),
        "stall_s": median([float(step.stalls.duration_s.sum()) for step in others]),
        "out_bytes": median([int(_moved(step, Direction.OUT)) for step in others]),
        "in_bytes": median([int(_moved(step, Direction.IN)) for step in others]),
        "stall_by_cause": {
            name: median([stalls_by_cause(step)[name] for step in others]) for name in stalls_by_cause(first)
        },
    }
    predicted = {
        "peak_bytes": prediction.peak_bytes,
        "step_s": prediction.step_s,
        "stall_s": prediction.stall_s,
        "out_bytes": prediction.swapped_out_bytes,
        "in_bytes": prediction.swapped_in_bytes,
        "stall_by_cause": {cause.name.lower(): s for cause, s in prediction.stall_by_cause.items()},
    }
    return {
        "model": case.name,
        "fraction": str(fraction),
        "link": link,
        "capacity_bytes": capacity_bytes,
        "stage": trained.stage.value,
        "predicted": predicted,
        "measured": measured,
        "planned": dict(trained.policy.predicted),
        "unmatched": len(prediction.unmatched),
        "peak_error": predicted["peak_bytes"] / measured["peak_bytes"] - 1,
        "step_error": predicted["step_s"] / measured["step_s"] - 1,
        "planned_step_error": trained.policy.predicted["step_s"] / measured["step_s"] - 1,
        "same_cause": _same_cause(predicted, measured),
    }


def _same_cause(predicted: dict[str, Any], measured: dict[str, Any]) -> bool | None:
    """Has most of the measured stall the cause that most of the predicted one has? None where there is hardly any."""
    if measured["stall_s"] < STALL_FROM * measured["step_s"]:
        return None
    first, second = (
        max(values["stall_by_cause"].items(), key=lambda item: item[1])[0] for values in (predicted, measured)
    )
    return first == second


def _moved(step: StepTrace, direction: Direction) -> int:
    return step.transfers.bytes[step.transfers.direction == direction].sum()


HEADERS = (
    *("model", "of peak", "link", "peak MiB", "measured", "off"),
    *("step ms", "measured", "off", "when planned"),
    *("stall ms", "measured", "for out", "measured", "for in", "measured"),
)


def screen_row(row: dict[str, Any]) -> list[str]:
    """A row as it is printed."""
    predicted, measured = row["predicted"], row["measured"]
    causes = [values["stall_by_cause"] for values in (predicted, measured)]
    cells = [row["model"], row["fraction"], row["link"]]
    cells += [mib(predicted["peak_bytes"]), mib(measured["peak_bytes"]), f"{row['peak_error']:+.1%}"]
    cells += [milliseconds(predicted["step_s"]), milliseconds(measured["step_s"])]
    cells += [f"{row['step_error']:+.1%}", f"{row['planned_step_error']:+.1%}"]
    cells += [milliseconds(predicted["stall_s"]), milliseconds(measured["stall_s"])]
    cells += [milliseconds(cause["swap_out"]) for cause in causes]
    cells += [milliseconds(cause["prefetch"] + cause["demand"]) for cause in causes]
    return cells


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; always 0: timing fails nothing."""
    options = parse_arguments(arguments, "predict")
    torch.set_num_threads(options.threads)
    environment = measure.environment(vars(options))
    rows: list[dict[str, Any]] = []
    for name in options.models:
        case = CASES[name]
        peak = measure.train(
            case, 1, lambda: cl.Session(None, device="cpu"), tiny=options.quick
        ).live_peak_bytes
        for link in options.links:
            for fraction in options.fractions if case.fractions is None else case.fractions:
                trained = Trained(case, int(peak * fraction), link, options.steps, options.quick)
                rows.append(row_of(case, fraction, link, int(peak * fraction), trained))
                progress("  ".join(screen_row(rows[-1])))
        if options.json:
            document = {"benchmark": "predict", "environment": environment}
            document |= {"complete": name == options.models[-1], "rows": rows}
            measure.write_json(options.json, document)
    print(measure.table(HEADERS, [screen_row(row) for row in rows], left=3))
    print(f"\n{measure.device_line(environment)}")
    for text, key, within in (
        ("peak", "peak_error", PEAK_WITHIN),
        ("step", "step_error", STEP_WITHIN),
        ("step, when it was planned,", "planned_step_error", STEP_WITHIN),
    ):
        good = sum(abs(row[key]) <= within for row in rows)
        print(f"Predicted {text} within {within:.0%} of measured: {good} of {len(rows)} rows.")
    judged = [row["same_cause"] for row in rows if row["same_cause"] is not None]
    print(
        f"Most of the stall has the cause that was predicted: {sum(judged)} of the {len(judged)} rows that stall for "
        f"{STALL_FROM:.0%} of the step or more."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
