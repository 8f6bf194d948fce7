"""The panel on large traces, in headless Chromium without a GPU, beside PyTorch's way to draw memory.

A real training step is recorded on the ``cpu`` device under a plan, and repeated until it has as many events and
storages as asked for. JupyterLab then opens its trace file in the panel, as a person would, and zooms and pans. The
same residencies are drawn as memory_viz draws allocations: stacked polygons, 15000 of them and the rest summed up.

With ``--against DIR`` the panel of another checkout, built in DIR with a ``.venv`` of its own, is measured in turn with
this one, ``--rounds`` times each; figures are then medians of the rounds. It may not know this checkout's trace files:
it records the same model itself, and repeats the step until there are as many ops.

    python -m benchmarks.lab --json FILE [--model gpt2] [--quick] [--threads N] [--against DIR] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from chameleon_lab.lab.panel.views import VIEW_BYTES
from chameleon_lab.trace import StepTrace, Trace
from chameleon_lab.util.units import format_bytes

from .. import measure
from ..measure import progress
from ..models import CASES
from .server import ROOT, ServerError, browser_check, jupyter_lab, notebook_url, require_tools
from .traces import LINK, allocations, enlarged, events, recorded

BROWSER_TAKES_S = 1500


@dataclass(frozen=True)
class Size:
    """A trace to make, and what is wanted of the panel on it."""

    name: str
    events: int
    storages: int
    ready_s: float
    frame_ms: float
    ops: int = 0


SIZES = (
    Size("10k events", 10_000, 0, 1.0, 16.0),
    Size("100k ops", 0, 0, 2.0, 50.0, ops=100_000),
    Size("1M events", 1_000_000, 100_000, 2.0, 50.0),
)
QUICK = (Size("1k events", 1_000, 0, 1.0, 16.0),)
HEAP_BYTES = 200 * 10**6


def made(size: Size, step: StepTrace, meta: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Write a trace of this size, and what the browser needs to draw it the other way; says what is in it."""
    began = time.perf_counter()
    large = enlarged(step, size.events, size.storages, size.ops)
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


_MADE_BY_ANOTHER = """
import json, sys
try:
    from benchmarks.lab.traces import events, recorded, repeat
except ImportError:  # an older checkout
    from benchmarks.lab_trace import events, recorded, repeat
from chameleon_lab.trace import Trace
import torch
model, tiny, threads, wanted = json.loads(sys.argv[1])
torch.set_num_threads(threads)
trace = recorded(model, tiny)
made = []
for name, ops, path in wanted:
    large = repeat(trace.last, -(-ops // len(trace.last.ops)))
    Trace([large], trace.meta).save(path)
    made.append({"name": name, "trace": path, "ops": len(large.ops), "events": events(large)})
print(json.dumps(made))
"""


