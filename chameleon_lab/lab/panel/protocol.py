"""The messages between panel and kernel: their envelope, their parameters, and what is wrong with bad ones.

The requests are defined here, what answers them in :mod:`.results`. ``scripts/protocol.py`` writes the panel's types
(``labextension/src/messages.ts``) and the tables of ``docs/protocol.md`` from both. Needs no Jupyter.
"""

from __future__ import annotations

import json
import os
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, Literal, NamedTuple, get_type_hints

from . import results
from .results import Axis, Change, DecisionSort, Edit, Rows, Track, TreeOf
from .typed import is_whole, misfit, short

VERSION = 1
"""Version of the protocol. Both sides name theirs in every message, and answer no other."""

TARGET = "chameleon_lab"
"""The comm target that the kernel registers and the panel opens."""

PANEL_TARGET = "chameleon_lab:panel"
"""The comm target that the panel's extension registers, through which the kernel calls for it."""

MAX_REQUEST_BYTES = 64 * 1024
MAX_REPLY_BYTES = 1024 * 1024

MAX_STEPS = 16
"""Steps in one view. More would only be a blur, and every one is held in memory."""


CHECKS_RESULTS = bool(os.environ.get("CHAMELEON_CHECK_RESULTS"))
"""Is what the kernel says checked against its definition? In the tests, and in the kernels that they start."""

MAX_ROWS = 500
"""Rows of the policy editor's table in one answer."""


class ProtocolError(Exception):
    """A request that cannot be served; travels to the panel as the reply.

    Attributes:
        code: one word for programs; see ``docs/protocol.md``.
        hint: what the person can do, or an empty string.
    """

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


@dataclass(frozen=True)
class Empty:
    """No parameters."""


@dataclass(frozen=True)
class OpenFile:
    """Read a trace file."""

    path: str


@dataclass(frozen=True)
class CloseFile:
    """Forget a trace file."""

    source: str


@dataclass(frozen=True)
class Steps:
    """What all questions about drawn steps name: the source, and its steps from ``first`` to ``last``."""

    source: str
    first: int
    last: int


@dataclass(frozen=True)
class View(Steps):
    """The tracks of a viewport of ``width`` x ``height`` pixels, from ``start`` to ``end`` on the axis."""

    axis: Axis
    start: float
    end: float
    width: int
    height: int
    rows: Rows


@dataclass(frozen=True)
class Point(Steps):
    """One row of a track."""

    axis: Axis
    track: Track
    row: int


@dataclass(frozen=True)
class StorageOf(Steps):
    """One storage, in all the drawn steps."""

    axis: Axis
    uid: int


@dataclass(frozen=True)
class Alive(Steps):
    """The storages that are alive at a position of the axis."""

    axis: Axis
    at: float


@dataclass(frozen=True)
class Icicle(Alive):
    """The storages alive at a position, as a tree ``by`` module or by Python stack."""

    by: TreeOf


@dataclass(frozen=True)
class GrowthOf:
    """What grows over all recorded steps of a source."""

    source: str


@dataclass(frozen=True)
class NewNote(Steps):
    """A note at a position of the axis."""

    axis: Axis
    at: float
    text: str


@dataclass(frozen=True)
class NoteOf(Steps):
    """One of the notes of a source, by its number."""

    index: int


@dataclass(frozen=True)
class SaveTrace:
    """Write the recorded steps of a source, with its notes, to a file."""

    source: str
    path: str
    overwrite: bool = False


@dataclass(frozen=True)
class Range(Steps):
    """A stretch of the axis, to be summed up."""

    axis: Axis
    start: float
    end: float


@dataclass(frozen=True)
class Seek(Steps):
    """The stall, peak or op that a query fits after (``direction`` 1) or before (-1) a position of the axis."""

    axis: Axis
    at: float
    direction: Literal[-1, 1]
    what: Literal["stall", "peak", "op"] = "stall"
    query: str = ""


