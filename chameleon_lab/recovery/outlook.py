"""What each way to go on after a death costs, as a table; and the choice among them, with its reason."""

from __future__ import annotations

import html
import math
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from ..policy import Link
from ..util.units import NOTHING, format_bytes, format_seconds, parse_bandwidth, parse_seconds


class RecoveryPolicy(StrEnum):
    """A way to go on, or to wait, when ranks have died."""

    FEWER = "fewer"
    """The survivors go on as they are: a smaller global batch."""
    TURNS = "turns"
    """The survivors take the dead ranks' micro-batches too, one after another."""
    LARGER = "larger"
    """The survivors take the dead ranks' samples in larger micro-batches."""
    RESHARD = "reshard"
    """The shards of a group are spread over its survivors, which keep the group's batch."""
    REPARTITION = "repartition"
    """The layers of a broken pipeline are spread over its surviving stages."""
    REROUTE = "reroute"
    """The micro-batches of a broken pipeline's stage go to its peers in the other pipelines."""
    FILL = "fill"
    """The same, into the bubbles of the peers' schedule."""
    REDUNDANT = "redundant"
    """The neighbor in the pipeline holds the dead stage's layers too, and runs both."""
    WAIT = "wait"
    """Nothing runs until a spare or the repaired rank is there, and has healed from a peer."""
    CHECKPOINT = "checkpoint"
    """The same, but all start again from the last checkpoint."""


TITLES = {
    RecoveryPolicy.FEWER: "go on with fewer",
    RecoveryPolicy.TURNS: "keep the batch, in turns",
    RecoveryPolicy.LARGER: "keep the batch, larger micro-batches",
    RecoveryPolicy.RESHARD: "re-shard the group",
    RecoveryPolicy.REPARTITION: "re-partition the pipeline",
    RecoveryPolicy.REROUTE: "reroute to peers",
    RecoveryPolicy.FILL: "reroute into the bubbles",
    RecoveryPolicy.REDUNDANT: "redundant neighbor",
    RecoveryPolicy.WAIT: "wait for a spare",
    RecoveryPolicy.CHECKPOINT: "wait, last checkpoint",
}
"""As tables call them."""

FITS, SWAPS, REPLAYS, BELOW, NO_PEER = (
    "fits",
    "swaps",
    "swaps and replays",
    "below the floor",
    "nobody is left",
)
"""What a policy's memory comes to."""


@dataclass(frozen=True)
class Costs:
    """What the outlook assumes of everything that a trace does not show.

    Durations are seconds, or text such as ``"15s"`` and ``"30min"``; the network takes text such as ``"25GB/s"``.
    Raises ValueError or TypeError for what is none.
    """

    detect_s: float = 2.0
    """From a death to the survivors' next step: the heartbeat's timeout and the step that is lost."""
    rejoin_s: float = 2.0
    """What the others lose when a rank is back and heals."""
    regroup_s: float = 15.0
    """New process groups, when layers or shards move: at the death, and again when the rank is back."""
    network_bytes_per_s: float = 25e9
    """Between ranks, for layers or shards that move."""
    restart_s: float = 120.0
    """All processes start again, and load the checkpoint."""
    checkpoint_every_s: float = 1800.0
    """Half of it is lost on average."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "network_bytes_per_s":
                known = parse_bandwidth(value, each.name)
            else:
                known = parse_seconds(value, each.name, none=True)
            object.__setattr__(self, each.name, known)

    def __str__(self) -> str:
        return (
            f"a death is noticed and a step lost in {_minutes(self.detect_s)}, a rank's return costs "
            f"{_minutes(self.rejoin_s)}, new groups take {_minutes(self.regroup_s)} and the bytes that move "
            f"over {format_bytes(self.network_bytes_per_s)}/s, a restart {_minutes(self.restart_s)}, checkpoints "
            f"are {_minutes(self.checkpoint_every_s)} apart"
        )


@dataclass(frozen=True)
class Way:
    """One recovery policy, and what it comes to for the survivor that is worst off."""

    policy: RecoveryPolicy
    needs_bytes: int
    """The step's peak without swaps."""
    floor_bytes: int
    """The smallest capacity that any plan can run it in."""
    memory: str
    """``fits``, ``swaps``, ``swaps and replays``, ``below the floor``, or ``nobody is left``."""
    step_s: float
    """Of the survivors, infinite where there is none."""
    stall_s: float
    replay_s: float
    swapped_out_bytes: int
    """Copied to the host in a step."""
    rate: float
    """Samples per second, as a share of those before the death."""
    samples_per_s: float | None
    """None where the number of samples in a step is not known."""
    keeps: str
    """What of the run stays as without a failure: ``bits``, ``batch`` or ``nothing``."""
    pause_s: float
    """Lost at the death and at the return, beside the slower steps between."""
    lost_s: float
    """Work of the job that is lost until the rank is back, in seconds of the failure-free run."""
    runs_with: str
    """What can run it today; empty: nothing, it is a calculation."""
    detail: str = ""
    """How the work is spread, or why the policy cannot be."""

    @property
    def possible(self) -> bool:
        """Can the survivors run it in their capacity?"""
        return self.memory not in (BELOW, NO_PEER)


