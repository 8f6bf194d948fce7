"""The same calls without Chameleon Lab, with every storage forced away before every op, and with a random part of them
away in a capacity just above the largest op's working set.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from chameleon_lab.runtime import core
from chameleon_lab.testing import evict_always

from .compare import attempt, bits, different
from .outcome import Outcome

Tries = Sequence[tuple[bool, Any]]
"""What :func:`~.compare.attempt` returned for each of them."""

_ROOM = 0.3  # of the largest op's working set, at most, that the capacity is above it
_SIZES = (*range(16, 1040, 16), 4096, 32768)  # malloc keeps what is free by steps of 16 bytes
_MORE_CALLS = 6
_DENIED = "Chameleon Lab: the capacity of"


def by_name(named: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """What a database of PyTorch's lists, by names that are unique: the second of a name gets a prime."""
    found: dict[str, Any] = {}
    for name, entry in named:
        while name in found:
            name += "'"
        found[name] = entry
    return found


def compare(outcome: Outcome, label: str, run: Callable[[], Tries], seed: int, *, sure: bool = False) -> None:
    """Run the tries both ways, and write down in ``outcome`` where they differ.

    ``run`` makes its inputs itself, from the same seed each time, and returns as many tries each time. Where it fails
    without Chameleon Lab too, or a try fails or gives something else each time, that is skipped; if it is ``sure`` to
    work without, that is wrong, unless a package is not installed.
    """
    made, tries = attempt(run)
    if not made:
        outcome.skipped[f"no samples can be made ({tries.split(':')[0]})"] += 1
        return
    want = _bits(tries)
    _dirty_free_memory()
    again = _bits(run())
    with evict_always():
        made, tries = attempt(run)
        working_set_bytes = core.of().counters()["peak_resident_bytes"]
    forced = _judged(
        outcome, f"{label}, all away", made, tries
    )  # after the session: they must have come back
    del tries  # what cannot leave would count in the next session
    room = random.Random(seed).uniform(0, _ROOM)
    capacity_bytes = max(int(working_set_bytes * (1 + room)), 1)
    with evict_always(seed=seed, capacity=capacity_bytes):
        made, tries = attempt(run)
    mixed = _judged(outcome, f"{label}, some away", made, tries)
    for way, results in (("all away", forced), ("some away", mixed)):
        if results and not len(want) == len(again) == len(results):
            outcome.wrong.append(f"{label}, {way}: {len(results)} samples were made, not {len(want)}")
            return
    steady = _steady(run, want, [forced, mixed])
    for place, (ok, plain) in enumerate(want):
        if not ok:
            if sure and not plain.startswith("ModuleNotFoundError"):
                outcome.wrong.append(f"{label}: it fails without Chameleon Lab too: {plain}")
            else:
                outcome.skipped[f"fails without Chameleon Lab too ({plain.split(':')[0]})"] += 1
            continue
        if again[place] != (ok, plain) or not steady[place]:
            if sure:
                outcome.wrong.append(f"{label}: two calls without Chameleon Lab differ")
            else:
                outcome.skipped["two calls without Chameleon Lab differ"] += 1
            continue
        for way, results in (("all away", forced), ("some away", mixed)):
            if not results:
                continue
            outcome.tried += 1
            came, got = results[place]
            if not came and _DENIED in got:
                outcome.named += 1
            elif not came:
                outcome.wrong.append(f"{label}, sample {place}, {way}: {got}")
            elif difference := different(plain, got):
                outcome.wrong.append(f"{label}, sample {place}, {way}: {difference}")


def _judged(outcome: Outcome, label: str, made: bool, tries: Any) -> list[tuple[bool, Any]]:
    """The tries' bits; none where not even the samples could be made."""
    if made:
        return _bits(tries)
    outcome.tried += 1
    if _DENIED in tries:
        outcome.named += 1
    else:
        outcome.wrong.append(f"{label}: {tries}")
    return []


def _steady(run: Callable[[], Tries], want: list[tuple[bool, Any]], others: list[Any]) -> list[bool]:
    """Where something differs, a few more calls tell whether it does without Chameleon Lab too: memory that is read
    before it is written may hold the same bytes twice."""
    steady = [True] * len(want)
    if all(results == want for results in others if results):
        return steady
    for _ in range(_MORE_CALLS):
        _dirty_free_memory()
        for place, result in enumerate(_bits(run())):
            steady[place] &= result == want[place]
    return steady


def _dirty_free_memory() -> None:
    """Other bytes in what is free: an op that reads memory which it has not written gives something else then."""
    blocks = [torch.empty(size, dtype=torch.uint8).random_() for size in _SIZES for _ in range(8)]
    del blocks


def _bits(tries: Tries) -> list[tuple[bool, Any]]:
    return [(ok, bits(value) if ok else value) for ok, value in tries]
