"""No module of the package reads what another one keeps to itself."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "chameleon_lab"

EXCEPTIONS = {
    ("lab/figures/gantt.py", "_repr_html_"): "IPython's name for how a thing is drawn",
    ("lab/magics.py", "_repr_html_"): "IPython's name for how a thing is drawn",
    ("meta/roofline.py", "_schema"): "torch's, of an operator",
    ("testing.py", "_plans"): "only tests wait for a plan",
}
"""By file and name: why it is read all the same."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def defined(tree: ast.Module) -> set[str]:
    """The private names that a module gives to its classes, functions and attributes."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
    return {name for name in names if is_private(name)}


def read(tree: ast.Module) -> set[str]:
    """The private names that a module takes from something that is not itself."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
                pass
            case ast.Attribute(attr=name):
                names.add(name)
            case ast.ImportFrom(level=level, module=module) if level or str(module).startswith(
                "chameleon_lab"
            ):
                names.update(alias.name for alias in node.names)
    return {name for name in names if is_private(name)}


def found(trees: dict[str, ast.Module]) -> set[tuple[str, str]]:
    """Files, and the private names of other files that they read."""
    owners: dict[str, set[str]] = defaultdict(set)
    for file, tree in trees.items():
        for name in defined(tree):
            owners[name].add(file)
    return {
        (file, name)
        for file, tree in trees.items()
        for name in read(tree)
        if owners[name] and file not in owners[name]
    }


def test_no_module_reads_what_another_one_keeps_to_itself() -> None:
    trees = {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in PACKAGE.rglob("*.py")
    }
    assert found(trees) == set(EXCEPTIONS)


def test_what_is_read_of_another_module_is_found() -> None:
    owner = ast.parse("class A:\n    def __init__(self):\n        self._kept = 1\n    def _call(self): ...\n")
    reader = ast.parse(
        "from .a import _secret\ndef f(a):\n    a._call()\n    return a.b._kept, a._other, self._kept\n"
    )
    secret = ast.parse("_secret = 1\n")
    trees = {"a.py": owner, "b.py": reader, "c.py": secret}
    assert found(trees) == {("b.py", "_call"), ("b.py", "_kept"), ("b.py", "_secret")}