_HEADS = (
    "",
    "if a rank dies",
    "needs",
    "floor",
    "memory",
    "out",
    "step",
    "stall",
    "samples/s",
    "batch",
    "lost",
    "runs with",
)
_LEFT = {0, 1, 4, 9, 11}


@dataclass(frozen=True)
class Outlook:
    """What happens if ranks die: a calculation from recorded steps, not a measurement. Printed as a table."""

    ranks: int
    dead: int
    capacity_bytes: int
    link: Link
    mttr_s: float
    """Expected time until the dead ranks are back."""
    now: Way
    """The step without a failure, at the same capacity."""
    ways: tuple[Way, ...]
    choice: Way | None
    """The one that loses least of those that something can run today, and that keep what they should; None: none."""
    reason: str
    costs: Costs
    notes: tuple[str, ...] = ()
    """What was left out, and why."""

    def __getitem__(self, policy: RecoveryPolicy | str) -> Way:
        """The way of one policy, such as ``outlook["turns"]``. Raises KeyError if it is not in the table."""
        found = next((way for way in self.ways if way.policy == policy), None)
        if found is None:
            known = ", ".join(way.policy for way in self.ways)
            raise KeyError(f"the outlook has no {policy!r}: it has {known}")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values; what is infinite is None."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values |= {
            "link": self.link.to_dict(),
            "now": _plain(self.now),
            "ways": [_plain(way) for way in self.ways],
            "choice": None if self.choice is None else str(self.choice.policy),
            "costs": asdict(self.costs),
            "notes": list(self.notes),
        }
        return values

    def __str__(self) -> str:
        cells = [_HEADS, *self.cells()]
        widths = [max(len(row[k]) for row in cells) for k in range(len(_HEADS))]
        lines = [
            "  ".join(
                cell.ljust(width) if k in _LEFT else cell.rjust(width)
                for k, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in cells
        ]
        return "\n".join([self._headline(), *lines, *self._words()])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in _HEADS)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self.cells()
        )
        words = "<br>".join(html.escape(line) for line in self._words())
        return f"<div><p>{html.escape(self._headline())}</p><table><tr>{head}</tr>{body}</table><p>{words}</p></div>"

    def cells(self) -> list[tuple[str, ...]]:
        """The table's rows as text, the failure-free step first."""
        return [self._row(self.now, "no failure"), *(self._row(way, TITLES[way.policy]) for way in self.ways)]

    def _row(self, way: Way, title: str) -> tuple[str, ...]:
        runs = math.isfinite(way.step_s)
        rate = (
            NOTHING
            if not runs
            else f"{way.rate:.3f}"
            if way.samples_per_s is None
            else f"{way.samples_per_s:.4g}"
        )
        idle = way.policy in (RecoveryPolicy.WAIT, RecoveryPolicy.CHECKPOINT) and way is not self.now
        return (
            "*" if way is self.choice else "",
            title,
            NOTHING if idle or way.memory == NO_PEER else format_bytes(way.needs_bytes),
            NOTHING if idle or way.memory == NO_PEER else format_bytes(way.floor_bytes),
            NOTHING if idle else way.memory,
            format_bytes(way.swapped_out_bytes) if runs else NOTHING,
            format_seconds(way.step_s) if runs else NOTHING,
            format_seconds(way.stall_s) if runs else NOTHING,
            rate,
            {"bits": "same bits", "batch": "same batch", "nothing": "smaller"}[way.keeps],
            "" if way is self.now else _minutes(way.lost_s) if way.possible else NOTHING,
            "" if way is self.now else way.runs_with or "calculation only",
        )

    def _headline(self) -> str:
        return (
            f"{self.dead} of {self.ranks} ranks dead for {_minutes(self.mttr_s)}, capacity "
            f"{format_bytes(self.capacity_bytes)}, link {self.link}; calculated, not measured"
        )

    def _words(self) -> list[str]:
        unit = "of what the job does without failures" if self.now.samples_per_s is None else "a second"
        return [
            self.reason,
            f"samples/s: {unit}; lost: work until the ranks are back, in time of the failure-free run.",
            f"Assumed: {self.costs}.",
            *self.notes,
        ]


