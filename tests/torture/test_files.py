"""Files and messages of strangers: taken, or refused by name; nothing else happens, whatever is in them."""

from __future__ import annotations

import json
import operator
import os
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic import gpt_step

import chameleon_lab as cl
from chameleon_lab.lab.panel import dispatch
from chameleon_lab.lab.panel.dispatch import answer
from chameleon_lab.lab.panel.protocol import METHODS, VERSION
from chameleon_lab.lab.panel.sources import Sources
from chameleon_lab.planner import plan
from chameleon_lab.planner.process import PlannerProcess
from chameleon_lab.trace import Trace
from torture import files
from torture.outcome import Outcome

EXAMPLES = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(autouse=True)
def answers_as_users_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """To check an answer, as the tests do, evaluates type hints: the audit would take that for the message's doing."""
    monkeypatch.setattr(dispatch, "CHECKS_RESULTS", False)


@pytest.fixture(scope="module")
def policy_text() -> str:
    return files._session_files()[0]


@EXAMPLES
@given(data=st.data())
def test_a_policy_with_any_json_anywhere(policy_text: str, data: st.DataObject) -> None:
    values = json.loads(policy_text)
    for key in data.draw(st.lists(st.sampled_from(sorted(values)), min_size=1, max_size=2)):
        values[key] = data.draw(JSON)
    text = json.dumps(values)
    outcome = Outcome("")
    assert not files.problem_of(lambda: files.use_policy(text), outcome)


@EXAMPLES
@given(text=st.text(max_size=300) | st.binary(max_size=300).map(lambda b: b.decode(errors="replace")))
def test_a_policy_of_any_text(text: str) -> None:
    assert not files.problem_of(lambda: files.use_policy(text), Outcome(""))


@EXAMPLES
@given(message=JSON, method=st.sampled_from(sorted(METHODS)), params=JSON)
def test_any_message(message: object, method: str, params: object) -> None:
    sources = Sources()
    envelope = {"version": VERSION, "type": "request", "id": 1, "method": method, "params": params}
    for asked in (message, envelope):
        assert not files.problem_of(lambda asked=asked: files.judged(answer(sources, asked)[0]), Outcome(""))


def test_every_method_is_fuzzed_from_a_message_that_is_answered() -> None:
    with files.Lab() as lab:
        assert {method for method, _ in lab.messages} == METHODS.keys()
        for method, params in lab.messages:
            envelope, _ = answer(lab.sources, files._request(method, params))
            assert envelope["type"] == "reply", (method, params, envelope["error"])


def test_a_fuzzed_message_writes_into_the_folder_of_the_lab_only(tmp_path: Path) -> None:
    outside = tmp_path / "p.json"
    with files.Lab() as lab:
        source = next(params["source"] for method, params in lab.messages if method == "save")
        for path in (str(outside), f"{lab.folder}/../../{outside}", f"../../{outside}", "~/p.json"):
            wrote = lab.ask(files._request("save", {"source": source, "path": path, "overwrite": True}))
            assert Path(wrote["path"]).parent == Path(lab.folder).resolve()
    assert not outside.exists()


@EXAMPLES
@given(data=st.binary(max_size=400))
def test_a_trace_of_any_bytes(data: bytes) -> None:
    assert not files.problem_of(lambda: files.use_trace(data), Outcome(""))
    assert not files.problem_of(lambda: files.use_trace(b"PAR1" + data + b"PAR1"), Outcome(""))


