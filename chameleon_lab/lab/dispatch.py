"""From a message of the panel to the answer: the one place where methods meet what answers them."""

from __future__ import annotations

import threading
import traceback
from typing import Any

from . import box, compare, views
from .protocol import (
    MAX_REPLY_BYTES,
    VERSION,
    ProtocolError,
    Request,
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
        case "alive":
            return views.alive(scene, p.axis, p.at), []
        case "range":
            return views.summarise(scene, p.axis, p.start, p.end), []
        case "seek":
            return views.seek(scene, p.axis, p.at, p.direction, p.what), []
        case "box":
            return box.inside(scene, p.axis, p.start, p.end, p.low, p.high, p.rows), []
        case "search":
            return views.search(scene, p.axis, p.query), []
    raise AssertionError(f"{request.method} has no answer")


def hello() -> dict[str, Any]:
    """Who answers, and from which thread: one of a kernel subshell answers while a cell runs."""
    from .. import __version__

    return {
        "protocol": VERSION,
        "package": __version__,
        "subshell": threading.current_thread() is not threading.main_thread(),
    }