@dataclass(frozen=True)
class Search(Steps):
    """Ops and storages that a query fits."""

    axis: Axis
    query: str


@dataclass(frozen=True)
class Locate(Steps):
    """The drawn storage with a key."""

    storage: str


@dataclass(frozen=True)
class DraftOf:
    """The draft of a source."""

    source: str


@dataclass(frozen=True)
class OpenDraft(DraftOf):
    """The draft of a source; ``rebase``: of the policy that is in force now, with the edits of the draft so far."""

    rebase: bool = False


@dataclass(frozen=True)
class ChangeDraft(DraftOf):
    """A change to a draft's edits; see :meth:`chameleon_lab.lab.panel.editing.DraftEditor.edit`."""

    change: Change
    edits: list[Edit] = field(default_factory=list)
    index: int = -1


@dataclass(frozen=True)
class Page(DraftOf):
    """``count`` rows of the draft's table from ``first_row`` on, of those that fit the query, sorted."""

    query: str
    sort: DecisionSort
    down: bool
    first_row: int
    count: int


@dataclass(frozen=True)
class Choices(DraftOf):
    """What can be done with one storage, by its key."""

    storage: str


@dataclass(frozen=True)
class Matching(DraftOf):
    """Which storages an edit means."""

    edit: Edit


@dataclass(frozen=True)
class Curve(DraftOf):
    """Step time against capacity; ``begin``: work it out."""

    begin: bool


@dataclass(frozen=True)
class SavePolicy(DraftOf):
    """Write the draft's policy to a file."""

    path: str
    overwrite: bool = False


@dataclass(frozen=True)
class LoadPolicy(DraftOf):
    """Take the edits of a policy file."""

    path: str


@dataclass(frozen=True)
class Box(Steps):
    """A rectangle of the block map: a stretch of the axis, and of the bytes of its rows from ``low`` to ``high``."""

    axis: Axis
    start: float
    end: float
    low: float
    high: float
    rows: Rows


@dataclass(frozen=True)
class Side:
    """One of two that are compared: a step of a source, or a policy, for which ``step`` says nothing."""

    source: str
    step: int = 0


@dataclass(frozen=True)
class Compare:
    """Two sides, to be compared in figures."""

    a: Side
    b: Side


@dataclass(frozen=True)
class CompareView(Compare):
    """The curves of two sides in a viewport of ``width`` pixels, from ``start`` to ``end`` on the axis."""

    axis: Axis
    start: float
    end: float
    width: int


class Method(NamedTuple):
    """What is asked for by a name."""

    params: type
    result: Any
    """A type of :mod:`.results`."""
    what: str
    """The result in words."""


