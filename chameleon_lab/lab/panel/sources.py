"""The panel's steps and policies: from the current or last session, and from files."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import CutFileError, PolicyError, SessionError, TraceError
from ...lifecycle import open_session
from ...planner.process import PlannerProcess
from ...policy import Policy
from ...policy.file import is_policy_file
from ...trace import StepTrace, Trace
from .clock import Clock, clock_of
from .compare import ComparedStep, Sides, policy_step
from .editing import DraftEditor
from .notes import KEY, Notes
from .predicted import predicted_step
from .protocol import ProtocolError, Side
from .scene import Scene

if TYPE_CHECKING:
    from ...session import Session

_KEPT_SCENES = 6

DRAFT = "draft:"
"""Before the name of a source: the step of its draft, as it is predicted."""

IN_FORCE = "policy:in force"
"""The source that is the policy in force in the session."""


class Sources:
    """The sessions and files that can be drawn. May be asked from several threads at once."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._session: Session | None = None
        self._session_number = 0
        self._files: OrderedDict[str, Trace] = OrderedDict()
        self._policies: OrderedDict[str, Policy] = OrderedDict()
        self._scenes: OrderedDict[tuple[str, int, int], Scene] = OrderedDict()
        self._editors: dict[str, DraftEditor] = {}
        self._planner = PlannerProcess()
        self.news = threading.Event()
        """Set when a draft has something new to tell."""
        self.sides = Sides()
        self._predicted: tuple[Policy, Scene] | None = None
        self.notes = Notes()

    def close(self) -> None:
        """Plan for no draft any more."""
        with self._lock:
            editors = list(self._editors.values())
        for editor in editors:
            editor.close()
        self._planner.close()

    # ------------------------------------------------------------------------------------------------ what there is

    def session(self) -> tuple[str, Session] | None:
        """The open session, else the last one, with its name as a source."""
        with self._lock:
            found: Session | None = open_session()
            if found is not None and found is not self._session:
                self._session = found
                self._session_number += 1
            return (f"session:{self._session_number}", self._session) if self._session is not None else None

    def status(self) -> dict[str, Any]:
        """The session's figures and steps, the open files, and the policies that can be compared."""
        named = self.session()
        with self._lock:
            files = [
                {
                    "source": name,
                    "path": name.removeprefix("file:"),
                    "steps": _step_list(trace.steps),
                    "lost": trace.lost,
                }
                for name, trace in self._files.items()
            ]
            policies = [
                {
                    "source": source,
                    "name": source.removeprefix("policy:"),
                    "swaps": len(policy.swaps),
                    "drops": len(policy.drops),
                }
                for source, policy in self._known_policies().items()
            ]
        session = None if named is None else _session_status(*named)
        return {"session": session, "files": files, "policies": policies}

    def mark(self) -> tuple[Any, ...]:
        """Changes when the status is worth sending again."""
        named = self.session()
        with self._lock:
            files: tuple[Any, ...] = (*self._files, *self._policies)
        files = (*files, *((source, id(policy)) for source, policy in self._drafts().items()))
        if named is None:
            return files
        name, session = named
        return (*files, name, session.is_open, session.stage, session.step_count, id(session.policy))

    # ------------------------------------------------------------------------------------------------ files

    def open_file(self, path: str) -> str:
        """Read a policy, a trace or the recording of another tool, whatever its name; the name of the source.

        Raises ProtocolError if it cannot be read.
        """
        try:
            if is_policy_file(path):
                return self._open_policy(path)
            trace = Trace.open(path)
        except FileNotFoundError:
            here = f"The kernel looks from {Path.cwd()}."
            raise ProtocolError("no_file", f"{path}: nothing is there", here) from None
        except OSError as error:
            raise ProtocolError("bad_file", f"{path}: {error.strerror or error}", "Check the path.") from None
        except CutFileError as error:
            raise ProtocolError("cut_file", str(error)) from None
        except (TraceError, PolicyError, ImportError) as error:
            raise ProtocolError("bad_file", str(error)) from None
        if not any(len(step.ops) for step in trace.steps):
            raise ProtocolError(
                "bad_file", f"{path}: the trace has no step with an op", "Save one after a whole step."
            )
        source = f"file:{path}"
        self.notes.take(source, trace.meta)
        with self._lock:
            self._files[source] = trace
            self._forget(source)
        return source

    def _open_policy(self, path: str) -> str:
        policy, source = Policy.load(path), f"policy:{path}"
        with self._lock:
            self._policies[source] = policy
        return source

    def close_file(self, source: str) -> None:
        """Forget a file; harmless where it is not open."""
        with self._lock:
            self._files.pop(source, None)
            self._policies.pop(source, None)
            self._forget(source)

    def _forget(self, source: str) -> None:
        if (editor := self._editors.pop(source, None)) is not None:
            editor.close()
        for key in [key for key in self._scenes if key[0] == source]:
            del self._scenes[key]

    # ------------------------------------------------------------------------------------------------ drafts

    def draft(self, source: str, rebase: bool = False) -> dict[str, Any]:
        """The draft of a source; where there is nothing to edit yet, the reason. Raises ProtocolError if it is gone."""
        try:
            editor = self.editor(source)
        except ProtocolError as error:
            if error.code != "not_now":
                raise
            return {"source": source, "editable": False, "why": str(error), "news": 0}
        if rebase:
            editor.rebase()
        return editor.state()

    def editor(self, source: str) -> DraftEditor:
        """The editor of the draft of a source.

        Raises:
            ProtocolError: the source is gone, or has nothing that could be edited yet.
        """
        with self._lock:
            editor = self._editors.get(source)
            if editor is not None:
                return editor
            if source in self._files:
                trace = self._files[source]
                newest = next(step for step in reversed(trace.steps) if len(step.ops))
                editor = DraftEditor(source, None, newest, trace.meta, self._planner, self.news.set)
            else:
                session = self._session_of(source)
                step = self._planless_step(session)
                editor = DraftEditor(
                    source, session, step, session.trace_meta(), self._planner, self.news.set
                )
                # A session that is gone is not edited any more.
                for name in self._editors.keys() - self._files.keys():
                    self._editors.pop(name).close()
            self._editors[source] = editor
            return editor

    def draft_news(self) -> dict[str, int]:
        """How much each draft has had to tell so far."""
        with self._lock:
            editors = dict(self._editors)
        return {source: editor.poll() for source, editor in editors.items()}

    def _planless_step(self, session: Session) -> StepTrace | None:
        """The step to plan for, of a session that plans none itself; None where its policy is edited."""
        if session.staging.in_force is not None:
            return None
        if session.is_open and session.own_capacity_bytes is not None and session.planning:
            raise ProtocolError("not_now", f"No policy yet: the session is in {session.stage.value}.")
        recorded = session.recorded_steps()
        if not recorded:
            raise ProtocolError("not_now", "No step has ended yet.")
        return session.recorded_step(recorded[-1])

    # ------------------------------------------------------------------------------------------------ scenes

    def scene(self, source: str, first: int, last: int) -> Scene:
        """The steps ``first`` to ``last`` of a source. Steps once drawn can be drawn while they are remembered.

        Raises:
            ProtocolError: the source or a step is gone.
        """
        if source.startswith(DRAFT):
            return self._draft_scene(source.removeprefix(DRAFT))
        key = (source, first, last)
        with self._lock:
            scene = self._scenes.get(key)
            if scene is not None:
                self._scenes.move_to_end(key)
                if scene.is_final:
                    return scene
            try:
                steps, meta = self._steps(source, first, last)
            except ProtocolError:
                if scene is not None:
                    return scene
                raise
            try:
                self._scenes[key] = Scene(steps, meta)
            except ValueError as error:
                raise ProtocolError(
                    "empty", f"steps {first} to {last}: {error}", "Choose another step."
                ) from None
            while len(self._scenes) > _KEPT_SCENES:
                self._scenes.popitem(last=False)
            return self._scenes[key]

    def _draft_scene(self, source: str) -> Scene:
        """The step of a draft as it is predicted: of the newest plan, where the draft itself fits no capacity."""
        editor = self.editor(source)
        policy, step, op_times = editor.predicted()
        with self._lock:
            if self._predicted is None or self._predicted[0] is not policy:
                meta = editor.meta | {"capacity_bytes": policy.capacity_bytes}
                self._predicted = (policy, Scene([predicted_step(policy, step, op_times)], meta))
            return self._predicted[1]

    # ------------------------------------------------------------------------------------------------ comparing

    def _known_policies(self) -> dict[str, Policy]:
        named = self.session()
        policy = None if named is None else named[1].policy
        return ({} if policy is None else {IN_FORCE: policy}) | self._drafts() | self._policies

    def _drafts(self) -> dict[str, Policy]:
        """The drafts that are planned, under the names that they have as sides of a comparison."""
        with self._lock:
            editors = dict(self._editors)
        found = {}
        for source, editor in editors.items():
            policy = editor.planned()
            if policy is not None:
                of = f" of {source.removeprefix('file:')}" if source.startswith("file:") else ""
                found[f"policy:draft{of}"] = policy
        return found

    def side(self, chosen: Side) -> ComparedStep:
        """One of two that are compared. Raises ProtocolError if it is gone, or there is no step to show it on."""
        if not chosen.source.startswith("policy:"):
            return self.sides.of_scene(self.scene(chosen.source, chosen.step, chosen.step))
        with self._lock:
            policy = self._known_policies().get(chosen.source)
            named = self.session()
        if policy is None:
            raise ProtocolError("gone", f"{chosen.source} is gone", "Choose another policy.")
        newest = None
        if policy.source is None and named is not None and (kept := named[1].recorded_steps()):
            newest = named[1].recorded_step(kept[-1])
        step = policy_step(policy, newest)
        return self.sides.of_policy(policy, step, self._clock_for(step))

    def _clock_for(self, step: StepTrace) -> Clock:
        """The op times of the draft that is shown, so that all predictions agree; else those of the newest steps."""
        with self._lock:
            editors = dict(self._editors)
        named = self.session()
        for editor in editors.values():
            if (clock := editor.clock_for(step)) is not None:
                return clock
        return clock_of(None if named is None else named[1], step)

    def _steps(self, source: str, first: int, last: int) -> tuple[list[StepTrace], dict[str, Any]]:
        if source in self._files:
            trace = self._files[source]
            steps = [step for step in trace.steps if first <= step.index <= last]
            if not steps:
                raise ProtocolError("gone", f"{source.removeprefix('file:')} has no step {first}")
            return steps, trace.meta
        session = self._session_of(source)
        try:
            steps = [session.recorded_step(index) for index in range(first, last + 1)]
        except SessionError as error:
            raise ProtocolError("gone", str(error), "Choose a newer step.") from None
        return steps, session.trace_meta()

    def steps_of(self, source: str) -> list[StepTrace]:
        """All recorded steps of a source, oldest first. Raises ProtocolError if it is gone."""
        return self._recorded(source)[0]

    def _recorded(self, source: str) -> tuple[list[StepTrace], dict[str, Any]]:
        source = source.removeprefix(DRAFT)
        if source in self._files:
            trace = self._files[source]
            return list(trace.steps), trace.meta
        session = self._session_of(source)
        steps = []
        for index in session.recorded_steps():
            try:
                steps.append(session.recorded_step(index))
            except SessionError:
                continue  # steps come and go while a cell trains
        return steps, session.trace_meta()

    def save_trace(self, source: str, path: str, overwrite: bool) -> dict[str, Any]:
        """Write the recorded steps of a source, and its notes, to a file.

        Raises ProtocolError if there is nothing to write, a file is there already, or it cannot be written.
        """
        steps, meta = self._recorded(source)
        steps = [step for step in steps if len(step.ops)]
        if not steps:
            raise ProtocolError("empty", f"{source} has no recorded step yet", "Train a whole step first.")
        target = Path(path if path.endswith(".parquet") else f"{path}.parquet")
        if target.exists() and not overwrite:
            raise ProtocolError(
                "exists", f"{target} is there already", "Choose another name, or overwrite it."
            )
        notes = self.notes.all(source)
        meta = {name: value for name, value in meta.items() if name != KEY} | ({KEY: notes} if notes else {})
        try:
            with self._lock:
                file = self._files.get(source.removeprefix(DRAFT))
            Trace(steps, meta, None if file is None else file.lost).save(str(target))
        except OSError as error:
            raise ProtocolError(
                "bad_file", f"{target}: {error.strerror or error}", "Check the path."
            ) from None
        except (TraceError, ImportError) as error:
            raise ProtocolError("bad_file", str(error)) from None
        return {"path": str(target), "bytes": target.stat().st_size, "steps": len(steps)}

    def _session_of(self, source: str) -> Session:
        named = self.session()
        if named is None or named[0] != source:
            raise ProtocolError(
                "gone",
                f"{source} is gone: "
                + ("no session is open" if named is None else "another session has taken its place"),
                "The panel shows the newest one.",
            )
        return named[1]


def _step_list(steps: list[StepTrace]) -> list[dict[str, Any]]:
    return [
        {"index": step.index, "stage": step.session_stage, "duration_s": step.duration_s}
        for step in steps
        if len(step.ops)
    ]


def _session_status(name: str, session: Session) -> dict[str, Any]:
    report = session.report()
    kept = set(session.recorded_steps())
    policy: Policy | None = session.policy
    return {
        "source": name,
        "open": session.is_open,
        "stage": report.stage,
        "step_count": report.steps,
        "capacity_bytes": report.capacity_bytes,
        "peak_bytes": report.history[-1].peak_bytes if report.history else report.peak_bytes,
        "host_bytes": report.host_bytes,
        "host_peak_bytes": report.host_peak_bytes,
        "step_s": report.step_s,
        "swaps": 0 if policy is None else len(policy.swaps),
        "drops": 0 if policy is None else len(policy.drops),
        "declined_drops": report.declined_drops,
        "steps": [
            {"index": step.index, "stage": step.stage, "duration_s": step.step_s}
            for step in report.history
            if step.index in kept and step.ops
        ],
    }