def test_what_watches_the_tries_sees_code_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: a file that ran something, raised another error or took memory would be found out."""
    import ctypes
    import marshal
    import pickle
    import socket
    import subprocess

    class Runs:
        def __reduce__(self) -> tuple:
            return os.system, ("true",)

    (tmp_path / "planted_module.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    ready, bytecode = compile("1", "planted", "eval"), marshal.dumps("planted")
    for event, breach in {
        "pickle.find_class": lambda: pickle.loads(pickle.dumps(Runs())),
        "os.system": lambda: os.system("true"),
        "exec": lambda: eval(ready),
        "compile": lambda: eval("1"),
        "import": lambda: __import__("planted_module"),
        "marshal.loads": lambda: marshal.loads(bytecode),
        "ctypes.": lambda: ctypes.CDLL(None),
        "subprocess.Popen": lambda: subprocess.run(["true"]),
        "socket.": lambda: socket.socket().close(),
    }.items():
        assert f"it did {event}" in files.problem_of(breach, Outcome("")), event
    assert "ZeroDivisionError" in files.problem_of(lambda: 1 / 0, Outcome(""))
    assert "MiB" in files.problem_of(lambda: b"x" * (600 << 20), Outcome(""))

    class Trusting(json.JSONDecoder):  # a reader that would run what a policy says
        def decode(self, text: str) -> object:
            return eval(text, {"true": True, "false": False, "null": None})

    real = json.loads
    monkeypatch.setattr(json, "loads", lambda text, **_: real(text, cls=Trusting))
    policy = files._session_files()[0]
    assert "it did compile" in files.problem_of(lambda: files.use_policy(policy), Outcome(""))
    monkeypatch.undo()
    counted = Outcome("")
    assert not files.problem_of(lambda: cl.Session.__init__ and files.use_policy("{"), counted)
    assert counted.named == 1


def test_what_the_planner_s_process_answers_is_no_file_s_doing() -> None:
    planner, step = PlannerProcess(), gpt_step()
    try:
        assert not files.problem_of(
            lambda: planner.call(plan, step, step.live_peak_bytes, "1GB/s"), Outcome("")
        )
        other = files.problem_of(lambda: planner.call(operator.itemgetter(0), (os.getcwd,)), Outcome(""))
        assert "it did pickle.find_class ('posix', 'getcwd')" in other, "an answer of no plan's"
    finally:
        planner.close()


def test_no_format_of_ours_knows_pickle() -> None:
    package = Path(cl.__file__).parent
    writes = package / "export" / "snapshot.py"  # for PyTorch's own reader
    speaks = package / "planner" / "process.py"  # with a process that it has started itself
    for path in sorted(set(package.rglob("*.py")) - {speaks}):
        text = path.read_text()
        assert "import pickle" not in text or path == writes, path
        assert "pickle.load" not in text and "Unpickler" not in text and "marshal" not in text, path


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_what_is_no_regular_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    """A pipe would be waited for, and a device read, without end."""
    path = tmp_path / "thing"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path = Path("/dev/zero")
    with pytest.raises(cl.TraceError, match="no regular file"):
        Trace.load(str(path))
    with pytest.raises(cl.PolicyError, match="no regular file"):
        cl.Policy.load(path)
    reply, _ = answer(
        Sources(),
        {"version": VERSION, "type": "request", "id": 1, "method": "open", "params": {"path": str(path)}},
    )
    assert reply["error"]["code"] == "bad_file" and "no regular file" in reply["error"]["message"]


@pytest.mark.parametrize(
    ("table", "column", "value", "named"),
    [
        ("ops", "name", 10**6, "ops.name"),
        ("ops", "module", -5, "ops.module"),
        ("ops", "stage", 200, "ops.stage"),
        ("ops", "duration_s", float("nan"), "ops.duration_s"),
        ("storages", "category", 77, "storages.category"),
        ("storages", "birth_op", 10**6, "storages.birth_op"),
        ("storages", "block_bytes", -1, "storages.block_bytes"),
        ("storages", "block_bytes", 2**62, "storages.block_bytes"),
        ("uses", "storage", 10**6, "uses.storage"),
        ("uses", "op", -1, "uses.op"),
    ],
)
def test_a_trace_that_points_nowhere_is_refused_by_name(table, column, value, named, tmp_path: Path) -> None:
    step = gpt_step(layers=2)
    changed = getattr(getattr(step, table), column).copy()
    changed[3] = value
    rows = {**getattr(step, table).columns(), column: changed}
    import dataclasses

    bad = dataclasses.replace(step, **{table: type(getattr(step, table))(**rows)})
    path = tmp_path / "bad.parquet"
    Trace([bad]).save(str(path))
    with pytest.raises(cl.TraceError, match=named) as raised:
        Trace.load(str(path))
    assert str(path) in str(raised.value)


def test_a_small_file_that_stands_for_a_huge_trace_is_refused(tmp_path: Path) -> None:
    """Run lengths and zstd make a file of a few kilobytes stand for gigabytes."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as parquet

    count = 300_000_000
    path = tmp_path / "bomb.parquet"
    column = pa.array(np.zeros(1 << 20, dtype=np.uint8))
    with parquet.ParquetWriter(path, pa.schema([("x", pa.uint8())]), compression="zstd") as writer:
        for _ in range(count // (1 << 20)):
            writer.write_table(pa.table({"x": column}))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(cl.TraceError, match="values"):
        Trace.load(str(path))


def test_a_step_in_a_policy_that_would_fill_the_memory_is_refused(policy_text: str) -> None:
    import base64
    import zlib

    values = json.loads(policy_text)
    engine = zlib.compressobj(9)
    parts = [engine.compress(struct.pack("<I", 9) + b'{"a": 1} ')]
    parts += [engine.compress(bytes(1 << 20)) for _ in range(1100)]
    values["step"] = base64.b64encode(b"".join([*parts, engine.flush()])).decode()
    with pytest.raises(cl.PolicyError, match="step is damaged"):
        cl.Policy.from_json(json.dumps(values))
