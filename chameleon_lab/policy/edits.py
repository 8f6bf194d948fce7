"""A user's edits, which bind the planner, and their faults.

An edit names storages by what made them, never by addresses or op indices, so that it outlives the plan, the
process and the sequence length. It is either for one storage (its key, and perhaps one of its gaps) or a rule
(module path, category, stage, size); a rule's conditions must all hold.

Where several edits speak of the same gap, one decides: an edit of one gap before one of a storage, that before
a rule, and among equals the one that comes later. Whether a storage may be away and how (keep, swap, rematerialize,
never touch), whether the planner may rematerialize it (never rematerialize) and when its block comes back (prefetch)
are separate questions; of rematerialize and never rematerialize one decides. Capacity and link: the last edit of each
kind holds.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from ..errors import BelowFloorError, PolicyError
from ..trace import Category, Stage, StepTrace
from ..trace.labels import holder
from ..util.units import format_bytes, parse_bytes
from .link import Link, parse_link

MOST = 2**63 - 1
"""The largest number, positive or negative, that an edit takes: what an int64 holds."""

_SURROGATES = re.compile("[\ud800-\udfff]")

CATEGORIES = tuple(category.name.lower() for category in Category)
STAGES = tuple(stage.name.lower() for stage in Stage)


class EditAction(StrEnum):
    """What an edit asks for."""

    KEEP = "keep"
    """The plan never sends it away. Eviction under pressure may, as any other storage."""
    SWAP = "swap"
    """It leaves in the gap named, or in its longest one."""
    NEVER_TOUCH = "never_touch"
    """The plan never sends it away, and eviction takes it last: only where the step would fail otherwise. Of one
    gap, the plan keeps that gap, and eviction, which knows no gaps, spares the storage at any time."""
    REMATERIALIZE = "rematerialize"
    """It is dropped in the gap named, or in its longest one, and the op that made it is replayed."""
    NEVER_REMATERIALIZE = "never_rematerialize"
    """The plan never drops it: it stays or is swapped."""
    PREFETCH = "prefetch"
    """If it is swapped, its block comes back so many ops earlier, or later, than planned."""
    CAPACITY = "capacity"
    """Plan for this many bytes."""
    LINK = "link"
    """Plan for this link."""


_RESIDENCE = (EditAction.KEEP, EditAction.SWAP, EditAction.NEVER_TOUCH, EditAction.REMATERIALIZE)
_SELECTORS = ("storage", "gap", "module", "category", "stage", "min_bytes", "max_bytes")
_SIZES = ("min_bytes", "max_bytes", "capacity_bytes")
_VALUES = {
    EditAction.PREFETCH: "ops_earlier",
    EditAction.CAPACITY: "capacity_bytes",
    EditAction.LINK: "link",
}


@dataclass(frozen=True)
class Edit:
    """One edit. Fields that do not apply are None. Sizes are bytes or text such as ``"4MiB"``, and a link is written as
    for :func:`~chameleon_lab.planner.plan`.

    Raises PolicyError if the fields contradict each other, or one is none.
    """

    action: EditAction
    storage: str | None = None
    """Key of one storage, see StepTrace.storage_keys."""
    gap: int | None = None
    """With ``storage``: ordinal of the use that the gap follows. None: the whole storage."""
    module: str | None = None
    """Glob over module paths: ``h.*.mlp``. ``*`` also matches dots. A module's parts belong to it: ``h.0`` matches
    ``h.0.mlp`` too. Parameters, gradients and optimizer states belong to the module that holds the parameter, all
    others to that whose op made them."""
    category: str | None = None
    """Name of a Category, in lower case."""
    stage: str | None = None
    """Name of the Stage, in lower case, of the op that made it. What was there before the step matches none."""
    min_bytes: int | None = None
    """Blocks of at least this size on the device."""
    max_bytes: int | None = None
    """Blocks of at most this size on the device."""
    ops_earlier: int | None = None
    """Of a prefetch: how many ops earlier the block is allocated and the copy back issued; negative: later."""
    capacity_bytes: int | None = None
    link: Link | None = None
    note: str | None = None
    """For people: why."""

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "action", EditAction(self.action))
        except ValueError:
            known = ", ".join(action.value for action in EditAction)
            raise PolicyError(f"there is no edit {self.action!r}; known are {known}") from None
        for name in _SIZES:
            self._read(name, lambda value, name: parse_bytes(value, name, none=name != "capacity_bytes"), int)
        self._read("link", parse_link, Link)
        for name, kind in _TYPES.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, kind) or isinstance(value, bool) or value == ""):
                raise PolicyError(
                    f"{self.action} edit: {name} is {value!r}: give a {kind.__name__}, or leave it out"
                )
            if isinstance(value, int) and abs(value) > MOST:
                raise PolicyError(
                    f"{self.action} edit: {name} has {value.bit_length()} bits: "
                    f"give a whole number from {-MOST} to {MOST}"
                )
            if isinstance(value, str) and _SURROGATES.search(value):
                raise PolicyError(
                    f"{self.action} edit: {name} is {value!r}, which holds half a surrogate pair and cannot be "
                    "written to a file: leave that character out"
                )
        self._check_target()
        self._check_value()

    def _read(self, name: str, read: Callable[[Any, str], Any], kind: type) -> None:
        value = getattr(self, name)
        if value is None or isinstance(value, kind):
            return
        try:
            object.__setattr__(self, name, read(value, name))
        except (ValueError, TypeError) as error:
            raise PolicyError(f"{self.action} edit: {error}") from None

    def _check_target(self) -> None:
        given = [name for name in _SELECTORS if getattr(self, name) is not None]
        if self.action in (EditAction.CAPACITY, EditAction.LINK):
            if given:
                raise PolicyError(f"{self.action} edit: it is for the whole plan: leave out {given[0]}")
            return
        if not given:
            raise PolicyError(
                f"{self.action} edit: it names no storage: give a storage, or a module, category, stage or size"
            )
        if self.storage is not None and (extra := [name for name in given if name not in ("storage", "gap")]):
            raise PolicyError(
                f"{self.action} edit: it names the storage {self.storage!r} and has a rule too: leave out "
                f"{extra[0]}, or the storage"
            )
        if self.gap is not None and (self.storage is None or self.gap < 0):
            raise PolicyError(f"{self.action} edit: gap {self.gap} needs a storage, and counts from 0")
        for name, known in (("category", CATEGORIES), ("stage", STAGES)):
            value = getattr(self, name)
            if value is not None and value not in known:
                raise PolicyError(f"{self.action} edit: {name} {value!r} is none of {', '.join(known)}")
        low, high = self.min_bytes or 0, self.max_bytes
        if low < 0 or (high is not None and high < low):
            raise PolicyError(
                f"{self.action} edit: no size is from {low} to {high} bytes: swap min_bytes and max_bytes"
            )

    def _check_value(self) -> None:
        needed = _VALUES.get(self.action)
        for name in _VALUES.values():
            given = getattr(self, name) is not None
            if given != (name == needed):
                how = f"leave out {name}" if given else f"give {name}"
                raise PolicyError(f"{self.action} edit: {how}")
        if self.ops_earlier == 0:
            raise PolicyError(
                "prefetch edit: 0 ops earlier changes nothing: give a number above 0, or below for later"
            )
        if self.capacity_bytes is not None and self.capacity_bytes <= 0:
            raise PolicyError(
                f"capacity edit: capacity_bytes is {self.capacity_bytes}: give a number above 0"
            )

    @property
    def specificity(self) -> int:
        """2 for one gap, 1 for one storage, 0 for a rule: the higher decides."""
        return 2 if self.gap is not None else 1 if self.storage is not None else 0

    @property
    def is_residence(self) -> bool:
        """Is it about being away at all: keep, swap, rematerialize or never touch?"""
        return self.action in _RESIDENCE

    @property
    def leaves(self) -> bool:
        """Does it demand that a storage leaves the device?"""
        return self.action in (EditAction.SWAP, EditAction.REMATERIALIZE)

    def to_dict(self) -> dict[str, Any]:
        """The edit as plain JSON, without what does not apply."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values = {name: value for name, value in values.items() if value is not None}
        values["action"] = self.action.value
        if self.link is not None:
            values["link"] = self.link.to_dict()
        return values

    def __str__(self) -> str:
        if self.action is EditAction.CAPACITY:
            return f"capacity {format_bytes(self.capacity_bytes or 0)}"
        if self.link is not None:
            return f"link {self.link}"
        what = self.action.value.replace("_", " ")
        if self.ops_earlier is not None:
            what += f" {abs(self.ops_earlier)} ops {'earlier' if self.ops_earlier > 0 else 'later'}"
        if self.storage is not None:
            return f"{what} {self.storage}" + ("" if self.gap is None else f", gap {self.gap}")
        rule = [
            f"{name} {getattr(self, name)}" for name in ("module", "category", "stage") if getattr(self, name)
        ]
        if self.min_bytes is not None:
            rule.append(f"from {format_bytes(self.min_bytes)}")
        if self.max_bytes is not None:
            rule.append(f"up to {format_bytes(self.max_bytes)}")
        return f"{what} all of {', '.join(rule)}"


