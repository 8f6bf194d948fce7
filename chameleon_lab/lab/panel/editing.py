"""The policy editor's side in the kernel: a draft for each source, and its prediction.

Planning a step of many ops takes longer than a person waits, and time that the training loop should have. So drafts
are planned for in another process. An edit is answered with an estimate where its plan is not there soon, and the panel
is told when it is. Nothing here changes what runs, except :meth:`~DraftEditor.dry_run`, :meth:`~DraftEditor.enable` and
:meth:`~DraftEditor.roll_back`, on request.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import BelowFloorError, ChameleonError, PolicyError, SessionError
from ...planner import Draft, Prediction, floor
from ...planner.memory import step_op_times
from ...planner.process import PlannerProcess
from ...planner.replay import Chain
from ...policy import Edit, EditAction, Link, Policy
from ...policy.diff import diff
from ...policy.edits import edit_from_dict
from ...policy.model import fingerprint
from ...report.dry_run import DryRun
from ...trace import Category, StepTrace, Trace
from ...util.units import format_bytes
from .clock import Clock, clock_of
from .decisions import ACTIONS, DecisionTable, Judged, RowActions
from .plan_worker import PlanWorker
from .planned import DraftPlan, first_plan
from .protocol import ProtocolError
from .results import Figures
from .typed import members
from .views import floor_facts

if TYPE_CHECKING:
    from ...session import Session

ASSUMED_LINK = Link(8 * 2.0**30, 8 * 2.0**30)
"""For traces that do not say how fast their link was."""

_OPENING_S = 0.15
"""How long the first answer waits for the draft to be ready."""

_RECENT_STEPS = 8
_SHOWN_CHANGES = 200
_REST_S = 1.0
_REST_SHARE = 10.0
"""Predictions move on with the run this long after the last time at least: seconds, and times what that took."""


class DraftEditor:
    """The draft of one source. May be asked from several threads at once.

    Args:
        source: what the panel calls it.
        session: whose policy is edited; None for a trace file.
        step: the newest of a file, or of a session that makes no policy; None where the session's policy is edited.
        meta: what the trace says of itself.
        planner: where drafts are planned for.
        news: called, from any thread, when there is something new to ask for.
    """

    def __init__(
        self,
        source: str,
        session: Session | None,
        step: StepTrace | None,
        meta: dict[str, Any],
        planner: PlannerProcess,
        news: Callable[[], None],
    ) -> None:
        self.source = source
        self.news = 0
        """Counts what became new."""
        self.trial: DryRun | None = None
        self._session = session
        self.meta = meta
        self._planner, self._tell = planner, news
        self._lock, self._news_lock = threading.RLock(), threading.Lock()
        self._opening: Draft | None = None
        self._worker: PlanWorker | None = None
        self._failure: ProtocolError | None = None
        self._table: tuple[DraftPlan, DraftPlan, DecisionTable] | None = None
        self._declined: dict[str, str] = {}
        self._opened = threading.Event()
        self._last_news: tuple[Any, ...] = ()
        self._clock: Clock | None = None
        self._clocked = self._retiming_s = 0.0
        self._due = -1  # the newest step that the figures should move on to
        policy = session.staging.in_force if session is not None and step is None else None
        threading.Thread(
            target=self._open, args=(policy, step), name="chameleon-lab-editor", daemon=True
        ).start()

    # ------------------------------------------------------------------------------------------------ opening

    def _open(self, policy: Policy | None, step: StepTrace | None) -> None:
        """Make the draft: of the policy in force, or of one that is planned for a step nobody has planned for."""
        try:
            if policy is None:
                assert step is not None
                policy = self._first_plan(step)
            self._take(policy, None)
        except ChameleonError as error:
            self._failure = ProtocolError("bad_edit", str(error))
        except Exception as error:  # the panel shows it, and a thread has nobody else to tell
            self._failure = ProtocolError("internal", f"{type(error).__name__}: {error}")
        finally:
            self._opened.set()
            self._say()
        if self._failure is None:
            self._planner.start()

    def _first_plan(self, step: StepTrace) -> Policy:
        times = step_op_times(step)
        out, back = (self.meta.get(f"link_{way}_bytes_per_s") for way in ("out", "in"))
        link = Link(out, back) if out and back else ASSUMED_LINK
        capacity = self.meta.get("capacity_bytes") or step.live_peak_bytes
        made = self._planner.call_or_run(
            first_plan,
            Trace([step], self.meta),
            max(int(capacity), floor(step).bytes),
            link,
            op_times=times,
            rematerialize=int(self.meta.get("replay_class") or 0),
            host_capacity_bytes=self.meta.get("host_capacity_bytes"),
        )
        return replace(made, source=step)

    def _take(self, policy: Policy, draft: Draft | None) -> None:
        """Edit this policy from now on, with the edits of an older draft if there is one."""
        if policy.source is None:
            raise PolicyError("the policy has no step: it cannot be planned anew")
        clock = clock_of(self._session, policy.source)
        times = clock.op_times
        declined = self._declined_of(policy.source)
        new = policy.draft(op_times=times) if draft is None else draft.rebase(policy, op_times=times)
        worker = PlanWorker(new, policy, self.meta, self._planner, self._say, self._is_measuring)
        with self._lock:
            if self._worker is not None:
                self._worker.stop()
            self._opening, self._worker, self._table, self._declined = new, worker, None, declined
            self._clock, self._clocked = clock, time.monotonic()

    def _declined_of(self, step: StepTrace) -> dict[str, str]:
        """By the key of a storage, why the runtime has declined to drop it, in the newest steps and in this one."""
        steps = [step]
        if (session := self._session) is not None:
            for index in session.recorded_steps()[-_RECENT_STEPS:]:
                try:
                    steps.append(session.recorded_step(index))
                except SessionError:
                    continue  # steps come and go while a cell trains
        return {
            each.storage_keys[row]: each.reasons[code]
            for each in steps
            for row, code in zip(each.declined.storage.tolist(), each.declined.refusal.tolist(), strict=True)
        }

    def clock_for(self, step: StepTrace) -> Clock | None:
        """The op times that the draft's predictions use, where they are for the ops of ``step``; else None."""
        with self._lock:
            if self._opening is None or self._clock is None:
                return None
            own = self._opening.step
            same = own is step or (len(own.ops) == len(step.ops) and fingerprint(own) == fingerprint(step))
            return self._clock if same else None

    def _move_on(self) -> None:
        """Where steps have run since, predict on their op times: the run goes on, and so do the figures."""
        session = self._running()
        if session is None or self._is_measuring() or not self._may_move_on():
            return
        draft, worker = self._drafted()
        assert self._clock is not None
        began_s = time.monotonic()
        clock = clock_of(session, draft.step)
        if clock.steps != self._clock.steps:
            self._retiming_s = time.monotonic() - began_s
            worker.move_to(clock.op_times, partial(self._moved, worker, clock))

    def _moved(self, worker: PlanWorker, clock: Clock, known: list[tuple[Policy, Judged]]) -> None:
        began_s = time.monotonic()
        with self._lock:
            draft, current = self._drafted()
            if current is not worker:
                return
            draft = draft.retimed(clock.op_times)
            worker.retime(draft, known)
            self._opening, self._clock, self._table = draft, clock, None
            self._clocked = time.monotonic()
            self._retiming_s += self._clocked - began_s

    def _may_move_on(self) -> bool:
        """Have steps ended since, and is it long enough ago? It takes time from the run."""
        session = self._session
        if session is None or self._clock is None or not (kept := session.recorded_steps()):
            return False
        if self._worker is not None and self._worker.is_at_work:
            return False
        rest_s = max(_REST_S, _REST_SHARE * self._retiming_s)
        return kept[-1] != self._clock.steps[-1] and time.monotonic() - self._clocked >= rest_s

    # ------------------------------------------------------------------------------------------------ state

    def state(self) -> dict[str, Any]:
        """The draft, what it comes to, and what can be done with it."""
        self._opened.wait(_OPENING_S)
        if not self._opened.is_set():
            return self._shut("Preparing the draft")
        if self._failure is not None:
            return self._shut(str(self._failure))
        with self._lock:
            self._follow()
            self._move_on()
            state = self._state()
        self._drafted()[1].wake()
        return state

    def _state(self) -> dict[str, Any]:
        draft, worker = self._drafted()
        current, made = worker.in_force, worker.look(draft)
        session = self._running()
        staged = [edit for edit in draft.edits if edit not in current.edits]
        gone = [edit for edit in current.edits if edit not in draft.edits]
        return {
            "source": self.source,
            "editable": True,
            "why": "",
            "news": self.news,
            "actions": list(ACTIONS),
            "edits": [
                {"edit": edit.to_dict(), "text": str(edit), "staged": edit in staged} for edit in draft.edits
            ],
            "staged": len(staged) + len(gone),
            "follows": self._rows().follows if made.policy is not None else 0,
            "can_undo": draft.can_undo,
            "can_redo": draft.can_redo,
            "same": draft.edits == current.edits,
            "exact": made.exact,
            "fits": made.policy is not None and made.error == "",
            "error": made.error,
            "findings": [
                {
                    "fault": finding.fault.value,
                    "index": finding.index,
                    "why": finding.why,
                    "way_out": finding.way_out,
                    "least_bytes": finding.least_bytes,
                    "is_error": finding.is_error,
                }
                for finding in made.findings
            ],
            "plan_s": worker.plan_s,
            "clock": str(self._clock),
            "now": self._now(),
            "current": _figures(current),
            "draft": _figures(made),
            "capacity_bytes": draft.capacity_bytes,
            "live_peak_bytes": draft.step.live_peak_bytes,
            "compute_s": float(draft.op_times.sum()),
            "floor": floor_facts(worker.floor),
            "ops": len(draft.step.ops),
            "rows": len(worker.candidates),
            "storages": len(draft.step.storages),
            "why_not_enable": self._why_not(),
            "can_roll_back": session is not None and session.staging.can_roll_back,
            "waiting": session is not None and session.staging.is_waiting,
            "other_ops": self._other_ops(),
            "dry_run": self._trial_state(),
        }

    def _shut(self, why: str) -> dict[str, Any]:
        return {"source": self.source, "editable": False, "why": why, "news": self.news}

    def _drafted(self) -> tuple[Draft, PlanWorker]:
        """The draft, and where it is planned for. Raises ProtocolError before they are there."""
        if self._opening is None or self._worker is None:
            raise self._failure or ProtocolError(
                "not_now", "the draft is being prepared", "Try again in a moment."
            )
        return self._opening, self._worker

    def _running(self) -> Session | None:
        """The session, if there is one and it is open."""
        return self._session if self._session is not None and self._session.is_open else None

    def _in_force(self) -> Policy | None:
        session = self._running()
        return None if session is None else session.staging.in_force

    def _is_measuring(self) -> bool:
        return self.trial is not None and not self.trial.done

    def _now(self) -> dict[str, Any] | None:
        """What was measured of the newest steps, beside a dry run of those before it; None where none has ended."""
        if self._session is None:
            return None
        trial = self.trial
        measured = trial.before if trial is not None else self._session.staging.measured_now()
        return None if measured is None else _measured_figures(asdict(measured))

    def _why_not(self) -> str:
        """Why nothing of this can be enabled; an empty string where it can."""
        if self._session is None:
            return "This is a trace file, and no session runs it. Save the policy, and give it to a session."
        if not self._session.is_open:
            return "The session has ended. Save the policy, and give it to the next one."
        if self._session.own_capacity_bytes is None:
            return "The session only records: it was started without a capacity."
        if not self._session.planning:
            return "The session was started with planning off: eviction alone serves it."
        if self._session.staging.in_force is None:
            return "No policy is in force yet: train some steps more."
        return ""

    def _follow(self) -> None:
        """Where the session's policy in force has changed, compare with the new one."""
        policy = self._in_force()
        draft, worker = self._drafted()
        if policy is None or policy is worker.in_force.policy:
            return
        own = policy.assumed.get("fingerprint") == worker.fingerprint
        if policy.source is not None:
            self._declined |= self._declined_of(policy.source)
        untouched = draft.edits == worker.in_force.edits and not draft.can_undo
        if own and not untouched:
            worker.take(policy)
        elif own:
            self._take(policy, None)

    def _other_ops(self) -> int:
        """Ops of the plan that the session follows now, where it is for other ops than the draft; else 0."""
        policy = self._in_force()
        if policy is None or policy.source is None:
            return 0
        own = policy.assumed.get("fingerprint") == self._drafted()[1].fingerprint
        return 0 if own else len(policy.source.ops)

    def rebase(self) -> None:
        """Edit the policy that is in force now, with the draft's edits."""
        policy = self._in_force()
        if policy is None:
            raise ProtocolError("not_now", "no policy is in force to edit instead")
        self._take(policy, self._drafted()[0])
        self._changed()

    # ------------------------------------------------------------------------------------------------ editing

    def edit(self, change: str, edits: Sequence[dict[str, Any]], index: int) -> None:
        """Change the draft.

        Args:
            change: ``"add"``, ``"set"``, ``"replace"``, ``"remove"``, ``"undo"``, ``"redo"`` or ``"discard"`` (back to
                the edits in force).
            edits: those to add, to set, or to put in the place of the one at ``index``.
            index: of the edit to replace or remove.

        Raises:
            ProtocolError: an edit cannot be read, or there is none at ``index``.
        """
        try:
            given = tuple(edit_from_dict(values) for values in edits)
        except (PolicyError, TypeError) as error:
            raise ProtocolError("bad_edit", str(error)) from None
        with self._lock:
            draft, worker = self._drafted()
            try:
                match change:
                    case "add":
                        draft.edits = _joined(draft.edits, given)
                    case "set":
                        draft.edits = given
                    case "replace":
                        if len(given) != 1:
                            raise ProtocolError("malformed", f"replace takes one edit, not {len(given)}")
                        draft.replace(index, given[0])
                    case "remove":
                        draft.remove(index)
                    case "undo":
                        draft.undo()
                    case "redo":
                        draft.redo()
                    case "discard":
                        draft.edits = worker.in_force.edits
            except PolicyError as error:
                raise ProtocolError("bad_edit", str(error)) from None
            worker.drop_wanted()
        self._changed()

    def settled(self) -> DraftPlan:
        """The draft, planned. Raises ProtocolError where no policy fits."""
        with self._lock:
            draft, worker = self._drafted()
            edits = draft.edits
        made = worker.get(edits) or worker.plan(edits)
        if made.policy is None:
            raise ProtocolError("below_floor", made.error, "Take back an edit, or raise the capacity.")
        return made

    def planned(self) -> Policy | None:
        """The policy that the draft stands for, if it is planned already and fits."""
        with self._lock:
            if self._opening is None or self._worker is None:
                return None
            made = self._worker.get(self._opening.edits)
            return None if made is None else made.policy

    def predicted(self) -> tuple[Policy, StepTrace, np.ndarray]:
        """What can be drawn of the draft: its policy, its step and the op times that it assumes.

        Before the plan is there the policy is an estimate, and where none fits it is the newest that did.
        """
        self._opened.wait(_OPENING_S)
        with self._lock:
            draft, worker = self._drafted()
            policy = worker.look(draft).policy or worker.newest.policy
        worker.wake()
        assert policy is not None
        return policy, draft.step, draft.op_times

    # ------------------------------------------------------------------------------------------------ news

    def _changed(self) -> None:
        """Other panels hear of it with the next news; the one that has changed the draft has it in its answer."""
        with self._news_lock:
            self.news += 1

    def _say(self) -> None:
        # Not under the other lock, which an answer holds that waits for a plan: the thread goes on with the next one.
        self._changed()
        self._tell()

    def close(self) -> None:
        """Plan for it no more: the source is gone."""
        with self._lock:
            if self._worker is not None:
                self._worker.stop()

    def poll(self) -> int:
        """The count of news, after a look at what the session has done meanwhile."""
        trial, session = self.trial, self._running()
        if self._session is not None and self._may_move_on():
            self._due = self._session.recorded_steps()[-1]
        mark = (
            None if session is None else (id(session.staging.in_force), session.staging.is_waiting),
            None if trial is None else (id(trial), len(trial.measured), trial.done),
            self._due,
        )
        if mark != self._last_news:
            self._last_news = mark
            with self._news_lock:
                self.news += 1
            if self._worker is not None and not self._is_measuring():
                self._worker.wake()  # what waited for the steps of a dry run
        return self.news

    # ------------------------------------------------------------------------------------------------ tables

    def _rows(self) -> DecisionTable:
        """The table of the draft; where no policy fits it, that of what was planned before, with the draft's edits."""
        draft, worker = self._drafted()
        current, made = worker.in_force, worker.look(draft)
        if self._table is None or self._table[:2] != (current, made):
            shown = made if made.policy is not None else worker.newest
            assert current.rows is not None and shown.rows is not None
            table = DecisionTable(
                worker.candidates, current.rows, shown.rows, made.edits, current.edits, self._declined
            )
            self._table = (current, made, table)
        return self._table[2]

    def page(self, query: str, sort: str, down: bool, start: int, count: int) -> dict[str, Any]:
        """Some rows of the table; see :meth:`~chameleon_lab.lab.panel.decisions.DecisionTable.page`."""
        with self._lock:
            try:
                return self._rows().page(query, sort, down, start, count)
            except ValueError as error:
                hint = "Such as: layer.3 >4MiB swap by:you stall>0"
                raise ProtocolError("query", str(error), hint) from None

    def choices(self, storage: str) -> dict[str, Any]:
        """What can be done with one storage, and what each would change of the draft, as far as it is planned yet."""
        with self._lock:
            draft, worker = self._drafted()
            table, made = self._rows(), worker.look(draft)
            place = worker.candidates.place.get(storage)
            if place is None:
                why = self._why_fixed(storage)
                return {"storage": storage, "row": None, "why": why, "gaps": [], "options": [], "cost": None}
            policy = made.policy or worker.newest.policy
            assert policy is not None
            found = {
                "storage": storage,
                "row": table.facts(place),
                "why": "",
                "gaps": table.gaps(place, policy),
                "options": [self._option(action, storage, made, table) for action in ACTIONS],
                "cost": _costs(worker, place, draft.link, storage, policy),
            }
        worker.wake()
        return found

    def _option(self, action: str, storage: str, made: DraftPlan, table: DecisionTable) -> dict[str, Any]:
        """What deciding so would change of the draft; planned for in the thread where nobody knows yet."""
        draft, worker = self._drafted()
        place = worker.candidates.place[storage]
        others = tuple(edit for edit in draft.edits if not (edit.is_residence and edit.storage == storage))
        edit = Edit(EditAction(action), storage)
        edits = (*others, edit)
        option: dict[str, Any] = {
            "action": action,
            "chosen": table.after[place] == action,
            "own": edits == draft.edits or edit in draft.edits,
            "ready": False,
            "possible": True,
            "why": "",
            "effect": None,
        }
        # Planning anew changes much by itself. What the edit does is what it changes in a plan made anew without it.
        without, there = worker.anew(others), worker.get(edits)
        if there is None:
            worker.want(edits)
        if there is None or without is None or not made.exact:
            return option
        option["ready"] = True
        fault = next((f for f in there.findings if f.edit.storage == storage and f.fault != "clipped"), None)
        if there.policy is None or (fault is not None and fault.fault == "impossible"):
            option["possible"] = False
            # Where nothing fits even without the edit, the draft says why, once, and not each of its cards.
            fails_anyway = without.policy is None
            option["why"] = fault.why if fault is not None else "" if fails_anyway else there.error
        elif without.prediction is not None and without.rows is not None:
            if _does(without.rows, place) == _asked(action):
                there = without  # it is done anyway
            assert there.prediction is not None and there.rows is not None
            option["effect"] = _effect(without.prediction, there.prediction) | {
                "others": _others(without.rows, there.rows, place)
            }
        return option

    def _why_fixed(self, storage: str) -> str:
        draft, worker = self._drafted()
        index, least = worker.candidates.index, worker.candidates.min_swap_bytes
        row = index.row_of.get(storage)
        if row is None:
            return "The step that is planned has no such storage: it lived outside of the step."
        size = int(index.bytes[row])
        if size < least:
            return f"Too small to move: {format_bytes(size)}, and only those from {format_bytes(least)} on leave."
        if not draft.step.storages.movable[row]:
            return "It may not leave: something holds its address."
        return "It is in use all of its life, or was left behind by the step before: it has no gap to be away in."

    def matching(self, edit: dict[str, Any]) -> dict[str, Any]:
        """How many storages an edit means, of those that can leave. Raises ProtocolError if it cannot be read."""
        candidates = self._drafted()[1].candidates
        try:
            meant = candidates.index.rows(edit_from_dict(edit))
        except (PolicyError, TypeError) as error:
            raise ProtocolError("bad_edit", str(error)) from None
        able = np.isin(meant, candidates.row)
        sizes = candidates.index.bytes[meant[able]]
        return {"storages": len(meant), "movable": int(able.sum()), "bytes": int(sizes.sum())}

    def changes(self) -> dict[str, Any]:
        """What the draft changes in the plan in force: the conditions, and the decisions, largest first."""
        with self._lock:
            draft, worker = self._drafted()
            made, current = worker.look(draft), worker.in_force
        if made.policy is None or current.policy is None:
            return {"exact": made.exact, "counts": [0, 0, 0], "rows": []}
        found = diff(current.policy, made.policy)
        rows = [_change("removed", d, d) for d in found.removed]
        rows += [_change("added", d, d) for d in found.added]
        rows += [_change("changed", old, new) for old, new in found.changed]
        rows.sort(key=lambda row: -row["bytes"])
        return {
            "exact": made.exact,
            "counts": [len(found.added), len(found.removed), len(found.changed)],
            "rows": rows[:_SHOWN_CHANGES],
        }

    def curve(self, begin: bool) -> dict[str, Any]:
        """Step time against capacity; see :meth:`~chameleon_lab.lab.panel.plan_worker.PlanWorker.curve`."""
        draft, worker = self._drafted()
        return worker.curve(draft, begin)

    # ------------------------------------------------------------------------------------------------ running

    def dry_run(self) -> None:
        """Try the draft for a step of the run, and go back. Raises ProtocolError where that cannot be."""
        session = self._runnable()
        made = self.settled()
        draft = made.draft
        if draft is None:  # what is in force was planned elsewhere
            own = self._drafted()[0]
            draft = Draft(own.base, own.step, own.op_times)
            draft.edits = made.edits
        self._carefully(lambda: setattr(self, "trial", session.dry_run(draft)))

    def end_dry_run(self) -> None:
        """Stop the dry run, if one waits for steps."""
        if self._session is not None:
            self._session.staging.end_dry_run()

    def enable(self) -> None:
        """Use the draft from the next step border on. Raises ProtocolError where that cannot be."""
        session, policy = self._runnable(), self.settled().policy
        assert policy is not None
        self._carefully(lambda: session.enable(policy))

    def roll_back(self) -> None:
        """Use what was in force before the last enable. Raises ProtocolError where nothing was."""
        self._carefully(self._runnable().rollback)

    def _runnable(self) -> Session:
        why = self._why_not()
        if why or self._session is None:
            raise ProtocolError("not_now", why)
        return self._session

    def _carefully(self, ask: Callable[[], object]) -> None:
        try:
            ask()
        except (ChameleonError, BelowFloorError) as error:
            raise ProtocolError("not_now", str(error)) from None

    def _trial_state(self) -> dict[str, Any] | None:
        trial = self.trial
        if trial is None:
            return None
        session = self._session
        assert session is not None
        measured = trial.to_dict()["measured"]
        return {
            "done": trial.done,
            "note": trial.note,
            "steps": trial.steps,
            "settle": trial.settle,
            "started": not session.staging.is_waiting,
            "of_draft": trial.policy.edits == self._drafted()[0].edits,
            "before": None if trial.before is None else _measured_figures(asdict(trial.before)),
            "measured": _measured_figures(measured[-1]) if measured else None,
        }

    # ------------------------------------------------------------------------------------------------ files

    def save(self, path: str, overwrite: bool) -> dict[str, Any]:
        """Write the draft's policy. Raises ProtocolError if the file is there and not to be overwritten."""
        where = Path(os.path.expanduser(path))
        with _file_errors(where):
            if where.exists() and not overwrite:
                raise ProtocolError(
                    "exists", f"{where} is there already", "Overwrite it, or choose another name."
                )
            made = self.settled()
            assert made.policy is not None
            made.policy.save(where)
        return {"path": str(where.resolve()), "bytes": where.stat().st_size}

    def load(self, path: str) -> None:
        """Take the edits of a policy file, in one change. Raises ProtocolError if it cannot be read.

        A file for another capacity brings an edit of the capacity with it, so that it means the same here.
        """
        where = os.path.expanduser(path)
        with _file_errors(where):
            policy = Policy.load(where)
        with self._lock:
            draft, _ = self._drafted()
            edits = policy.edits
            asked = any(edit.action is EditAction.CAPACITY for edit in edits)
            twin = Draft(draft.base, draft.step, draft.op_times)
            twin.edits = edits
            if not asked and policy.capacity_bytes != twin.capacity_bytes:
                edits = (*edits, Edit(EditAction.CAPACITY, capacity_bytes=policy.capacity_bytes))
            draft.edits = edits
        self._changed()


