"""A page with the panel's timeline: it answers as the kernel does, and it is used without one."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hangs import HANGS_AFTER_S
from synthetic import dropped_step, swapped_step

from benchmarks.lab.server import browser_check, require_tools
from chameleon_lab.lab.panel.dispatch import answer
from chameleon_lab.lab.panel.sources import Sources
from chameleon_lab.trace import StepTrace, Trace

SCREENSHOTS = Path(__file__).parents[2] / "build" / "browser"
BROWSER_DIED = 3
BLOCKS = Path(__file__).parent / "data" / "blocks.parquet"
META = {"device": "cpu", "torch": "2.13.0", "capacity_bytes": 1 << 24}


def in_page(page: Path, tmp_path: Path) -> dict[str, Any]:
    """What the check found on a page."""
    require_tools()
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for attempt in range(2):
        done = browser_check(
            Path(__file__).with_name("page.mjs"),
            page.as_uri(),
            SCREENSHOTS / "page.png",
            tmp_path / f"profile-{attempt}",
            timeout_s=HANGS_AFTER_S,
        )
        if done.returncode != BROWSER_DIED:
            break
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def requests_of(step: StepTrace, word: str) -> list[dict[str, Any]]:
    """What is asked of a step, on both axes. The last one searches for a word."""
    asked: list[tuple[str, dict[str, Any]]] = [("scene", {})]
    ops, rows = len(step.ops), range(0, len(step.storages), max(1, len(step.storages) // 5))
    for axis, length in (("time", step.duration_s), ("op", float(ops))):
        part = {"axis": axis, "start": 0.2 * length, "end": 0.7 * length}
        for kind in ("storage", "packed"):
            for start, end, width in ((0.0, length, 900), (0.2 * length, 0.7 * length, 24)):
                view = {"axis": axis, "start": start, "end": end, "width": width, "height": 300, "rows": kind}
                asked.append(("view", view))
            asked.append(("box", part | {"low": 0.0, "high": 2e6, "rows": kind}))
        asked.append(("range", part))
        asked += [("alive", {"axis": axis, "at": share * length}) for share in (0.0, 0.31, 0.8)]
        for what in ("stall", "peak", "op"):
            for direction in (-1, 1):
                seek = {"axis": axis, "at": 0.4 * length, "direction": direction, "what": what}
                asked.append(("seek", seek | {"query": word if what == "op" else ""}))
        asked += [("storage", {"axis": axis, "uid": int(step.storages.uid[row])}) for row in rows]
        for track, count in (
            ("ops", ops),
            ("out", len(step.transfers)),
            ("in", len(step.transfers)),
            ("stalls", len(step.stalls)),
            ("replays", len(step.replays)),
        ):
            asked += [("point", {"axis": axis, "track": track, "row": row}) for row in (0, count - 1, count)]
        asked.append(("point", {"axis": axis, "track": "blocks", "row": int(step.storages.uid[0])}))
        for query in (
            "",
            "category:act >=4k",
            "stage:back",
            "layer.0-1",
            "<1e9 weight",
            "stage:x",
            ">lots",
            word,
        ):
            asked.append(("search", {"axis": axis, "query": query}))
    asked.append(("locate", {"storage": step.storage_keys[-1]}))
    asked.append(("locate", {"storage": "none such"}))
    asked.append(("save_trace", {"path": "a.parquet", "overwrite": False}))
    asked.append(("search", {"axis": "time", "query": word}))
    return [{"method": method, "params": params} for method, params in asked]


def same(left: Any, right: Any, where: str) -> None:
    """Equal values; of sums by name, those that are equally large may stand in either order, or be the last listed."""
    if isinstance(left, dict):
        assert isinstance(right, dict) and set(left) == set(right), where
        for name in left:
            same(left[name], right[name], f"{where}.{name}")
    elif isinstance(left, list):
        assert len(left) == len(right), where
        if where.endswith((".categories", ".modules", ".op_names")) and left and isinstance(left[0], dict):
            key = next(name for name in ("label", "module", "name") if name in left[0])
            size = lambda row: row["busy_s"] if "busy_s" in row else row["resident_bytes"] + row["away_bytes"]  # noqa: E731
            assert [size(row) for row in left] == pytest.approx([size(row) for row in right]), where
            by_name = {row[key]: row for row in right}
            left, right = (
                [row for row in left if row[key] in by_name],
                [by_name[row[key]] for row in left if row[key] in by_name],
            )
            assert left, where
        for position, (one, other) in enumerate(zip(left, right, strict=True)):
            same(one, other, f"{where}[{position}]")
    elif isinstance(left, float) or isinstance(right, float):
        assert left == pytest.approx(right, rel=1e-6, abs=1e-9), where
    else:
        assert left == right, where


def tables(buffers: list[bytes], names: list[str]) -> dict[str, dict[str, np.ndarray]]:
    found = {}
    for name, buffer in zip(names, buffers, strict=True):
        table = pa.ipc.open_stream(io.BytesIO(buffer)).read_all()
        found[name] = {column: table.column(column).to_numpy() for column in table.column_names}
    return found


@pytest.mark.parametrize("which", ["recorded", "made up", "large"])
def test_the_page_answers_as_the_kernel_and_is_zoomed_searched_and_selected_on(which, tmp_path):
    if which == "recorded":
        trace = Trace.load(BLOCKS)
    else:
        # Of the large one, views are thinned.
        steps = [swapped_step(900)[0]] if which == "large" else [swapped_step()[0], dropped_step()[0]]
        trace = Trace([replace(step, index=number) for number, step in enumerate(steps)], META)
    file, page = tmp_path / "t.parquet", tmp_path / "t.html"
    trace.save(file)
    trace.export(page)
    assert page.stat().st_size < 1_500_000
    sources = Sources()
    source = sources.open_file(str(file))
    word = "up" if which == "recorded" else "gelu"
    requests = []
    for step in trace.steps[-8:]:
        of = {"source": source, "first": step.index, "last": step.index}
        requests += [
            each | {"params": (of if each["method"] != "save_trace" else {"source": source}) | each["params"]}
            for each in requests_of(step, word)
        ]
    page.with_suffix(".json").write_text(json.dumps(requests))
    found = in_page(page, tmp_path)
    assert found["errors"] == []
    assert len(found["answers"]) == len(requests)
    for request, given in zip(requests, found["answers"], strict=True):
        where = json.dumps(request)
        if request["method"] == "save_trace":
            assert given == {"error": "not_now"}
            continue
        envelope, buffers = answer(sources, {"version": 1, "type": "request", "id": 1} | request)
        if envelope["type"] == "error":
            assert given.get("error") == envelope["error"]["code"], (where, given)
            continue
        assert "error" not in given, (where, given)
        same(json.loads(json.dumps(envelope["result"])), given["result"], where)
        if request["method"] == "view":
            names = envelope["result"]["tables"]
            own = tables([base64.b64decode(each) for each in given["buffers"]], names)
            for name, columns in tables(buffers, names).items():
                for column, values in columns.items():
                    assert own[name][column] == pytest.approx(values, rel=1e-5, abs=1e-7), (
                        where,
                        name,
                        column,
                    )

    newest = trace.last
    assert found["title"] == "t.html"
    assert found["length"] == pytest.approx(newest.duration_s)
    assert found["fit"] == {"start": 0, "end": found["length"]}
    assert found["zoomed"]["end"] - found["zoomed"]["start"] < 0.5 * found["length"]
    assert 0 < found["matches"] < len(newest.storages)
    assert found["selected"] in newest.storage_keys and found["inspector"].strip()
    assert found["ops"] == len(newest.ops)
    assert "Zoom in" in found["keys"]
    assert "has no size" in found["refused"]
