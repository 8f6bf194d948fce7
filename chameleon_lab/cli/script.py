"""Run a script or a module as ``python`` does: as ``__main__``, with arguments, path and traceback of its own."""

from __future__ import annotations

import builtins
import os
import runpy
import sys
import types
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from types import TracebackType
from typing import NoReturn

_AROUND_SCRIPTS = ("runpy", "chameleon_lab.cli", "chameleon_lab.session")


@dataclass(frozen=True)
class Script:
    """A file (or a folder or zip file with a ``__main__.py``), or with ``is_module`` a module's name."""

    target: str
    arguments: Sequence[str] = ()
    is_module: bool = False

    def run(self) -> None:
        """Run it in this process, whose ``sys.argv`` and ``sys.path`` become the script's. Raises what it raises."""
        sys.argv = [self.target, *self.arguments]
        # runpy adds folders and zip files to the path itself.
        plain = not (self.is_module or os.path.isdir(self.target) or zipfile.is_zipfile(self.target))
        if not sys.flags.safe_path:
            # In place of the folder of the command that runs us.
            sys.path[:1] = [os.path.dirname(os.path.realpath(self.target))] if plain else []
        if plain:
            _run_file(os.path.abspath(self.target))
        elif self.is_module:
            if not sys.flags.safe_path:
                sys.path.insert(0, os.getcwd())
            runpy.run_module(self.target, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(self.target, run_name="__main__")


def _run_file(path: str) -> None:
    """Unlike ``runpy.run_path``: the module stays ``__main__`` for threads and exit handlers that outlive it."""
    module = types.ModuleType("__main__")
    loader = SourceFileLoader("__main__", path)
    vars(module).update(__file__=path, __loader__=loader, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = module
    exec(loader.source_to_code(loader.get_data(path), path), vars(module))


def own_traceback(error: BaseException) -> TracebackType | None:
    """The part of an exception's traceback that begins in the script."""
    traceback = error.__traceback__
    while traceback is not None:
        module = traceback.tb_frame.f_globals.get("__name__", "")
        if not any(module == name or module.startswith(f"{name}.") for name in _AROUND_SCRIPTS):
            break
        traceback = traceback.tb_next
    return traceback


def raise_as_own(error: BaseException) -> NoReturn:
    """Raise a script's exception so that the interpreter ends as it would have, and shows the script's own frames."""
    shown, show = own_traceback(error), sys.excepthook

    def show_own(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        show(kind, value.with_traceback(shown), shown)

    sys.excepthook = show_own
    raise error
