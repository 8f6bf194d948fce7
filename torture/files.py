"""Damaged and hostile files and messages: each is taken, or refused by name; nothing else happens.

What is taken is used as people use it: planned, simulated, drawn. Mutations are made from valid ones; with atheris
installed, ``python -m torture.files TARGET SECONDS`` fuzzes guided by coverage.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import inspect
import json
import math
import os
import pickle
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

import torch

import chameleon_lab as cl
from chameleon_lab.lab.panel.dispatch import answer
from chameleon_lab.lab.panel.protocol import VERSION
from chameleon_lab.lab.panel.sources import Sources
from chameleon_lab.planner.process import PlannerProcess
from chameleon_lab.policy import Policy
from chameleon_lab.report.trace_report import TraceReport
from chameleon_lab.trace.check import check_step

from .outcome import Outcome
from .pool import ROOT, Options, package

_TRIES = {
    "policy file": 4000,
    "step in a policy file": 3000,
    "trace file": 1500,
    "trace columns": 600,
    "memory snapshot": 2000,
    "Chrome trace": 1000,
    "execution trace": 1000,
    "Nsight export": 1000,
    "message": 6000,
    "message with one odd value": 20_000,  # at most: there are fewer
}
_TRIES_OF_SHARE = 40
_TRIES_A_STEP = 40
_ATHERIS_S = 60
_MOST_S = 20.0
_MOST_BYTES = 512 << 20

NAMED = (cl.ChameleonError, cl.BelowFloorError)
"""What may be raised."""


# ---------------------------------------------------------------------------------------------------- valid ones


def _session() -> cl.Session:
    return cl.Session("4MiB", min_swap="2KiB")


def _trainer() -> Callable[[], None]:
    """Makes a step of a small training."""
    model = torch.nn.Sequential(*[torch.nn.Linear(96, 96) for _ in range(6)])
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(512, 96)).pow(2).mean().backward()
        optimizer.step()

    return step


@cache
def _session_files() -> tuple[str, bytes]:
    """The text of a policy, and the bytes of the trace that it was made from."""
    with _session() as session:
        step = _trainer()
        for _ in range(3):
            step()
        with tempfile.TemporaryDirectory() as folder:
            session.trace().save(f"{folder}/t.parquet")
            trace = Path(f"{folder}/t.parquet").read_bytes()
        assert session.policy is not None
        from chameleon_lab.planner import Draft

        draft = Draft(session.policy).keep(category="gradient").set_capacity("3MiB")
        return draft.policy().to_json(), trace


@cache
def _recordings() -> dict[str, tuple[Any, bytes]]:
    """What other tools write, as values and as bytes, by the case that damages it."""
    step = _trainer()
    step()
    with tempfile.TemporaryDirectory() as folder:
        chrome, execution = Path(folder, "chrome.json"), Path(folder, "execution.json")
        observer = torch.profiler.ExecutionTraceObserver()
        observer.register_callback(str(execution))
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            profile_memory=True,
            record_shapes=True,
            execution_trace_observer=observer,
        ) as profile:
            step()
        profile.export_chrome_trace(str(chrome))
        texts = {"Chrome trace": chrome.read_bytes(), "execution trace": execution.read_bytes()}
    found: dict[str, tuple[Any, bytes]] = {name: (json.loads(text), text) for name, text in texts.items()}
    events = found["Chrome trace"][0]["traceEvents"]
    events += _on_a_gpu(max(event.get("ts", 0.0) for event in events))
    made = _snapshot()
    export = _nsight_rows()
    found["Nsight export"] = export, _nsight_export(export)
    found["memory snapshot"] = made, pickle.dumps(made, protocol=4)
    return found


def _snapshot() -> dict[str, Any]:
    """A small memory snapshot, as ``torch.cuda.memory._dump_snapshot`` writes it."""
    frames = [{"filename": "train.py", "line": 12, "name": "forward"}]
    at, events = 1 << 40, []
    for i in range(12):
        whole = {"addr": at + 4096 * (i % 5), "size": 4000, "stream": 0, "time_us": i, "frames": frames}
        for action in ("alloc", "free_requested", "free_completed"):
            events.append({**whole, "action": action, "pool_id": (0, 0)})
    events.append({"action": "oom", "size": 1 << 30, "device_free": 1 << 20, "stream": 0, "frames": []})
    blocks = [
        {"address": at + 4096 * i, "size": 4096, "requested_size": 4000, "state": state, "frames": frames}
        for i, state in enumerate(["inactive", "active_allocated", "active_pending_free", "inactive"])
    ]
    segment = {
        **{"device": 0, "address": at, "total_size": 16384, "stream": 0, "segment_type": "small"},
        **{"segment_pool_id": (0, 0), "is_expandable": True, "frames": frames, "blocks": blocks},
    }
    return {"segments": [segment], "device_traces": [events, []], "allocator_settings": {}}


def _nsight_rows() -> dict[str, list[dict[str, Any]]]:
    """Tables of an SQLite export of Nsight Systems."""
    shared = {"deviceId": 0, "streamId": 7, "globalPid": 42 << 24}
    return {
        "StringIds": [{"id": 1, "value": "gemm"}],
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            {"start": 1000 * i, "end": 1000 * i + 700, "correlationId": i, "shortName": 1, **shared}
            for i in range(1, 9)
        ],
        "CUPTI_ACTIVITY_KIND_MEMCPY": [
            {
                "start": 700 * i,
                "end": 700 * i + 90,
                "correlationId": 9 + i,
                "bytes": 99,
                "copyKind": i,
                **shared,
            }
            for i in range(1, 4)
        ],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            {"start": 100 * i, "end": 100 * i + 50, "globalTid": 42 << 24 | 42, "correlationId": i}
            for i in range(1, 12)
        ],
        "NVTX_EVENTS": [
            {"start": 50, "end": 800, "text": "forward", "textId": 1, "globalTid": 42 << 24 | 42}
        ],
        "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": 10**18}],
    }


def _nsight_export(tables: dict[str, list[dict[str, Any]]]) -> bytes:
    """The bytes of an SQLite file with these rows."""
    with contextlib.closing(sqlite3.connect(":memory:")) as file:
        for table, rows in tables.items():
            columns = ", ".join(f'"{name}"' for name in dict.fromkeys(key for row in rows for key in row))
            file.execute(f'CREATE TABLE "{table}" ({columns})')
            for row in rows:
                names = ", ".join(f'"{name}"' for name in row)
                places = ", ".join("?" * len(row))
                file.execute(f'INSERT INTO "{table}" ({names}) VALUES ({places})', tuple(row.values()))
        file.commit()
        return file.serialize()


def _on_a_gpu(after_us: float) -> list[dict[str, Any]]:
    """Events of a GPU's profile, beside those of a CPU's."""
    numbers = {"device": 0, "stream": 7, "correlation": 1, "External id": 1, "bytes": 4096}
    whole = {"ph": "X", "pid": 0, "tid": 7, "dur": 5.0, "args": numbers}
    names = {
        "kernel": "gemm",
        "gpu_memcpy": "Memcpy HtoD (Pinned -> Device)",
        "cuda_runtime": "cudaLaunchKernel",
    }
    return [
        {**whole, "cat": kind, "name": name, "ts": after_us + i}
        for i, (kind, name) in enumerate(names.items())
    ]


_Message = tuple[str, dict[str, Any]]

_SCENES: list[_Message] = [
    ("scene", {}),
    ("view", {"axis": "time", "start": 0, "end": 1.5, "width": 800, "height": 200, "rows": "storage"}),
    ("view", {"axis": "op", "start": 0, "end": 90, "width": 300, "height": 99, "rows": "packed"}),
    ("point", {"axis": "op", "track": "ops", "row": 3}),
    ("alive", {"axis": "op", "at": 12}),
    ("range", {"axis": "time", "start": 0, "end": 0.01}),
    ("seek", {"axis": "op", "at": 3, "direction": 1}),
    ("search", {"axis": "op", "query": "linear"}),
    ("box", {"axis": "op", "start": 0, "end": 40, "low": 0, "high": 1e6, "rows": "packed"}),
    ("box", {"axis": "time", "start": 0, "end": 1, "low": 0, "high": 1e6, "rows": "storage"}),
    ("locate", {"storage": "parameter:0.weight"}),
    *(("icicle", {"axis": "op", "at": 12, "by": by}) for by in ("module", "stack")),
    ("notes", {}),
    ("note", {"axis": "time", "at": 0.5, "text": "what grows here?"}),
    ("forget_note", {"index": 0}),
]
"""What is asked about drawn steps; which source and steps these are is still to be said."""


def _draft_messages(source: str, key: str, file: str) -> list[_Message]:
    """What is asked about the draft of a session; ``key`` is that of a storage, ``file`` holds a policy."""
    edits: list[dict[str, Any]] = [
        {"action": "keep", "storage": key},
        {"action": "swap", "storage": key},
        {"action": "never_touch", "category": "gradient"},
        {"action": "capacity", "capacity_bytes": 3 << 20},
        {"action": "prefetch", "storage": key, "ops_earlier": 3},
        {"action": "rematerialize", "category": "activation", "min_bytes": 1 << 16},
        {"action": "link", "link": {"out_bytes_per_s": 1e9, "in_bytes_per_s": 1e9}},
    ]
    page = {"query": "keep by:you stall>0", "sort": "stall_s", "down": True, "first_row": 0, "count": 30}
    asked: list[_Message] = [
        ("draft", {"rebase": True}),
        *(("edit", {"change": "add", "edits": [edit], "index": -1}) for edit in edits),
        ("edit", {"change": "set", "edits": edits[:2], "index": -1}),
        ("edit", {"change": "replace", "edits": edits[2:3], "index": 0}),
        ("edit", {"change": "remove", "edits": [], "index": 0}),
        *(("edit", {"change": change}) for change in ("undo", "redo", "discard")),
        ("decisions", page),
        ("choices", {"storage": key}),
        *(("matching", {"edit": edit}) for edit in edits),
        ("changes", {}),
        ("curve", {"begin": True}),
        ("dry_run", {}),
        ("end_dry_run", {}),
        ("save", {"path": f"{file}.again", "overwrite": True}),
        ("load", {"path": file}),
        ("enable", {}),
        ("roll_back", {}),
    ]
    return [(method, {"source": source, **params}) for method, params in asked]


class Lab:
    """The panel's side of the kernel, with all that it can be asked about: a trace file, a policy file and an open
    session with a draft. To be used as a context; files are written inside of its folder only.
    """

    def __enter__(self) -> Lab:
        policy, trace = _session_files()
        self._left = contextlib.ExitStack()
        self.folder = self._left.enter_context(tempfile.TemporaryDirectory())
        Path(self.folder, "t.parquet").write_bytes(trace)
        Path(self.folder, "p.json").write_text(policy)
        self.session = self._left.enter_context(_session())
        self.train = _trainer()
        for _ in range(5):
            self.train()
        self.sources = Sources()
        self._left.callback(self.sources.close)
        self.messages = self._messages()
        return self

    def __exit__(self, *error: object) -> None:
        self._left.close()

    def _messages(self) -> list[_Message]:
        file = said(self.sources, "open", {"path": f"{self.folder}/t.parquet"})["source"]
        status = said(self.sources, "status", {})
        source, in_force = status["session"]["source"], {"source": "policy:in force", "step": 0}
        until_s = time.monotonic() + 60
        while not said(self.sources, "draft", {"source": source})["editable"]:
            assert time.monotonic() < until_s, "the draft is never ready"
        key = self.session.trace().last.storage_keys[3]
        uid = int(cl.Trace.load(f"{self.folder}/t.parquet").steps[0].storages.uid[5])
        first = status["files"][0]["steps"][0]["index"]
        sides = {"a": {"source": file, "step": first}, "b": in_force}
        drawn = {"source": file, "first": first, "last": first}
        return [
            ("hello", {}),
            ("status", {}),
            ("open", {"path": f"{self.folder}/t.parquet"}),
            ("open", {"path": f"{self.folder}/p.json"}),
            *((method, {**drawn, **params}) for method, params in _SCENES),
            ("storage", {**drawn, "axis": "time", "uid": uid}),
            ("growth", {"source": source}),
            ("files", {}),
            ("save_trace", {"source": source, "path": f"{self.folder}/saved.parquet", "overwrite": True}),
            ("compare", sides),
            ("compare_view", {**sides, "axis": "op", "start": 0, "end": 50, "width": 300}),
            *_draft_messages(source, key, f"{self.folder}/p.json"),
            ("close", {"source": "file:nothing"}),
        ]

    def ask(self, message: Any) -> dict[str, Any]:
        """The result of any message; see :func:`judged`."""
        global _may_write
        _may_write = self.folder
        try:
            return judged(answer(self.sources, self._kept_inside(message))[0])
        finally:
            _may_write = None

    def _kept_inside(self, message: Any) -> Any:
        """The message, with the path that it would write to moved into the folder."""
        params = message.get("params") if isinstance(message, dict) else None
        if not isinstance(params, dict) or message.get("method") not in ("save", "save_trace"):
            return message
        path = params.get("path")
        if not isinstance(path, str) or path in ("", "."):
            return message
        if Path(path).parent == Path(self.folder) and Path(path).name != "..":
            return message
        return {**message, "params": {**params, "path": f"{self.folder}/_{path.replace('/', '_')}"}}


# ---------------------------------------------------------------------------------------------------- what opens them


def use_policy(text: str) -> None:
    """Read a policy's text and do with it what people do."""
    policy = Policy.from_json(text, "fuzzed")
    policy.to_json()
    str(policy)
    if policy.source is not None:
        cl.simulate(policy.source, policy)
        cl.floor(policy.source)


