"""Files of other tools in the commands and in the panel: told by their content, refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hangs import until
from recordings import gpu_trace, written
from snapshots import saved, snapshot
from synthetic import gpt_step

from chameleon_lab.cli import main
from chameleon_lab.errors import TraceError
from chameleon_lab.formats.recognize import Format, recognize
from chameleon_lab.lab.panel.dispatch import answer
from chameleon_lab.lab.panel.file_names import trace_files
from chameleon_lab.lab.panel.protocol import VERSION
from chameleon_lab.lab.panel.sources import Sources
from chameleon_lab.planner import plan
from chameleon_lab.policy import Link
from chameleon_lab.trace import Trace


def ask(sources: Sources, method: str, **params: Any) -> dict[str, Any]:
    envelope, _ = answer(
        sources, {"version": VERSION, "type": "request", "id": 1, "method": method, "params": params}
    )
    return envelope["result"] if envelope["type"] == "reply" else envelope["error"]


def report(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["report", *map(str, words)])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_a_name_says_nothing(tmp_path: Path) -> None:
    Trace([gpt_step(layers=1)]).save(tmp_path / "trace.pickle")
    saved(snapshot(), tmp_path / "snapshot.parquet")
    written(gpu_trace(), tmp_path / "chrome.sqlite")
    written({"schema": "1.1.1-chakra.0.0.4", "nodes": []}, tmp_path / "execution")
    (tmp_path / "nsight.txt").write_bytes(b"SQLite format 3\0" + bytes(84))
    found = {path.name.split(".")[0]: recognize(path).name for path in tmp_path.iterdir()}
    assert found == {
        "trace": "TRACE",
        "snapshot": "SNAPSHOT",
        "chrome": "CHROME",
        "execution": "EXECUTION",
        "nsight": "NSIGHT",
    }
    assert len(Trace.open(tmp_path / "trace.pickle").last.ops) == len(gpt_step(layers=1).ops)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "empty"),
        (b"PK\x03\x04rest", "zip file"),
        (b"no trace", "no format that is read"),
        (b"(dp0\nS'a'\n.", "protocol 0 or 1"),
        (b"\x1f\x8brest", "empty"),
    ],
)
def test_what_is_of_no_format_is_refused(data: bytes, named: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=named) as raised:
        Trace.open(path)
    assert str(path) in str(raised.value) and all(each.value in str(raised.value) for each in Format)


def test_chameleon_report_reads_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = report(capsys, saved(snapshot(), tmp_path / "oom.pickle"))
    for part in ("PyTorch memory snapshot", "can't plan", "Out of memory", "had to leave", "in gaps"):
        assert part in text
    text = report(capsys, written(gpu_trace(), tmp_path / "gpu.json"))
    assert "Chrome trace of torch.profiler" in text and "2 kernels" in text and "44.4 %" in text
    values = json.loads(report(capsys, tmp_path / "gpu.json", "--json"))
    assert values["kernels"] == 2 and values["lacks"]
    page = tmp_path / "oom.html"
    report(capsys, tmp_path / "oom.pickle", "--html", page)
    assert "memory snapshot" in page.read_text()


def test_the_panel_opens_draws_and_does_not_plan_them(tmp_path: Path) -> None:
    without_memory = gpu_trace()
    events = without_memory["traceEvents"]
    without_memory["traceEvents"] = [event for event in events if event["name"] != "[memory]"]
    sources = Sources()
    for path in (
        saved(snapshot(), tmp_path / "oom.pickle"),
        written(gpu_trace(), tmp_path / "gpu.json"),
        written(without_memory, tmp_path / "bare.json"),
    ):
        source = ask(sources, "open", path=str(path))["source"]
        (step,) = [file["steps"][0] for file in ask(sources, "status")["files"] if file["source"] == source]
        assert step["stage"] == "Imported"
        drawn = {"source": source, "first": step["index"], "last": step["index"]}
        assert ask(sources, "scene", **drawn)["ops"] > 0
        for rows in ("storage", "packed"):
            view = {"axis": "time", "start": 0.0, "end": 1.0, "width": 400, "height": 100, "rows": rows}
            assert "code" not in ask(sources, "view", **drawn, **view)
        until(lambda: "can't plan" in str(ask(sources, "draft", source=source, rebase=False)))  # noqa: B023
    sources.close()
    found = trace_files(str(tmp_path))
    assert {"oom.pickle", "gpu.json", "bare.json"} == set(found)


def test_a_policy_is_a_policy_whatever_its_name(tmp_path: Path) -> None:
    step = gpt_step(layers=2)
    plan(step, "60%", Link(1e9, 1e9)).save(tmp_path / "policy.txt")
    source = ask(Sources(), "open", path=str(tmp_path / "policy.txt"))["source"]
    assert source == f"policy:{tmp_path}/policy.txt"
    (tmp_path / "other.json").write_text("{}")
    error = ask(Sources(), "open", path=str(tmp_path / "other.json"))
    assert error["code"] == "bad_file" and "traceEvents" in error["message"]
