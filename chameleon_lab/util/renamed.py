"""Renamed names: old ones still work, with a warning that names the new one."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from typing import Any, ParamSpec, Self, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


def warn_of_old_name(what: str, old: str, new: str) -> None:
    """Warn the caller's caller, as a FutureWarning, which is shown, that a name has changed."""
    warnings.warn(f"{what}{old} has a new name: {new}", FutureWarning, stacklevel=3)


def renamed_arguments(**new_names: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """The function still takes arguments by their old names: ``old="new"``.

    Raises TypeError, at the call, where both are given.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        called = function.__qualname__.removesuffix(".__init__")

        @wraps(function)
        def taking_both(*positional: _P.args, **named: _P.kwargs) -> _R:
            given: dict[str, Any] = named
            for old in [name for name in given if name in new_names]:
                new = new_names[old]
                if new in given:
                    raise TypeError(f"{called}() got both {new}= and {old}=, its old name: leave out {old}=")
                warn_of_old_name(f"{called}(): ", f"{old}=", f"{new}=")
                given[new] = given.pop(old)
            return function(*positional, **named)

        return taking_both

    return decorate


class OldName:
    """An attribute under its old name: reading it warns, and gives the new one's value."""

    def __init__(self, new: str) -> None:
        self._old, self._new = "", new

    def __set_name__(self, owner: type, name: str) -> None:
        self._old = name

    def __get__(self, instance: object | None, owner: type) -> Any:
        if instance is None:
            return self
        warn_of_old_name(f"{owner.__name__}.", self._old, self._new)
        return getattr(instance, self._new)


def with_old_keys(value: Any, old_names: dict[str, str]) -> Any:
    """Plain Python values whose dictionaries, at any depth, have their keys by old names: ``{new: old}``."""
    if isinstance(value, dict):
        return {old_names.get(key, key): with_old_keys(each, old_names) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(with_old_keys(each, old_names) for each in value)
    return value


class RenamedValues(StrEnum):
    """An enumeration some of whose values had other names, which are still understood: see :meth:`old_names`."""

    @classmethod
    def old_names(cls) -> dict[str, str]:
        """New values by old ones."""
        return {}

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        new = cls.old_names().get(value) if isinstance(value, str) else None
        if new is None:
            return None
        warn_of_old_name("", repr(value), repr(new))
        return cls(new)
