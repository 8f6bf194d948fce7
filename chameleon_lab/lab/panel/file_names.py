"""Files that the panel may open: suggestions while a path is typed."""

from __future__ import annotations

import os

_ENDINGS = (".parquet", ".json", ".json.gz", ".pickle", ".pkl", ".sqlite")
_DEEPEST = 3
_MOST_FILES = 200
_MOST_LOOKED_AT = 20_000


def trace_files(folder: str = ".") -> list[str]:
    """Traces, other tools' recordings and policies in a folder and those in it, as paths from there, the newest first.

    Hidden folders and those of packages are left out, and what lies deeper than three folders; it looks at a limited
    number of names, so that a home folder takes no longer than another.
    """
    found: list[tuple[float, str]] = []
    looked_at = 0
    for where, folders, names in os.walk(folder):
        depth = os.path.relpath(where, folder).count(os.sep) + (where != folder)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith((".", "__")) and name not in ("node_modules", "build")
        )
        if depth >= _DEEPEST:
            folders.clear()
        looked_at += len(names) + len(folders)
        for name in names:
            if name.endswith(_ENDINGS) and not name.startswith("."):
                path = os.path.join(where, name)
                try:
                    found.append((os.stat(path).st_mtime, os.path.relpath(path, folder)))
                except OSError:
                    continue  # gone by now
        if looked_at > _MOST_LOOKED_AT:
            break
    return [path for _, path in sorted(found, key=lambda each: (-each[0], each[1]))[:_MOST_FILES]]
