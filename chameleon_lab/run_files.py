"""The output files of a run: their paths are checked before it begins, and they are written after it."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .merged_report import PATIENCE_S, MergedFile
from .ranks.file_names import of_rank
from .ranks.identity import identity
from .report.session_report import Report
from .trace import StepTrace, Trace
from .util.files import is_no_file, write_then_rename

if TYPE_CHECKING:
    from .session import Session

NO_STEP = (
    "no step has ended. An optimizer's step() ends one; where none steps, call "
    "chameleon_lab.current_session().step() at the end of each, or give --inference-steps: then each call of a model "
    "without gradients ends one"
)


def why_no_policy(session: Session) -> str:
    """Why a session that has no policy has none, and what to do."""
    if session.capacity_bytes is None:
        return "this session only records: start one with a capacity"
    if not session.planning:
        return "this session does not plan: start one with planning"
    needed, had = session.warmup_steps + 1, session.report().steps
    return f"it comes after {needed} whole steps, and this session had {had}: train on, in one session"


@dataclass(frozen=True)
class RunFiles:
    """Where to write the policy (JSON), the trace (Parquet) and the report of a session; None: not at all.

    A report is HTML, or JSON where its name ends with ``.json``. Each rank of a job has files of its own: see
    :func:`~chameleon_lab.ranks.file_names.of_rank`.

    Raises OSError if a file could not be written there.
    """

    policy: str | os.PathLike[str] | None = None
    trace: str | os.PathLike[str] | None = None
    report: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        who = identity()
        if self.report is not None:
            MergedFile(self.report, who).begin()
        for path in (self.policy, self.trace, self.report):
            if path is not None:
                _check_place(Path(of_rank(path, who)))

    def write(
        self, session: Session, patience_s: float = PATIENCE_S, earlier: Sequence[StepTrace] = ()
    ) -> Iterator[tuple[bool, str]]:
        """Write the files of a session, and say of each, in words, what became of it.

        One that fails does not keep the next from being written. Of several ranks the first one puts the reports of
        all together, and waits for those of the others at most ``patience_s``. ``earlier`` steps are saved in the
        trace too, where the session does not hold them any more.
        """

        def trace() -> Trace:
            made = session.trace()
            held = {step.index for step in made}
            return Trace([*(step for step in earlier if step.index not in held), *made], made.meta)

        for what in ("policy", "trace", "report"):
            path = getattr(self, what)
            if path is None:
                continue
            path = of_rank(path, session.rank)
            try:
                missing = getattr(self, f"_write_{what}")(session, trace, Path(path))
            except Exception as error:  # noqa: BLE001 - a run of hours is over: whatever else there is to save comes first
                missing = f"{type(error).__name__}: {error}"
            yield (
                missing is None,
                f"{path}: {f'saved the {what}' if missing is None else f'no {what}: {missing}'}",
            )

        if self.report is not None:
            yield from self._merge(MergedFile(self.report, session.rank), session, patience_s)
        if self.policy is not None:  # last: it may take long, and whoever ends the process may not wait
            yield from self._better_policy(session, Path(of_rank(self.policy, session.rank)))

    def _merge(self, file: MergedFile, session: Session, patience_s: float) -> Iterator[tuple[bool, str]]:
        """The one report of all ranks; nothing to say on the others, and where there is one rank alone."""
        if not file.is_wanted:
            return
        try:
            file.write_side(session)
            if session.rank.rank == 0:
                yield True, f"{file.path}: saved the report of all ranks\n{file.merge(patience_s)}"
        except Exception as error:  # noqa: BLE001 - as above
            yield False, f"{file.path}: no report of all ranks: {type(error).__name__}: {error}"

    def _better_policy(self, session: Session, path: Path) -> Iterator[tuple[bool, str]]:
        """The policy that the search finds which the training did not wait for, in the place of the one in force."""
        policy = session.policy_to_save()
        if policy is session.policy or policy is None:
            return
        try:
            policy.save(path)
            yield True, f"{path}: saved the policy that the search has found since"
        except Exception as error:  # noqa: BLE001 - as above
            yield False, f"{path}: still the policy in force: {type(error).__name__}: {error}"

    def _write_policy(self, session: Session, _: Callable[[], Trace], path: Path) -> str | None:
        if session.policy is not None:
            session.policy.save(path)
            return None
        return why_no_policy(session)

    def _write_trace(self, _: Session, trace: Callable[[], Trace], path: Path) -> str | None:
        made = trace()
        if not len(made):
            return NO_STEP
        made.save(path)
        return None

    def _write_report(self, session: Session, trace: Callable[[], Trace], path: Path) -> str | None:
        report = session.report()
        if path.suffix == ".json":
            text = _json(report)
        else:
            made = trace()
            if not len(made):
                return NO_STEP
            from .lab.figures.html_report import html_report

            text = html_report(made, report)
        with write_then_rename(path) as beside:
            beside.write_text(text, encoding="utf-8")
        return None


def _json(report: Report) -> str:
    return json.dumps(report.to_dict(), indent=2, ensure_ascii=False) + "\n"


def _check_place(path: Path) -> None:
    """Raise the OSError that writing would raise at the end of the run."""
    if is_no_file(path):
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return
    folder = path.parent
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(folder))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
