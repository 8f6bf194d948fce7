"""The panel on large traces, in headless Chromium without a GPU, beside PyTorch's way to draw memory.

A real training step is recorded on the ``cpu`` device under a plan, and repeated until it has as many events and
storages as asked for. JupyterLab then opens its trace file in the panel, as a person would, and zooms and pans. The
same residencies are drawn as memory_viz draws allocations: stacked polygons, 15000 of them and the rest summed up.

    python -m benchmarks.lab --json FILE [--model gpt2] [--quick] [--threads N]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from chameleon_lab.trace import StepTrace, Trace
from chameleon_lab.units import format_bytes

from . import measure
from .lab_server import ROOT, ServerError, jupyter_lab, notebook_url, require_tools
from .lab_trace import LINK, allocations, enlarged, events, recorded
from .measure import progress
from .models import CASES

BROWSER_TAKES_S = 1500


@dataclass(frozen=True)
class Size:
    """A trace to make, and what is wanted of the panel on it."""

    name: str
    events: int
    storages: int
    ready_s: float
    frame_ms: float


SIZES = (
    Size("10k events", 10_000, 0, 1.0, 16.0),
    Size("1M events", 1_000_000, 100_000, 3.0, 50.0),
)
QUICK = (Size("1k events", 1_000, 0, 1.0, 16.0),)
VIEW_BYTES = 10**6
HEAP_BYTES = 200 * 10**6


def made(size: Size, step: StepTrace, meta: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Write a trace of this size, and what the browser needs to draw it the other way; says what is in it."""
    began = time.perf_counter()
    large = enlarged(step, size.events, size.storages)
    trace, log = (folder / f"{size.name.replace(' ', '-')}{kind}" for kind in (".parquet", ".json"))
    Trace([large], meta).save(str(trace))
    log.write_text(json.dumps(allocations(large)))
    facts = {
        "name": size.name,
        "trace": str(trace),
        "log": str(log),
        "events": events(large),
        "ops": len(large.ops),
        "uses": len(large.uses),
        "storages": len(large.storages),
        "transfers": len(large.transfers),
        "stalls": len(large.stalls),
        "residencies": len(large.residencies),
        "repetitions": len(large.ops) // len(step.ops),
        "file_bytes": trace.stat().st_size,
    }
    progress(f"{size.name}: {facts['ops']} ops, written in {time.perf_counter() - began:.1f} s")
    return facts