@contextmanager
def _file_errors(where: str | Path) -> Iterator[None]:
    """Raises what goes wrong with a policy's file as a ProtocolError."""
    try:
        yield
    except OSError as error:
        raise ProtocolError("bad_file", f"{where}: {error.strerror or error}", "Check the path.") from None
    except PolicyError as error:
        raise ProtocolError("bad_file", str(error)) from None


def _asked(action: str) -> str:
    """What a plan that obeys an edit does with the storage."""
    return EditAction.KEEP.value if action == EditAction.NEVER_TOUCH.value else action


def _does(rows: RowActions, place: int) -> str:
    return str(rows.action[place])


def _effect(before: Prediction, after: Prediction) -> dict[str, float]:
    names = ("step_s", "peak_bytes")
    return {name: getattr(after, name) - getattr(before, name) for name in names}


def _others(before: RowActions, after: RowActions, place: int) -> int:
    """How many other storages two plans treat differently."""
    changed = (before.count != after.count) | (before.drops != after.drops)
    changed[place] = False
    return int(changed.sum())


def _measured_figures(measured: dict[str, Any]) -> dict[str, Any]:
    """The figures that the panel shows, of all that were measured."""
    whole = {name for name, (kind, _) in members(Figures).items() if kind is int}
    return {name: round(measured[name]) if name in whole else measured[name] for name in members(Figures)}


