"""The one report that a job leaves of all its ranks: each writes its side beside it, and rank 0 puts them together."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .ranks.file_names import of_all
from .ranks.identity import Identity
from .ranks.side import RankSide
from .ranks.side_by_side import MergedReport, merged
from .util.files import is_no_file, write_then_rename

if TYPE_CHECKING:
    from .session import Session

PATIENCE_S = 60.0
"""Rank 0 waits so long for the other ranks' sides: they end their training when it does."""

_ASKS_EVERY_S = 0.05
_JOB = (
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    *("SLURM_JOB_ID", "SLURM_STEP_ID"),
)
"""Variables that the ranks of a job have in common, and another job has not."""


class MergedFile:
    """Where a job's report is, and the sides beside it.

    Args:
        path: of the report, as it was asked for.
        who: the rank that this is.
        environment: in place of the process's.
    """

    def __init__(
        self, path: str | os.PathLike[str], who: Identity, environment: Mapping[str, str] | None = None
    ) -> None:
        variables = os.environ if environment is None else environment
        self.path = Path(of_all(path, who))
        self._who = who
        self._job = [who.world_size, *(variables.get(name, "") for name in _JOB)]
        self._is_file = not is_no_file(self.path)

    @property
    def is_wanted(self) -> bool:
        """Is there more than one rank, and a place for sides?"""
        return self._is_file and not self._who.is_alone

    def _side_of(self, rank: int) -> Path:
        return self.path.with_name(f".{self.path.name}.rank{rank}.side")

    def begin(self) -> None:
        """An earlier run's side of this rank is none of this run."""
        if self.is_wanted:
            self._side_of(self._who.rank).unlink(missing_ok=True)

    def write_side(self, session: Session) -> None:
        """Leave what rank 0 needs of this one. Raises OSError."""
        values = {"job": self._job, "side": RankSide.of(session.trace()).to_dict()}
        with write_then_rename(self._side_of(self._who.rank)) as beside:
            beside.write_text(json.dumps(values), encoding="utf-8")

    def merge(self, patience_s: float) -> MergedReport:
        """Put together what the ranks have left, and write it. Waits for those that are missing, up to a limit.

        Raises OSError where it cannot be written.
        """
        until_s = time.monotonic() + patience_s
        sides: dict[int, RankSide] = {}
        while True:
            for rank in set(range(self._who.world_size)) - set(sides):
                if (side := self._read(rank)) is not None:
                    sides[rank] = side
            if len(sides) == self._who.world_size or time.monotonic() >= until_s:
                break
            time.sleep(_ASKS_EVERY_S)
        report = merged(list(sides.values()))
        if self.path.suffix == ".json":
            text = json.dumps(report.to_dict(), indent=2, ensure_ascii=False) + "\n"
        else:
            from .lab.figures.ranks_page import ranks_page

            text = ranks_page(report)
        with write_then_rename(self.path) as beside:
            beside.write_text(text, encoding="utf-8")
        for rank in sides:
            self._side_of(rank).unlink(missing_ok=True)
        return report

    def _read(self, rank: int) -> RankSide | None:
        try:
            values = json.loads(self._side_of(rank).read_text(encoding="utf-8"))
            return RankSide.of_dict(values["side"]) if values["job"] == self._job else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
