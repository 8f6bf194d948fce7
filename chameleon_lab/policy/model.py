"""What should happen: a policy is a list of decisions on gaps, with what it was made for and what it promises.

A policy is a hint. The executor obeys a decision where it still fits the live ops and skips it where it does
not, so that a stale or wrong policy costs time and never correctness. The file is JSON with one decision a
line, in program order, so that a diff shows which decisions changed.
"""

from __future__ import annotations

import hashlib
import html
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

from ..errors import PolicyError
from ..trace import StepTrace
from ..trace.store import write_then_rename
from ..units import format_bytes

VERSION = 1
"""Version of the policy file that this package writes, and the newest that it reads."""

NEVER = -1
"""``in_op`` and ``use_op`` of a swap that has no way back in the step, and ``gap`` of a storage that has no use."""

_WRITE_AGAIN = "write the file again with Policy.save, or take an older version of it"


class Action(StrEnum):
    """What a decision does in its gap."""

    KEEP = "keep"
    SWAP = "swap"


@dataclass(frozen=True)
class Link:
    """Bandwidth between device and host, one direction each. None: no copy takes any time."""

    out_bytes_per_s: float | None
    in_bytes_per_s: float | None

    def __post_init__(self) -> None:
        for name in ("out_bytes_per_s", "in_bytes_per_s"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise PolicyError(
                    f"{name} is {value!r}: give a finite bandwidth above 0, or None for no limit"
                )

    def out_s(self, size: int) -> float:
        """Seconds that a copy of ``size`` bytes to the host takes."""
        return 0.0 if self.out_bytes_per_s is None else size / self.out_bytes_per_s

    def in_s(self, size: int) -> float:
        """Seconds that a copy of ``size`` bytes to the device takes."""
        return 0.0 if self.in_bytes_per_s is None else size / self.in_bytes_per_s


@dataclass(frozen=True)
class Decision:
    """What to do with one storage in one gap. Op indices count from the start of the step that the gap begins in.

    Of a swap: the copy to the host is issued right after op ``out_op``; before op ``free_op`` the compute
    stream waits for that copy and the block is freed; before op ``in_op`` a block is allocated and the copy
    back is issued; op ``use_op`` waits for it. So ``out_op < free_op <= in_op <= use_op``, and the storage is
    away during the ops ``free_op <= i < in_op``. Indices at or above the number of ops lie in the next step.
    In dead time, after the last use of a storage that dies in this step or early in the next, ``in_op`` and ``use_op``
    are NEVER (-1). A persistent storage that no op uses has ``gap`` NEVER as well: it leaves after op ``out_op`` of the
    first step and stays away, so at later steps the decision finds nothing to do. Of a kept gap the op indices only say
    where it lies.

    Raises PolicyError if the fields contradict each other.
    """

    storage: str
    """Key of the storage, see StepTrace.storage_keys."""
    category: str
    """Name of its Category, in lower case."""
    module: str
    """Path of the module that made it, or empty."""
    bytes: int
    """Size of its block on the device."""
    action: Action
    gap: int
    """Ordinal, among the storage's uses in the step (its birth is one), of the use that the gap follows."""
    out_op: int
    free_op: int
    in_op: int
    use_op: int
    decided_by: str = "planner"

    def __post_init__(self) -> None:
        object.__setattr__(self, "action", Action(self.action))
        where = f"the decision on {self.storage!r}, gap {self.gap}"
        if self.bytes < 0 or self.gap < NEVER:
            raise PolicyError(f"{where}: bytes is {self.bytes} and gap {self.gap}; neither may be so low")
        if self.action is not Action.SWAP:
            return
        if (self.in_op == NEVER) != (self.use_op == NEVER) or (self.gap == NEVER and self.in_op != NEVER):
            raise PolicyError(
                f"{where}: in_op and use_op are both -1 (the storage does not return), or neither is, and both are "
                "where gap is -1 (nothing uses it)"
            )
        returns = self.in_op != NEVER
        if not 0 <= self.out_op < self.free_op or (returns and not self.free_op <= self.in_op <= self.use_op):
            raise PolicyError(
                f"{where}: a swap needs 0 <= out_op < free_op <= in_op <= use_op, "
                f"not {self.out_op}, {self.free_op}, {self.in_op}, {self.use_op}; mend the order or delete the decision"
            )


@dataclass(frozen=True)
class Policy:
    """Decisions for a training step, the conditions they were made for, and what they should achieve.

    Gaps without a decision are kept. Raises PolicyError if two decisions name the same gap of the same
    storage.
    """

    capacity_bytes: int
    link: Link
    decisions: tuple[Decision, ...]
    assumed: dict[str, Any] = field(default_factory=dict)
    """The step it was made for: ``fingerprint`` (see :func:`fingerprint`), ``ops``, ``torch``,
    ``live_peak_bytes``, ``min_swap_bytes``. Values are plain JSON."""
    predicted: dict[str, Any] = field(default_factory=dict)
    """What :func:`~chameleon_lab.policy.simulate` says of it: ``peak_bytes``, ``step_s``, ``stall_s``,
    ``overlap``, ``swapped_out_bytes``, ``swapped_in_bytes``. Values are plain JSON."""
    version: int = VERSION

    def __post_init__(self) -> None:
        object.__setattr__(self, "decisions", tuple(self.decisions))
        seen: set[tuple[str, int]] = set()
        for decision in self.decisions:
            gap = (decision.storage, decision.gap)
            if gap in seen:
                raise PolicyError(f"two decisions on {gap[0]!r}, gap {gap[1]}: delete one of them")
            seen.add(gap)

    def __len__(self) -> int:
        return len(self.decisions)

    @property
    def swaps(self) -> tuple[Decision, ...]:
        """The decisions that swap."""
        return tuple(decision for decision in self.decisions if decision.action is Action.SWAP)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy to ``path``: to a file beside it first, which then takes its place.

        Raises PolicyError if ``assumed`` or ``predicted`` hold something that JSON cannot, OSError if the
        file cannot be written.
        """
        text = self.to_json()
        with write_then_rename(path) as beside:
            beside.write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """Read what :meth:`save` wrote.

        Raises PolicyError, naming file, place, value and way out, if the file is truncated, of a newer
        version, or has a field missing, unknown or of the wrong type; OSError if it cannot be read.
        """
        with open(path, "rb") as file:
            data = file.read()
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise PolicyError(
                f"{path}, byte {error.start}: this is no policy file, its text is not UTF-8"
            ) from error
        return cls.from_json(text, source=str(path))

    def to_json(self) -> str:
        """The text of the policy file."""
        try:
            head = [
                f' "chameleon_lab_policy": {self.version},',
                f' "capacity_bytes": {self.capacity_bytes},',
                f' "link": {_line(asdict(self.link))},',
                f' "assumed": {_line(self.assumed)},',
                f' "predicted": {_line(self.predicted)},',
            ]
        except (TypeError, ValueError) as error:
            raise PolicyError(
                f"assumed and predicted must hold plain, finite JSON values: {error}"
            ) from error
        body = ",\n".join("  " + _line(asdict(decision)) for decision in self.decisions)
        decisions = f' "decisions": [\n{body}\n ]' if body else ' "decisions": []'
        return "\n".join(["{", *head, decisions, "}", ""])

    @classmethod
    def from_json(cls, text: str, source: str = "policy") -> Policy:
        """Read the text of a policy file; errors call it ``source``. Raises PolicyError as :meth:`load` does."""
        try:
            data = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            place = (
                f", line {error.lineno} column {error.colno}"
                if isinstance(error, json.JSONDecodeError)
                else ""
            )
            raise PolicyError(f"{source}{place}: truncated, or not JSON ({error}); {_WRITE_AGAIN}") from error
        if not isinstance(data, dict) or "chameleon_lab_policy" not in data:
            raise PolicyError(f"{source}: this is no Chameleon Lab policy: 'chameleon_lab_policy' is missing")
        version = _typed(data["chameleon_lab_policy"], "int", source, "chameleon_lab_policy")
        if version > VERSION or version < 1:
            raise PolicyError(
                f"{source}: it is of policy version {version}, and this Chameleon Lab reads up to {VERSION}: "
                "upgrade Chameleon Lab, or generate the policy anew"
            )
        top = _checked(data, _TOP, source, "")
        link = _checked(top["link"], _LINK, source, "link.")
        decisions = []
        for index, entry in enumerate(top["decisions"]):
            place = f"decisions[{index}]"
            values = _checked(_typed(entry, "object", source, place), _DECISION, source, f"{place}.")
            if values["action"] not in (known := [action.value for action in Action]):
                raise PolicyError(
                    f"{source}: {place}.action is {values['action']!r}; this Chameleon Lab knows {', '.join(known)}: "
                    "mend it, or upgrade Chameleon Lab"
                )
            values["action"] = Action(values["action"])
            try:
                decisions.append(Decision(**values))
            except PolicyError as error:
                raise PolicyError(f"{source}: {place}: {error}") from error
        try:
            return cls(
                capacity_bytes=top["capacity_bytes"],
                link=Link(**link),
                decisions=tuple(decisions),
                assumed=top["assumed"],
                predicted=top["predicted"],
                version=version,
            )
        except PolicyError as error:
            raise PolicyError(f"{source}: {error}") from error

    def summary(self) -> list[tuple[str, int, int]]:
        """Per category: its name, how many gaps are swapped, and the bytes of their blocks. Largest first."""
        totals: dict[str, tuple[int, int]] = {}
        for decision in self.swaps:
            count, size = totals.get(decision.category, (0, 0))
            totals[decision.category] = (count + 1, size + decision.bytes)
        rows = [(category, count, size) for category, (count, size) in totals.items()]
        return sorted(rows, key=lambda row: (-row[2], row[0]))

    def __str__(self) -> str:
        lines = [self._headline()]
        lines += [
            f"  {category:<16} {count:>6} gaps {format_bytes(size):>12}"
            for category, count, size in self.summary()
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(category)}</td><td>{count}</td><td>{format_bytes(size)}</td></tr>"
            for category, count, size in self.summary()
        )
        table = (
            f"<table><tr><th>category</th><th>gaps swapped</th><th>bytes</th></tr>{rows}</table>"
            if rows
            else ""
        )
        return f"<div><p>{html.escape(self._headline())}</p>{table}</div>"

    def _headline(self) -> str:
        text = f"Policy: {len(self.swaps)} swaps, capacity {format_bytes(self.capacity_bytes)}"
        peak = self.assumed.get("live_peak_bytes")
        if isinstance(peak, int):
            text += f" of {format_bytes(peak)} live"
        stall, step = self.predicted.get("stall_s"), self.predicted.get("step_s")
        if isinstance(stall, (int, float)) and isinstance(step, (int, float)) and step > stall:
            text += f", predicted stall {100 * stall / (step - stall):.1f} % of compute"
        return text


def fingerprint(step: StepTrace) -> str:
    """Hash of the op sequence of a step: names and stages in program order. 16 hex digits.

    Steps of equal fingerprint may still differ in shapes, and so in bytes.
    """
    sequence = hashlib.sha256("\n".join(step.names[name] for name in step.ops.name.tolist()).encode())
    sequence.update(step.ops.stage.astype("uint8").tobytes())
    return sequence.hexdigest()[:16]


_TOP = {
    "chameleon_lab_policy": "int",
    "capacity_bytes": "int",
    "link": "object",
    "assumed": "object",
    "predicted": "object",
    "decisions": "array",
}
_LINK = {"out_bytes_per_s": "number or null", "in_bytes_per_s": "number or null"}
_DECISION = {f.name: "int" if f.type == "int" else "string" for f in fields(Decision)}


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _typed(value: Any, kind: str, source: str, place: str) -> Any:
    """``value`` if it is of the JSON type ``kind``; PolicyError otherwise."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    fits = {
        "int": isinstance(value, int) and number,
        "number or null": number or value is None,
        "string": isinstance(value, str),
        "object": isinstance(value, dict),
        "array": isinstance(value, list),
    }[kind]
    if not fits:
        shown = json.dumps(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        raise PolicyError(
            f"{source}: {place} is {shown}, but it must be of type {kind}; mend it, or {_WRITE_AGAIN}"
        )
    return value


def _checked(data: Mapping[str, Any], kinds: Mapping[str, str], source: str, prefix: str) -> dict[str, Any]:
    """The fields of a JSON object, every one of ``kinds`` and no other."""
    missing = [name for name in kinds if name not in data]
    if missing:
        raise PolicyError(f"{source}: {prefix}{missing[0]} is missing; add it, or {_WRITE_AGAIN}")
    unknown = [name for name in data if name not in kinds]
    if unknown:
        raise PolicyError(
            f"{source}: {prefix}{unknown[0]} is no field of a policy; known are {', '.join(kinds)}"
        )
    return {name: _typed(data[name], kind, source, prefix + name) for name, kind in kinds.items()}