def _figures(made: DraftPlan) -> dict[str, Any] | None:
    if made.figures is None or made.policy is None:
        return None
    found = made.figures.prediction
    return {
        "half_link_step_s": made.figures.half_link_step_s,
        "capacity_bytes": found.capacity_bytes,
        "peak_bytes": found.peak_bytes,
        "step_s": found.step_s,
        "stall_s": found.stall_s,
        "overlap": found.overlap,
        "swapped_out_bytes": found.swapped_out_bytes,
        "swapped_in_bytes": found.swapped_in_bytes,
        "replay_s": found.replay_s,
        "replayed_bytes": found.replayed_bytes,
        "swaps": len(made.policy.swaps),
        "drops": len(made.policy.drops),
    }


def _costs(worker: PlanWorker, place: int, link: Link, storage: str, policy: Policy) -> dict[str, Any]:
    """What moving a row's storage takes, beside what making it again would: the ops in order, or why it cannot be."""
    candidates, size = worker.candidates, int(worker.candidates.bytes[place])
    replay, step = candidates.replay(place), worker.step
    chain, why_not = (replay, "") if isinstance(replay, Chain) else (None, replay)
    return {
        "copy_s": link.out_s(size) + link.in_s(size),
        "replay_s": None if chain is None else chain.seconds,
        "replay_ops": [] if chain is None else [step.names[name] for name in chain.names],
        "why_not_replay": why_not,
        "retains": sorted({key for drop in policy.drops if drop.storage == storage for key in drop.retains}),
        "retained_for": sorted({drop.storage for drop in policy.drops if storage in drop.retains}),
    }


