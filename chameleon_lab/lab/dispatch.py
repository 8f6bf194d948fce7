"""From a message of the panel to the answer: the one place where methods meet what answers them."""

from __future__ import annotations

import threading
import traceback
from typing import Any

from . import box, compare, icicle, views
from .editing import Desk
from .file_names import trace_files
from .protocol import (
    CHECKS_RESULTS,
    MAX_REPLY_BYTES,
    DraftOf,
    ProtocolError,
    Request,
    check_result,
    failure,
    parse_request,
    reply,
    request_id,
)
from .sources import Sources


def answer(sources: Sources, message: Any) -> tuple[dict[str, Any], list[bytes]]:
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


def _dispatch(sources: Sources, request: Request) -> tuple[dict[str, Any], list[bytes]]:
    p = request.params
    match request.method:
        case "hello":
            return hello(), []
        case "status":
            return sources.status(), []
        case "open":
            return {"source": sources.open_file(p.path)}, []
        case "close":
            sources.close_file(p.source)
            return {}, []
        case "compare":
            return compare.compare(sources.side(p.a), sources.side(p.b)), []
        case "compare_view":
            a, b = sources.side(p.a), sources.side(p.b)
            return compare.compare_view(sources.sides, a, b, p.axis, p.start, p.end, p.width)
        case "draft":
            return sources.draft(p.source, p.rebase), []
        case "growth":
            return icicle.grown(sources.steps_of(p.source)), []
        case "save_trace":
            return sources.save_trace(p.source, p.path, p.overwrite), []
        case "files":
            return {"paths": trace_files()}, []
    if isinstance(p, DraftOf):
        return _edit(sources.desk(p.source), request), []
    scene = sources.scene(p.source, p.first, p.last)
    match request.method:
        case "scene":
            return views.describe(scene), []
        case "view":
            return views.view(scene, p.axis, p.start, p.end, p.width, p.height, p.rows)
        case "point":
            return views.point(scene, p.axis, p.track, p.row), []
        case "storage":
            return views.storage(scene, p.axis, p.uid), []
        case "icicle":
            return icicle.icicle(scene, p.axis, p.at, p.by), []
        case "notes":
            return {"notes": sources.notes.shown(p.source, scene)}, []
        case "note":
            sources.notes.add(p.source, scene, p.axis, p.at, p.text)
            return {"notes": sources.notes.shown(p.source, scene)}, []
        case "forget_note":
            sources.notes.forget(p.source, p.index)
            return {"notes": sources.notes.shown(p.source, scene)}, []
        case "alive":
            return views.alive(scene, p.axis, p.at), []
        case "range":
            return views.summarise(scene, p.axis, p.start, p.end), []
        case "seek":
            return views.seek(scene, p.axis, p.at, p.direction, p.what, p.query), []
        case "box":
            return box.inside(scene, p.axis, p.start, p.end, p.low, p.high, p.rows), []
        case "search":
            return views.search(scene, p.axis, p.query), []
        case "locate":
            return views.locate(scene, p.storage), []
    raise AssertionError(f"{request.method} has no answer")


def _edit(desk: Desk, request: Request) -> dict[str, Any]:
    """Answer what is asked of a draft. What changes it is answered with its state."""
    p = request.params
    match request.method:
        case "decisions":
            return desk.page(p.query, p.sort, p.down, p.first_row, p.count)
        case "choices":
            return desk.choices(p.storage)
        case "matching":
            return desk.matching(p.edit)
        case "changes":
            return desk.changes()
        case "curve":
            return desk.curve(p.begin)
        case "save":
            return desk.save(p.path, p.overwrite)
        case "edit":
            desk.edit(p.change, p.edits, p.index)
        case "load":
            desk.load(p.path)
        case "dry_run":
            desk.dry_run()
        case "end_dry_run":
            desk.end_dry_run()
        case "enable":
            desk.enable()
        case "roll_back":
            desk.roll_back()
        case _:
            raise AssertionError(f"{request.method} has no answer")
    return desk.state()


def hello() -> dict[str, Any]:
    """Who answers, and from which thread: one of a kernel subshell answers while a cell runs."""
    return {
        "subshell": threading.current_thread() is not threading.main_thread(),
    }