METHODS: dict[str, Method] = {
    "hello": Method(Empty, results.Hello, "whether the kernel answers while a cell runs"),
    "status": Method(
        Empty,
        results.Status,
        "the session or null, open files, and policies",
    ),
    "open": Method(
        OpenFile,
        results.Opened,
        "its name from now on; a policy if the path ends in `.json`, else a trace",
    ),
    "close": Method(CloseFile, results.Nothing, ""),
    "scene": Method(Steps, results.Scene, "what holds for all of the steps: lengths, dictionaries, figures"),
    "view": Method(View, results.ViewReply, "the tracks of a viewport, in buffers"),
    "point": Method(Point, results.Point, "the op, transfer, stall, replay or storage behind a row"),
    "storage": Method(
        StorageOf,
        results.StorageDetail,
        "what made, used, moved and replayed a storage, and where it was",
    ),
    "alive": Method(Alive, results.Alive, "the storages alive there: by category, by module, and one by one"),
    "icicle": Method(Icicle, results.Icicle, "what is alive there as a tree: nodes behind their parents"),
    "growth": Method(
        GrowthOf, results.Growth, "what has not stopped growing over its recorded steps, by origin"
    ),
    "notes": Method(Steps, results.Notes, "the notes in the drawn steps"),
    "note": Method(NewNote, results.Notes, "the notes, with one more"),
    "forget_note": Method(NoteOf, results.Notes, "the notes, with one less"),
    "save_trace": Method(SaveTrace, results.SavedTrace, "a file with all recorded steps and the notes"),
    "files": Method(Empty, results.Files, "traces and policies below the kernel's folder, the newest first"),
    "range": Method(Range, results.Summary, "the figures of a stretch, and its ops by name"),
    "seek": Method(Seek, results.Seek, "the next or previous stall, peak or op that the query fits"),
    "search": Method(
        Search,
        results.Search,
        "storages and ops that fit; replays and declined drops of those storages",
    ),
    "locate": Method(Locate, results.Located, "the `uid` that a storage has in these steps, or null"),
    "draft": Method(OpenDraft, results.Draft, "the draft, or why there is none yet"),
    "edit": Method(ChangeDraft, results.Draft, "the draft"),
    "decisions": Method(Page, results.Page, "rows of the table"),
    "choices": Method(
        Choices,
        results.Choices,
        "what can be done with a storage, with the known effects",
    ),
    "matching": Method(Matching, results.Matched, "how many storages an edit would mean"),
    "changes": Method(DraftOf, results.Changes, "what the draft changes in the plan in force"),
    "curve": Method(Curve, results.Curve, "step time against capacity, as far as it is known"),
    "dry_run": Method(DraftOf, results.Draft, "the draft"),
    "end_dry_run": Method(DraftOf, results.Draft, "the draft"),
    "enable": Method(DraftOf, results.Draft, "the draft"),
    "roll_back": Method(DraftOf, results.Draft, "the draft"),
    "save": Method(SavePolicy, results.Saved, "the policy's file"),
    "load": Method(LoadPolicy, results.Draft, "the draft, with the edits of the file"),
    "box": Method(
        Box,
        results.Boxed,
        "the storages in a rectangle of the block map, and their sums",
    ),
    "compare": Method(
        Compare,
        results.Comparison,
        "figures and modules of both; of two policies what differs",
    ),
    "compare_view": Method(CompareView, results.CompareView, "the curves of both, in buffers"),
}
"""Every method."""

EVENTS: dict[str, Method] = {
    "status": Method(
        Empty,
        results.Status,
        "what `status` answers, when it changes; at most four times a second",
    ),
    "draft": Method(
        Empty,
        results.DraftNews,
        "there is something new to ask for: a plan, an effect, points of the curve, a step of a dry run, newer steps",
    ),
}
"""What the kernel says unasked."""

_LIMITS = {"width": (1, 16384), "height": (1, 16384), "first_row": (0, 2**31), "count": (1, MAX_ROWS)}
_MAX_TEXT = {"query": 400, "path": 4096, "text": 2000, "source": 4200, "storage": 2000}


@dataclass(frozen=True)
class Request:
    """A request that has been checked."""

    id: int
    method: str
    params: Any
    """An instance of ``METHODS[method].params``."""


def request_id(message: Any) -> int | None:
    """The id to answer under, or None where the message has no usable one."""
    number = message.get("id") if isinstance(message, dict) else None
    return number if is_whole(number) and number >= 0 else None


def parse_request(message: Any) -> Request:
    """Check a message from the panel.

    Raises:
        ProtocolError: it is malformed, too large, of another version, or asks for what there is not.
    """
    if not isinstance(message, dict):
        raise ProtocolError("malformed", f"a message must be a JSON object, not {type(message).__name__}")
    version = message.get("version")
    if version != VERSION:
        raise ProtocolError(
            "version",
            f"the panel speaks protocol version {version!r} and the kernel {VERSION}",
            "Install the same chameleon-lab for JupyterLab and for the kernel, restart the kernel and reload the page.",
        )
    number = request_id(message)
    if number is None:
        raise ProtocolError(
            "malformed", f"a request needs an id, a whole number from 0, not {message.get('id')!r}"
        )
    try:
        size = len(json.dumps(message, ensure_ascii=False).encode())  # half a surrogate pair is a ValueError
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError("malformed", f"the request is no JSON: {error}") from None
    if size > MAX_REQUEST_BYTES:
        raise ProtocolError(
            "too_large", f"the request has {size} bytes; the kernel takes up to {MAX_REQUEST_BYTES}"
        )
    method, params = message.get("method"), message.get("params", {})
    if not isinstance(method, str) or method not in METHODS:
        raise ProtocolError(
            "unknown_method", f"there is no method {method!r}: there are {', '.join(METHODS)}"
        )
    if not isinstance(params, dict):
        raise ProtocolError("malformed", f"params of {method} must be an object, not {type(params).__name__}")
    return Request(number, method, _parse(method, METHODS[method].params, params))