def made_by_another(
    python: str, folder: Path, options: argparse.Namespace, facts: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Traces of as many ops as these, recorded and written by another checkout. Raises ServerError where it can't.

    Args:
        python: of the other checkout, as :func:`other_python` gives it.
        folder: where its files go.
        options: of the command line: the model, and the threads that record it.
        facts: of this checkout's traces.
    """
    folder.mkdir()
    wanted = [(of["name"], of["ops"], str(folder / Path(of["trace"]).name)) for of in facts]
    asked = json.dumps([options.model, options.quick, options.threads, wanted])
    checkout = Path(python).parents[2]
    done = subprocess.run(
        [python, "-c", _MADE_BY_ANOTHER, asked], cwd=checkout, capture_output=True, text=True
    )
    if done.returncode:
        raise ServerError(f"{checkout} recorded no trace:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def browse(
    traces: Sequence[dict[str, Any]], home: Path, python: str = sys.executable, stacked: bool = True
) -> dict[str, Any]:
    """Open each trace in JupyterLab; the browser's figures. Raises ServerError where that cannot be.

    Args:
        traces: to open.
        home: a new folder, for all that the server and the browser write.
        python: whose JupyterLab and panel.
        stacked: draw stacked polygons, too.
    """
    home.mkdir()
    cases, shots = home / "cases.json", ROOT / "build" / "bench"
    keys = ("name", "trace", "log") if stacked else ("name", "trace")
    cases.write_text(json.dumps([{key: trace[key] for key in keys} for trace in traces]))
    shots.mkdir(parents=True, exist_ok=True)
    with jupyter_lab(home / "jupyter", {"bench": ["%load_ext chameleon_lab"]}, python) as address:
        done = browser_check(
            Path(__file__).with_name("panel.mjs"),
            notebook_url(address, "bench"),
            shots / "lab.png",
            home / "profile",
            str(cases),
            timeout_s=BROWSER_TAKES_S,
        )
    if done.returncode:
        raise ServerError(f"the browser failed:\n{done.stderr}")
    return json.loads(done.stdout)


def rows_of(
    size: Size,
    facts: dict[str, Any],
    rounds: Sequence[dict[str, Any]],
    against: Sequence[dict[str, Any]] = (),
) -> list[dict[str, Any]]:
    """What was wanted, and what came out, one row a figure; ``met`` is None where nothing was wanted.

    Args:
        size: what was wanted.
        facts: of the trace.
        rounds: what the browser found of this panel, at least once; figures are medians.
        against: the same of another checkout's panel.
    """
    stacked = rounds[0]["stacked"]
    peer_frames, peer_heap = stacked.get("between", {}), stacked.get("heap", {})
    peers = {
        "ready after the click, s": stacked.get("ready_s"),
        "between frames, p95, ms": peer_frames.get("p95_ms"),
        "between frames, p50, ms": peer_frames.get("p50_ms"),
        "JavaScript heap, MB": _mb(peer_heap, "used_bytes"),
        "array buffers, MB": _mb(peer_heap, "buffers_bytes"),
    }
    wants = {
        "ready after the click, s": size.ready_s,
        "a frame's work, p95, ms": size.frame_ms,
        "largest view, MB": VIEW_BYTES / 1e6,
        "JavaScript heap, MB": HEAP_BYTES / 1e6,
    }
    ours, theirs = (_medians([_figures(found["panel"]) for found in runs]) for runs in (rounds, against))
    return [
        {
            "trace": facts["name"],
            "figure": name,
            "wanted": wants.get(name),
            "panel": value,
            "against": theirs.get(name),
            "stacked": peers.get(name),
            "met": None if name not in wants else value <= wants[name],
        }
        for name, value in ours.items()
    ]


def _figures(panel: dict[str, Any]) -> dict[str, float | None]:
    frames = panel["gestures"]["all"]
    return {
        "ready after the click, s": panel["ready_s"],
        "a frame's work, p95, ms": frames["work"]["p95_ms"],
        "a frame's work, p50, ms": frames["work"]["p50_ms"],
        "between frames, p95, ms": frames["between"]["p95_ms"],
        "between frames, p50, ms": frames["between"]["p50_ms"],
        "largest view, MB": panel["view_bytes"] / 1e6,
        "JavaScript heap, MB": panel["heap"]["used_bytes"] / 1e6,
        "heap before the trace, MB": panel["heap_before"]["used_bytes"] / 1e6,
        "array buffers, MB": _mb(panel["heap"], "buffers_bytes"),
    }


def _medians(runs: Sequence[dict[str, float | None]]) -> dict[str, Any]:
    """Of each figure over the rounds; None where one of them does not have it."""
    return {
        name: None if any(run[name] is None for run in runs) else statistics.median(run[name] for run in runs)
        for name in (runs[0] if runs else ())
    }


def other_python(folder: str) -> str:
    """The Python of another checkout. Raises argparse.ArgumentTypeError if it has none, or no panel."""
    python = Path(folder, ".venv", "bin", "python")
    panel = Path(folder, "chameleon_lab", "labextension", "package.json")
    for needed in (python, panel):
        if not needed.exists():
            raise argparse.ArgumentTypeError(
                f"{folder} has no {needed.relative_to(folder)}: give a checkout in which `make dev` has been run"
            )
    return str(python)


def _mb(heap: dict[str, Any], key: str) -> float | None:
    return heap[key] / 1e6 if heap.get(key) is not None else None


HEADERS = ("trace", "figure", "wanted", "panel", "met", "against", "stacked polygons")


def screen_row(row: dict[str, Any]) -> list[str]:
    """A row as it is printed."""

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"

    met = "" if row["met"] is None else measure.yes(row["met"])
    wanted = "" if row["wanted"] is None else f"at most {row['wanted']:g}"
    numbers = [number(row[name]) for name in ("against", "stacked")]
    return [row["trace"], row["figure"], wanted, number(row["panel"]), met, *numbers]


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What the command line says."""
    parser = measure.parser_of("lab", __doc__)
    parser.add_argument("--model", default="gpt2", choices=sorted(CASES))
    parser.add_argument("--threads", type=measure.count, default=1)
    parser.add_argument(
        "--quick", action="store_true", help="a tiny model and trace: the figures mean nothing"
    )
    parser.add_argument(
        "--against",
        metavar="DIR",
        type=other_python,
        help="another checkout, whose panel is measured in turn",
    )
    parser.add_argument(
        "--rounds", type=measure.count, default=1, help="how often the panel is measured (default: once)"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 where JupyterLab or the browser would not. Timing fails nothing."""
    options = options_of(arguments)
    torch.set_num_threads(options.threads)
    environment = measure.environment(vars(options) | {"against": options.against is not None})
    sizes = QUICK if options.quick else SIZES
    try:
        require_tools()
        trace = recorded(options.model, options.quick)
        with tempfile.TemporaryDirectory() as folder:
            facts = [made(size, trace.last, trace.meta, Path(folder)) for size in sizes]
            runs: list[dict[str, Any]] = []
            others: list[dict[str, Any]] = []
            theirs: list[dict[str, Any]] = []
            if options.against is not None:
                theirs = made_by_another(options.against, Path(folder, "against"), options, facts)
            for number in range(options.rounds):
                progress(f"round {number + 1} of {options.rounds}")
                runs.append(browse(facts, Path(folder, f"round-{number}"), stacked=number == 0))
                if options.against is not None:
                    home = Path(folder, f"against-{number}")
                    others.append(browse(theirs, home, options.against, stacked=False))
    except ServerError as error:
        print(error, file=sys.stderr)
        return 1
    rows: list[dict[str, Any]] = []
    for size, trace_facts in zip(sizes, facts, strict=True):
        found, against = ([run["results"][size.name] for run in each] for each in (runs, others))
        rows += rows_of(size, trace_facts, found, against)
    browser = runs[0]
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
        document["rounds"] = [run["results"] for run in runs[1:]]
        document["against"] = [run["results"] for run in others]
        document["against_traces"] = [{key: of[key] for key in ("name", "ops", "events")} for of in theirs]
        measure.write_json(options.json, document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