def _joined(edits: Sequence[Edit], new: Sequence[Edit]) -> tuple[Edit, ...]:
    """New edits behind the others; one that answers the same question about the same storages replaces the other."""

    def target(edit: Edit) -> tuple[Any, ...]:
        return (
            edit.storage,
            edit.gap,
            edit.module,
            edit.category,
            edit.stage,
            edit.min_bytes,
            edit.max_bytes,
        )

    def questions(edit: Edit) -> set[tuple[Any, ...]]:
        kinds = ["residence" if edit.is_residence else edit.action.value]
        if edit.action in (EditAction.REMATERIALIZE, EditAction.NEVER_REMATERIALIZE):
            kinds.append("replay")  # of the two one decides
        return {(kind, *target(edit)) for kind in kinds}

    asked = set().union(*(questions(edit) for edit in new))
    return (*(edit for edit in edits if asked.isdisjoint(questions(edit))), *new)


def _change(kind: str, old: Any, new: Any) -> dict[str, Any]:
    category = next((c for c in Category if c.name.lower() == new.category), Category.OTHER)
    return {
        "kind": kind,
        "storage": new.storage,
        "category": int(category),
        "module": new.module,
        "bytes": new.bytes,
        "gap": new.gap,
        "action": new.action.value,
        "by": new.decided_by,
        "before": [old.out_op, old.free_op, old.in_op, old.use_op] if kind != "added" else None,
        "after": [new.out_op, new.free_op, new.in_op, new.use_op] if kind != "removed" else None,
    }