_TYPES: dict[str, type] = {
    **dict.fromkeys(("storage", "module", "category", "stage", "note"), str),
    **dict.fromkeys(("gap", "min_bytes", "max_bytes", "ops_earlier", "capacity_bytes"), int),
    "link": Link,
}


class Fault(StrEnum):
    """What is wrong with an edit."""

    UNMATCHED = "unmatched"
    """No storage of the step is meant."""
    IMPOSSIBLE = "impossible"
    """What it names is there, but cannot do what it asks."""
    CONTRADICTED = "contradicted"
    """Another edit of the same rank asks for the opposite, comes later, and decides."""
    OVERRIDDEN = "overridden"
    """More specific edits decide everywhere."""
    CLIPPED = "clipped"
    """It was obeyed as far as the capacity allows."""
    UNREACHABLE = "unreachable"
    """With it, no policy fits the capacity."""


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with one edit, why, and the way out."""

    fault: Fault
    index: int
    """Position of the edit in the policy, from 0."""
    edit: Edit
    why: str
    way_out: str
    least_bytes: int | None = None
    """Where the edits leave no room: the smallest capacity that they can be obeyed in."""

    @property
    def is_error(self) -> bool:
        """Does it stop the plan? All others are obeyed as far as they can be, and reported."""
        return self.fault is Fault.UNREACHABLE

    def to_dict(self) -> dict[str, Any]:
        """The finding as plain JSON."""
        return {
            "fault": self.fault.value,
            "index": self.index,
            "edit": self.edit.to_dict(),
            "why": self.why,
            "way_out": self.way_out,
            "least_bytes": self.least_bytes,
        }

    def __str__(self) -> str:
        return f"edit {self.index + 1} ({self.edit}) is {self.fault}: {self.why}; {self.way_out}"


class EditsUnreachableError(BelowFloorError):
    """With a policy's edits no plan fits the capacity, and without them one would."""

    def __init__(
        self,
        message: str,
        findings: tuple[Finding, ...] = (),
        others: tuple[Finding, ...] = (),
        **figures: Any,
    ) -> None:
        super().__init__(message, **figures)
        self.findings = findings
        """One for each edit that is to blame, the heaviest first."""
        self.others = others
        """What else is wrong with the edits, as far as it shows without a plan."""

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        """Both, in the order of the edits."""
        return tuple(sorted((*self.findings, *self.others), key=lambda finding: finding.index))


