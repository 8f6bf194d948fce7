"""Damaged and hostile policy files, trace files and messages: each is taken, or refused by name; nothing else happens.

What is taken is used as people use it: planned, simulated, drawn. Mutations are made from valid ones; with atheris
installed, ``python -m benchmarks.torture.files TARGET SECONDS`` fuzzes guided by coverage.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import math
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch

import chameleon_lab as cl
from chameleon_lab.lab.dispatch import answer
from chameleon_lab.lab.protocol import VERSION
from chameleon_lab.lab.sources import Sources
from chameleon_lab.policy import Policy

from .outcome import Outcome
from .pool import ROOT, Options, package

_TRIES = {
    "policy file": 4000,
    "step in a policy file": 3000,
    "trace file": 1500,
    "trace columns": 600,
    "message": 6000,
}
_TRIES_OF_SHARE = 40
_ATHERIS_S = 60
_MOST_S = 20.0
_MOST_BYTES = 512 << 20

NAMED = (cl.ChameleonError, cl.BelowFloorError)
"""What may be raised."""


# ---------------------------------------------------------------------------------------------------- valid ones


@cache
def _session_files() -> tuple[str, bytes]:
    """The text of a policy, and the bytes of the trace that it was made from."""
    with cl.Session("4MiB", min_swap="2KiB") as session:
        model = torch.nn.Sequential(*[torch.nn.Linear(96, 96) for _ in range(6)])
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(512, 96)).pow(2).mean().backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            session.trace().save(f"{folder}/t.parquet")
            trace = Path(f"{folder}/t.parquet").read_bytes()
        assert session.policy is not None
        from chameleon_lab.policy import Draft

        draft = Draft(session.policy).keep(category="gradient").set_capacity("3MiB")
        return draft.policy().to_json(), trace


_MESSAGES: list[tuple[str, dict[str, Any]]] = [
    ("hello", {}),
    ("status", {}),
    ("open", {"path": "FILE"}),
    ("scene", {}),
    ("view", {"axis": "time", "start": 0, "end": 1.5, "width": 800, "height": 200, "rows": "storage"}),
    ("view", {"axis": "op", "start": 0, "end": 90, "width": 300, "height": 99, "rows": "packed"}),
    ("point", {"axis": "op", "track": "ops", "row": 3}),
    ("storage", {"axis": "time", "uid": 5}),
    ("alive", {"axis": "op", "at": 12}),
    ("range", {"axis": "time", "start": 0, "end": 0.01}),
    ("seek", {"axis": "op", "at": 3, "direction": 1}),
    ("search", {"axis": "op", "query": "linear"}),
    ("close", {"source": "file:nothing"}),
]


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


def draw(sources: Sources, path: str) -> None:
    """Open a trace file as the panel does, and ask everything there is to ask. Internal errors are raised."""
    opened = said(sources, "open", {"path": path})
    if "source" not in opened:
        return
    steps = said(sources, "status", {})["files"][0]["steps"]
    for step in steps[:2]:
        scene = {"source": opened["source"], "first": step["index"], "last": step["index"]}
        for method, params in _MESSAGES[3:-1]:
            said(sources, method, {**scene, **params})


def said(sources: Sources, method: str, params: Any) -> dict[str, Any]:
    """The answer to a request. Raises AssertionError where it is none that may be given."""
    envelope, _ = answer(
        sources, {"version": VERSION, "type": "request", "id": 1, "method": method, "params": params}
    )
    return judged(envelope)


def judged(envelope: dict[str, Any]) -> dict[str, Any]:
    """The result of an answer; empty for a named error. Raises AssertionError where it is an internal one."""
    json.dumps(envelope, allow_nan=False)
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
    sources = Sources()
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        file.write(trace)
        file.flush()
        source = said(sources, "open", {"path": file.name})["source"]
        first = said(sources, "status", {})["files"][0]["steps"][0]["index"]

        def message(draw: random.Random) -> Any:
            method, params = draw.choice(_MESSAGES)
            params = (
                {"source": source, "first": first, "last": first, **params} if method in _DRAWN else params
            )
            whole = {"version": VERSION, "type": "request", "id": 7, "method": method, "params": params}
            changed = mutate_value(whole, draw)
            return mutate_value(changed, draw) if draw.random() < 0.3 else changed

        kinds: dict[str, Callable[[random.Random], Callable[[], object]]] = {
            "policy file": lambda draw: _use(use_policy, _mutated_policy(policy, draw)),
            "step in a policy file": lambda draw: _use(use_policy, mutate_step(policy, draw)),
            "trace file": lambda draw: _use(use_trace, mutate_bytes(trace, draw)),
            "trace columns": lambda draw: _use(use_trace, mutate_columns(trace, draw)),
            "message": lambda draw: _use(lambda m: judged(answer(sources, m)[0]), message(draw)),
        }
        for number in range(_TRIES_OF_SHARE if options.share else _TRIES[case]):
            draw = random.Random(f"{case} {options.seed} {number}")
            run = kinds[case](draw)
            outcome.tried += 1
            if problem := problem_of(run, outcome):
                outcome.wrong.append(f"try {number}: {problem}")
    return outcome


_DRAWN = {"scene", "view", "point", "storage", "alive", "range", "seek", "search"}


def _use(user: Callable[[Any], object], made: Any) -> Callable[[], object]:
    return lambda: user(made)


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
    "os.system",
    "subprocess.Popen",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "pickle.find_class",
    "socket.",
)
_watching: list[str] | None = None
_hooked = False


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching is not None and event.startswith(_FORBIDDEN):
        _watching.append(f"{event} {arguments!r}"[:200])


@contextlib.contextmanager
def _watched() -> Iterator[list[str]]:
    """What happens inside that no file may make happen."""
    global _watching, _hooked
    if not _hooked:
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
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.torture.files", target, str(_ATHERIS_S)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        lines = [line for line in done.stderr.splitlines() if line.startswith("Done ")]
        outcome.tried += int(lines[0].split()[1]) if lines else 1
        if done.returncode != 0:
            outcome.wrong.append(f"{target}: exit code {done.returncode}: {done.stderr[-500:]}")


def _fuzz(target: str, seconds: int) -> None:
    with package("atheris"):
        import atheris

    policy, trace = _session_files()
    sources, count = Sources(), Outcome("")
    users = {
        "policy": lambda data: use_policy(data.decode(errors="replace")),
        "trace": use_trace,
        "message": lambda data: judged(answer(sources, json.loads(data))[0]),
    }

    def one(data: bytes) -> None:
        if target == "message":
            try:
                json.loads(data)
            except (ValueError, RecursionError):
                return  # the comm carries parsed JSON only
        if problem := problem_of(lambda: users[target](data), count):
            raise AssertionError(problem)

    with tempfile.TemporaryDirectory() as corpus:
        seeds = {"policy": policy.encode(), "trace": trace}
        for number, (method, params) in enumerate(_MESSAGES):
            whole = {"version": VERSION, "type": "request", "id": 1, "method": method, "params": params}
            seeds[f"message{number}"] = json.dumps(whole).encode()
        for name, data in seeds.items():
            if name.startswith(target):
                Path(corpus, name).write_bytes(data)
        atheris.instrument_all()
        options = [f"-max_total_time={seconds}", "-rss_limit_mb=4096", "-timeout=30", "-max_len=200000"]
        atheris.Setup([sys.argv[0], *options, corpus], one)
        atheris.Fuzz()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _fuzz(sys.argv[1], int(sys.argv[2]))
