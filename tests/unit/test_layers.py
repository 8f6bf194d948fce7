"""Imports within the package: no circles, and none against the layers of docs/architecture.md.

All imports count: those at the top of a module, those for type checkers alone, and those in functions.
"""

from __future__ import annotations

import ast
import itertools
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "chameleon_lab"
BUILT = {
    f"{PACKAGE}._C",
    f"{PACKAGE}.with_cuda",
    f"{PACKAGE}.with_cuda._C",
    f"{PACKAGE}._built_for",
    f"{PACKAGE}._planner",
}
"""Modules that a build makes: a checkout may be without them."""


@dataclass(frozen=True)
class Import:
    """One import of a module: of the package, or torch."""

    importer: str
    imported: str
    where: str
    at_import: bool
    """Does it run when the importer is imported, and must it succeed?"""

    def __str__(self) -> str:
        return f"{self.where}: {self.importer} imports {self.imported}"


@dataclass(frozen=True)
class Layer:
    """A row of the table in docs/architecture.md."""

    name: str
    modules: tuple[str, ...]
    uses: tuple[str, ...]
    needs_torch: bool


class Tree:
    """The modules of a package, and what they import."""

    def __init__(self, root: Path) -> None:
        self.files = {
            ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
            for path in sorted((root / PACKAGE).rglob("*.py"))
        }
        self.modules = set(self.files) | BUILT
        self.imports = [
            found for name, path in self.files.items() for found in self._imports(name, path, root)
        ]

    def _imports(self, name: str, path: Path, root: Path) -> Iterator[Import]:
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for node, at_import in _imports_in(path.read_text()):
            where = f"{path.relative_to(root)}:{node.lineno}"
            for imported in self._imported(package, node):
                if imported != name:
                    yield Import(name, imported, where, at_import)

    def _imported(self, package: str, node: ast.Import | ast.ImportFrom) -> set[str]:
        """The modules that run for it: of a package that the importer is not in, its face runs as well."""
        if isinstance(node, ast.Import):
            wanted = {alias.name for alias in node.names}
        else:
            parents = package.split(".")
            parents = parents[: len(parents) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            names = {f"{base}.{alias.name}" for alias in node.names}
            wanted = {name if name in self.modules else base for name in names}
        within = f"{package}."
        return {
            ancestor if ancestor.startswith(PACKAGE) else "torch"
            for name in wanted
            for ancestor in _with_parents(name)
            if ancestor in self.modules | {"torch"}
            and (ancestor == name or not within.startswith(f"{ancestor}."))
        }

    def circles(self) -> str | None:
        """The first circle, import by import; None: there is none."""
        first = {(each.importer, each.imported): each for each in reversed(self.imports)}
        below: dict[str, set[str]] = {}
        for importer, imported in first:
            below.setdefault(importer, set()).add(imported)
        try:
            TopologicalSorter(below).prepare()
        except CycleError as error:
            circle = error.args[1][::-1]  # what needs another one before it
            return "\n".join(str(first[step]) for step in itertools.pairwise(circle))
        return None


@cache
def _imports_in(text: str) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
    return list(_import_nodes(ast.parse(text)))


def _with_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


def _import_nodes(
    node: ast.AST, at_import: bool = True
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Every import below a node, and whether importing the module fails where it does."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, at_import
        elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            for part, runs in ((child.body, False), (child.orelse, at_import)):
                yield from _import_nodes(ast.Module(part, []), runs)
        elif isinstance(child, ast.Try) and any(_catches_import_error(each) for each in child.handlers):
            yield from _import_nodes(child, False)
        else:
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _import_nodes(child, at_import and not is_function)


def _catches_import_error(handler: ast.ExceptHandler) -> bool:
    """Does the module go on where the import fails?"""
    caught = "" if handler.type is None else ast.unparse(handler.type)
    return ("ImportError" in caught or caught == "Exception") and not isinstance(handler.body[-1], ast.Raise)


def read_layers(text: str) -> list[Layer]:
    """The layers in the table of docs/architecture.md, the lowest first."""
    section = text.partition("\n## Layers\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    layers = []
    for name, modules, uses, torch in rows[2:]:
        named = tuple(_module_named(each) for each in re.findall(r"`([^`]+)`", modules))
        used = tuple(each.strip() for each in uses.split(",")) if uses else ()
        assert torch in ("yes", "no"), f"{name}: {torch!r} is neither yes nor no"
        layers.append(Layer(name, named, used, torch == "yes"))
    return layers


def _module_named(written: str) -> str:
    """The table's ``policy/``, ``lab/magics.py`` and ``chameleon_lab`` as the names of modules."""
    name = written.removesuffix("/").removesuffix(".py").replace("/", ".")
    return name if name == PACKAGE else f"{PACKAGE}.{name}"


def layer_of(module: str, layers: list[Layer]) -> Layer | None:
    """The one that names the module, else the package that it is in, the nearest first; the whole is no package."""
    for name in (f"{module}.__init__", *reversed(_with_parents(module))):
        if name == PACKAGE and module != PACKAGE:
            return None
        for layer in layers:
            if name in layer.modules:
                return layer
    return None


def against_layers(tree: Tree, layers: list[Layer]) -> list[str]:
    """What the table does not allow, import by import; and what it names that is not there."""
    of = {module: layer_of(module, layers) for module in tree.modules}
    wrong = [f"{module} is in no layer" for module, layer in of.items() if layer is None]
    used = set()
    for each in tree.imports:
        layer, below = of[each.importer], of.get(each.imported)
        if layer is None or below is None or layer == below:
            continue
        used.add((layer.name, below.name))
        if below.name not in layer.uses:
            wrong.append(f"{each}, and {layer.name} does not use {below.name}")
    for number, layer in enumerate(layers):
        lower = [each.name for each in layers[:number]]
        wrong += [
            f"{layer.name} uses {name}, which is not below it" for name in layer.uses if name not in lower
        ]
        wrong += [
            f"{layer.name} does not import {name}, which the table says"
            for name in layer.uses
            if (layer.name, name) not in used
        ]
        missing = {name.removesuffix(".__init__") for name in layer.modules} - tree.modules
        wrong += [f"{layer.name}: there is no {name}" for name in sorted(missing)]
    return wrong


def needing_torch(tree: Tree, layers: list[Layer]) -> list[str]:
    """The ways by which modules of layers that load without torch and the core do not."""
    at_import: dict[str, list[Import]] = {}
    for each in tree.imports:
        if each.at_import:
            at_import.setdefault(each.importer, []).append(each)
    wrong = []
    for module in sorted(tree.files):
        layer = layer_of(module, layers)
        if layer is None or layer.needs_torch:
            continue
        for each in at_import.get(module, ()):
            below = layer_of(each.imported, layers)
            if each.imported == "torch" or (below is not None and below.needs_torch):
                wrong.append(f"{each}, and {layer.name} loads without torch")
    return wrong


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree(ROOT)


@pytest.fixture(scope="module")
def layers() -> list[Layer]:
    found = read_layers((ROOT / "docs" / "architecture.md").read_text())
    assert len(found) > 5, "docs/architecture.md: the table below '## Layers' cannot be read"
    return found


def test_imports_make_no_circle(tree: Tree) -> None:
    assert tree.circles() is None, tree.circles()


def test_imports_go_the_way_of_the_layers(tree: Tree, layers: list[Layer]) -> None:
    assert not (wrong := against_layers(tree, layers)), "\n".join(wrong)


def test_layers_that_load_without_torch_import_none(tree: Tree, layers: list[Layer]) -> None:
    assert not (wrong := needing_torch(tree, layers)), "\n".join(wrong)


def test_the_core_is_reached_through_one_module(tree: Tree) -> None:
    assert {each.importer for each in tree.imports if each.imported.endswith("._C")} == {
        f"{PACKAGE}.runtime.core"
    }


def test_modules_are_found_by_name_in_few_places(tree: Tree) -> None:
    """What is imported by a name in a string, the tests above do not see."""
    called = re.compile(r"\b(import_module|__import__)\(")
    assert {name for name, path in tree.files.items() if called.search(path.read_text())} == {
        PACKAGE,  # the public names
        f"{PACKAGE}._lazy",  # what methods call that lies above them
        f"{PACKAGE}.lab.figures.packages",  # other projects' packages
        f"{PACKAGE}.util.torch_version",  # what the build has written
    }


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package's Python in another folder, to break."""
    shutil.copytree(
        ROOT / PACKAGE,
        tmp_path / PACKAGE,
        ignore=lambda folder, names: [n for n in names if Path(folder, n).suffix not in ("", ".py")],
    )
    return tmp_path


@pytest.mark.parametrize(
    "line",
    [
        "from .diff import PolicyDiff",
        "from . import diff",
        "import chameleon_lab.policy.diff",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .diff import PolicyDiff",
        "def at_first_use():\n    from .diff import PolicyDiff",
    ],
)
def test_a_circle_is_seen(copy: Path, line: str) -> None:
    with (copy / PACKAGE / "policy" / "model.py").open("a") as file:
        file.write(f"\n\n{line}\n")
    told = Tree(copy).circles()
    assert told is not None and f"model imports {PACKAGE}.policy.diff" in told
    first, *_, last = told.splitlines()
    assert first.split(": ")[1].split()[0] == last.split()[-1]


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("policy/model.py", "from ..runtime import core"),
        ("policy/model.py", "def at_first_use():\n    from ..lab.figures.gantt import Gantt"),
        (
            "trace/columns.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..policy import Policy",
        ),
        ("lab/panel/views.py", "from ...runtime.discovery import Discovery"),
        ("util/units.py", "from ..trace import Trace"),
        ("lab/figures/palette.py", "from ... import Session"),
    ],
)
def test_an_import_against_the_layers_is_seen(copy: Path, layers: list[Layer], path: str, line: str) -> None:
    assert not against_layers(Tree(copy), layers)
    with (copy / PACKAGE / path).open("a") as file:
        file.write(f"\n\n{line}\n")
    told = against_layers(Tree(copy), layers)  # of a package that it is not in, the face is imported as well
    assert told and all(each.startswith(f"{PACKAGE}/{path}:") and "does not use" in each for each in told)


@pytest.mark.parametrize(
    "line", ["import torch", "from torch.nn import Linear", "from ...session import Session"]
)
def test_torch_is_seen_where_it_may_be_missing(copy: Path, layers: list[Layer], line: str) -> None:
    with (copy / PACKAGE / "lab" / "panel" / "lod.py").open("a") as file:
        file.write(f"\n\n{line}\n")
    (told,) = needing_torch(Tree(copy), layers)
    assert told.startswith(f"{PACKAGE}/lab/panel/lod.py:") and "loads without torch" in told


def test_a_module_in_no_layer_is_seen(copy: Path, layers: list[Layer]) -> None:
    (copy / PACKAGE / "newcomer.py").write_text("")
    assert against_layers(Tree(copy), layers) == [f"{PACKAGE}.newcomer is in no layer"]
