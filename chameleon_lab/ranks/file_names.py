"""Names of files that each rank of a job writes: no two ranks write the same one."""

from __future__ import annotations

import glob
import os
from pathlib import Path

from ..util.files import is_no_file
from .identity import Identity

_FIELDS = ("rank", "world_size", "local_rank", "host")
"""What may stand in braces in a name."""

_TAG = ".rank"
"""Before a rank's number in a name without braces."""


def of_rank(path: str | os.PathLike[str], who: Identity) -> str:
    """The name for one rank: ``{rank}``, ``{world_size}``, ``{local_rank}`` and ``{host}`` stand for its own.

    Of several ranks, a name without ``{rank}`` gets it before its ending: ``t.rank3.parquet``. What is no file, such as
    ``/dev/stderr``, stays what it is.
    """
    text = os.fspath(path)
    if "{rank}" not in text and not who.is_alone and not is_no_file(text):
        stem, ending = os.path.splitext(text)
        text = f"{stem}{_TAG}{{rank}}{ending}"
    for name in _FIELDS:
        value = getattr(who, name)
        text = text.replace(f"{{{name}}}", str(0 if value is None else value))
    return text


def of_all(path: str | os.PathLike[str], who: Identity) -> str:
    """The name of what is written once for all ranks: ``{rank}`` stands for ``all``."""
    text = os.fspath(path).replace("{rank}", "all").replace("{local_rank}", "all")
    return text.replace("{world_size}", str(who.world_size)).replace("{host}", who.host)


def found_by_any(path: str | os.PathLike[str], who: Identity) -> list[str]:
    """The files that a name may stand for, whichever rank wrote them, this rank's own first.

    A file stands for itself, a folder for the JSON files in it, ``*``, ``?`` and ``[...]`` for what they match, and a
    name with ``{rank}``, or one whose file is not there, for the files that :func:`of_rank` makes of it.
    """
    text = os.fspath(path)
    if os.path.isdir(text):
        found = sorted(str(each) for each in Path(text).glob("*.json") if each.is_file())
    elif os.path.exists(text):
        return [text]
    elif any(f"{{{name}}}" in text for name in _FIELDS):
        pattern = glob.escape(text)
        for name in _FIELDS:
            pattern = pattern.replace(f"{{{name}}}", "*")
        found = _numbered(pattern)
    else:
        stem, ending = os.path.splitext(text)
        found = _numbered(f"{glob.escape(stem)}{_TAG}*{glob.escape(ending)}") or _numbered(text)
    own = of_rank(text, who) if not os.path.isdir(text) else ""
    beside = f"{_TAG}{who.rank}."
    return sorted(found, key=lambda name: name != own and beside not in os.path.basename(name))


def _numbered(pattern: str) -> list[str]:
    """What a pattern matches, rank 2 before rank 10."""
    return sorted(
        (name for name in glob.glob(pattern) if os.path.isfile(name)), key=lambda name: (len(name), name)
    )
