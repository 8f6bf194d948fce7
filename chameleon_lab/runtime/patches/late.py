"""Functions of modules that may be imported later than a session begins."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .patch import Patches

LateReplacement = tuple[str, str, Callable[[Any], Any]]
"""(module, name, make): ``make(original)`` takes the place of ``name`` or ``Class.name`` in the module."""


class LatePatches(Patches):
    """Attributes replaced where their modules are imported, and elsewhere from when they are.

    What a module of another version lacks is left out.
    """

    def __init__(self, replacements: Sequence[LateReplacement]) -> None:
        super().__init__([])
        self._wanted: dict[str, list[LateReplacement]] = {}
        for replacement in replacements:
            self._wanted.setdefault(replacement[0], []).append(replacement)
        self._finder = _Finder(self._wanted.keys(), self._loading, self._loaded)
        self._met: dict[str, Patches] = {}

    def places(self) -> list[tuple[Any, str]]:
        """Owners and names of what is replaced in the modules that are there."""
        modules = [sys.modules[name] for name in self._wanted if name in sys.modules]
        return [place for module in modules for place in self._of(module).places()]

    def install(self) -> None:
        """Replace what is there, and what comes."""
        if self._finder not in sys.meta_path:
            sys.meta_path.insert(0, self._finder)
        for name in self._wanted:
            module = sys.modules.get(name)
            if module is not None and not getattr(module.__spec__, "_initializing", False):
                self._meet(module)

    def remove(self) -> None:
        """Put the originals back. Harmless where nothing is installed."""
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        for patches in self._met.values():
            patches.remove()
        self._met.clear()

    def _of(self, module: ModuleType) -> Patches:
        found = []
        for _, path, make in self._wanted[module.__name__]:
            holder, _, name = path.rpartition(".")
            owner = getattr(module, holder, None) if holder else module
            if hasattr(owner, name):
                found.append((owner, name, make))
        return Patches(found)

    def _meet(self, module: ModuleType) -> None:
        if module.__name__ not in self._met:
            self._met[module.__name__] = self._of(module)
            self._met[module.__name__].install()

    def _loading(self, module: ModuleType) -> None:
        """A module of that name is about to be loaded, for the first time or again."""
        if sys.modules.get(module.__name__) is module and module.__name__ in self._met:
            self._met.pop(module.__name__).remove()

    def _loaded(self, module: ModuleType) -> None:
        """It is there, unless it is a private copy; and what has been removed meanwhile stays so."""
        if sys.modules.get(module.__name__) is module and self._finder in sys.meta_path:
            self._meet(module)


class _Finder(MetaPathFinder):
    """Finds modules as the other finders do, and tells when some of them are loaded."""

    def __init__(
        self,
        names: Collection[str],
        loading: Callable[[ModuleType], None],
        loaded: Callable[[ModuleType], None],
    ) -> None:
        self._names = names
        self._told = loading, loaded

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        finders = list(sys.meta_path)
        if name not in self._names or self not in finders:
            return None
        behind = finders[finders.index(self) + 1 :]
        spec = next((found for finder in behind if (found := finder.find_spec(name, path, target))), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Telling(spec.loader, *self._told)
        return spec


class _Telling(Loader):
    """A module's own loader, and a call before and after it loads the module."""

    def __init__(
        self, loader: Any, loading: Callable[[ModuleType], None], loaded: Callable[[ModuleType], None]
    ) -> None:
        self._loader = loader
        self._loading = loading
        self._loaded = loaded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loading(module)
        self._loader.exec_module(module)
        self._loaded(module)
