"""Functions of modules that are imported after a session began are replaced all the same."""

from __future__ import annotations

import importlib
import importlib.util
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chameleon_lab.runtime.patches.late import LatePatches

MODULE = "a_module_that_comes_late"
TEXT = """
class Kernel:
    def run(self):
        return 1

def helper():
    return 2

SEEN_WHILE_IT_LOADS = helper()
"""


def plus_ten(original: Callable[..., int]) -> Callable[..., int]:
    return lambda *args: original(*args) + 10


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{MODULE}.py").write_text(TEXT)
    finders = list(sys.meta_path)
    yield tmp_path
    sys.modules.pop(MODULE, None)
    assert sys.meta_path == finders


def patches() -> LatePatches:
    return LatePatches(
        [
            (MODULE, "Kernel.run", plus_ten),
            (MODULE, "helper", plus_ten),
            (MODULE, "Kernel.of_another_version", plus_ten),
            (MODULE, "Gone.run", plus_ten),
        ]
    )


def values() -> tuple[int, int]:
    module: Any = importlib.import_module(MODULE)
    return module.Kernel().run(), module.helper()


@pytest.mark.parametrize("imported", [True, False])
def test_it_makes_no_difference_when_the_module_is_imported(imported: bool) -> None:
    late = patches()
    if imported:
        assert values() == (1, 2)
    late.install()
    late.install()  # may be repeated
    assert values() == (11, 12)
    module = sys.modules[MODULE]
    assert [(owner.__name__, name) for owner, name in late.places()] == [
        ("Kernel", "run"),
        (MODULE, "helper"),
    ]
    assert vars(module)["SEEN_WHILE_IT_LOADS"] == 2
    late.remove()
    late.remove()
    assert values() == (1, 2)
    late.install()
    assert values() == (11, 12)
    late.remove()


def test_the_module_looks_as_if_nobody_had_seen_it_load() -> None:
    late = patches()
    assert late.places() == []
    late.install()
    module = importlib.import_module(MODULE)
    late.remove()
    assert module.__spec__ is not None and module.__spec__.loader is module.__loader__
    assert type(module.__loader__).__name__ == "SourceFileLoader"


def test_what_is_not_imported_until_the_end_is_left_alone() -> None:
    late = patches()
    late.install()
    late.remove()
    assert values() == (1, 2)


def test_several_may_wait_for_one_module() -> None:
    first, second = patches(), patches()
    first.install()
    second.install()
    assert values() == (21, 22)
    second.remove()
    first.remove()
    assert values() == (1, 2)


@pytest.mark.parametrize("again", ["reloaded", "imported anew"])
def test_a_module_that_is_loaded_again_is_replaced_again(again: str) -> None:
    late = patches()
    late.install()
    assert values() == (11, 12)
    first: Any = sys.modules[MODULE]
    if again == "reloaded":
        importlib.reload(first)
    else:
        del sys.modules[MODULE]
    assert values() == (11, 12)
    assert vars(sys.modules[MODULE])["SEEN_WHILE_IT_LOADS"] == 2
    late.remove()
    assert values() == (1, 2) and first.helper() == 2


def test_what_ends_while_a_module_loads_replaces_nothing(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = patches()
    monkeypatch.setattr(sys, "ends_the_session", late.remove, raising=False)
    (module / f"{MODULE}.py").write_text(TEXT + "import sys; sys.ends_the_session()\n")
    late.install()
    assert values() == (1, 2)


def test_what_begins_while_a_module_loads_finds_it_the_next_time(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = patches()
    monkeypatch.setattr(sys, "begins_a_session", late.install, raising=False)
    (module / f"{MODULE}.py").write_text("import sys; sys.begins_a_session()\n" + TEXT)
    assert values() == (1, 2)
    late.install()
    assert values() == (11, 12)
    late.remove()


def test_a_private_copy_of_a_module_is_left_alone() -> None:
    late = patches()
    late.install()
    assert values() == (11, 12)
    (finder,) = set(sys.meta_path) & {late._finder}
    spec = finder.find_spec(MODULE, None)
    assert spec is not None and spec.loader is not None
    copy: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    assert copy.helper() == 2 and values() == (11, 12)
    late.remove()


def test_programs_and_sources_are_found_as_ever() -> None:
    late = patches()
    late.install()
    assert runpy.run_module(MODULE)["SEEN_WHILE_IT_LOADS"] == 2
    assert values() == (11, 12)
    late.remove()


def test_a_module_that_fails_or_is_missing_fails_as_ever(module: Path) -> None:
    (module / f"{MODULE}.py").write_text("raise ZeroDivisionError")
    late = LatePatches([(MODULE, "helper", plus_ten), ("a_module_that_never_comes", "x", plus_ten)])
    late.install()
    with pytest.raises(ZeroDivisionError):
        importlib.import_module(MODULE)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("a_module_that_never_comes")
    late.remove()
