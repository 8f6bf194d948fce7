import json
import subprocess
import sys
from pathlib import Path

import pytest

from chameleon_lab.lab.panel import dispatch, results
from chameleon_lab.lab.panel.dispatch import answer
from chameleon_lab.lab.panel.protocol import (
    MAX_REQUEST_BYTES,
    METHODS,
    VERSION,
    DraftOf,
    ProtocolError,
    View,
    check_result,
    parse_request,
)
from chameleon_lab.lab.panel.sources import Sources
from chameleon_lab.lab.panel.typed import misfit

VIEW = {
    "source": "session:1",
    "first": 3,
    "last": 3,
    "axis": "time",
    "start": 0,
    "end": 1.5,
    "width": 800,
    "height": 200,
    "rows": "storage",
}


def request(method="view", params=VIEW, **more):
    return {"version": VERSION, "type": "request", "id": 7, "method": method, "params": params} | more


def test_a_good_request_becomes_typed_parameters():
    parsed = parse_request(request())
    assert (parsed.id, parsed.method) == (7, "view")
    assert parsed.params == View(**VIEW)


@pytest.mark.parametrize(
    ("message", "code", "word"),
    [
        ("text", "malformed", "object"),
        (request(id=None), "malformed", "id"),
        (request(id=True), "malformed", "id"),
        (request(version=VERSION + 1), "version", str(VERSION + 1)),
        (request(version=None), "version", "None"),
        (request("launch"), "unknown_method", "launch"),
        (request(params=[1]), "malformed", "list"),
        (request(params=VIEW | {"color": 1}), "malformed", "color"),
        (request(params={"source": "a"}), "malformed", "first"),
        (request(params=VIEW | {"start": "0"}), "malformed", "number"),
        (request(params=VIEW | {"start": float("nan")}), "malformed", "finite"),
        (request(params=VIEW | {"start": 2}), "malformed", "start < end"),
        (request(params=VIEW | {"axis": "space"}), "malformed", "space"),
        (request(params=VIEW | {"width": 0}), "malformed", "width"),
        (request(params=VIEW | {"last": 400}), "malformed", "16 steps"),
        (
            request(
                "search", {k: VIEW[k] for k in ("source", "first", "last", "axis")} | {"query": "x" * 500}
            ),
            "too_large",
            "500",
        ),
        (request("open", {"path": "x" * MAX_REQUEST_BYTES}), "too_large", "bytes"),
        (request("open", {"path": "\ud800"}), "malformed", "surrogates not allowed"),
    ],
)
def test_a_bad_request_is_named(message, code, word):
    with pytest.raises(ProtocolError) as caught:
        parse_request(message)
    assert caught.value.code == code
    assert word in str(caught.value)


@pytest.mark.parametrize("message", [None, [], {}, {"id": -1}, request(version=0), request("nothing")])
def test_errors_travel_in_the_envelope_under_the_id_asked(message):
    envelope, buffers = answer(Sources(), message)
    asked = message.get("id") if isinstance(message, dict) else None
    assert envelope["type"] == "error"
    assert envelope["version"] == VERSION
    assert envelope["id"] == (asked if asked == 7 else None)
    assert set(envelope["error"]) == {"code", "message", "hint"}
    assert buffers == []
    json.dumps(envelope)


def test_a_session_that_is_gone_is_said_to_be():
    envelope, _ = answer(Sources(), request())
    assert envelope["error"]["code"] == "gone"
    assert "session:1" in envelope["error"]["message"]


def test_every_method_is_answered():
    sources = Sources()
    for method in METHODS:
        envelope, _ = answer(sources, request(method, {}))
        assert envelope["type"] == "reply" or envelope["error"]["code"] == "malformed", envelope


def test_hello_names_the_thread_that_answers():
    envelope, _ = answer(Sources(), request("hello", {}))
    assert envelope["result"] == {"subshell": False}


def test_the_panels_types_and_the_pages_tables_are_what_the_kernel_defines():
    """Stale: run ``python scripts/protocol.py``, and commit what it writes."""
    script = Path(__file__).parents[2] / "scripts" / "protocol.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}: run `python scripts/protocol.py`"


ENTRY = {"index": 3, "stage": "Stable", "duration_s": 0.5}


@pytest.mark.parametrize(
    ("kind", "value", "wrong"),
    [
        (results.StepEntry, ENTRY, None),
        (results.StepEntry, ENTRY | {"duration_s": 1}, None),
        (results.StepEntry, ENTRY | {"index": 3.0}, "it.index must be a whole number, not 3.0"),
        (results.StepEntry, ENTRY | {"index": True}, "it.index must be a whole number, not True"),
        (results.StepEntry, ENTRY | {"ops": 9}, "it has no 'ops'"),
        (results.StepEntry, {"index": 3, "stage": ""}, "it needs 'duration_s'"),
        (results.StepEntry, None, "it must be an object, not None"),
        (results.Axis, "space", "it must be one of ('time', 'op'), not 'space'"),
        (list[results.StepEntry], [ENTRY, 7], "it[1] must be an object, not 7"),
        (tuple[int, int], [1, 2], None),
        (tuple[int, int], (1, 2, 3), "it must have 2 entries, not 3"),
        (int | None, None, None),
        (int | None, "one", "it must be a whole number, not 'one'"),
        (dict[str, float], {"copy": float("nan")}, "it.copy must be a finite number, not nan"),
        (results.Point, {}, None),
        (results.Point, {"op": None}, "it.op must be an object, not None"),
    ],
)
def test_what_does_not_fit_its_type_is_named(kind, value, wrong):
    assert misfit("it", kind, value) == wrong


def test_an_answer_that_is_not_as_defined_is_an_error_in_the_tests(monkeypatch):
    assert dispatch.CHECKS_RESULTS
    with pytest.raises(ProtocolError, match="the result of hello has no 'color'"):
        check_result("hello", {"subshell": True, "color": 1})
    monkeypatch.setattr(dispatch, "hello", lambda: {})
    envelope, _ = answer(Sources(), request("hello", {}))
    assert envelope["error"]["message"] == "the result of hello needs 'subshell'"


def test_every_method_has_one_answer():
    tables = (dispatch.OF_SOURCES, dispatch.OF_SCENES, dispatch.OF_NOTES, dispatch.OF_DRAFTS)
    assert sorted(name for table in tables for name in table) == sorted(METHODS)
    of_drafts = {name for name, method in METHODS.items() if issubclass(method.params, DraftOf)}
    assert set(dispatch.OF_DRAFTS) == of_drafts - {"draft"}  # it makes the draft
