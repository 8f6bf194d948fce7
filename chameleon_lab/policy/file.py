"""The policy file: JSON with one edit and one decision a line, in order, for readable diffs.

``policy.schema.json`` beside this module is its JSON Schema.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from ..errors import PolicyError
from ..util.files import unusable_reason
from . import step_text
from .decision import NEVER, PLANNER, USER, Action, Decision
from .edits import CATEGORIES, MOST, edit_from_dict
from .link import Link

VERSION = 6
"""Version of the policy file that this package writes and reads."""

FIELDS = ("capacity_bytes", "link", "decisions", "assumed", "predicted", "edits", "source")
"""Of a policy, what its file holds."""

_HEAD_BYTES = 4096
_WRITE_AGAIN = "write the file again with Policy.save, or take an older copy of it"

_TOP = {
    "chameleon_lab_policy": "int",
    "capacity_bytes": "int",
    "link": "object",
    "assumed": "object",
    "predicted": "object",
    "edits": "array",
    "decisions": "array",
    "step": "string",
}
_LINK = {"out_bytes_per_s": "number or null", "in_bytes_per_s": "number or null"}
_DECISION = {f.name: "int" if f.type == "int" else "string" for f in fields(Decision)} | {"retains": "array"}


_Rule = tuple[Callable[[Any], bool], str]


def _whole(low: int) -> _Rule:
    def fits(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= MOST

    return fits, f"a whole number from {low} to {MOST}"


def _number(low: float, high: float = math.inf) -> _Rule:
    def fits(value: Any) -> bool:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and math.isfinite(value) and low <= value <= high

    return fits, f"a finite number from {low:g}" + (f" to {high:g}" if high < math.inf else "")


def _or_null(rule: _Rule) -> _Rule:
    fits, what = rule
    return lambda value: value is None or fits(value), f"{what}, or null"


def _one_of(known: Sequence[str]) -> _Rule:
    return lambda value: value in known, f"one of {', '.join(known)}"


_HASH: _Rule = (
    lambda value: isinstance(value, str) and re.fullmatch("[0-9a-f]{16}", value) is not None,
    "16 hex digits",
)
_TEXT: _Rule = lambda value: isinstance(value, str) and value != "", "text that is not empty"
_TEXTS: _Rule = (
    lambda value: isinstance(value, list) and all(isinstance(text, str) for text in value),
    "an array of strings",
)
_NAMES: _Rule = (
    lambda value: isinstance(value, list) and all(isinstance(text, str) and text for text in value),
    "an array of strings that are not empty",
)
_POSITIONS: _Rule = (
    lambda value: isinstance(value, list) and all(_whole(0)[0](position) for position in value),
    "an array of whole numbers from 0 up",
)
_BELOW_1: _Rule = (lambda value: _number(0, 1)[0](value) and value < 1, "a number from 0 to below 1")
_OBJECT: _Rule = lambda value: isinstance(value, dict), "an object"

# What the JSON Schema says of values beyond their type. Of these sections no field is required.
_ASSUMED: dict[str, _Rule] = {
    "fingerprint": _HASH,
    "ops": _whole(1),
    "torch": _TEXT,
    "live_peak_bytes": _whole(0),
    "min_swap_bytes": _whole(0),
    "margin": _number(0, 1),
    "link_margin": _BELOW_1,
    "reserve_bytes": _whole(0),
    "host_capacity_bytes": _whole(1),
    "rematerialize": _whole(1),
    "refused": _TEXTS,
    "edits": _HASH,
    "disobeyed": _POSITIONS,
    "without_edits": _OBJECT,
}
_PREDICTED: dict[str, _Rule] = {
    **dict.fromkeys(("peak_bytes", "host_peak_bytes"), _whole(0)),
    **dict.fromkeys(("swapped_out_bytes", "swapped_in_bytes", "replayed_bytes"), _whole(0)),
    **dict.fromkeys(("step_s", "stall_s", "replay_s"), _number(0)),
    "overlap": _or_null(_number(0, 1)),
}
_DECIDED: dict[str, _Rule] = {
    "storage": _TEXT,
    "category": _one_of(CATEGORIES),
    **dict.fromkeys(("bytes", "out_op", "free_op"), _whole(0)),
    **dict.fromkeys(("gap", "in_op", "use_op"), _whole(NEVER)),
    "decided_by": _one_of((PLANNER, USER)),
    "retains": _NAMES,
}
_WITHOUT_EDITS: dict[str, _Rule] = {"capacity_bytes": _whole(1), "link": _OBJECT}


def to_json(policy: Mapping[str, Any]) -> str:
    """The text of the file of a policy with these :data:`FIELDS`.

    Raises PolicyError if ``assumed`` or ``predicted`` are not plain JSON.
    """
    capacity_bytes, source = policy["capacity_bytes"], policy["source"]
    try:
        lines = [
            f' "chameleon_lab_policy": {VERSION},',
            f' "capacity_bytes": {capacity_bytes},',
            f' "link": {_line(policy["link"].to_dict())},',
            f' "assumed": {_line(policy["assumed"])},',
            f' "predicted": {_line(policy["predicted"])},',
            _array("edits", [edit.to_dict() for edit in policy["edits"]]) + ",",
            _array("decisions", [_entry(decision) for decision in policy["decisions"]]) + ",",
            f' "step": {_line("" if source is None else step_text.encode(source))}',
        ]
    except (TypeError, ValueError) as error:
        raise PolicyError(f"assumed and predicted must hold plain, finite JSON values: {error}") from error
    return "\n".join(["{", *lines, "}", ""])


def is_policy_file(path: str | os.PathLike[str]) -> bool:
    """Does a file begin as a policy does? Others may be JSON too. Raises OSError if it cannot be opened."""
    if unusable_reason(path, 1 << 62) is not None:
        return False
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
    return head.lstrip()[:1] == b"{" and b'"chameleon_lab_policy"' in head


def from_json(text: str, source: str = "policy") -> dict[str, Any]:
    """The :data:`FIELDS` of the policy in the text of a file; errors call it ``source``.

    Raises PolicyError as ``Policy.load`` does.
    """
    data = _parsed(text, source)
    version = _typed(data["chameleon_lab_policy"], "int", source, "chameleon_lab_policy")
    if version != VERSION:
        raise PolicyError(
            f"{source}: it is of policy version {version}, and this Chameleon Lab reads version {VERSION}: generate "
            "the policy anew"
        )
    top = _checked(data, _TOP, source, "")
    link = _checked(top["link"], _LINK, source, "link.")
    _ruled(top, {"capacity_bytes": _whole(1)}, source, "")
    _ruled(top["assumed"], _ASSUMED, source, "assumed.")
    _ruled(top["predicted"], _PREDICTED, source, "predicted.")
    _check_without_edits(top["assumed"].get("without_edits", {}), source)

    edits, decisions = [], []
    for index, entry in enumerate(top["edits"]):
        place, where = _place(text, source, "edits", index)
        values = _typed(entry, "object", where, place)
        for name in ("gap", "min_bytes", "max_bytes", "ops_earlier", "capacity_bytes"):
            if isinstance(values.get(name), int):
                _ruled(values, {name: _whole(-MOST)}, where, f"{place}.")  # names the field's own place
        try:
            edits.append(edit_from_dict(values))
        except PolicyError as error:
            raise PolicyError(f"{where}: {place}: {error}") from error
    for index, entry in enumerate(top["decisions"]):
        place, where = f"decisions[{index}]", source
        try:
            decisions.append(_decision(entry, source, place))
        except PolicyError:
            place, where = _place(text, source, "decisions", index)
            if where == source:
                raise
            _decision(entry, where, place)  # the same error, with its line
    try:
        return {
            **{name: top[name] for name in ("capacity_bytes", "assumed", "predicted")},
            "link": Link(**link),
            "decisions": tuple(decisions),
            "edits": tuple(edits),
            "source": step_text.decode(top["step"]) if top["step"] else None,
        }
    except PolicyError as error:
        raise PolicyError(f"{source}: {error}") from error


def _parsed(text: str, source: str) -> dict[str, Any]:
    try:
        data = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_once)
    except _GivenTwiceError as error:
        raise PolicyError(
            f"{source}: one object has {error.key!r} twice, as {_short(error.first)} and as {_short(error.last)}, and "
            "only the last would count: delete one of them"
        ) from error
    except (ValueError, RecursionError) as error:
        place = (
            f", line {error.lineno} column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        )
        raise PolicyError(f"{source}{place}: truncated, or not JSON ({error}); {_WRITE_AGAIN}") from error
    if not isinstance(data, dict) or "chameleon_lab_policy" not in data:
        raise PolicyError(f"{source}: this is no Chameleon Lab policy: 'chameleon_lab_policy' is missing")
    return data


def _entry(decision: Decision) -> dict[str, Any]:
    """A decision as the file has it: most retain nothing, and do not say so."""
    values = asdict(decision)
    if not decision.retains:
        del values["retains"]
    return values


def _decision(entry: Any, source: str, place: str) -> Decision:
    entry = {"retains": []} | _typed(entry, "object", source, place)
    values = _checked(entry, _DECISION, source, f"{place}.")
    _ruled(values, {"retains": _NAMES}, source, f"{place}.")
    if values["action"] not in (known := [action.value for action in Action]):
        raise PolicyError(
            f"{source}: {place}.action is {values['action']!r}; this Chameleon Lab knows {', '.join(known)}: mend it"
        )
    values["action"] = Action(values["action"])
    try:
        decision = Decision(**values)
    except PolicyError as error:
        raise PolicyError(f"{source}: {place}: {error}") from error
    _ruled(values, _DECIDED, source, f"{place}.")
    return decision


def _ruled(values: Mapping[str, Any], rules: Mapping[str, _Rule], source: str, prefix: str) -> None:
    """Check the values that are there. Raises PolicyError, naming file, place, value and what may stand there."""
    for name, (fits, what) in rules.items():
        if name in values and not fits(values[name]):
            raise PolicyError(
                f"{source}: {prefix}{name} is {_short(values[name])}, but it must be {what}; mend it, or {_WRITE_AGAIN}"
            )


def _check_without_edits(given: dict[str, Any], source: str) -> None:
    prefix = "assumed.without_edits."
    _ruled(given, _WITHOUT_EDITS, source, prefix)
    if "link" in given:
        link = _checked(given["link"], _LINK, source, f"{prefix}link.")
        try:
            Link(**link)
        except PolicyError as error:
            raise PolicyError(f"{source}: {prefix}link.{error}") from error


def _place(text: str, source: str, section: str, index: int) -> tuple[str, str]:
    """What to call an entry of a section, and the file with the line that the entry begins in."""
    decoder, name = json.JSONDecoder(), f"{section}[{index}]"
    begins = re.search(rf'"{section}"\s*:\s*\[', text)  # `assumed` has `edits`, too
    if begins is None:  # written by another JSON library, with its keys escaped
        return name, source
    at = begins.end() - 1
    try:
        for _ in range(index + 1):
            at += 1
            while text[at] in " \t\r\n,":
                at += 1
            begin, (_, at) = at, decoder.raw_decode(text, at)
            at -= 1
    except (ValueError, IndexError):
        return name, source
    return name, f"{source}, line {text.count(chr(10), 0, begin) + 1}"


def _array(name: str, entries: list[dict[str, Any]]) -> str:
    body = ",\n".join("  " + _line(entry) for entry in entries)
    return f' "{name}": [\n{body}\n ]' if body else f' "{name}": []'


def _line(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair: UTF-8 has none, JSON writes it in ASCII
        return json.dumps(value, allow_nan=False)
    return text


class _GivenTwiceError(Exception):
    """A JSON object has a key twice, with these values."""

    def __init__(self, key: str, first: Any, last: Any) -> None:
        super().__init__(key)
        self.key = key
        self.first = first
        self.last = last


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise _GivenTwiceError(key, made[key], value)
        made[key] = value
    return made


def _short(value: Any) -> str:
    shown = json.dumps(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _typed(value: Any, kind: str, source: str, place: str) -> Any:
    """``value`` if it is of the JSON type ``kind``; PolicyError otherwise."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    fits = {
        "int": isinstance(value, int) and number,
        "number or null": number or value is None,
        "string": isinstance(value, str),
        "object": isinstance(value, dict),
        "array": isinstance(value, list),
    }[kind]
    if not fits:
        raise PolicyError(
            f"{source}: {place} is {_short(value)}, but it must be of type {kind}; mend it, or {_WRITE_AGAIN}"
        )
    return value


def _checked(data: Mapping[str, Any], kinds: Mapping[str, str], source: str, prefix: str) -> dict[str, Any]:
    """The fields of a JSON object, every one of ``kinds`` and no other."""
    missing = [name for name in kinds if name not in data]
    if missing:
        raise PolicyError(f"{source}: {prefix}{missing[0]} is missing; add it, or {_WRITE_AGAIN}")
    unknown = [name for name in data if name not in kinds]
    if unknown:
        raise PolicyError(
            f"{source}: {prefix}{unknown[0]} is no field of a policy; known are {', '.join(kinds)}"
        )
    return {name: _typed(data[name], kind, source, prefix + name) for name, kind in kinds.items()}
