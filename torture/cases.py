"""Functions that are cases by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from .pool import Options

Case = TypeVar("Case", bound=Callable[..., Any])


class Cases(dict[str, Case], Generic[Case]):
    """The cases of a part by name; ``slow`` ones are left out of a share."""

    def __init__(self) -> None:
        super().__init__()
        self._slow: set[str] = set()

    def named(self, name: str, *, slow: bool = False) -> Callable[[Case], Case]:
        """Make a function a case of this name."""

        def add(function: Case) -> Case:
            assert name not in self, name
            self[name] = function
            if slow:
                self._slow.add(name)
            return function

        return add

    def names(self, options: Options) -> list[str]:
        """Those that are run."""
        return [name for name in self if not (options.share and name in self._slow)]