def reply(number: int, result: dict[str, Any]) -> dict[str, Any]:
    """The envelope of an answer."""
    return {"version": VERSION, "type": "reply", "id": number, "result": result}


def failure(number: int | None, error: ProtocolError) -> dict[str, Any]:
    """The envelope of an error; the same as an answer's, so that it reaches whoever asked."""
    return {
        "version": VERSION,
        "type": "error",
        "id": number,
        "error": {"code": error.code, "message": str(error), "hint": error.hint},
    }


def event(name: str, body: dict[str, Any]) -> dict[str, Any]:
    """The envelope of what the kernel says unasked."""
    if CHECKS_RESULTS:
        check_result(name, body, EVENTS)
    return {"version": VERSION, "type": "event", "name": name, "body": body}


def check_result(name: str, result: Any, of: dict[str, Method] = METHODS) -> None:
    """Raises ProtocolError where what a method answers, or an event says, is not what it is defined to be."""
    if (wrong := misfit(f"the result of {name}", of[name].result, result)) is not None:
        raise ProtocolError("internal", wrong)


def _parse(method: str, kind: type, params: dict[str, Any]) -> Any:
    known = {f.name: f for f in fields(kind)}
    for name in params:
        if name not in known:
            raise ProtocolError("malformed", f"{method} does not know the parameter {name!r}")
    values = {}
    for name, f in known.items():
        if name not in params:
            if f.default is MISSING and f.default_factory is MISSING:
                raise ProtocolError("malformed", f"{method} needs the parameter {name!r}")
            continue
        values[name] = _checked(f"{method}.{name}", name, _hints(kind)[name], params[name])
    _check_order(method, values)
    return kind(**values)


_hints = cache(get_type_hints)


def _checked(where: str, name: str, kind: Any, value: Any) -> Any:
    if kind is Side:
        if not isinstance(value, dict):
            raise ProtocolError("malformed", f"{where} must be an object, not {short(value)}")
        return _parse(where, Side, value)
    if (wrong := misfit(where, kind, value, deep=False)) is not None:
        raise ProtocolError("malformed", wrong)
    if name in _LIMITS and not _LIMITS[name][0] <= value <= _LIMITS[name][1]:
        raise ProtocolError(
            "malformed", f"{where} must be from {_LIMITS[name][0]} to {_LIMITS[name][1]}, not {value}"
        )
    if len(value) > _MAX_TEXT.get(name, 100) if isinstance(value, str) else False:
        raise ProtocolError(
            "too_large", f"{where} has {len(value)} characters; {_MAX_TEXT.get(name, 100)} are taken"
        )
    return value


def _check_order(method: str, values: dict[str, Any]) -> None:
    if "start" in values and not values["start"] < values["end"]:
        raise ProtocolError(
            "malformed", f"{method} needs start < end, got {values['start']} and {values['end']}"
        )
    if "low" in values and not values["low"] < values["high"]:
        raise ProtocolError(
            "malformed", f"{method} needs low < high, got {values['low']} and {values['high']}"
        )
    if "first" in values and not 0 <= values["last"] - values["first"] < MAX_STEPS:
        raise ProtocolError(
            "malformed",
            f"{method} takes 1 to {MAX_STEPS} steps in order, got {values['first']} to {values['last']}",
        )
