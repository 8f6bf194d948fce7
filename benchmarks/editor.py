"""How soon the policy editor answers: from an edit to its first figures, and to the plan, on a step of many ops.

Edits go through the panel's protocol, as a comm brings them, to the draft of a trace file. What JupyterLab and the
browser add (a message each way, a drawing) is not in it.

    python -m benchmarks.editor --json FILE [--model NAME] [--ops 10000] [--percent 50] [--rounds 5]
"""

from __future__ import annotations

import gc
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

import chameleon_lab as cl
from chameleon_lab.lab.panel.dispatch import answer
from chameleon_lab.lab.panel.protocol import MAX_ROWS, METHODS, VERSION
from chameleon_lab.lab.panel.sources import Sources
from chameleon_lab.trace import Trace

from . import measure
from .measure import median, progress
from .planner import in_a_row
from .shapes import SHAPES

WANTED_S = 0.2
"""From an edit to its first figures."""

HEADERS = ("edit", "first figures", "slowest", "of it collecting", "estimated", "table", "planned", "")


class Collecting:
    """Counts what the interpreter's garbage collection takes, inside of ``with``."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since = 0.0

    def __enter__(self) -> Collecting:
        gc.callbacks.append(self._told)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._told)

    def _told(self, phase: str, _: dict[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._since = now
        else:
            self.seconds += now - self._since


class Panel:
    """Asks a draft as the panel does."""

    def __init__(self, sources: Sources, source: str) -> None:
        self.sources, self.source = sources, source
        self._ids = itertools.count()

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a request, by way of JSON."""
        if any(field.name == "source" for field in fields(METHODS[method].params)):
            params = {"source": self.source} | params
        message = {"version": VERSION, "type": "request", "id": next(self._ids), "method": method}
        envelope, _ = answer(self.sources, message | {"params": params})
        if envelope["type"] != "reply":
            raise RuntimeError(f"{method}: {envelope['error']['message']}")
        return json.loads(json.dumps(envelope["result"]))

    def planned(self) -> dict[str, Any]:
        """The draft once it is planned."""
        while not (state := self.ask("draft")).get("exact"):
            if not state["editable"] and state["why"] != "Preparing the draft":
                raise RuntimeError(state["why"])
            time.sleep(0.005)
        return state

    def rows(self, query: str = "", count: int = 100) -> list[dict[str, Any]]:
        """Some rows of the table, largest first."""
        return self.ask("decisions", query=query, sort="bytes", down=True, first_row=0, count=count)["rows"]


