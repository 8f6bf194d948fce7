"""The search language of the panel: ``layer.3 attn >4MiB``. Every term must hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...trace import Category, Stage
from ...util.units import parse_bytes

_SIZE = re.compile(r"([<>]=?)(.+)")
_LAYERS = re.compile(r"([A-Za-z_]\w*)\.(\d+)(?:-(\d+))?")
_FIELD = re.compile(r"(stage|category):(.*)")


@dataclass(frozen=True)
class Query:
    """What a search text asks for.

    Attributes:
        words: parts of an op's, a module's or a storage's name, or of a category, in lower case.
        layers: (name, first, last): the first number in the module path; the name ``layer`` stands for any.
        at_least, at_most: bytes of the storage, or None.
        stage: the stage of the op that made or is it, or None.
        category: the storage's, or None.
    """

    words: tuple[str, ...] = ()
    layers: tuple[tuple[str, int, int], ...] = ()
    at_least: int | None = None
    at_most: int | None = None
    stage: Stage | None = None
    category: Category | None = None

    @property
    def asks_storages_alone(self) -> bool:
        """Does a term speak of what only storages have?"""
        return self.at_least is not None or self.at_most is not None or self.category is not None


def parse_query(text: str) -> Query:
    """Read a search text.

    Raises:
        ValueError: a size, a stage or a category is none; the message says how to write it.
    """
    words: list[str] = []
    layers: list[tuple[str, int, int]] = []
    at_least: int | None = None
    at_most: int | None = None
    stage, category = None, None
    for term in text.split():
        if size := _SIZE.fullmatch(term):
            limit = parse_bytes(size[2], f"the size in {term!r}:")
            strict = 0 if size[1].endswith("=") else 1
            if size[1].startswith(">"):
                at_least = max(at_least or 0, limit + strict)
            else:
                at_most = min(limit - strict, limit if at_most is None else at_most)
        elif term[0] in "<>":
            raise ValueError(f"{term!r} has no size: write it like >4MiB, without a space")
        elif named := _FIELD.fullmatch(term):
            found = _member(Stage if named[1] == "stage" else Category, named[2], term)
            if isinstance(found, Stage):
                stage = found
            else:
                category = Category(found)
        elif layer := _LAYERS.fullmatch(term):
            layers.append((layer[1].lower(), int(layer[2]), int(layer[3] or layer[2])))
        else:
            words.append(term.lower())
    return Query(tuple(words), tuple(layers), at_least, at_most, stage, category)


def _member(kind: type[Stage] | type[Category], text: str, term: str) -> Stage | Category:
    fits = [member for member in kind if text and member.name.lower().startswith(text.lower())]
    if len(fits) != 1:
        raise ValueError(f"{term!r} is none of {', '.join(member.name.lower() for member in kind)}")
    return fits[0]


def fits_text(query: Query, paths: Sequence[str], path: np.ndarray, texts: Iterable[str]) -> np.ndarray:
    """Which rows the words and layers of a query fit.

    Args:
        query: what to look for.
        paths: module paths; ``path`` holds the index of each row's, -1 for none.
        path: int32 (N,).
        texts: what else each row is called, N of them.

    Returns:
        bool (N,).
    """
    layered = np.array(
        [all(_in_layers(p, layer) for layer in query.layers) for p in paths] + [not query.layers]
    )
    fits: np.ndarray = layered[path]
    if query.words:
        lowered = [p.lower() for p in paths] + [""]
        rows = path.tolist()
        for i, text in enumerate(texts):
            if fits[i]:
                everything = f"{lowered[rows[i]]} {text.lower()}"
                fits[i] = all(word in everything for word in query.words)
    return fits


def _in_layers(path: str, layer: tuple[str, int, int]) -> bool:
    name, first, last = layer
    parts = path.lower().split(".")
    for i, part in enumerate(parts):
        if part.isdigit():
            return first <= int(part) <= last and (name == "layer" or (i > 0 and parts[i - 1] == name))
    return False