def _minutes(seconds: float) -> str:
    if not math.isfinite(seconds):
        return NOTHING
    for unit, scale in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def _plain(way: Way) -> dict[str, Any]:
    values = asdict(way) | {"policy": str(way.policy), "possible": way.possible}
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


KEEPS = ("nothing", "batch", "bits")
"""What a choice has to keep, each with what is before it."""


def chosen(ways: tuple[Way, ...], keep: str, mttr_s: float) -> tuple[Way | None, str]:
    """The way that loses least of those that something runs today and that keep enough; and the reason, in words."""
    possible = [way for way in ways if way.possible and KEEPS.index(way.keeps) >= KEEPS.index(keep)]
    today = [way for way in possible if way.runs_with]
    if not today:
        short = [way for way in ways if way.memory == BELOW and KEEPS.index(way.keeps) >= KEEPS.index(keep)]
        if not short:
            return None, f"None of these keeps the {keep} and runs today."
        least = min(short, key=lambda way: way.floor_bytes)
        return None, (
            f"None of these fits: {TITLES[least.policy]} has the lowest floor, {format_bytes(least.floor_bytes)}; give "
            "the survivors that capacity, or smaller micro-batches."
        )
    best = min(
        today, key=lambda way: way.lost_s
    )  # the first of equals: the table's order is that of least change
    others = sorted((way for way in today if way is not best), key=lambda way: way.lost_s)
    text = f"Choice: {TITLES[best.policy]}, which loses {_minutes(best.lost_s)} in {_minutes(mttr_s)}"
    if others:
        text += f"; next is {TITLES[others[0].policy]} with {_minutes(others[0].lost_s)}"
    text += "."
    if best.memory in (SWAPS, REPLAYS) and math.isfinite(best.step_s):
        text += f" It needs {format_bytes(best.needs_bytes)}, and {best.memory} to stay within the capacity."
    better = [way for way in possible if not way.runs_with and way.lost_s < best.lost_s]
    if better:
        least = min(better, key=lambda way: way.lost_s)
        text += f" {TITLES[least.policy].capitalize()} would lose {_minutes(least.lost_s)}, and nothing runs it today."
    smaller = [
        way
        for way in ways
        if way.possible and way.runs_with and way.lost_s < best.lost_s and way not in today
    ]
    if smaller:
        least = min(smaller, key=lambda way: way.lost_s)
        title = TITLES[least.policy].capitalize()
        text += f" {title} would lose {_minutes(least.lost_s)}, and does not keep the {keep}."
    return best, text
