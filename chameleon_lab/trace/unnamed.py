"""The meaning of plain numbers in older files: traces before version 8, and the steps in policy files."""

from __future__ import annotations

ENUMS: dict[str, tuple[str, ...]] = {
    "Stage": ("FORWARD", "BACKWARD", "OPTIMIZER", "NO_GRAD"),
    "Category": ("PARAMETER", "GRADIENT", "OPTIMIZER_STATE", "ACTIVATION", "INPUT", "OTHER"),
    "Direction": ("OUT", "IN"),
    "Cause": ("PLANNED", "EVICT", "DEMAND", "ACCESS"),
    "Pause": ("IDLE", "LOADING", "CELLS"),
}
"""The names behind the numbers of enums."""

REASONS = (
    "",
    "nobody saw the op that made it",
    "the op that made it is not replayed",
    "it was made with random numbers of a generator that has moved on",
    "the op that made it had arguments that cannot be kept",
    "an input is memory that the session does not own, or that a raw pointer can write",
    "it was written after it was made",
    "an input was written or is gone, and cannot be made again",
    "too many ops would have to be replayed in a row",
    "an op uses it, or it is not resident",
    "it must stay where it is",
    "a thread flushes denormals to zero, and which of its workers do is not known",
    "it ran under settings of torch under which it has not been seen to repeat itself to the bit",
)
"""Why something cannot be replayed, by number."""
