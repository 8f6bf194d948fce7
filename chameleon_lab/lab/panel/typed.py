"""Does a JSON value fit a type? Checks all requests of the panel, and the answers in tests."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    NotRequired,
    TypeGuard,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)


def is_whole(value: Any) -> TypeGuard[int]:
    """Is it a whole number that JavaScript can hold?"""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53


_PLAIN: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    str: ("text", lambda value: isinstance(value, str)),
    int: ("a whole number", is_whole),
    bool: ("true or false", lambda value: isinstance(value, bool)),
    NoneType: ("null", lambda value: value is None),
    float: (
        "a finite number",
        lambda value: is_whole(value) or (isinstance(value, float) and math.isfinite(value)),
    ),
}


def misfit(where: str, kind: Any, value: Any, deep: bool = True) -> str | None:
    """What is wrong with a value in words, or None. Not ``deep``: any object will do where one is wanted."""
    if kind in _PLAIN:
        what, fits = _PLAIN[kind]
        return None if fits(value) else f"{where} must be {what}, not {short(value)}"
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return None if value in inner else f"{where} must be one of {inner}, not {short(value)}"
    if origin in (Union, UnionType):
        misfits = [misfit(where, one, value, deep) for one in inner]
        return None if None in misfits else next(iter(misfits if value is not None else misfits[::-1]))
    if origin is list or origin is tuple:
        if not isinstance(value, (list, tuple)):
            return f"{where} must be a list, not {short(value)}"
        if origin is tuple and len(value) != len(inner):
            return f"{where} must have {len(inner)} entries, not {len(value)}"
        kinds = inner if origin is tuple else inner * len(value)
        items = [(f"{where}[{i}]", one, item) for i, (one, item) in enumerate(zip(kinds, value, strict=True))]
    elif not isinstance(value, dict):
        return f"{where} must be an object, not {short(value)}"
    elif origin is dict:
        items = [(f"{where}.{key}", inner[1], item) for key, item in value.items()]
    elif not deep:
        return None
    else:
        known = members(kind)
        odd = [name for name in value if name not in known]
        lacking = [name for name, (_, needed) in known.items() if needed and name not in value]
        if odd or lacking:
            return f"{where} {f'has no {odd[0]!r}' if odd else f'needs {lacking[0]!r}'}"
        items = [(f"{where}.{name}", known[name][0], item) for name, item in value.items()]
    return next((wrong for item in items if (wrong := misfit(*item, deep)) is not None), None)


@cache
def members(kind: Any) -> dict[str, tuple[Any, bool]]:
    """The fields of a TypedDict: their types, and whether they must be there."""
    assert is_typeddict(kind), kind
    hints = get_type_hints(kind, include_extras=True)
    return {
        name: (get_args(hint)[0], False) if get_origin(hint) is NotRequired else (hint, True)
        for name, hint in hints.items()
    }


def short(value: Any) -> str:
    """A value for a message."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
