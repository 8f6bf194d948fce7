"""From a message of the panel to the answer: maps methods to functions."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from typing import Any

from . import box, compare, icicle, protocol, views
from .editing import DraftEditor
from .file_names import trace_files
from .notes import Notes
from .protocol import (
    CHECKS_RESULTS,
    MAX_REPLY_BYTES,
    ProtocolError,
    Request,
    check_result,
    failure,
    parse_request,
    reply,
    request_id,
)
from .scene import Scene
from .sources import Sources

Answer = tuple[dict[str, Any], list[bytes]]
"""A result, and its buffers."""


def answer(sources: Sources, message: Any) -> Answer:
    """The envelope to send back, and its buffers. Never raises: what goes wrong travels in the envelope."""
    number = request_id(message)
    try:
        request = parse_request(message)
        result, buffers = _dispatch(sources, request)
        if CHECKS_RESULTS:
            check_result(request.method, result)
        size = sum(len(buffer) for buffer in buffers)
        if size > MAX_REPLY_BYTES:
            raise ProtocolError("internal", f"the answer to {request.method} has {size} bytes")
        return reply(request.id, result), buffers
    except ProtocolError as error:
        return failure(number, error), []
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"
        return failure(number, ProtocolError("internal", text, "Training goes on. Please report it.")), []


def _dispatch(sources: Sources, request: Request) -> Answer:
    name, p = request.method, request.params
    if name in OF_DRAFTS:
        editor = sources.editor(p.source)
        result = OF_DRAFTS[name](editor, p)
        return (editor.state() if result is None else result), []
    if name in OF_SCENES:
        return OF_SCENES[name](sources.scene(p.source, p.first, p.last), p)
    if name in OF_NOTES:
        scene = sources.scene(p.source, p.first, p.last)
        OF_NOTES[name](sources.notes, scene, p)
        return {"notes": sources.notes.shown(p.source, scene)}, []
    return OF_SOURCES[name](sources, p)


def hello() -> dict[str, Any]:
    """Who answers, and from which thread: one of a kernel subshell answers while a cell runs."""
    return {
        "subshell": threading.current_thread() is not threading.main_thread(),
    }


def _closed(sources: Sources, p: protocol.CloseFile) -> Answer:
    sources.close_file(p.source)
    return {}, []


OF_SOURCES: dict[str, Callable[[Sources, Any], Answer]] = {
    "hello": lambda sources, p: (hello(), []),
    "status": lambda sources, p: (sources.status(), []),
    "open": lambda sources, p: ({"source": sources.open_file(p.path)}, []),
    "close": _closed,
    "files": lambda sources, p: ({"paths": trace_files()}, []),
    "save_trace": lambda sources, p: (sources.save_trace(p.source, p.path, p.overwrite), []),
    "growth": lambda sources, p: (icicle.grown(sources.steps_of(p.source)), []),
    "draft": lambda sources, p: (sources.draft(p.source, p.rebase), []),
    "compare": lambda sources, p: (compare.compare(sources.side(p.a), sources.side(p.b)), []),
    "compare_view": lambda sources, p: compare.compare_view(
        sources.sides, sources.side(p.a), sources.side(p.b), p.axis, p.start, p.end, p.width
    ),
}
"""What answers methods on everything that is open."""

OF_SCENES: dict[str, Callable[[Scene, Any], Answer]] = {
    "scene": lambda scene, p: (views.describe(scene), []),
    "view": lambda scene, p: views.view(scene, p.axis, p.start, p.end, p.width, p.height, p.rows),
    "point": lambda scene, p: (views.point(scene, p.axis, p.track, p.row), []),
    "storage": lambda scene, p: (views.storage(scene, p.axis, p.uid), []),
    "icicle": lambda scene, p: (icicle.icicle(scene, p.axis, p.at, p.by), []),
    "alive": lambda scene, p: (views.alive(scene, p.axis, p.at), []),
    "range": lambda scene, p: (views.summarize(scene, p.axis, p.start, p.end), []),
    "seek": lambda scene, p: (views.seek(scene, p.axis, p.at, p.direction, p.what, p.query), []),
    "box": lambda scene, p: (box.inside(scene, p.axis, p.start, p.end, p.low, p.high, p.rows), []),
    "search": lambda scene, p: (views.search(scene, p.axis, p.query), []),
    "locate": lambda scene, p: (views.locate(scene, p.storage), []),
}
"""What answers methods on the drawn steps."""

OF_NOTES: dict[str, Callable[[Notes, Scene, Any], None]] = {
    "notes": lambda notes, scene, p: None,
    "note": lambda notes, scene, p: notes.add(p.source, scene, p.axis, p.at, p.text),
    "forget_note": lambda notes, scene, p: notes.forget(p.source, p.index),
}
"""What methods on the notes of the drawn steps do; the answer is the notes that there are then."""

OF_DRAFTS: dict[str, Callable[[DraftEditor, Any], dict[str, Any] | None]] = {
    "decisions": lambda editor, p: editor.page(p.query, p.sort, p.down, p.first_row, p.count),
    "choices": lambda editor, p: editor.choices(p.storage),
    "matching": lambda editor, p: editor.matching(p.edit),
    "changes": lambda editor, p: editor.changes(),
    "curve": lambda editor, p: editor.curve(p.begin),
    "save": lambda editor, p: editor.save(p.path, p.overwrite),
    "edit": lambda editor, p: editor.edit(p.change, p.edits, p.index),
    "load": lambda editor, p: editor.load(p.path),
    "dry_run": lambda editor, p: editor.dry_run(),
    "end_dry_run": lambda editor, p: editor.end_dry_run(),
    "enable": lambda editor, p: editor.enable(),
    "roll_back": lambda editor, p: editor.roll_back(),
}
"""What answers methods on a draft; None: the draft's state is the answer."""