def browse(traces: Sequence[dict[str, Any]], home: Path) -> dict[str, Any]:
    """Open each trace in JupyterLab; the browser's figures. Raises ServerError where that cannot be."""
    cases, shots = home / "cases.json", ROOT / "build" / "bench"
    cases.write_text(json.dumps([{key: trace[key] for key in ("name", "trace", "log")} for trace in traces]))
    shots.mkdir(parents=True, exist_ok=True)
    with jupyter_lab(home / "jupyter", {"bench": ["%load_ext chameleon_lab"]}) as address:
        done = subprocess.run(
            [
                *("node", str(Path(__file__).with_name("lab_panel.mjs")), notebook_url(address, "bench")),
                *(str(shots / "lab.png"), str(home / "profile"), str(cases)),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BROWSER_TAKES_S,
        )
    if done.returncode:
        raise ServerError(f"the browser failed:\n{done.stderr}")
    return json.loads(done.stdout)


def rows_of(size: Size, facts: dict[str, Any], found: dict[str, Any]) -> list[dict[str, Any]]:
    """What was wanted, and what came out, one row a figure; ``met`` is None where nothing was wanted."""
    panel, stacked = found["panel"], found["stacked"]
    frames = panel["gestures"]["all"]
    peer_frames, peer_heap = stacked.get("between", {}), stacked.get("heap", {})
    figures = [
        ("ready after the click, s", size.ready_s, panel["ready_s"], stacked.get("ready_s")),
        ("a frame's work, p95, ms", size.frame_ms, frames["work"]["p95_ms"], None),
        ("a frame's work, p50, ms", None, frames["work"]["p50_ms"], None),
        ("between frames, p95, ms", None, frames["between"]["p95_ms"], peer_frames.get("p95_ms")),
        ("between frames, p50, ms", None, frames["between"]["p50_ms"], peer_frames.get("p50_ms")),
        ("largest view, MB", VIEW_BYTES / 1e6, panel["view_bytes"] / 1e6, None),
        (
            "JavaScript heap, MB",
            HEAP_BYTES / 1e6,
            panel["heap"]["used_bytes"] / 1e6,
            _mb(peer_heap, "used_bytes"),
        ),
        ("heap before the trace, MB", None, panel["heap_before"]["used_bytes"] / 1e6, None),
        ("array buffers, MB", None, _mb(panel["heap"], "buffers_bytes"), _mb(peer_heap, "buffers_bytes")),
    ]
    return [
        {
            "trace": facts["name"],
            "figure": name,
            "wanted": wanted,
            "panel": value,
            "stacked": peer,
            "met": None if wanted is None else value <= wanted,
        }
        for name, wanted, value, peer in figures
    ]


def _mb(heap: dict[str, Any], key: str) -> float | None:
    return heap[key] / 1e6 if heap.get(key) is not None else None


HEADERS = ("trace", "figure", "wanted", "panel", "met", "stacked polygons")


def screen_row(row: dict[str, Any]) -> list[str]:
    """A row as it is printed."""

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"

    met = "" if row["met"] is None else measure.yes(row["met"])
    wanted = "" if row["wanted"] is None else f"at most {row['wanted']:g}"
    return [row["trace"], row["figure"], wanted, number(row["panel"]), met, number(row["stacked"])]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 where JupyterLab or the browser would not. Timing fails nothing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lab", description=__doc__)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--model", default="gpt2", choices=sorted(CASES))
    parser.add_argument("--threads", type=measure.count, default=1)
    parser.add_argument(
        "--quick", action="store_true", help="a tiny model and trace: the figures mean nothing"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    environment = measure.environment(vars(options))
    sizes = QUICK if options.quick else SIZES
    try:
        require_tools()
        trace = recorded(options.model, options.quick)
        with tempfile.TemporaryDirectory() as folder:
            facts = [made(size, trace.last, trace.meta, Path(folder)) for size in sizes]
            browser = browse(facts, Path(folder))
    except ServerError as error:
        print(error, file=sys.stderr)
        return 1
    rows: list[dict[str, Any]] = []
    for size, trace_facts in zip(sizes, facts, strict=True):
        rows += rows_of(size, trace_facts, browser["results"][size.name])
    print(measure.table(HEADERS, [screen_row(row) for row in rows], left=2))
    for trace_facts in facts:
        found = browser["results"][trace_facts["name"]]["stacked"]
        peer = found.get("failed") or f"{found['polygons']} polygons of {found['corners']} corners"
        print(
            f"{trace_facts['name']}: {trace_facts['ops']} ops, {trace_facts['uses']} uses, "
            f"{trace_facts['storages']} storages, {trace_facts['transfers']} transfers, "
            f"{trace_facts['residencies']} residencies, {format_bytes(trace_facts['file_bytes'])}; stacked: {peer}"
        )
    print(f"{browser['browser']}, headless, software rendering. {measure.device_line(environment)}")
    if browser["errors"]:
        print(f"The browser's console had {len(browser['errors'])} errors: {browser['errors'][0]}")
    if options.json:
        document = {"benchmark": "lab", "environment": environment, "browser": browser["browser"]}
        document |= {"recorded": {"model": options.model, "link": LINK}, "errors": browser["errors"]}
        for trace_facts in facts:
            del trace_facts["trace"], trace_facts["log"]
        document |= {"traces": facts, "results": browser["results"], "rows": rows}
        measure.write_json(options.json, document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
