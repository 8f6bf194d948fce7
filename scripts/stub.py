"""Write chameleon_lab/_C.pyi and _planner.pyi, the types of the C++ extensions, from what the built modules say.

python scripts/stub.py           # after a change of a bindings.cpp, and `make build`
python scripts/stub.py --check   # exit with 1 where what is there is stale
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chameleon_lab import _planner
from chameleon_lab.runtime import core

PACKAGE = Path(__file__).parent.parent / "chameleon_lab"
EXTENSIONS = (("_C", core._C, "csrc/bindings.cpp"), ("_planner", _planner, "csrc/planner/bindings.cpp"))

HEAD = """# Written by scripts/stub.py from the built module: change {source}.
# ruff: noqa
import collections.abc
import typing

import numpy
import numpy.typing

"""


def stub(module: Any, source: str) -> str:
    """The file."""
    parts = [line for name, value in _members(module) for line in _declared(name, value)]
    return HEAD.format(source=source) + "\n".join(parts) + "\n"


def _members(of: Any) -> Iterator[tuple[str, Any]]:
    known = vars(of).items() if inspect.isclass(of) else inspect.getmembers(of)
    return ((name, value) for name, value in sorted(known) if not name.startswith("_") or name == "__init__")


def _declared(name: str, value: Any, indent: str = "") -> list[str]:
    if inspect.isclass(value):
        body = [line for inner, member in _members(value) for line in _declared(inner, member, "    ")]
        return [f"class {name}:", *(body or ["    ..."])]
    if isinstance(value, property):
        lines = [f"{indent}@property", f"{indent}def {name}(self) -> {_returns(value.fget)}: ..."]
        if value.fset is not None:
            given = _returns(value.fget)
            lines += [f"{indent}@{name}.setter", f"{indent}def {name}(self, value: {given}) -> None: ..."]
        return lines
    if callable(value):
        signatures = re.findall(rf"^(?:\d+\. )?{re.escape(name)}(\(.*\) -> .*)$", value.__doc__ or "", re.M)
        if not signatures and name != "__init__":  # plain C, which says nothing
            signatures = ["(*arguments: typing.Any) -> typing.Any"]
        overload = [f"{indent}@typing.overload"] if len(signatures) > 1 else []
        return [line for one in signatures for line in (*overload, f"{indent}def {name}{_plain(one)}: ...")]
    return [f"{indent}{name}: {_type_of(value)}"]


def _returns(getter: Any) -> str:
    return _plain((getter.__doc__ or "-> typing.Any").rpartition("-> ")[2].strip())


def _plain(signature: str) -> str:
    """What pybind says, as Python says it: C++ rows are structured arrays, the core's own classes are of this file."""
    signature = re.sub(r"numpy\.typing\.NDArray\[chameleon::\w+\]", "numpy.ndarray", signature)
    signature = re.sub(r"\bchameleon_lab(\.with_cuda)?\.(_C|_planner)\.", "", signature)
    signature = re.sub(r"\(self: \w+", "(self", signature).replace("chameleon::", "")
    for kind in ("int", "float"):  # the second word is of newer versions of pybind
        signature = re.sub(rf"typing\.Supports{kind.title()}( \| typing\.SupportsIndex)?", kind, signature)
    return re.sub(r"\b(types\.CapsuleType|capsule)\b", "typing.Any", signature)


def _type_of(value: Any) -> str:
    if isinstance(value, dict):
        key, inner = next(iter(value.items()))
        return f"dict[{_type_of(key)}, {_type_of(inner)}]"
    return f"tuple[{_type_of(value[0])}, ...]" if isinstance(value, tuple) else type(value).__name__


if __name__ == "__main__":
    check, stale = "--check" in sys.argv[1:], False
    for name, module, source in EXTENSIONS:
        file, text = PACKAGE / f"{name}.pyi", stub(module, source)
        if not file.exists() or file.read_text() != text:
            stale = True
            print(f"{'stale' if check else 'written'}: {file.name}")
            if not check:
                file.write_text(text)
    sys.exit(int(check and stale))
