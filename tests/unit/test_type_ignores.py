"""What mypy is told to pass over says why: mypy itself asks for the code alone."""

from __future__ import annotations

import re
import tokenize
from io import StringIO
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_IGNORE = re.compile(r"# type: ignore(?P<codes>\[[a-z, -]+\])?(?P<reason>\s*#\s*\w.*)?$")


def unexplained(text: str) -> list[int]:
    """Lines with a ``type: ignore`` that has no code, or no reason there or in a comment on the line above."""
    comments = {
        token.start[0]: token
        for token in tokenize.generate_tokens(StringIO(text).readline)
        if token.type == tokenize.COMMENT
    }
    found = []
    for number, comment in comments.items():
        if not re.search(r"type:\s*ignore", comment.string):
            continue
        known = _IGNORE.match(comment.string)
        above = comments.get(number - 1)
        said = above is not None and not above.line[: above.start[1]].strip()
        if known is None or not known["codes"] or not (known["reason"] or said):
            found.append(number)
    return found


@pytest.mark.parametrize("folder", ["chameleon_lab", "scripts"])
def test_each_ignore_names_its_code_and_a_reason(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    wrong = [f"{path.relative_to(ROOT)}:{line}" for path in files for line in unexplained(path.read_text())]
    assert not wrong, "write `# type: ignore[code]  # why`, or why in the line above"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("x = f()  # type: ignore\n", [1]),
        ("x = f()  # type: ignore[misc]\n", [1]),
        ("x = f()  # type: ignore  # why\n", [1]),
        ("y = 1  # of y\nx = f()  # type: ignore[misc]\n", [2]),
        ("x = f()  # type: ignore[misc]  # why\n", []),
        ("# Why.\nx = f()  # type: ignore[misc, arg-type]\n", []),
        ("x = '# type: ignore'\n", []),
    ],
)
def test_what_is_said_of_an_ignore_is_found(text: str, lines: list[int]) -> None:
    assert unexplained(text) == lines