def edits_of(panel: Panel, rounds: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Kinds of edits by name, ``rounds`` of each, on other storages each time."""
    swapped = panel.rows("swap", MAX_ROWS)
    kept = panel.rows("keep", MAX_ROWS)
    if len(swapped) < 3 * rounds or len(kept) < rounds:
        raise ValueError(
            f"the plan swaps {len(swapped)} storages, too few for {rounds} rounds: give --rounds"
        )
    pick = np.linspace(0, len(swapped) - 1, 3 * rounds).astype(int)
    capacity = panel.ask("draft")["capacity_bytes"]
    for k in range(rounds):
        own = [swapped[place]["storage"] for place in pick[3 * k : 3 * k + 3]]
        yield "keep one", {"action": "keep", "storage": own[0]}
        yield "never touch one", {"action": "never_touch", "storage": own[1]}
        yield "swap one", {"action": "swap", "storage": kept[k]["storage"]}
        yield "prefetch earlier", {"action": "prefetch", "storage": own[2], "ops_earlier": 3 + k}
        yield "rule by size", {"action": "keep", "max_bytes": swapped[-1]["bytes"] + k}
        yield "capacity", {"action": "capacity", "capacity_bytes": int(capacity * (1.02 + 0.01 * k))}


def timed(panel: Panel, edit: dict[str, Any], collecting: Collecting) -> dict[str, Any]:
    """One edit on the draft as it is in force: seconds until each answer."""
    panel.ask("edit", change="discard")
    panel.planned()
    begin, collecting.seconds = time.perf_counter(), 0.0
    first = panel.ask("edit", change="add", edits=[edit])
    first_s, collected_s = time.perf_counter() - begin, collecting.seconds
    panel.rows()
    table_s = time.perf_counter() - begin
    last = panel.planned()
    return {
        "first_s": first_s,
        "collected_s": collected_s,
        "table_s": table_s,
        "planned_s": time.perf_counter() - begin,
        "estimated": not first["exact"],
        "first": first["draft"],
        "last": last["draft"],
    }


def screen_row(row: dict[str, Any]) -> list[str]:
    """A row of the table that is printed."""
    return [
        row["edit"],
        *(measure.milliseconds(row[name]) for name in ("first_s", "first_most_s", "collected_s")),
        f"{row['estimated']} of {row['rounds']}",
        *(measure.milliseconds(row[name]) for name in ("table_s", "planned_s")),
        "" if row["first_most_s"] <= WANTED_S else "TOO SLOW",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 if every edit had its first figures in time."""
    parser = measure.parser_of("editor", __doc__)
    parser.add_argument(
        "--model", choices=list(SHAPES), default=next(iter(SHAPES)), help="(default: %(default)s)"
    )
    parser.add_argument("--ops", type=measure.count, default=10_000, help="ops of the step, at least (10000)")
    parser.add_argument("--percent", type=float, default=50.0, help="capacity in %% of the peak (50)")
    parser.add_argument("--rounds", type=measure.count, default=5, help="edits of each kind (5)")
    options = parser.parse_args(arguments)
    environment = measure.environment(vars(options))

    traced = cl.trace_meta(SHAPES[options.model].build, device="H100")
    step = in_a_row(traced.last, -(-options.ops // len(traced.last.ops)))
    meta = traced.meta | {"capacity_bytes": int(step.live_peak_bytes * options.percent / 100)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "step.parquet")
        Trace([step], meta).save(path)
        sources = Sources()
        panel = Panel(sources, sources.open_file(str(path)))
    begin = time.perf_counter()
    state = panel.planned()
    opened_s = time.perf_counter() - begin
    progress(f"{options.model}: {state['ops']} ops, {state['rows']} rows, opened in {opened_s:.1f} s")

    found: dict[str, list[dict[str, Any]]] = {}
    with Collecting() as collecting:
        for name, edit in edits_of(panel, options.rounds):
            found.setdefault(name, []).append(timed(panel, edit, collecting))
            progress(f"{name}: {found[name][-1]['first_s'] * 1e3:.0f} ms")
    rows = [
        {
            "edit": name,
            "rounds": len(times),
            "first_s": median([t["first_s"] for t in times]),
            "first_most_s": max(t["first_s"] for t in times),
            "collected_s": max(times, key=lambda t: t["first_s"])["collected_s"],
            "estimated": sum(t["estimated"] for t in times),
            "table_s": median([t["table_s"] for t in times]),
            "planned_s": median([t["planned_s"] for t in times]),
            "each": times,
        }
        for name, times in found.items()
    ]
    slow = [row["edit"] for row in rows if row["first_most_s"] > WANTED_S]
    if options.json:
        document = {
            "benchmark": "editor",
            "environment": environment,
            "correct": not slow,
            "wanted_s": WANTED_S,
        }
        document |= {"ops": state["ops"], "table_rows": state["rows"], "opened_s": opened_s, "rows": rows}
        measure.write_json(options.json, document)
    print(
        f"From an edit to its answers, on a step of {state['ops']} ops and {state['rows']} rows of the table, in ms."
    )
    print(
        f"Wanted: first figures within {WANTED_S * 1e3:.0f} ms. 'planned' is when the plan is there. Medians, but for"
    )
    print("the slowest, of which 'collecting' is the interpreter's garbage collection.\n")
    print(measure.table(HEADERS, [screen_row(row) for row in rows], left=1))
    print(f"\nOpening took {opened_s:.2f} s. {measure.device_line(environment)}")
    if options.json:
        print(f"Written to {options.json}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
