"""Write the panel's types and the tables of docs/protocol.md from the kernel's definition of the protocol.

python scripts/protocol.py           # after a change of chameleon_lab/lab/panel/protocol.py or results.py
python scripts/protocol.py --check   # exit with 1 where what is there is stale, and name it
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from chameleon_lab.lab.panel import protocol, results
from chameleon_lab.lab.panel.typed import members
from chameleon_lab.trace.columns import Category

ROOT = Path(__file__).parent.parent
TYPES = ROOT / "labextension" / "src" / "messages.ts"
DOCS = ROOT / "docs" / "protocol.md"
WIDTH = 100

SHARED = {protocol.Steps: "ISteps", protocol.Side: "ISide"}
"""Parameters that are no one method's, and what the panel calls them."""

CHOICES = {
    getattr(results, name): name for name, value in vars(results).items() if get_origin(value) is Literal
}
"""The sets of words that have a name."""

PLAIN = {int: "number", float: "number", str: "string", bool: "boolean", NoneType: "null"}


def typescript(kind: Any) -> str:
    """A type of the protocol as TypeScript."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind in PLAIN:
        return PLAIN[kind]
    if kind in CHOICES:
        return CHOICES[kind]
    if kind == results.Draft:
        return "IDraft"
    if kind in (results.Nothing, protocol.Empty):
        return "Record<string, never>"
    if origin is Literal:
        return " | ".join(_literal(value) for value in inner)
    if origin in (Union, UnionType):
        return " | ".join(dict.fromkeys(typescript(one) for one in inner))
    if origin is list:
        of = typescript(inner[0])
        return f"({of})[]" if " | " in of else f"{of}[]"
    if origin is tuple:
        return f"[{', '.join(typescript(one) for one in inner)}]"
    if origin is dict:
        return f"Record<string, {typescript(inner[1])}>"
    if kind in SHARED:
        return SHARED[kind]
    return f"I{kind.__name__}{'' if kind.__module__ == results.__name__ else 'Request'}"


def types() -> str:
    """The panel's file."""
    constants = (
        ("VERSION", protocol.VERSION, protocol_doc("VERSION")),
        ("TARGET", protocol.TARGET, protocol_doc("TARGET")),
        ("PANEL_TARGET", protocol.PANEL_TARGET, protocol_doc("PANEL_TARGET")),
    )
    parts = [
        "// Written by scripts/protocol.py from chameleon_lab/lab/panel/protocol.py and results.py: change those."
    ]
    for name, value, doc in constants:
        parts.append(f"{_comment(doc)}export const {name} = {_literal(value)};")
    words = ",\n".join(f"  {_literal(category.name.lower())}" for category in Category)
    parts.append(
        f"/** Categories as the kernel numbers them. */\nexport const CATEGORIES = [\n{words}\n] as const;"
    )
    for kind, name in CHOICES.items():
        parts.append(_alias(name, [_literal(value) for value in get_args(kind)]))
    parts += [_interface(node) for node in _classes()]
    parts.append(_alias("IDraft", [typescript(kind) for kind in get_args(results.Draft)]))
    parts += [_request(kind) for kind in _requests()]
    methods = (
        f"  {name}: [{typescript(method.params)}, {typescript(method.result)}];"
        for name, method in protocol.METHODS.items()
    )
    parts.append(
        _block("/** Every method: its parameters and its result. */\nexport interface IMethods", methods)
    )
    parts.append("export type Method = keyof IMethods;")
    events = (f"  {name}: {typescript(event.result)};" for name, event in protocol.EVENTS.items())
    parts.append(_block("/** What the kernel says unasked. */\nexport interface IEvents", events))
    return "\n\n".join(parts) + "\n"


def protocol_doc(name: str) -> str:
    """What protocol.py says of one of its constants."""
    body = ast.parse(Path(protocol.__file__).read_text()).body
    for node, following in zip(body, body[1:], strict=False):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return _text(following)
    raise KeyError(name)


def _classes() -> Iterator[ast.ClassDef]:
    """The results' types but those that are written as others."""
    for node in ast.parse(Path(results.__file__).read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name != "Nothing":
            yield node


def _interface(node: ast.ClassDef) -> str:
    known, lines = members(getattr(results, node.name)), []
    for entry, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name):
            name = entry.target.id
            kind, needed = known[name]
            doc = _comment(_text(following), "  ")
            lines.append(f"{doc}  {name}{'' if needed else '?'}: {typescript(kind)};")
    base = getattr(node.bases[0], "id", "TypedDict")
    extends = "" if base == "TypedDict" else f" extends I{base}"
    doc = _comment(ast.get_docstring(node) or "")
    return _block(f"{doc}export interface I{node.name}{extends}", lines)


