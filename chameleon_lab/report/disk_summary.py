"""What a session has done with its disk, in figures and as rows of its report."""

from __future__ import annotations

from dataclasses import dataclass

from ..util.units import format_bytes

_DAY_S = 86_400.0


@dataclass(frozen=True)
class DiskSummary:
    """The disk of a session, since it began."""

    folder: str
    capacity_bytes: int | None
    """Most bytes that the file may take; None before the session has begun, where none were given."""
    verify: bool = False
    """Are checksums kept, and compared?"""
    used_bytes: int = 0
    """Of storages that are away now."""
    peak_bytes: int = 0
    """Most of them at once."""
    file_bytes: int = 0
    """What the file takes of the disk."""
    direct: bool = True
    """Do moves bypass the page cache?"""
    written_bytes: int = 0
    read_bytes: int = 0
    failed_writes: int = 0
    """Copies out that the disk did not take: their storages stayed on the device."""
    failed_reads: int = 0
    """Copies in that it did not give back: whoever needed them got an error."""
    short_moves: int = 0
    """Moves that the system cut short, and that were carried on."""
    bad_checksums: int = 0
    """Pieces that came back as other bytes than were written."""
    refusal: str = ""
    """Why it takes no more storages; empty: it does."""

    def place_row(self) -> tuple[str, str, str]:
        """Where and how much."""
        bound = "" if self.capacity_bytes is None else f" of {format_bytes(self.capacity_bytes)} at most"
        how = "direct I/O" if self.direct else "through the page cache: this file system refuses direct I/O"
        checked = "; every piece is checked" if self.verify else ""
        return (
            "Disk",
            self.folder,
            f"{format_bytes(self.used_bytes)} away, peak {format_bytes(self.peak_bytes)}{bound}; {how}{checked}",
        )

    def rows(self, step_bytes: int, step_s: float) -> list[tuple[str, str, str]]:
        """What was written, and what went wrong. ``step_bytes``: written in the newest step, of ``step_s`` seconds."""
        pace = ""
        if step_bytes and step_s:
            pace = f"{format_bytes(step_bytes)} in the newest step; {step_bytes / step_s * _DAY_S / 1e12:.3g} TB a day"
        rows = [("Disk writes", format_bytes(self.written_bytes), pace or "whole session")]
        faults = [
            (self.failed_writes, "failed writes, whose storages stayed on the device"),
            (self.failed_reads, "failed reads"),
            (self.bad_checksums, "pieces with other bytes than were written"),
            (self.short_moves, "moves cut short and carried on"),
        ]
        if any(count for count, _ in faults):
            words = "; ".join(f"{count} {what}" for count, what in faults if count)
            rows.append(("Disk faults", str(sum(count for count, _ in faults)), words))
        if self.refusal:
            rows.append(("Disk", "takes no more", self.refusal))
        return rows