class StorageIndex:
    """What edits look for, of every storage of a step."""

    def __init__(self, step: StepTrace) -> None:
        storages = step.storages
        self.keys = step.storage_keys
        self.row_of = {key: row for row, key in enumerate(self.keys)}
        self.category = [CATEGORIES[value] for value in storages.category.tolist()]
        self.bytes = storages.block_bytes.astype(np.int64)
        births, labels = storages.birth_op.tolist(), storages.name.tolist()
        self.stage = ["" if op < 0 else STAGES[int(step.ops.stage[op])] for op in births]
        self.module = [
            holder(step.labels[label]) if label >= 0 else step.module_path(module)
            for label, module in zip(labels, storages.module.tolist(), strict=True)
        ]

    def rows(self, edit: Edit) -> np.ndarray:
        """Rows of the storages that the edit means, int64, ascending."""
        if edit.storage is not None:
            row = self.row_of.get(edit.storage)
            return np.array([] if row is None else [row], dtype=np.int64)
        fits = np.ones(len(self.keys), dtype=bool)
        for name in ("category", "stage"):
            value = getattr(edit, name)
            if value is not None:
                fits &= np.array([own == value for own in getattr(self, name)], dtype=bool)
        if edit.min_bytes is not None:
            fits &= self.bytes >= edit.min_bytes
        if edit.max_bytes is not None:
            fits &= self.bytes <= edit.max_bytes
        if edit.module is not None:
            within = {path: in_module(path, edit.module) for path in set(self.module)}
            fits &= np.array([within[path] for path in self.module], dtype=bool)
        return np.flatnonzero(fits)

    def unmatched(self, index: int, edit: Edit) -> Finding:
        """The finding for an edit that means nothing here, with what might have been meant."""
        if edit.storage is not None:
            close = difflib.get_close_matches(edit.storage, self.keys, n=1)
            why = f"the step has no storage {edit.storage!r}"
        else:
            paths = sorted({path for path in self.module if path})
            close = difflib.get_close_matches(edit.module, paths, n=1) if edit.module else []
            why = "the step has no storage like this"
        way_out = f"did you mean {close[0]!r}? Mend it" if close else "mend it"
        return Finding(Fault.UNMATCHED, index, edit, why, f"{way_out}, or take it back")


