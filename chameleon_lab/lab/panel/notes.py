"""A user's notes at times of a step: kept by source, saved with the trace."""

from __future__ import annotations

import threading
from typing import Any

from .protocol import ProtocolError
from .scene import Scene

KEY = "notes"
"""Under which a trace's ``meta`` has them: a list of ``{"step", "op", "text"}``."""

_MOST = 500


class Notes:
    """The notes of all sources. May be asked from several threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[str, list[dict[str, Any]]] = {}

    def take(self, source: str, meta: dict[str, Any]) -> None:
        """Those that a trace brings along; what is no note is left out."""
        given = meta.get(KEY)
        notes = [
            {"step": note["step"], "op": note["op"], "text": note["text"][:2000]}
            for note in (given if isinstance(given, list) else [])[:_MOST]
            if isinstance(note, dict)
            and all(type(note.get(name)) is int for name in ("step", "op"))
            and isinstance(note.get("text"), str)
        ]
        with self._lock:
            self._of[source] = notes

    def add(self, source: str, scene: Scene, axis: str, at: float, text: str) -> None:
        """A note at a position of the drawn steps. Raises ProtocolError if it is empty, or one too many."""
        if not text.strip():
            raise ProtocolError("malformed", "a note needs a text")
        op = scene.op_at(axis, at)
        position = int(scene.op_step[op])
        note = {
            "step": scene.steps[position].index,
            "op": op - int(scene.first_op[position]),
            "text": text.strip(),
        }
        with self._lock:
            notes = self._of.setdefault(_measured(source), [])
            if len(notes) >= _MOST:
                raise ProtocolError("too_large", f"{source} has {_MOST} notes: forget one first")
            notes.append(note)

    def forget(self, source: str, index: int) -> None:
        """Take a note away, by its number. Raises ProtocolError if there is none."""
        with self._lock:
            notes = self._of.get(_measured(source), [])
            if not 0 <= index < len(notes):
                raise ProtocolError("not_found", f"{source} has no note {index}")
            del notes[index]

    def all(self, source: str) -> list[dict[str, Any]]:
        """Every note of a source, as a trace's ``meta`` has them."""
        with self._lock:
            return [dict(note) for note in self._of.get(_measured(source), [])]

    def shown(self, source: str, scene: Scene) -> list[dict[str, Any]]:
        """Those in the drawn steps, with their numbers and where they are on both axes."""
        place = {step.index: position for position, step in enumerate(scene.steps)}
        found = []
        for index, note in enumerate(self.all(source)):
            position = place.get(note["step"])
            if position is None or not 0 <= note["op"] < len(scene.steps[position].ops):
                continue
            op = int(scene.first_op[position]) + note["op"]
            at = {axis: float(scene.x_of_op(axis, op)) for axis in ("time", "op")}
            found.append({"index": index, **note, "at": at})
        return found


def _measured(source: str) -> str:
    """A draft is drawn over the steps of its source: their notes are the same."""
    return source.removeprefix("draft:")
