"""The messages between panel and kernel: their envelope, their parameters, and what is wrong with bad ones.

``docs/protocol.md`` describes them; ``labextension/src/protocol.ts`` is the other side. Needs no Jupyter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

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
class SceneOf:
    """What all questions about drawn steps name: the source, and its steps from ``first`` to ``last``."""

    source: str
    first: int
    last: int


@dataclass(frozen=True)
class View(SceneOf):
    """The tracks of a viewport of ``width`` x ``height`` pixels, from ``start`` to ``end`` on the axis."""

    axis: str
    start: float
    end: float
    width: int
    height: int
    rows: str


@dataclass(frozen=True)
class Point(SceneOf):
    """One row of a track."""

    axis: str
    track: str
    row: int


@dataclass(frozen=True)
class StorageOf(SceneOf):
    """One storage, in all the drawn steps."""

    axis: str
    uid: int


@dataclass(frozen=True)
class Alive(SceneOf):
    """The storages that are alive at a position of the axis."""

    axis: str
    at: float


@dataclass(frozen=True)
class Icicle(Alive):
    """The storages alive at a position, as a tree ``by`` module or by Python stack."""

    by: str


@dataclass(frozen=True)
class GrowthOf:
    """What grows over all recorded steps of a source."""

    source: str


@dataclass(frozen=True)
class NewNote(SceneOf):
    """A note at a position of the axis."""

    axis: str
    at: float
    text: str


@dataclass(frozen=True)
class NoteOf(SceneOf):
    """One of the notes of a source, by its number."""

    index: int


@dataclass(frozen=True)
class SaveTrace:
    """Write the recorded steps of a source, with its notes, to a file."""

    source: str
    path: str
    overwrite: bool = False


@dataclass(frozen=True)
class Range(SceneOf):
    """A stretch of the axis, to be summed up."""

    axis: str
    start: float
    end: float


@dataclass(frozen=True)
class Seek(SceneOf):
    """The stall, peak or op that a query fits after (``direction`` 1) or before (-1) a position of the axis."""

    axis: str
    at: float
    direction: int
    what: str = "stall"
    query: str = ""


@dataclass(frozen=True)
class Search(SceneOf):
    """Ops and storages that a query fits."""

    axis: str
    query: str


@dataclass(frozen=True)
class Locate(SceneOf):
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
    """A change to a draft's edits; see :meth:`chameleon_lab.lab.editing.Desk.edit`."""

    change: str
    edits: list[dict] = field(default_factory=list)
    index: int = -1


@dataclass(frozen=True)
class Page(DraftOf):
    """``count`` rows of the draft's table from ``first_row`` on, of those that fit the query, sorted."""

    query: str
    sort: str
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

    edit: dict


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
class Box(SceneOf):
    """A rectangle of the block map: a stretch of the axis, and of the bytes of its rows from ``low`` to ``high``."""

    axis: str
    start: float
    end: float
    low: float
    high: float
    rows: str


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

    axis: str
    start: float
    end: float
    width: int


METHODS: dict[str, type] = {
    "hello": Empty,
    "status": Empty,
    "open": OpenFile,
    "close": CloseFile,
    "scene": SceneOf,
    "view": View,
    "point": Point,
    "storage": StorageOf,
    "alive": Alive,
    "icicle": Icicle,
    "growth": GrowthOf,
    "notes": SceneOf,
    "note": NewNote,
    "forget_note": NoteOf,
    "save_trace": SaveTrace,
    "files": Empty,
    "range": Range,
    "seek": Seek,
    "search": Search,
    "locate": Locate,
    "draft": OpenDraft,
    "edit": ChangeDraft,
    "decisions": Page,
    "choices": Choices,
    "matching": Matching,
    "changes": DraftOf,
    "curve": Curve,
    "dry_run": DraftOf,
    "end_dry_run": DraftOf,
    "enable": DraftOf,
    "roll_back": DraftOf,
    "save": SavePolicy,
    "load": LoadPolicy,
    "box": Box,
    "compare": Compare,
    "compare_view": CompareView,
}
"""Every method, and the type of its parameters."""

_CHOICES = {
    "axis": ("time", "op"),
    "rows": ("storage", "packed"),
    "track": ("ops", "out", "in", "stalls", "replays", "blocks"),
    "direction": (-1, 1),
    "change": ("add", "set", "replace", "remove", "undo", "redo", "discard"),
    "sort": ("name", "module", "bytes", "idle_s", "decision", "hidden", "stall_s", "replay_s", "by"),
    "what": ("stall", "peak", "op"),
    "by": ("module", "stack"),
}
_LIMITS = {"width": (1, 16384), "height": (1, 16384), "first_row": (0, 2**31), "count": (1, MAX_ROWS)}
_MAX_TEXT = {"query": 400, "path": 4096, "text": 2000, "source": 4200, "storage": 2000}


@dataclass(frozen=True)
class Request:
    """A request that has been checked."""

    id: int
    method: str
    params: Any
    """An instance of ``METHODS[method]``."""


def request_id(message: Any) -> int | None:
    """The id to answer under, or None where the message has no usable one."""
    number = message.get("id") if isinstance(message, dict) else None
    return number if _is_int(number) and number >= 0 else None


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
    return Request(number, method, _parse(method, METHODS[method], params))


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
    return {"version": VERSION, "type": "event", "name": name, "body": body}


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
        values[name] = _checked(f"{method}.{name}", name, str(f.type), params[name])
    _check_order(method, values)
    return kind(**values)


def _checked(where: str, name: str, kind: str, value: Any) -> Any:
    if kind in _NESTED:
        if not isinstance(value, dict):
            raise ProtocolError("malformed", f"{where} must be an object, not {_short(value)}")
        return _parse(where, _NESTED[kind], value)
    what, fits = _KINDS[kind]
    if not fits(value):
        raise ProtocolError("malformed", f"{where} must be {what}, not {_short(value)}")
    if name in _CHOICES and value not in _CHOICES[name]:
        raise ProtocolError("malformed", f"{where} must be one of {_CHOICES[name]}, not {_short(value)}")
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


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53


_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "str": ("text", lambda value: isinstance(value, str)),
    "int": ("a whole number", _is_int),
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "dict": ("an object", lambda value: isinstance(value, dict)),
    "list[dict]": (
        "a list of objects",
        lambda value: isinstance(value, list) and all(isinstance(item, dict) for item in value),
    ),
    "float": (
        "a finite number",
        lambda value: _is_int(value) or (isinstance(value, float) and math.isfinite(value)),
    ),
}


_NESTED: dict[str, type] = {"Side": Side}
"""Parameters that are objects themselves."""


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