def _requests() -> list[type]:
    """Every type of parameters, those that others extend before these."""
    found: dict[type, None] = {}
    for method in protocol.METHODS.values():
        for kind in reversed(method.params.__mro__[:-1]):
            found |= {protocol.Side: None} if kind is protocol.Compare else {}
            found |= {kind: None}
    return [kind for kind in found if kind is not protocol.Empty]


def _request(kind: type) -> str:
    base = kind.__mro__[1]
    inherited = {f.name for f in fields(base)} if base is not object else set()
    hints = get_type_hints(kind)
    lines = [
        f"  {f.name}{'?' if _optional(f) else ''}: {typescript(hints[f.name])};"
        for f in fields(kind)
        if f.name not in inherited
    ]
    extends = "" if base is object else f" extends {typescript(base)}"
    doc = _comment(re.sub(r":\w+:`~?([\w.]+)`", r"\1", kind.__doc__ or ""))
    return _block(f"{doc}export interface {typescript(kind)}{extends}", lines)


def _optional(field: Any) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _block(head: str, lines: Any) -> str:
    return "\n".join([f"{head} {{", *lines, "}"])


def _alias(name: str, words: list[str]) -> str:
    line = f"export type {name} = {' | '.join(words)};"
    return line if len(line) <= WIDTH else "\n  | ".join([f"export type {name} =", *words]) + ";"


def _literal(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value).lower()


def _text(node: ast.AST | None) -> str:
    """The string that stands below a field, or nothing."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return str(node.value.value)
    return ""


def _comment(doc: str, indent: str = "") -> str:
    text = " ".join(doc.replace("``", "`").split())
    if not text:
        return ""
    if len(line := f"{indent}/** {text} */") <= WIDTH:
        return f"{line}\n"
    rows = textwrap.wrap(text, WIDTH - len(indent) - 3)
    return "\n".join([f"{indent}/**", *(f"{indent} * {row}" for row in rows), f"{indent} */\n"])


def docs() -> str:
    """The page, with its tables written anew."""
    page = DOCS.read_text()
    drafts = {
        name for name, method in protocol.METHODS.items() if issubclass(method.params, protocol.DraftOf)
    }
    tables = {
        "methods": _table(name for name in protocol.METHODS if name not in drafts),
        "editing": _table(name for name in protocol.METHODS if name in drafts),
        "events": [
            "| event | body | when |",
            "|---|---|---|",
            *(f"| `{name}` | `{typescript(e.result)}` | {e.what} |" for name, e in protocol.EVENTS.items()),
        ],
    }
    for name, rows in tables.items():
        begin, end = f"<!-- {name}: scripts/protocol.py -->", f"<!-- end of {name} -->"
        before, _, rest = page.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"{DOCS} has no table between {begin} and {end}")
        page = before + "\n".join([begin, *rows, end]) + after
    return page


def _table(names: Iterator[str]) -> list[str]:
    rows = ["| method | parameters | result |", "|---|---|---|"]
    for name in names:
        method = protocol.METHODS[name]
        hints, known = get_type_hints(method.params), fields(method.params)
        told = ["steps"] if issubclass(method.params, protocol.Steps) else []
        told += [
            _told(f, hints[f.name]) for f in known if not told or f.name not in ("source", "first", "last")
        ]
        kind = "" if method.result is results.Nothing else f"`{typescript(method.result)}`"
        rows.append(f"| `{name}` | {', '.join(told)} | {': '.join(filter(None, (kind, method.what)))} |")
    return rows


def _told(field: Any, kind: Any) -> str:
    """A parameter, with its values where the text below the table does not list them."""
    words = [f"`{value}`" for value in get_args(kind)] if get_origin(kind) is Literal else []
    explained = kind in CHOICES and kind != results.TreeOf
    notes = [] if explained or not words else [" or ".join(words)]
    notes += ["optional"] if _optional(field) else []
    return f"`{field.name}`" + (f" ({', '.join(notes)})" if notes else "")


def main() -> int:
    """Write what is stale, or name it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 where something is stale"
    )
    check = parser.parse_args().check
    stale = [
        path
        for path, text in ((TYPES, types()), (DOCS, docs()))
        if not path.exists() or path.read_text() != text
    ]
    for path in stale:
        print(f"{'stale' if check else 'written'}: {path.relative_to(ROOT)}")
        if not check:
            path.write_text(types() if path == TYPES else docs())
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