def use_trace(data: bytes) -> None:
    """Read a trace file's bytes, plan its newest step and draw it."""
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        file.write(data)
        file.flush()
        trace = cl.Trace.load(file.name)
        for step in trace:
            _ = step.storage_keys
        if len(trace) and len(trace.last.ops):
            capacity_bytes = max(trace.last.live_peak_bytes // 2, 1)
            policy = cl.plan(trace, capacity_bytes, cl.Link(1e9, 1e9))
            cl.simulate(trace, policy)
        draw(Sources(), file.name)


def use_recording(data: bytes) -> None:
    """Open the bytes of another tool's file, plan what can be planned, save it and draw it."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        trace = cl.Trace.open(file.name)
        for step in trace:
            check_step(step)
            _ = step.storage_keys
        TraceReport.of(trace)
        if not trace.last.lacks:
            capacity_bytes = max(trace.last.live_peak_bytes // 2, 1)
            cl.simulate(trace, cl.plan(trace, capacity_bytes, cl.Link(1e9, 1e9)))
        draw(Sources(), file.name)


def mutated_recording(kind: str, draw: random.Random) -> bytes:
    """A damaged file of another tool: bytes that are flipped or cut, or a value that is another."""
    values, data = _recordings()[kind]
    if draw.random() < 0.4:
        return mutate_bytes(data, draw)
    for _ in range(draw.choice([1, 1, 4])):
        values = mutate_value(values, draw)
    try:
        if kind == "memory snapshot":
            return pickle.dumps(values, protocol=draw.choice([2, 3, 4, 5]))
        if kind == "Nsight export":
            return _nsight_export(values)
        return json.dumps(values).encode(errors="replace")
    except (TypeError, ValueError, RecursionError, OverflowError, AttributeError, sqlite3.Error):
        return data[: draw.randrange(len(data))]


def draw(sources: Sources, path: str) -> None:
    """Open a trace file as the panel does, and ask everything there is to ask. Internal errors are raised."""
    opened = said(sources, "open", {"path": path})
    if "source" not in opened:
        return
    steps = said(sources, "status", {})["files"][0]["steps"]
    for step in steps[:2]:
        scene = {"source": opened["source"], "first": step["index"], "last": step["index"]}
        for method, params in _SCENES:
            said(sources, method, {**scene, **params})
        said(sources, "storage", {**scene, "axis": "time", "uid": 5})  # there may be none


def said(sources: Sources, method: str, params: Any) -> dict[str, Any]:
    """The answer to a request. Raises AssertionError where it is none that may be given."""
    return judged(answer(sources, _request(method, params))[0])


def _request(method: str, params: Any) -> dict[str, Any]:
    return {"version": VERSION, "type": "request", "id": 1, "method": method, "params": params}


def judged(envelope: dict[str, Any]) -> dict[str, Any]:
    """The result of an answer; empty for a named error. Raises AssertionError where it is an internal one."""
    json.dumps(envelope, ensure_ascii=False, allow_nan=False).encode()
    if envelope["type"] == "error":
        assert envelope["error"]["code"] != "internal", envelope["error"]["message"]
        return {}
    return envelope["result"]


# ---------------------------------------------------------------------------------------------------- mutations


_ODD: list[Any] = [
    *(
        None,
        True,
        False,
        "",
        "x" * 2000,
        [],
        {},
        [[]],
        0,
        -1,
        1,
        2**31,
        2**53,
        2**63,
        -(2**63),
        2**64,
        10**400,
    ),
    *(
        0.5,
        -0.0,
        1e308,
        5e-324,
        math.inf,
        -math.inf,
        math.nan,
        "\x00",
        "\ud800",
        "../../etc/passwd",
        "__class__",
    ),
    *("cos\nsystem\n(S'true'\ntR.", "${x}", "%s%n", "<script>", {"__reduce__": 1}, [0] * 300),
]


def mutate_value(value: Any, draw: random.Random) -> Any:
    """Plain JSON with one thing in it changed."""
    if isinstance(value, dict) and value and draw.random() < 0.85:
        key = draw.choice(list(value))
        match draw.randrange(8):
            case 0:
                return {k: v for k, v in value.items() if k != key}
            case 1:
                return {**value, draw.choice(["extra", "", key + "s"]): draw.choice(_ODD)}
            case _:
                return {**value, key: mutate_value(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.85:
        at = draw.randrange(len(value))
        match draw.randrange(8):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return value + value[at : at + 1]
            case 2:
                return value * draw.choice([2, 20])
            case _:
                return [*value[:at], mutate_value(value[at], draw), *value[at + 1 :]]
    if isinstance(value, (int, float)) and not isinstance(value, bool) and draw.random() < 0.5:
        return draw.choice([value + 1, value - 1, -value, value * 2, value * 1000, float(str(value))])
    if isinstance(value, str) and value and draw.random() < 0.5:
        return mutate_bytes(value.encode(errors="replace"), draw).decode(errors="replace")
    return draw.choice(_ODD)


def mutate_bytes(data: bytes, draw: random.Random) -> bytes:
    """Bytes with a few flipped, cut out, doubled or put in."""
    changed = bytearray(data)
    for _ in range(draw.choice([1, 1, 1, 3, 9])):
        at = draw.randrange(len(changed) + 1)
        match draw.randrange(6):
            case 0:
                changed[at : at + draw.choice([1, 4, 64, 4096])] = b""
            case 1:
                changed[at:at] = draw.randbytes(draw.choice([1, 4, 64]))
            case 2:
                changed[at : at + 4] = draw.choice([b"\xff\xff\xff\xff", b"\x00" * 4, b"\x7f\xff\xff\xff"])
            case 3:
                del changed[at:]
            case 4:
                changed[at:at] = changed[at : at + draw.choice([4, 64, 512])]
            case _:
                if at < len(changed):
                    changed[at] ^= 1 << draw.randrange(8)
    return bytes(changed)


def mutate_step(text: str, draw: random.Random) -> str:
    """A policy's text whose step is damaged inside its compression."""
    values = json.loads(text)
    data = zlib.decompress(base64.b64decode(values["step"]))
    head = int.from_bytes(data[:4], "little")
    header, columns = json.loads(data[4 : 4 + head]), data[4 + head :]
    match draw.randrange(4):
        case 0:
            header = mutate_value(header, draw)
        case 1:
            columns = mutate_bytes(columns, draw)
        case 2:
            name = draw.choice(list(header["columns"]))
            header["columns"][name] = draw.choice([0, -1, 1, 2**40, 10**30, header["columns"][name] + 1])
        case _:
            return json.dumps({**values, "step": _packed(mutate_bytes(data, draw))})
    text_ = json.dumps(header).encode(errors="replace")
    return json.dumps({**values, "step": _packed(len(text_).to_bytes(4, "little") + text_ + columns)})


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


def mutate_columns(data: bytes, draw: random.Random) -> bytes:
    """A trace file in good order, some values of which are not."""
    import io

    import pyarrow as pa
    import pyarrow.parquet as parquet

    table = parquet.read_table(io.BytesIO(data))
    rows = table.to_pylist()
    row = rows[draw.randrange(len(rows))]
    for _ in range(draw.choice([1, 1, 3])):
        name = draw.choice(list(row))
        value = row[name]
        if isinstance(value, list) and value and isinstance(value[0], dict):
            entry = draw.choice(value)
            key = draw.choice(list(entry))
            entry[key] = draw.choice([None, 0, 1, -1, -2, 100, 255, 10**6, 2**31 - 1, math.nan, math.inf])
        elif isinstance(value, list):
            row[name] = draw.choice([[], value[1:], [*value, None], ["\x00" * 9]])
        else:
            row[name] = draw.choice([None, 0, -1, 2**62, math.nan, -math.inf, "", "x" * 999])
    made = []
    for field in table.schema:
        try:
            made.append(pa.array([r[field.name] for r in rows], type=field.type))
        except (pa.ArrowException, TypeError, OverflowError, ValueError):
            return data[: draw.randrange(len(data))]  # does not fit the column: cut the file instead
    changed = pa.Table.from_arrays(made, schema=table.schema)
    out = io.BytesIO()
    parquet.write_table(changed, out, compression=draw.choice(["zstd", "none"]))
    return out.getvalue()


# ---------------------------------------------------------------------------------------------------- tries


def cases(options: Options) -> list[str]:
    """A case is a kind of input."""
    return [*_TRIES, *([] if options.share else ["guided by coverage (atheris)"])]


def check(case: str, options: Options) -> Outcome:
    """Mutations of one kind, one after another."""
    outcome = Outcome(case)
    if case not in _TRIES:
        _guided(outcome)
        return outcome
    policy, trace = _session_files()
    with Lab() if case.startswith("message") else contextlib.nullcontext() as lab:
        odd: list[Any] = []
        if lab is not None:
            for method, params in lab.messages:  # what they import, they have then
                lab.ask(_request(method, params))
            odd = [
                _request(method, made) for method, params in lab.messages for made in _with_one_odd(params)
            ]
            random.Random(options.seed).shuffle(odd)
        kinds: dict[str, Callable[[random.Random], Callable[[], object]]] = {
            "policy file": lambda draw: _use(use_policy, _mutated_policy(policy, draw)),
            "step in a policy file": lambda draw: _use(use_policy, mutate_step(policy, draw)),
            "trace file": lambda draw: _use(use_trace, mutate_bytes(trace, draw)),
            "trace columns": lambda draw: _use(use_trace, mutate_columns(trace, draw)),
            **{kind: partial(_made_recording, kind) for kind in _recordings()},
            "message": lambda draw: _use(lab.ask, _mutated_message(lab, draw)),
            "message with one odd value": lambda _: _use(lab.ask, odd.pop()),
        }
        tries = _TRIES_OF_SHARE if options.share else _TRIES[case]
        for number in range(min(tries, len(odd)) if case == "message with one odd value" else tries):
            draw = random.Random(f"{case} {options.seed} {number}")
            run = kinds[case](draw)
            outcome.tried += 1
            if problem := problem_of(run, outcome):
                outcome.wrong.append(f"try {number}: {problem}")
            if lab is not None and number % _TRIES_A_STEP == 0:
                lab.train()  # what was enabled or is to be tried begins here
    return outcome


def _with_one_odd(value: Any) -> Iterator[Any]:
    """Plain JSON with one value in it replaced, each by each odd one."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, old in inner:
        for new in (*_ODD, *_with_one_odd(old)):
            changed = value.copy()
            changed[key] = new
            yield changed


def _mutated_message(lab: Lab, draw: random.Random) -> Any:
    method, params = draw.choice(lab.messages)
    whole = _request(method, params)
    if draw.random() < 0.2:
        return mutate_value(whole, draw)
    changed = mutate_value(params, draw)
    return {**whole, "params": mutate_value(changed, draw) if draw.random() < 0.3 else changed}


def _use(user: Callable[[Any], object], made: Any) -> Callable[[], object]:
    return lambda: user(made)


def _made_recording(kind: str, draw: random.Random) -> Callable[[], object]:
    return _use(use_recording, mutated_recording(kind, draw))


def _mutated_policy(text: str, draw: random.Random) -> str:
    if draw.random() < 0.3:
        return mutate_bytes(text.encode(), draw).decode(errors="replace")
    return json.dumps(mutate_value(json.loads(text), draw))


def problem_of(run: Callable[[], object], outcome: Outcome) -> str:
    """What is wrong with how ``run`` ended: an error that is no named one, too long, too large, or code that ran."""
    with _watched() as events:
        start_s, error = time.perf_counter(), None
        before_bytes = _memory_bytes("VmRSS", begin=True)
        try:
            run()
        except NAMED as named:
            outcome.named += 1
            if len(str(named)) > 4000:
                error = f"its message has {len(str(named))} characters"
        except BaseException as unnamed:  # noqa: BLE001
            where = unnamed.__traceback__
            while where is not None and where.tb_next is not None:
                where = where.tb_next
            at = f"{Path(where.tb_frame.f_code.co_filename).name}:{where.tb_lineno}" if where else ""
            error = f"{type(unnamed).__name__}: {str(unnamed)[:200]} ({at})"
        took_s = time.perf_counter() - start_s
        peak = _memory_bytes("VmHWM") - before_bytes
    if error:
        return error
    if events:
        return f"it did {events[0]}"
    if peak > _MOST_BYTES:
        return f"it took {peak >> 20} MiB"
    return f"it took {took_s:.0f} s" if took_s > _MOST_S else ""


def _memory_bytes(name: str, begin: bool = False) -> int:
    """Memory of the process now, or at most since the last call with ``begin``. tracemalloc and pyarrow's threads do
    not get along."""
    if begin:
        Path("/proc/self/clear_refs").write_text("5")
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{name}:")[1].split()[0]) * 1024


_FORBIDDEN = (
    *("exec", "compile", "import", "code.__new__", "function.__new__"),
    *("marshal.", "pickle.", "ctypes."),
    *("os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "subprocess.", "pty.", "socket."),
    *("os.rename", "os.chmod", "os.putenv", "shutil.", "webbrowser."),
)
"""Names of audit events, or how they begin: what runs code, or reaches past the file."""
_OF_THE_PLANNER = ("subprocess.Popen", "import")
"""What starting the planner's process does."""
_ANSWERS_ARE_OF = ("builtins", "chameleon_lab", "numpy")
"""Packages of the classes in its answers."""
_watching: list[str] | None = None
_may_write: str | None = None
"""A folder inside of which files may be renamed."""
_hooked = False


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "os.rename" and _may_write is not None and str(arguments[1]).startswith(f"{_may_write}/"):
        return
    if event == "socket.gethostname":
        return  # a session's meta names its host; nothing is reached
    if event in _OF_THE_PLANNER and _asks_the_planner():
        return
    if event == "pickle.find_class" and arguments[0].split(".")[0] in _ANSWERS_ARE_OF and _asks_the_planner():
        return
    if _watching is not None and event.startswith(_FORBIDDEN):
        _watching.append(f"{event} {arguments!r}"[:200])


def _asks_the_planner() -> bool:
    """Is this thread talking to the planner's process? It may still plan for an earlier try, and answers in pickles."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is PlannerProcess.call.__code__:
            return True
        frame = frame.f_back
    return False


def _prepare() -> None:
    """Read and draw what is valid: whatever a reader imports, it has then."""
    policy, trace = _session_files()
    use_policy(policy)
    use_trace(trace)
    for _, data in _recordings().values():
        use_recording(data)
    for encoding in (f"utf-{bits}{order}" for bits in (16, 32) for order in ("", "-le", "-be")):
        json.loads("{}".encode(encoding))  # JSON may come in each, and Python has a module for it
    for broken in (lambda: use_policy("{"), lambda: use_trace(b"")):
        with contextlib.suppress(*NAMED):
            broken()


@contextlib.contextmanager
def _watched() -> Iterator[list[str]]:
    """What happens inside that no file may make happen."""
    global _watching, _hooked
    if not _hooked:
        _prepare()
        sys.addaudithook(_listen)
        _hooked = True
    _watching = seen = []
    try:
        yield seen
    finally:
        _watching = None


def _guided(outcome: Outcome) -> None:
    with package("atheris"):
        if importlib.util.find_spec("atheris") is None:
            outcome.skipped["atheris is not installed"] += 1
            return
    for target in ("policy", "trace", "message"):
        with tempfile.NamedTemporaryFile() as tally:
            done = subprocess.run(
                [sys.executable, "-W", "ignore", "-m", "torture.files"]
                + [target, str(_ATHERIS_S), tally.name],
                capture_output=True,
                text=True,
                cwd=ROOT,
            )
            outcome.tried += int(tally.read() or 0)
        if done.returncode != 0:
            outcome.wrong.append(f"{target}: exit code {done.returncode}: {done.stderr[-500:]}")


def _instrument(atheris: ModuleType) -> None:
    """Our own functions alone: those of all packages are 60000, which takes minutes and hides what is ours."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "chameleon_lab":
            continue
        owners = [module, *(item for item in vars(module).values() if isinstance(item, type))]
        for item in [item for owner in owners for item in vars(owner).values()]:
            function = inspect.unwrap(getattr(item, "fget", None) or getattr(item, "__func__", item))
            if isinstance(function, FunctionType) and function.__module__ == name:
                atheris.instrument_func(function)


def _fuzz(target: str, seconds: int, tally: str = os.devnull) -> None:
    """Never returns. ``tally`` is a file that says how many inputs were tried: those which a comm could carry."""
    with package("atheris"):
        import atheris

    policy, trace = _session_files()
    count, written = Outcome(""), os.open(tally, os.O_WRONLY)
    users: dict[str, Callable[[Any], object]] = {
        "policy": lambda data: use_policy(data.decode(errors="replace")),
        "trace": use_trace,
    }
    seeds = {"policy": policy.encode(), "trace": trace}
    with contextlib.ExitStack() as left:
        if target == "message":
            lab = left.enter_context(Lab())
            users["message"] = lab.ask
            for number, (method, params) in enumerate(lab.messages):
                lab.ask(_request(method, params))
                seeds[f"message{number}"] = json.dumps(_request(method, params)).encode()

        def one(data: bytes) -> None:
            given: Any = data
            if target == "message":
                try:
                    given = json.loads(data)
                except (ValueError, RecursionError):
                    return  # the comm carries parsed JSON only
            count.tried += 1
            os.pwrite(written, str(count.tried).encode(), 0)
            if problem := problem_of(lambda: users[target](given), count):
                raise AssertionError(problem)

        corpus = left.enter_context(tempfile.TemporaryDirectory())
        for name, data in seeds.items():
            if name.startswith(target):
                Path(corpus, name).write_bytes(data)
        _instrument(atheris)
        limits = [f"-max_total_time={seconds}", "-rss_limit_mb=4096", "-timeout=30", "-max_len=200000"]
        found = Path("build/bench/found")
        found.mkdir(parents=True, exist_ok=True)
        options = [*limits, f"-artifact_prefix={found}/"]  # else what fails is left in the checkout's root
        atheris.Setup([sys.argv[0], *options, corpus], one)
        atheris.Fuzz()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _fuzz(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