def means_named(edit: Edit, category: Category, label: str, block_bytes: int) -> bool:
    """Does an edit mean a storage with a name? One of no stage: it is there before a step begins."""
    own = category.name.lower()
    if edit.storage is not None:
        return edit.storage == f"{own}:{label}"
    return (
        edit.stage is None
        and edit.category in (None, own)
        and (edit.min_bytes is None or block_bytes >= edit.min_bytes)
        and (edit.max_bytes is None or block_bytes <= edit.max_bytes)
        and (edit.module is None or in_module(holder(label), edit.module))
    )


def in_module(path: str, pattern: str) -> bool:
    """Does a glob match a module path, or that of a module around it?"""
    parts = path.split(".")
    return bool(path) and any(
        fnmatchcase(".".join(parts[:depth]), pattern) for depth in range(1, len(parts) + 1)
    )


def digest(edits: Iterable[Edit]) -> str:
    """Hash of edits in their order, notes left out. 16 hex digits."""
    plain = [{name: value for name, value in edit.to_dict().items() if name != "note"} for edit in edits]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def edit_from_dict(values: Mapping[str, Any]) -> Edit:
    """What :meth:`Edit.to_dict` made. Raises PolicyError if it is no edit."""
    known = [f.name for f in fields(Edit)]
    unknown = [name for name in values if name not in known]
    if unknown:
        raise PolicyError(f"{unknown[0]} is no field of an edit; known are {', '.join(known)}")
    if "action" not in values:
        raise PolicyError("action is missing; add it")
    values = dict(values)
    if (link := values.get("link")) is not None:
        names = [f.name for f in fields(Link)]
        if not isinstance(link, dict) or sorted(link) != sorted(names):
            raise PolicyError(f"link must be an object of {' and '.join(names)}")
        values["link"] = Link(**link)
    return Edit(**values)
