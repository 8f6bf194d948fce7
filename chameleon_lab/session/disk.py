"""The disk of a session: where it is, how much of it, and what has become of it."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from typing import Any

from ..report.disk_summary import DiskSummary
from ..runtime import core
from ..util.units import parse_capacity

MIN_SWAP = "64KiB"
"""Storages smaller than this leave last: their blocks have no whole pages, and small moves take more of a core."""
SHARE = 0.9
"""Of what is free on the disk when a session begins, that it may take unless it is told otherwise."""


class Disk:
    """What ``disk=`` of a session names: ``"DIR"``, or ``"DIR:200GiB"``.

    Args:
        where: the text, or the path of a folder.
        verify: keep a checksum of every piece.
        note: takes notes for the report.

    Raises ValueError, TypeError where it is no such thing.
    """

    def __init__(
        self, where: str | os.PathLike[str], *, verify: bool, note: Callable[[str], None], device: str
    ) -> None:
        if not isinstance(where, str | os.PathLike):
            raise TypeError(f'disk must be a folder, such as "/scratch" or "/scratch:200GiB", not {where!r}')
        if not core.device_traits(device)["emulated"]:
            raise ValueError(
                f"disk= is for device='cpu', the embedded device, so far: leave it out on {device!r}, whose storages "
                "go to the host's memory"
            )
        self.folder, self.capacity_bytes = _split(os.fspath(where))
        self._gives_share = self.capacity_bytes is None
        self.verify = verify
        self._note = note
        self._failed_writes = 0
        self._refused = False

    def fill(self, options: core.Options) -> None:
        """Say it to the core."""
        options.disk_folder = self.folder
        options.disk_capacity_bytes = self.limit_bytes()
        options.disk_verify = self.verify

    def limit_bytes(self) -> int:
        """What was given, or a share of what is free now."""
        if not self._gives_share:
            assert self.capacity_bytes is not None
            return self.capacity_bytes
        try:
            free_bytes = shutil.disk_usage(self.folder).free
        except OSError:  # the core says what is wrong
            return 1 << 62
        self.capacity_bytes = int(SHARE * free_bytes)
        return self.capacity_bytes

    @property
    def plan_bytes(self) -> int | None:
        """The most that plans may send there; None where nobody gave a size."""
        return None if self._gives_share else self.capacity_bytes

    def watch(self, counters: core.DiskCounters | None, step: int) -> None:
        """A step has ended: note what has gone wrong with the disk in it."""
        if counters is None:
            return
        if counters["failed_writes"] > self._failed_writes:
            self._failed_writes = counters["failed_writes"]
            self._note(
                f"step {step}: {self._failed_writes} writes to {self.folder} have failed so far; those storages have "
                "stayed on the device"
            )
        if counters["refusal"] and not self._refused:
            self._refused = True
            text = f"{self.folder} takes no more storages: {counters['refusal']}"
            warnings.warn(f"Chameleon Lab: {text}", stacklevel=2)
            self._note(text)

    def summary(self, counters: core.DiskCounters | None, used_bytes: int, peak_bytes: int) -> DiskSummary:
        """For the report."""
        known: dict[str, Any] = dict(counters) if counters is not None else {}
        return DiskSummary(
            folder=self.folder,
            capacity_bytes=self.capacity_bytes,
            verify=self.verify,
            used_bytes=used_bytes,
            peak_bytes=peak_bytes,
            **known,
        )


def _split(text: str) -> tuple[str, int | None]:
    """The folder, and the size behind a colon."""
    folder, colon, size = text.rpartition(":")
    if not colon or os.path.isdir(text) or not size[:1].isdigit():
        if not text or text.endswith(":"):
            raise ValueError(f'disk={text!r} names no folder or no size: write it like "/scratch:200GiB"')
        return text, None
    if not folder:
        raise ValueError(f'disk={text!r} names no folder: write it like "/scratch:200GiB"')
    try:
        free_bytes = shutil.disk_usage(folder).free
    except OSError:
        free_bytes = 0  # the core says what is wrong with it
    try:
        return folder, parse_capacity(size, free_bytes, "the size of disk=")
    except ValueError as error:
        raise ValueError(f"disk={text!r}: {error}") from None


def checked(
    disk: str | os.PathLike[str] | None,
    verify: bool,
    *,
    device: str,
    host_capacity: Any,
    records_only: bool,
    note: Callable[[str], None],
) -> Disk | None:
    """The disk that a session's arguments ask for. Raises ValueError, TypeError where they do not go together."""
    if not isinstance(verify, bool):
        raise TypeError(f"verify must be True or False, not {verify!r}")
    if disk is None:
        if verify:
            raise ValueError("verify=True compares what comes back from a disk: give disk= as well")
        return None
    if records_only:
        raise ValueError(
            f"disk={os.fspath(disk) if isinstance(disk, os.PathLike) else disk!r} takes what does not fit into a "
            'capacity, and there is none: give one, such as capacity="4GiB"'
        )
    found = Disk(disk, verify=verify, note=note, device=device)
    if host_capacity is not None:
        raise ValueError(
            "on the embedded device the disk takes the host memory's place: leave out host_capacity, and give the "
            f'size with the folder, as in disk="{found.folder}:200GiB"'
        )
    return found
