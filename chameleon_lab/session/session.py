"""The session: the one public way to run a training loop under Chameleon Lab."""

from __future__ import annotations

from ..runtime import core  # first: where torch is missing or another one, this says so
from . import disk as disks
from . import policy_fit

# isort: split
import math
import os
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Literal, ParamSpec, TypeVar

import numpy as np
import torch

from .._lazy import at_first_use
from ..errors import BelowFloorError, PolicyError, SessionError
from ..lifecycle import SessionStage, add_open_session, open_session, open_sessions, remove_open_session
from ..planner import Draft, Floor, Suggestion, floor, suggest
from ..planner.arguments import checked_margin
from ..planner.constraints import EvictLastByName, evict_last_rows
from ..planner.generate import worth_searching
from ..planner.memory import step_op_times
from ..planner.obey import BoundPlan, plan_and_bind
from ..planner.process import PlannerInterruptedError, PlannerProcess, PlannerProcessError
from ..planner.program import compile_program, unreplayable
from ..policy import Link, Policy
from ..policy.edits import Edit, EditAction
from ..policy.model import fingerprint
from ..ranks.identity import Identity, RankWatch
from ..report.dry_run import DryRun
from ..report.enough import highest_floor, named, unnamed
from ..report.session_report import Report, StepSummary
from ..runtime.discovery import Discovery
from ..runtime.host_memory import default_capacity_bytes
from ..runtime.inference_steps import InferenceSteps
from ..runtime.kernels import kernels_of
from ..runtime.patches.collectives import collectives
from ..runtime.patches.compiling import compiling
from ..runtime.patches.custom_ops import custom_ops
from ..runtime.patches.error_words import error_words
from ..runtime.patches.graphs import no_graphs
from ..runtime.patches.launches import launches
from ..runtime.patches.loop_pauses import LoopPauses
from ..runtime.patches.nvtx_ranges import nvtx_ranges
from ..runtime.patches.optimizer_groups import small_groups
from ..runtime.patches.raw_access import guards
from ..runtime.patches.shared import Part, Shared
from ..runtime.recording import stall_totals
from ..runtime.replay_check import NOTHING, UNSEEN_WRITES, replayable
from ..runtime.tensor_parts import parts
from ..trace import Category, StepTrace, Trace
from ..trace.list_ops import part_limit_bytes
from ..trace.replay_ops import REPLAY_CLASS
from ..util.units import format_bytes, parse_bytes, parse_fraction
from .agreement import Agreement
from .arguments import (
    UNLIMITED,
    available_bytes,
    parse_capacity,
    parse_device,
    parse_host_capacity,
    parse_link,
    parse_rematerialize,
)
from .capacity import Capacity
from .device_times import DeviceTimes
from .host_times import HostTimes
from .link_under_load import LinkUnderLoad
from .plan_cache import Plan, PlanCache, StepPlan
from .policy_choice import PolicyChoice
from .policy_controller import PolicyController
from .reserve import Reserve
from .step_history import StepHistory, declined_drops

_MIN_SWAP = "16KiB"
_MOST_TELLING = 16
_COSTING_STEPS = 16
_LEAST_COST = 0.02
"""Share of the steps that a plan has to cost, in half of so many of the newest, to be held against the link."""
"""Op sequences of a session without a capacity that are kept to tell the floor."""

_lock = threading.Lock()

P = ParamSpec("P")
T = TypeVar("T")
_Call = Callable[..., Any]
"""Calls a function with arguments, here or elsewhere, and returns what it returns."""


def _here(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return function(*args, **kwargs)


def current_session() -> Session | None:
    """The session that is open in this process, or None; of several, on one device each, the one opened last."""
    session: Session | None = open_session()
    return session


class Session:
    """Runs the training loop inside it under a capacity, and learns how to hide what that costs.

    Args:
        capacity: device bytes the run may use: a number, text such as ``"512MiB"``, or a fraction of the device's
            memory, such as ``0.6`` or ``"60%"``. None takes that of ``policy``; without one, all that the
            GPU has, but for what other processes hold and a reserve of 512 MiB. The embedded device has no such
            limit: there it records only, and nothing ever leaves. So does ``"unlimited"``, on any device.
        device: ``"cuda"`` is the current GPU, ``"cuda:1"`` another one; ``"cpu"`` is the embedded device, whose memory
            is host memory under a budget. None takes the current GPU, or the embedded device where there is none.
            Tensors elsewhere are left alone; where none of a model's is on the device, a warning says so.
        link: bandwidth between device and host, such as ``"8GiB/s"``, a pair (out, in) or ``"OUT,IN"``. None: as
            fast as the machine copies, which is measured at the start, and again under load: in the step that a
            policy is made from. Only the embedded device's link can be set.
        policy: a :class:`~chameleon_lab.policy.Policy` or the path of one, used instead of a generated one. Of several
            (a folder, a name with ``*`` or ``{rank}``, a list) the one that was made for this program is. Where it
            fits, it is in force from the second step on. Where not, or where it drops what this session cannot replay,
            a note in the report says so, and a policy is generated under its edits.
        planning: False never makes a policy: eviction alone keeps the run within the capacity. It takes what is used
            furthest in the future, as far as the steps before tell.
        warmup_steps: steps before the one that the policy is made from. The first step of a loop often differs.
        host_capacity: the most host bytes for what is away, or a fraction of the machine's memory; plans keep within
            it. None: no limit on the embedded device; on a GPU, whose copies need pinned memory, 80 % of what the
            machine and the control groups around the process have available when the session starts. Of several ranks
            on one machine each gets an equal part.
        disk: a folder such as ``"/scratch"``, or ``"/scratch:200GiB"``: a disk takes what is away instead of the host's
            memory. The capacity is then all the memory that the training needs, but for what torch itself takes.
            Of the embedded device only. Without a size it may take 90 % of what is free. One file without a name lies
            there, and is gone when the process ends, however it ends. ``link`` then is the most that the disk is asked
            for; what it does is measured.
        verify: compare a checksum of whatever comes back from the disk: other bytes than were written raise an error.
        margin: fraction of the capacity that plans leave free, for what a step does differently from the profiled one.
        link_margin: fraction of the link's bandwidth that plans do without, for steps in which others use it. None:
            what the slowest of the newest steps had less of it than the others, where the link is measured; else 0.
        min_swap: storages smaller than this leave only where the capacity cannot do without. The default is 64 KiB with
            a disk.
        split_optimizer: run list ops of optimizers, gradient clipping and GradScaler in parts; see
            :mod:`chameleon_lab.runtime.patches.optimizer_groups`.
        rematerialize: False or ``"no"`` never drops a storage to run the op that made it again. True or ``"all"``
            leaves the choice to the policy; what cannot be replayed to the bit is swapped all the same. ``"cheap"``
            keeps to element-wise ops, norms, casts and copies. With torch before 2.13, which does not
            show it when a raw pointer writes to a tensor, True replays nothing: ``"trusting"`` does, there too. With it
            you promise that nothing outside of ops writes to tensors through pointers while the session is open (a C++
            extension that is no op, say; what Python does with ``data_ptr()``, numpy or DLPack is seen anyway). A
            promise that is broken gives wrong numbers.
        inference_steps: True: each call of a model that is called again and again without gradients ends a step, until
            an optimizer steps. False: only an optimizer's step, or :meth:`step`, ends one. None: as True, but not while
            an optimizer that has been made waits for its first step.
        max_ops: ops of a step that are recorded; a longer step is cut off there, and gets no policy.
        stacks: record the Python stack of every op (slow: for looking, not for long runs). ``"once"``: of one step of
            each sequence of ops, which its other steps show too; it costs next to nothing, and is what
            ``%chameleon start`` does.
        agree: of several ranks, those that run the same program with the same capacity get one plan, made from what all
            of them have measured, and begin to follow it at the same step. Where that fails each keeps its own.

    Raises:
        ValueError, TypeError: an argument is no size, bandwidth or fraction.
        SessionError: the device is not there.

    Use it as a context manager, or call :meth:`start` and :meth:`stop`.
    """

    def __init__(
        self,
        capacity: int | float | str | None = None,
        *,
        device: str | torch.device | None = None,
        link: Link | float | str | tuple[float | str, float | str] | None = None,
        policy: Policy | str | os.PathLike[str] | Sequence[Policy] | None = None,
        planning: bool = True,
        warmup_steps: int = 1,
        host_capacity: int | float | str | None = None,
        disk: str | os.PathLike[str] | None = None,
        verify: bool = False,
        margin: float | str = 0.02,
        link_margin: float | str | None = None,
        min_swap: int | str = _MIN_SWAP,
        split_optimizer: bool = True,
        rematerialize: bool | Literal["no", "cheap", "all", "trusting"] = True,
        inference_steps: bool | None = None,
        max_ops: int = 2**20,
        stacks: bool | Literal["once"] = False,
        agree: bool = False,
    ) -> None:
        self.device = parse_device(device)
        self._traits = core.device_traits(self.device)
        if capacity == UNLIMITED and policy is not None:
            raise ValueError(f"with capacity {UNLIMITED!r} a session only records: leave out the policy")
        self._takes_what_there_is = capacity is None and policy is None and not self._traits["emulated"]
        capacity_bytes = (
            None if policy is not None and capacity is None else parse_capacity(capacity, self.device)
        )
        self.link = parse_link(link)
        """What policies are made for. Where none was given, it is what was measured last."""
        self._notes: list[str] = []
        self._disk = disks.checked(
            disk,
            verify,
            device=self.device,
            host_capacity=host_capacity,
            records_only=capacity_bytes is None and policy is None,
            note=self._note,
        )
        self._measures_link = self.link == Link(None, None) or self._disk is not None
        if not self._traits["emulated"] and self.link != Link(None, None):
            raise ValueError(
                f"the link of {self.device!r} is what it is, and is measured: leave out link={link!r}, or give "
                "device='cpu', the embedded device"
            )
        self._ranks = RankWatch()
        self.host_capacity_bytes = parse_host_capacity(host_capacity)
        """Of the copies of this rank. What was given is the machine's, and its ranks share it."""
        if self.host_capacity_bytes is not None:
            self.host_capacity_bytes = self._share_of_host(self.host_capacity_bytes)
        if self._disk is not None:
            self.host_capacity_bytes = self._disk.plan_bytes
        if self._disk is not None and min_swap == _MIN_SWAP:
            min_swap = disks.MIN_SWAP
        self.min_swap_bytes = parse_bytes(min_swap, "min_swap", none=True)
        if not isinstance(warmup_steps, int) or warmup_steps < 0:
            raise ValueError(f"warmup_steps must be a number of steps from 0 up, got {warmup_steps!r}")
        self.margin = parse_fraction(margin, "margin")
        if self.margin >= 0.5:
            raise ValueError(f"margin must be a fraction of the capacity below 0.5, got {margin!r}")
        self._given_link_margin = None if link_margin is None else checked_margin(link_margin, "link_margin")
        self.link_margin = self._given_link_margin or 0.0
        """Share of the link that plans do without that are made from now on. Where none was given, it is measured."""
        self._under_load = LinkUnderLoad()
        self.planning = planning
        self.inference_steps = inference_steps
        self.rematerialize = parse_rematerialize(rematerialize)
        self._replayable = NOTHING
        self._checked_settings: bytes | None = None
        self._declined: dict[str, str] = {}  # by the keys of storages, why they were not dropped
        self.warmup_steps = warmup_steps
        if not isinstance(stacks, bool) and stacks != "once":
            raise ValueError(f'stacks must be True, False or "once", got {stacks!r}')
        self.stacks = stacks
        if not isinstance(max_ops, int) or max_ops < 1:
            raise ValueError(f"max_ops must be a number of ops from 1 up, got {max_ops!r}")
        self.max_ops = max_ops
        self.agree = agree
        self._agreement: Agreement | None = None
        self._choice = PolicyChoice(policy, self._ranks.identity)
        given = self._choice.first
        if given is not None and capacity_bytes is None:
            capacity_bytes = given.capacity_bytes
        self._runtime = core.of(self.device)
        self._capacity = Capacity(capacity_bytes, self._runtime.set_capacity)
        self._policies = PolicyController(
            given,
            switch=self._enable,
            at_border=self._at_border,
            require_open=self._require_open,
            capacities=lambda: (self._capacity.bytes, self._capacity.own_bytes),
            history=lambda: self.history,
            step_count=lambda: self._steps,
            whole_steps=warmup_steps + 1,
        )
        self._stage = SessionStage.WARMUP if warmup_steps else SessionStage.PROFILE
        self._steps = 0
        self._explicit_steps = False
        self._created_s = time.time()
        self._evict_last_by_name = EvictLastByName()
        self._discovery = Discovery(
            self._runtime,
            self._optimizer_stepped,
            core.tensor_device(self.device),
            self._evicts_last,
            self._misses,
            self._other_devices,
        )
        self._journal = StepHistory(
            self._runtime,
            self._discovery,
            keeps_host_copies=core.SEES_RAW_ACCESS or rematerialize == "trusting",
        )
        self._inference = InferenceSteps(
            self._model_called, self._discovery.concerns, always=inference_steps is True
        )
        self._hooks: list[Part] = [
            Shared("compiling", compiling),
            Shared("launches", lambda: [launches()]),
            self._discovery,
            *([] if inference_steps is False else [self._inference]),
            Shared("pauses and marks", lambda: [LoopPauses(), nvtx_ranges()]),
            Shared("errors", lambda: [error_words(_words, _failure_of)]),
            Shared("collectives", lambda: [collectives()]),
        ]
        self._guards = Shared("raw access and custom ops", lambda: [*guards(), custom_ops()])
        if self._traits["captures_graphs"]:
            self._hooks.append(Shared("graphs", lambda: [no_graphs()]))
        self._splits_lists = split_optimizer
        if self.capacity_bytes is not None and split_optimizer:
            self._hooks.append(Shared("list ops", lambda: [small_groups(_part_limit_bytes)]))
        self._watchers: list[Any] = []  # dashboards, which know sessions
        self.after_step: Callable[[], None] | None = None
        """Called in the loop's own thread when a step has ended."""
        self._closed = False
        self._reserve = Reserve()
        # Interrupting a plan must interrupt neither a search nor the ranks' plan.
        self._planner, self._searcher, self._ranks_planner = (PlannerProcess() for _ in range(3))
        self._plans = PlanCache(
            self._runtime,
            partial(self._plan_for, call=partial(self._apart, self._planner)),
            partial(self._plan_for, call=partial(self._apart, self._searcher)),
            self._note,
            lambda: self._capacity.limit_bytes,
            self._planner.interrupt,
            self._searcher.interrupt,
            self._reserve_grows,
            self._other_link,
        )
        self._noted_change = False
        self._noted_no_process = False
        self._noted_pageable = False
        self._noted_lost = False
        self._noted_missed = False
        self._has_followed = False
        self._pins_before, self._pinning_before_s = 0, 0.0
        self._device_times = DeviceTimes(self._runtime)
        self._host_times = HostTimes()
        self._records_makings = False
        self._kernels = ""
        self._floors: dict[tuple[int, int], Floor | None] = {}  # by fingerprint and live peak
        self._telling: dict[
            int, core.StepLog
        ] = {}  # by fingerprint: steps that may need more than the newest

    # ------------------------------------------------------------------------------------------------ life

    def start(self) -> Session:
        """Begin. Raises SessionError if a session is open on the device, or this one has ended."""
        with _lock:
            if self._closed:
                raise SessionError("this session has ended: make a new one")
            if (other := next((s for s in open_sessions() if s.device == self.device), None)) is not None:
                raise SessionError(
                    f"a session is already open on {other.device!r}: leave its `with` block or call its stop() first. "
                    "Each device can have one"
                )
            self._journal.begin()  # the panel asks as soon as there is a session
            add_open_session(self)  # from here on stop() takes back whatever has been done
            try:
                self._open()
            except BaseException:
                self._shut()
                raise
        return self

    def _open(self) -> None:
        if core.time_is_modeled() and (self._disk is not None or not self._traits["emulated"]):
            what = "a disk" if self._disk is not None else f"device {self.device!r}"
            raise SessionError(
                f"no time is modeled for {what}: use the cpu device without a disk in modeled_time()"
            )
        if self._takes_what_there_is:  # other processes may have come and gone since
            self._capacity.measured(available_bytes(self.device))
        self._check_replays()
        options = core.Options()
        if self.capacity_bytes is not None:
            options.capacity_bytes = self.capacity_bytes
        if self.host_capacity_bytes is None and self._traits["pinned_host"]:
            found = default_capacity_bytes(core.pooled_host_bytes(self.device))
            self.host_capacity_bytes = None if found is None else self._share_of_host(found)
        if self.host_capacity_bytes is not None:
            options.host_capacity_bytes = self.host_capacity_bytes
        options.link_out_bytes_per_s = self.link.out_bytes_per_s or 0.0
        options.link_in_bytes_per_s = self.link.in_bytes_per_s or 0.0
        if self._disk is not None:
            self._disk.fill(options)
        options.min_swap_bytes = self.min_swap_bytes
        options.max_ops = self.max_ops
        options.stacks = bool(self.stacks)
        options.trusting = self.rematerialize == "trusting"
        options.splits_lists = self._splits_lists
        self._guards.install()  # first: other threads may read a tensor past the ops as soon as storages can move
        try:
            self._runtime.open(options)
        except RuntimeError as error:
            raise SessionError(str(error).splitlines()[0]) from None
        self._warn_of_one_queue()
        self._kernels = kernels_of(core.tensor_device(self.device))
        counters = self._runtime.counters()
        self._pins_before, self._pinning_before_s = counters["host_pins"], counters["host_pinning_s"]
        self._runtime.allow_replays(self._replayable.dtypes)
        self._records_makings = False
        self._record_makings()
        self._time_next_step()
        for part in self._hooks:
            part.install()
        if self.agree and self.planning and self.capacity_bytes is not None:
            self._agreement = self._join_ranks()
        if self.capacity_bytes is not None and self._measures_link:
            self.link = self._measured_link()  # planning needs to know what copies cost

    def _measured_link(self) -> Link:
        try:
            return Link(*self._runtime.measure_link())
        except RuntimeError as error:
            raise SessionError(str(error).splitlines()[0]) from None

    def _share_of_host(self, machine_bytes: int) -> int:
        """What this rank may have of the machine's memory, which the ranks on it divide among themselves."""
        return max(machine_bytes // self._ranks.identity.share_of_machine, 1)

    def _shut(self) -> None:
        """Take back what start() did. May be repeated, and cut short by Ctrl-C at any point."""
        self._plans.abandon()
        for planner in (self._planner, self._searcher):
            planner.close()
        if self._agreement is not None:
            self._agreement.stop()
        for part in reversed(self._hooks):
            part.remove()
        self._journal.close()
        self._runtime.close()
        self._guards.remove()  # last: storages move until the core is closed
        self._closed = True
        remove_open_session(self)

    def stop(self) -> None:
        """End: every tensor is brought back and stays valid. Harmless where the session is not running."""
        if not self.is_open:
            return
        try:
            error = sys.exc_info()[1]
            if isinstance(error, torch.OutOfMemoryError):
                with suppress(Exception):  # whatever it is, the session ends
                    str(error)  # the last chance to say what is enough
            while self._watchers:  # they read the core, which closes
                self._watchers.pop().stop()
        finally:
            with _lock:
                self._shut()

    def close(self, error: BaseException | None = None) -> None:
        """End, as :meth:`stop` does, with the error that has ended the training, if one has.

        Raises BelowFloorError, which names a capacity that is enough, where that is what the error means.
        """
        text = ""
        if isinstance(error, RuntimeError) and (
            self.is_open or not open_sessions()
        ):  # else it is another's to say
            with suppress(Exception):  # as in stop()
                text = str(error)
        failure = self._runtime.take_failure(text) if text else None
        if failure is None or not failure["below_floor"]:
            self.stop()
            return
        try:
            message = self._naming_enough(failure)
        finally:
            self.stop()
        if error is not None and (message != str(error) or not isinstance(error, BelowFloorError)):
            below = BelowFloorError(
                message,
                capacity_bytes=failure["capacity_bytes"],
                needed_bytes=failure["needed_bytes"],
                op_name=failure["op"],
            )
            raise below.with_traceback(error.__traceback__) from None

    def __enter__(self) -> Session:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(error)

    def _naming_enough(self, failure: core.Failure) -> str:
        """An error below the floor, with the capacity that is enough where that is known of the step."""
        if not self.is_open:
            return unnamed(failure)
        logs = self._journal.logs()
        running = self._runtime.counters()["step"] == failure["step"]
        cut = (
            self._runtime.step_so_far()
            if running
            else next((log for log in logs if log.index == failure["step"]), None)
        )
        # What a failed step lacks may have needed more: a script can go on after the error.
        steps = [self._journal.trace(log) for log in logs if not log.failed]
        given = self._policies.given.source if self._policies.given is not None else None
        try:
            return unnamed(failure) if cut is None else named(failure, self._journal.trace(cut), steps, given)
        except ValueError:  # a step that holds too little to tell: the core's words stand
            return unnamed(failure)

    def _words(self, text: str) -> str | None:
        """What there is to say of an error with these words; None where it is none of this session's."""
        failure = self._runtime.failure_of(text) if self.is_open else None
        if failure is None or not failure["below_floor"]:
            return None
        words = self._naming_enough(failure)
        return None if words == unnamed(failure) else words  # its step may be long past: what it says stands

    @property
    def rank(self) -> Identity:
        """Which rank of its job it runs in, as far as is known by now."""
        return self._ranks.identity

    @property
    def is_open(self) -> bool:
        """Is the session running?"""
        return self in open_sessions()

    @property
    def capacity_bytes(self) -> int | None:
        """The device bytes that the run may use now; None: no limit, the session only records."""
        return self._capacity.bytes

    @property
    def own_capacity_bytes(self) -> int | None:
        """The capacity that the session was made with: an enabled policy's edits may ask for another one."""
        return self._capacity.own_bytes

    @property
    def stage(self) -> SessionStage:
        """WarmUp, Profile or Stable."""
        return self._stage

    # ------------------------------------------------------------------------------------------------ tensors

    def adopt(self, *objects: torch.nn.Module | torch.optim.Optimizer | torch.Tensor) -> None:
        """Let the device own the tensors of models and optimizers that were made before the session.

        Models are found by themselves at their first forward and optimizers at their first step; this does it at
        once, and for single tensors too. What others hold as well (an alias in a state dict, say) moves only this way:
        the call says that nobody keeps a raw address of it. Raises BelowFloorError if one does not fit, TypeError for
        anything else.
        """
        self._require_open("adopt")
        for item in objects:
            if isinstance(item, torch.nn.Module):
                self._discovery.adopt_module(item, trusted=True)
            elif isinstance(item, torch.optim.Optimizer):
                self._discovery.adopt_optimizer(item, trusted=True)
            elif isinstance(item, torch.Tensor):
                self._discovery.adopt_tensor(item)
            else:
                raise TypeError(
                    f"adopt takes modules, optimizers and tensors, not {type(item).__name__}: pass the model itself"
                )

    def where(self, tensor: torch.Tensor) -> str | None:
        """``"resident"``, ``"leaving"``, ``"away"``, ``"returning"``, ``"dropped"``; None: it is not managed.

        A tensor subclass that is made of tensors is where the largest of them is. A sparse tensor is not managed.
        """
        largest = max(_stored("where", tensor), key=lambda part: part.nbytes, default=None)
        return None if largest is None else core.residency(largest)

    def restore(self, tensor: torch.Tensor) -> None:
        """Bring a tensor's storage onto the device. Raises BelowFloorError where there is no room.

        If the tensor is a subclass that is made of tensors, this brings in the storages of all of them.
        """
        held = _stored("restore", tensor)
        fits = all(core.restore(part) for part in held)
        if fits and "away" not in map(core.residency, held):  # the last one may have made the first one leave
            return
        failure = self._runtime.take_failure()
        raise BelowFloorError(
            f"{format_bytes(sum(part.untyped_storage().nbytes() for part in held))} do not fit beside what is in use "
            f"under the capacity of {format_bytes(self.capacity_bytes or 0)}: raise it, or free tensors first",
            capacity_bytes=self.capacity_bytes,
            needed_bytes=failure["needed_bytes"] if failure else None,
        )

    def evict(self, tensor: torch.Tensor) -> bool:
        """Send a tensor's storage to the host now. False where it may not leave, or has been dropped already.

        If the tensor is a subclass that is made of tensors, this sends out all of their storages that are managed.

        Raises SessionError where the session has no capacity: it only records, and nothing of it ever leaves.
        """
        self._require_open("evict")
        if self.capacity_bytes is None:
            raise SessionError(
                "session.evict() needs a session with a capacity; this one only records, and nothing leaves: give "
                'one, such as Session("1GiB")'
            )
        left = [core.evict(part) for part in _stored("evict", tensor) if core.residency(part) is not None]
        return bool(left) and all(left)

    # ------------------------------------------------------------------------------------------------ steps

    def step(self) -> None:
        """Say that a training step ends here. From the first call on, optimizers no longer mark the ends."""
        self._require_open("step")
        self._inference.remove()
        was_explicit, self._explicit_steps = self._explicit_steps, True
        if was_explicit or self._steps == 0:
            self._end_step()
        elif not self._at_border():
            # The first optimizer has ended this very step before anybody knew that the loop would: what came after it
            # (the loss is read, say) is no step to learn from.
            self._end_step(whole=False)

    def _model_called(self) -> None:
        if self.is_open:
            self._end_step()

    def _optimizer_stepped(self) -> None:
        self._inference.remove()
        if not self._explicit_steps and self.is_open:
            self._end_step()

    def _check_replays(self) -> bool:
        """See which ops repeat themselves to the bit under the settings that are in force now. Returns True if anew."""
        if not self.rematerialize or self.capacity_bytes is None:
            return False
        device = core.tensor_device(self.device)
        settings = core.numerics_key(device)
        if settings == self._checked_settings:
            return False
        self._checked_settings = settings
        trusting, cheap = self.rematerialize == "trusting", self.rematerialize == "cheap"
        self._replayable = replayable(device, trusting=trusting, cheap=cheap)
        return True

    def _end_step(self, *, whole: bool = True) -> None:
        self._runtime.own_work(True)
        try:
            with self._policies.lock:
                self._end_this_step(whole)
                if self._check_replays():  # a script may set them when the session is open
                    self._runtime.allow_replays(self._replayable.dtypes)
                self._record_makings()
                self._time_next_step()
        finally:
            self._runtime.own_work(False)
        if self.after_step is not None:
            self.after_step()

    def _record_makings(self) -> None:
        """See how values are made in the steps that plans are made from; later on, only plans with drops need it."""
        wanted = self.planning and bool(self._replayable.dtypes) and self._stage is not SessionStage.STABLE
        if wanted != self._records_makings:
            self._records_makings = wanted
            self._runtime.keep_producers(wanted)

    def _time_next_step(self) -> None:
        if self._traits["runs_behind"]:
            newest = self._journal.newest
            ops = newest.ops if newest else 0
            everything = self._stage is not SessionStage.STABLE
            self._device_times.time_next_step(self._steps, ops, all_ops=everything)

    def _end_this_step(self, whole: bool) -> None:
        log = self._runtime.end_step()
        self._discovery.look_again()
        stage = self._stage
        least_compute_s = math.inf
        if self._traits["runs_behind"]:
            for settled, tick_s in self._journal.settle():
                self._device_times.learn(settled, tick_s)
                self._learn_link(settled)
            self._warn_of_pageable_memory()
        elif whole and self.capacity_bytes is not None:
            least_compute_s = self._host_times.learn(log)
            self._learn_link(log)
        summary = self._journal.ended(log, stage.value)
        if self._traits["runs_behind"] and log.settled:
            self._learn_link(log)  # else later, when it is
        self._warn_of_lost_records(log)
        if self._disk is not None:
            self._disk.watch(self._runtime.disk_counters(), summary.index)
        if self.stacks == "once":
            self._runtime.record_stacks(self._journal.lacks_stacks(log))
        self._steps += 1
        self._ranks.look()
        if self._takes_what_there_is:
            self._leave_to_others(summary)
        if log.op_count == 0 or not whole:
            return  # nothing to learn from
        self._remember(log)
        if stage is not SessionStage.STABLE and self._start_given(log):
            pass
        elif stage is SessionStage.WARMUP:
            if self._steps >= self.warmup_steps:
                self._stage = SessionStage.PROFILE
                self._foresee(log)
        elif stage is SessionStage.PROFILE and not self._policies.is_bound:
            self._make_policy(log)
        elif self.capacity_bytes is not None:
            self._plans.step_ended(log, summary, least_compute_s)
            if core.time_is_modeled():  # how long planning takes is the machine's
                self._plans.wait()
            self._follow(self._plans.serving(log.program))
            if self._plans.replan_reason and not self._noted_change:  # once: the report's plans say the rest
                self._note(f"step {summary.index}: {self._plans.replan_reason}; planning for it")
                self._noted_change = True
            self._stage = SessionStage.PROFILE if self._plans.replan_reason else SessionStage.STABLE
            self._look_for_agreement(log)
        self._policies.step_ended(summary, is_stable=self._stage is SessionStage.STABLE)

    def _join_ranks(self) -> Agreement | None:
        known = self._ranks.identity
        settings = (
            f"{self._capacity.limit_bytes}/{self.host_capacity_bytes}/{self._replay_class}/{self.margin}"
        )
        joined = Agreement.of_job(
            known.rank,
            known.world_size,
            key=lambda: f"{settings}/{self.min_swap_bytes}/{self._given_link_margin}",
            step_of=self._timed_step,
            link=self._newest_link,
            plan=lambda step, link, link_margin, op_s: (
                self._planned_anew(
                    step,
                    self._capacity.limit_bytes,
                    self._policies.edits,
                    link=(link, link_margin if self._given_link_margin is None else self._given_link_margin),
                    op_s=op_s,
                    call=partial(self._apart, self._ranks_planner, in_full=True),
                ).policy
            ),
            interrupt=self._ranks_planner.close,
            note=self._note,
        )
        if joined is None:
            self._note(
                "there are no other ranks to agree with: initialize torch.distributed before the session starts"
            )
        return joined

    def _newest_link(self) -> tuple[Link, float]:
        if self._measures_link:
            self._look_at_link()
        return self.link, self.link_margin

    def _timed_step(self, log: core.StepLog) -> tuple[StepTrace, np.ndarray]:
        log.wait()
        step = self._device_times.completed(self._journal.trace(log))
        known = self._host_times.least(step)
        return step, step_op_times(step) if known is None else known

    def _look_for_agreement(self, log: core.StepLog) -> None:
        if self._agreement is None:
            return
        found = self._agreement.step_ended(log, self._steps, is_stable=self._stage is SessionStage.STABLE)
        if found is not None:
            made, why = found
            self._follow(self._plans.force(made, log.index, why, agreed=True))

    def _remember(self, log: core.StepLog) -> None:
        """The first step may need more than all others; where nothing leaves, the largest of each sequence is kept."""
        before = self._telling.get(log.fingerprint)
        if self._telling and self.capacity_bytes is not None:
            return
        if before is None and len(self._telling) >= _MOST_TELLING:
            return
        if before is None or log.live_peak_bytes > before.live_peak_bytes:
            self._telling[log.fingerprint] = log

    def _leave_to_others(self, summary: StepSummary) -> None:
        """Less what libraries have taken, and torch's blocks that are not the session's.

        After the first step, and once more after the first that followed a plan: pinned memory takes some of a GPU's,
        and what a plan calls may have been loaded for it.
        """
        first_planned = summary.plan >= 0 and not self._has_followed
        self._has_followed |= first_planned
        if not (self._steps == 1 or first_planned):
            return
        counters = self._runtime.counters()
        counted = counters["resident_bytes"] + counters["other_bytes"]
        foreign_bytes = max(0, torch.cuda.memory_allocated(self.device) - counted)
        try:
            left_bytes = available_bytes(self.device) - foreign_bytes
        except SessionError:
            return  # it ran, so eviction manages
        if 0 < left_bytes < self._capacity.limit_bytes:
            self._capacity.change(left_bytes, self._steps, own=True)

    def _warn_of_one_queue(self) -> None:
        if self._traits["runs_behind"] and os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
            text = (
                "CUDA_DEVICE_MAX_CONNECTIONS=1 gives all streams of a GPU one queue: copies may then wait for compute, "
                "and cost time that they would not. Unset it, unless another part of the job needs it"
            )
            warnings.warn(f"Chameleon Lab: {text}", stacklevel=2)
            self._note(text)

    def _warn_of_lost_records(self, log: core.StepLog) -> None:
        if self._noted_lost or not log.lost_to:
            return
        self._noted_lost = True
        text = (
            f"records of step {log.index} were lost ({log.lost_to}): what is used by an op without a record stays on "
            "the device, and the step is not planned for. If the host has no memory left, free some, or give a smaller "
            "host_capacity"
        )
        warnings.warn(f"Chameleon Lab: {text}", stacklevel=2)
        self._note(text)

    def _warn_of_pageable_memory(self) -> None:
        if self._noted_pageable or not (pageable := self._runtime.pageable_host_bytes()):
            return
        self._noted_pageable = True
        text = (
            f"the system gives no more pinned host memory: {format_bytes(pageable)} of what is away lie in pageable "
            "memory, whose copies stop the training loop. Raise `ulimit -l`, or what a container or WSL may lock"
        )
        warnings.warn(f"Chameleon Lab: {text}", stacklevel=2)
        self._note(text)

    def _reserve_grows(self, summary: StepSummary) -> bool:
        if self.capacity_bytes is None:
            return False
        grows = self._reserve.learn(summary, self.capacity_bytes, self.margin)
        if self._reserve.flush:
            torch.cuda.empty_cache()  # waits for the GPU
        return grows

    def _follow(self, plan: Plan | None) -> None:
        if plan is not None and plan.policy is not None:
            self._policies.follow(plan.policy, plan.program.unmatched)

    def _foresee(self, log: core.StepLog) -> None:
        """Eviction in the step to come knows when storages were used in this one."""
        if self.capacity_bytes is None or log.truncated_ops:
            return
        with self._noting_failure(log):
            step = self._journal.trace(log)
            made = StepPlan(None, compile_program(self._no_decisions(), step), step)
            self._plans.force(made, log.index, "the first step")

    def _no_decisions(self) -> Policy:
        assumed = {"min_swap_bytes": self.min_swap_bytes}
        return Policy(self._capacity.limit_bytes, self.link, (), assumed, edits=self._policies.edits)

    def _make_policy(self, log: core.StepLog) -> None:
        """The first plan, made at once: there is none yet that could be followed meanwhile. A better one may follow."""
        if self.capacity_bytes is not None and log.lost_to:
            return  # the next step is tried
        if self.capacity_bytes is not None and log.truncated_ops:
            self._note(
                f"the step has more ops than are recorded ({log.truncated_ops} more): no policy, eviction only. "
                "Call session.step() at the end of each training step"
            )
            return
        with self._noting_failure(log):
            if self.capacity_bytes is not None:
                self._follow(
                    self._plans.force(self._plan_for(log, quick=True), log.index, "the profiled step")
                )
            self._stage = SessionStage.STABLE
        self._policies.bound()

    @contextmanager
    def _noting_failure(self, log: core.StepLog) -> Iterator[None]:
        """A plan that cannot be made must not end the run: eviction goes on, and it is tried again later."""
        try:
            yield
        except Exception as failure:
            self._plans.clear("planning failed")
            self._plans.failed((log.fingerprint, log.live_peak_bytes), log.index, failure)

    def _plan_for(
        self,
        log: core.StepLog,
        *,
        quick: bool = False,
        before: Policy | None = None,
        call: _Call = _here,
    ) -> StepPlan:
        """The policy for a recorded step, bound to it. Runs in the background too, where ``call`` plans elsewhere.

        ``quick`` is for a first plan, from which a search may go on; ``before`` is the policy that another is searched
        to replace.
        """
        before_s = self._spent_s(search=before is not None)
        quick = quick and not core.time_is_modeled()  # in which planning takes no time
        made = self._planned_for(log, quick, before, call)
        return replace(made, spent_s=self._spent_s(search=before is not None) - before_s)

    def _spent_s(self, *, search: bool) -> float:
        """Of a processor, by this thread and by the process that plans for it."""
        return time.thread_time() + (self._searcher if search else self._planner).spent_s

    def _apart(
        self,
        planner: PlannerProcess,
        function: Callable[..., T],
        *args: Any,
        before: Policy | None,
        in_full: bool = False,
        **options: Any,
    ) -> T:
        """Call :func:`plan_and_bind` in a process. If there is none, this thread plans, quickly unless ``in_full``.

        Raises PlannerProcessError in place of a search beside the training loop: both would wait for the interpreter
        again and again.
        """
        if core.time_is_modeled():  # in which no other process is
            return function(*args, before=before, **options)
        try:
            return planner.call(function, *args, before=before, **options)
        except PlannerInterruptedError:
            raise
        except PlannerProcessError as error:
            if before is not None:
                raise
            if not self._noted_no_process:
                self._note(f"plans are made in a thread beside the training loop: {error}")
                self._noted_no_process = True
        return function(*args, before=None, **options if in_full else options | {"quick": True})

    def _planned_for(self, log: core.StepLog, quick: bool, before: Policy | None, call: _Call) -> StepPlan:
        log.wait()  # for a device that runs behind: what its ops took decides what can hide behind them
        step = self._device_times.completed(self._journal.trace(log))
        if not self.planning:
            return StepPlan(None, compile_program(self._no_decisions(), step), step)
        try:
            policy = self._given_for(step) if before is None else None
            if policy is not None:
                return StepPlan(policy, compile_program(policy, step), step)
            if self._measures_link:
                self._look_at_link(log)
            made = self._planned_anew(
                step, self._capacity.limit_bytes, self._policies.edits, quick=quick, before=before, call=call
            )
            return StepPlan(
                replace(made.policy, source=step),
                made.program,
                step,
                gained_s=made.gained_s,
                search_from=log if made.quick and worth_searching(made.policy) else None,
            )
        except BelowFloorError as error:
            # It ran, so eviction manages: an op's inner order can be luckier than the sum of what it touches.
            lowest = floor(Trace([step], {"kernels": self._kernels}))
            if lowest.bytes > self._capacity.limit_bytes:
                self._note(
                    f"the capacity leaves no room to plan (floor {format_bytes(lowest.bytes)}, {lowest.measured_on}): "
                    "eviction only"
                )
            else:
                self._note(f"{error}; until then eviction only")
            return StepPlan(None, compile_program(self._no_decisions(), step), step)

    def _learn_link(self, log: core.StepLog) -> None:
        if self._measures_link and self.planning and self.capacity_bytes is not None:
            self._under_load.learn(log)

    def _look_at_link(self, log: core.StepLog | None = None) -> None:
        """See what the newest steps have found: plans that are made from now on assume that."""
        self.link, margin = self._under_load.typical(self.link, log)
        if self._given_link_margin is None:
            self.link_margin = margin

    def _other_link(self, plan: Plan) -> str | None:
        """How the link differs from the one that a plan was made for; None where it hardly does, where nothing is known
        of it yet, where somebody asked for that link or that policy, and where the plan costs next to nothing.
        """
        policy = plan.policy
        if (
            not self._measures_link
            or not self._under_load.is_settled
            or policy in (None, self._policies.given)
        ):
            return None
        assert policy is not None
        steps = [step for step in self._journal.history[-_COSTING_STEPS:] if step.plan == plan.summary.plan]
        costs = sorted((step.stall_s + step.replay_s) / max(step.step_s, 1e-9) for step in steps)
        asked = any(edit.action is EditAction.LINK for edit in policy.edits)
        if asked or not costs or costs[len(costs) // 2] < _LEAST_COST:
            return None
        link, margin = self._under_load.typical(self.link)
        now = link.reduced(margin if self._given_link_margin is None else self._given_link_margin)
        then = policy.link.reduced(policy.assumed.get("link_margin", 0.0))
        return f"copies find {now} of the link, planned for {then}" if now.differs(then) else None

    def _given_for(self, step: StepTrace) -> Policy | None:
        """The given policy where it fits the step. None: one is generated under the edits of the newest."""
        capacity_bytes, given, edits = self._capacity.limit_bytes, self._policies.given, self._policies.edits
        if given is not None:
            if not self._policies.is_bound and self._choice.is_open(given):
                given, reason = self._choice.fitting(
                    lambda policy: policy_fit.misfit(policy, step, capacity_bytes, self.host_capacity_bytes),
                    lambda policy: policy_fit.agreeing_ops(policy, step),
                )
                if reason is None:
                    self._policies.prefer(given)
            else:
                reason = policy_fit.misfit(given, step, capacity_bytes, self.host_capacity_bytes)
            lost = None if reason else self._lost_drops(given, step)
            if reason is None and lost is None:
                if not self._policies.is_bound:
                    self._note("the given policy fits the profiled step: in force from the next one on")
                return given
            if lost is not None:
                self._note(f"the given policy: {lost}. Planned anew, with its {len(edits)} edits")
            elif (
                not self._policies.is_bound
            ):  # later it goes on serving its own ops, beside the plans for others
                self._note(
                    f"the given policy does not fit: {reason}. Planned anew, with its {len(edits)} edits"
                )
        return None

    def _planned_anew(
        self,
        step: StepTrace,
        capacity_bytes: int,
        edits: tuple[Edit, ...],
        *,
        link: tuple[Link, float] | None = None,
        op_s: np.ndarray | None = None,
        quick: bool = False,
        before: Policy | None = None,
        call: _Call = _here,
    ) -> BoundPlan:
        """Generated, with what this session can replay, and bound; what is wrong with the edits is noted.

        ``link`` and its margin, and ``op_s``, are this session's by default.
        """
        planned_for, link_margin = link or (self.link, self.link_margin)
        known = self._host_times.least(step) if op_s is None else op_s
        made: BoundPlan = call(
            plan_and_bind,
            step,
            capacity_bytes,
            planned_for,
            edits,
            min_swap_bytes=self.min_swap_bytes,
            margin=self.margin,
            link_margin=link_margin,
            reserve_bytes=min(self._reserve.bytes, capacity_bytes // 2),
            op_times=step_op_times(step) if known is None else known,
            rematerialize=self._replay_class,
            refused=self._not_replayed(step),
            host_capacity_bytes=self.host_capacity_bytes,
            quick=quick,
            before=None if before is None else replace(before, source=None),
        )
        for remark in made.remarks:
            self._note(remark)
        return made

    def _lost_drops(self, policy: Policy, step: StepTrace) -> str | None:
        """How many decisions of a policy cannot be obeyed, since this session cannot replay what they drop; None: none.

        As it is, such a policy would leave those storages to eviction.
        """
        if policy.drops and not self._replay_class:
            why = self._replays_off or "nothing is replayed"
            reasons = Counter({why: len(policy.drops)})
        else:
            refused = self._not_replayed(step)
            reasons = Counter(unreplayable(policy, step, self._replay_class, refused).values())
        if not reasons:
            return None
        (most, _), *others = reasons.most_common()
        also = f", and {len(others)} other reason{'s' * (len(others) > 1)}" if others else ""
        count = f"{reasons.total()} of its {len(policy.decisions)} decisions"
        return f"{count} cannot be obeyed, since what they drop cannot be replayed here ({most}{also})"

    def _not_replayed(self, step: StepTrace) -> dict[str, str]:
        """What the planner must not drop, and why: ops replayed with no dtype, and storages that were declined."""
        declined, names = step.declined, (*step.names, "")  # -1 is the last: unknown
        rows = zip(declined.storage.tolist(), declined.refusal.tolist(), declined.name.tolist(), strict=True)
        self._declined |= {
            step.storage_keys[row]: self._replayable.why_declined(refusal, names[name])
            for row, refusal, name in rows
        }
        return self._refused()

    def _refused(self) -> dict[str, str]:
        dtypes, refused = self._replayable.dtypes, self._replayable.refused
        return {name: why for name, why in refused.items() if name not in dtypes} | self._declined

    def _evicts_last(self, category: Category, label: str, part: torch.Tensor) -> bool:
        edits = self._policies.edits
        return bool(edits) and self._evict_last_by_name(edits, category, label, core.block_bytes(part))

    def _mark_evict_last(self, step: StepTrace) -> None:
        """The policy's edits are others: tell the core what eviction takes last, whatever plan is followed."""
        self._runtime.set_evict_last(step.storages.uid[evict_last_rows(step, self._policies.edits)])

    def _start_given(self, log: core.StepLog) -> bool:
        """After the first step: put a given policy in force, if it fits and holds the step it was made for."""
        policy = self._policies.take_unstarted()
        if policy is None or self.capacity_bytes is None or not self.planning:
            return False
        if log.truncated_ops or not (policy.assumed or self._choice.is_open(policy)):
            return False
        first, capacity_bytes = self._journal.trace(log), self.capacity_bytes
        policy, reason = self._choice.fitting(
            lambda one: policy_fit.misfit_at_start(one, first, capacity_bytes, self.host_capacity_bytes),
            lambda one: policy_fit.agreeing_ops(one, first),
        )
        if reason is None:
            reason = self._lost_drops(policy, first)
        if reason is not None:
            self._note(f"the given policy is not in force from the second step on: {reason}")
            return False
        self._put_in_force(policy, self.capacity_bytes, "the given policy")
        self._note("the given policy fits: in force from the second step on")
        for difference in policy_fit.differences(policy, None if self._measures_link else self.link):
            self._note(f"the given policy fits, but {difference}")
        return True

    def _at_border(self) -> bool:
        """Is this moment between two steps, so that plans can be changed?"""
        return self._steps > 0 and self._runtime.counters()["ops_in_step"] == 0

    def _enable(self, policy: Policy) -> None:
        """Switch to a policy and to the capacity that its edits ask for, between two steps."""
        asked = any(edit.action is EditAction.CAPACITY for edit in policy.edits)
        own_bytes = self._capacity.own_bytes
        capacity_bytes = policy.capacity_bytes if asked or own_bytes is None else own_bytes
        self._put_in_force(policy, capacity_bytes, "enabled")

    def _put_in_force(self, policy: Policy, capacity_bytes: int, why: str) -> None:
        """Make a policy the only plan: bound to the newest step if that is its own, else to the one it holds."""
        live = self._journal.trace(self._runtime.logs()[-1])
        step = live
        if policy.source is not None and policy.assumed.get("fingerprint") != fingerprint(live):
            step = policy_fit.rebound(policy.source, live, self._discovery.labels.id)
        self._capacity.change(capacity_bytes, live.index + 1)
        unfinished = self._plans.unfinished(policy)
        self._policies.prefer(policy if unfinished is None else None)
        if (lost := self._lost_drops(policy, step)) is not None:
            self._note(f"the policy {why}: {lost}. Planned anew, with its {len(policy.edits)} edits")
            step = self._device_times.completed(step)
            try:
                policy = self._planned_anew(step, capacity_bytes, policy.edits).policy
                policy = replace(policy, source=step)
            except BelowFloorError as error:  # in the middle of a run: eviction manages
                self._note(f"planning failed: {error}")
        made = StepPlan(policy, compile_program(policy, step), step, search_from=unfinished)
        self._follow(self._plans.force(made, live.index, why))
        self._mark_evict_last(live)
        self._policies.bound()
        self._stage = SessionStage.STABLE

    def _other_devices(self) -> set[torch.device]:
        return {core.tensor_device(other.device) for other in open_sessions() if other is not self}

    def _misses(self, name: str, where: torch.device) -> None:
        """A model has tensors, and none of them is on the session's device. Said once."""
        if self._noted_missed:
            return
        self._noted_missed = True
        text = f"{name} is on {where}, and this session's device is {self.device}: it is left alone. "
        if where.type == "cuda" and (missing := core.missing_device(str(where))):
            text += missing
        elif where.type in ("cuda", "cpu"):
            text += f"Use cl.Session(device={str(where)!r}) for it, or move it"
        else:
            text += "Move it"
        warnings.warn(f"Chameleon Lab: {text}", stacklevel=2)
        self._note(text)

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    # ------------------------------------------------------------------------------------------------ results

    @property
    def policy(self) -> Policy | None:
        """The policy in force, or None before there is one. Assign one to use it from the next step on."""
        return self._policies.active

    @policy.setter
    def policy(self, policy: Policy | str | os.PathLike[str]) -> None:
        if not isinstance(policy, Policy):
            policy = Policy.load(os.fspath(policy))
        if self.capacity_bytes is None:
            raise PolicyError("this session only records, it has no capacity: give one to use a policy")
        self._policies.give(policy)
        if self.is_open and (logs := self._runtime.logs()):
            self._mark_evict_last(self._journal.trace(logs[-1]))
        if self.is_open and self._stage is not SessionStage.WARMUP:
            self._stage = SessionStage.PROFILE  # bind it to the next step's ops
            self._record_makings()

    def policy_to_save(self) -> Policy | None:
        """The policy in force, or a better one: a search that has not ended is made here, which may take seconds."""
        policy = self.policy
        if policy is None or (log := self._plans.unfinished(policy)) is None:
            return policy
        with suppress(Exception):  # there is a policy to save, whatever becomes of the search
            found = self._plan_for(log, before=policy)
            if found.policy is not None and found.gained_s > 0.0:
                return found.policy
        return policy

    def enable(self, draft: Draft | Policy) -> None:
        """Use a draft, or a policy, from the next step border on. No number of the run changes.

        An edit of the capacity changes that of the device; without one it is the capacity of the session.

        Raises BelowFloorError if no policy fits; SessionError if no policy is in force yet; PolicyError if the edits of
        a policy are newer than its decisions, or it is for more than the session has.
        """
        self._policies.enable(draft)

    def rollback(self) -> Policy:
        """From the next step border on, use what was in force before the last :meth:`enable`; returns it.

        The last 16 can be taken back, one after another. Raises SessionError if there is none.
        """
        return self._policies.rollback()

    def dry_run(
        self, draft: Draft, step_fn: Callable[[], object] | None = None, *, steps: int = 1, settle: int = 1
    ) -> DryRun:
        """Try a draft for a few steps of the run, then go back to the policy in force.

        The steps are real training steps: they count, and no number of the run changes. With ``step_fn``, which
        trains one step, they are run here. Without it they are the next ones of the caller's loop, and the result
        fills as they end. The first ``settle`` steps under the draft are not measured: storages still take their new
        places.

        Raises what :meth:`enable` raises, what ``step_fn`` raises, and SessionError if a call of it ends no step.
        """
        return self._policies.dry_run(draft, step_fn, steps, settle)

    @property
    def staging(self) -> PolicyController:
        """What has been asked for: the policy in force for good, and whether it can be rolled back."""
        return self._policies

    def trace(self) -> Trace:
        """The newest finished steps, as columns. Empty before the first step has ended."""
        return Trace([self._journal.trace(log) for log in self._journal.logs()], self.trace_meta())

    def suggest(self) -> tuple[Suggestion, ...]:
        """Changes of the script that would lower the peak, with code to paste and what they save and take.

        They are for you to make: a session never does. Empty where the step fits its capacity, and where none helps.
        """
        return suggest(self.trace(), self.capacity_bytes, link=self.link)

    def trace_meta(self) -> dict[str, Any]:
        """What a trace says of where it was recorded; see :class:`~chameleon_lab.trace.Trace`."""
        return {
            "torch": torch.__version__,
            "device": self.device,
            "kernels": self._kernels,
            **({"allocator": setting} if (setting := self._journal.allocator_setting()) else {}),
            "capacity_bytes": self.capacity_bytes,
            "host_capacity_bytes": self.host_capacity_bytes,
            "link_out_bytes_per_s": self.link.out_bytes_per_s,
            "link_in_bytes_per_s": self.link.in_bytes_per_s,
            "created_s": self._created_s,
            **self._ranks.to_meta(),
            "replay_class": self._replay_class,
            "refused": sorted(self._refused()) if self._replay_class else [],
            "not_replayed": dict(self._replayable.refused) if self._replay_class else {},
            "replays_off": self._replays_off,
        }

    @property
    def _replay_class(self) -> int:
        """The highest class of ops that may be replayed; 0 for none."""
        return max((REPLAY_CLASS[name] for name in self._replayable.dtypes), default=0)

    @property
    def step_count(self) -> int:
        """How many steps have ended."""
        return self._steps

    def recorded_steps(self) -> tuple[int, ...]:
        """Indices of the finished steps that are still recorded, oldest first."""
        return tuple(log.index for log in self._journal.logs())

    def recorded_step(self, index: int) -> StepTrace:
        """One finished step, as columns. Raises SessionError if it is not, or no longer, recorded."""
        return self._journal.trace(self._journal.log(index))

    def counters(self) -> core.Counters:
        """What the device holds now, as bytes and counts; after the end, what it held last.

        May be asked from any thread, while a step runs. Raises SessionError before the start.
        """
        return self._journal.counters()

    @property
    def history(self) -> tuple[StepSummary, ...]:
        """The finished steps in figures, oldest first. May be asked from any thread."""
        return self._journal.history

    def resident_peaks(self, index: int, parts: int) -> np.ndarray:
        """The most bytes on the device in each of ``parts`` equal stretches of a finished step's ops.

        int64, shape (parts,), or (ops,) of a step with fewer ops. May be asked from any thread. Raises SessionError if
        the step is not, or no longer, recorded.
        """
        return self._journal.resident_peaks(index, parts)

    def dashboard(self, *, every_s: float = 0.25) -> Any:
        """Figures that move while a cell trains: capacity, stage, counters; resident bytes, transfers and stalls.

        A :class:`~chameleon_lab.lab.figures.dashboard.Dashboard`.
        Show it by making it the last line of a cell, then train in the next ones. It ends with the session, and
        ``dashboard.save("run.html")`` keeps it as a page. A thread of its own reads the session every ``every_s``
        seconds; the steps do nothing for it.

        Raises SessionError before the start, MissingPackageError without bokeh, ValueError if ``every_s`` is not
        positive.
        """
        watcher = at_first_use("Dashboard")(self, every_s=every_s)
        if self.is_open:
            self._watchers.append(watcher)
            watcher.start()
        return watcher

    def report(self) -> Report:
        """What the session has done so far."""
        pinned = self._traits["pinned_host"]
        counters = self.counters()
        logs = self._journal.logs()
        live_peak = 0.0
        if logs:
            live_peak = float(logs[-1].ops()["live_peak_bytes"].max(initial=0))
        return Report(
            newest=self._journal.newest or StepSummary.none(),
            device=self.device,
            stage=self._stage.value,
            steps=self._steps,
            capacity_bytes=self.capacity_bytes,
            peak_bytes=counters["peak_resident_bytes"],
            live_peak_bytes=int(live_peak),
            resident_bytes=counters["resident_bytes"],
            host_bytes=counters["host_used_bytes"],
            host_peak_bytes=counters["host_peak_bytes"],
            host_capacity_bytes=self.host_capacity_bytes,
            host_pins=counters["host_pins"] - self._pins_before if pinned else None,
            host_pinning_s=counters["host_pinning_s"] - self._pinning_before_s if pinned else None,
            step_s=self._journal.median_step_s(),
            loading_s=self._journal.median_s("loading_s"),
            stall_parts=self._stall_parts(),
            link=str(self.link if self.policy is None else self.policy.link),
            link_margin=self.link_margin
            if self.policy is None
            else self.policy.assumed.get("link_margin", 0.0),
            decisions=len(self.policy.decisions) if self.policy else 0,
            unmatched_decisions=self._policies.unmatched,
            escaped_storages=counters["escaped"],
            escaped_bytes=counters["escaped_bytes"],
            refused=dict(self._discovery.refused),
            floor=self._floor(),
            notes=tuple(self._notes) + self._without_steps(counters),
            history=self._journal.history,
            plans=tuple(self._plans.summaries()),
            divergences=tuple(self._journal.divergences()),
            capacity_peak_bytes=self._capacity_peak_bytes(),
            replan_reason=self._plans.replan_reason
            or (self._plans.desynchronized(counters) if self.is_open else None),
            unserved=self._plans.unserved,
            planning_s=self._plans.spent_s,
            recent_match_rate=_share(counters["recent_matched_ops"], counters["recent_ops"]),
            recent_trigger_recall=_share(counters["recent_fired_bytes"], counters["recent_due_bytes"]),
            declined_drops=declined_drops(logs[-1], self._replayable) if logs else {},
            not_replayed=dict(self._replayable.refused),
            replays_off=self._replays_off,
            reserved_bytes=sum(counters[name] for name in ("resident_bytes", "cached_bytes", "other_bytes")),
            split_bytes=counters["split_bytes"],
            allocator=self._journal.allocator_setting(),
            reserve_bytes=self._reserve.bytes,
            rank=self._ranks.identity,
            disk=None
            if self._disk is None
            else self._disk.summary(
                self._runtime.disk_counters(), counters["host_used_bytes"], counters["host_peak_bytes"]
            ),
        )

    def _without_steps(self, counters: core.Counters) -> tuple[str, ...]:
        """What to do where ops come and no step ends."""
        if self._steps or not counters["ops_in_step"]:
            return ()
        text = (
            f"no step has ended after {counters['ops_in_step']} ops, so that nothing is planned: an optimizer's step "
            "ends one, and so does session.step(), or chameleon_lab.current_session().step()"
        )
        if self._inference.awaited:
            text += (
                f". The calls without gradients end none, since an optimizer, {self._inference.awaited}, has been made "
                "and has not stepped: inference_steps=True lets them"
            )
        return (text,)

    def _floor(self) -> Floor | None:
        """The highest floor of the steps that are remembered or still recorded, each kind of step once."""
        logs = [*self._telling.values(), *self._journal.logs()]
        kinds = {(log.fingerprint, log.live_peak_bytes): log for log in logs}
        for kind, log in kinds.items():
            if kind not in self._floors:
                self._floors[kind] = highest_floor([self._journal.trace(log)])
        self._floors = {kind: self._floors[kind] for kind in kinds}
        found = [lowest for lowest in self._floors.values() if lowest is not None]
        highest = max(found, key=lambda lowest: lowest.bytes, default=None)
        return None if highest is None else replace(highest, kernels=self._kernels)

    def _stall_parts(self) -> dict[str, float]:
        """Why the newest step stalled, in seconds."""
        logs, newest = self._journal.logs(), self._journal.newest
        if not logs or newest is None or not newest.stall_s:
            return {}
        return stall_totals(logs[-1])

    @property
    def _replays_off(self) -> str:
        """Why nothing is replayed; empty where something is, and where nothing ever has to leave."""
        if self.capacity_bytes is None or self._replayable.dtypes:
            return ""
        if not self.rematerialize:
            return "rematerialize=False"
        if core.SEES_RAW_ACCESS or self.rematerialize == "trusting":
            return ""  # it has not started
        return (
            f'{UNSEEN_WRITES}; if nothing outside of ops does, rematerialize="trusting" replays all the same'
        )

    def _capacity_peak_bytes(self) -> int | None:
        since = self._capacity.changed_before_step
        return None if since is None else self._journal.peak_bytes_since(since)

    def _require_open(self, call: str) -> None:
        if not self.is_open:
            raise SessionError(
                f"session.{call}() needs a running session: call it inside `with cl.Session(...)`"
            )

    def __repr__(self) -> str:
        capacity = "no capacity" if self.capacity_bytes is None else format_bytes(self.capacity_bytes)
        state = "open" if self.is_open else "ended" if self._closed else "not started"
        return f"<Session {self.device}, {capacity}, {self._stage}, step {self._steps}, {state}>"


def _stored(call: str, tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors of which a call moves the storages."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"session.{call}() takes a tensor, not {type(tensor).__name__}: {tensor!r}")
    return [part for _, part in parts(tensor) if part.layout == torch.strided]


def _words(text: str) -> str | None:
    """What the session that an error with these words is of has to say of it."""
    sessions: list[Session] = open_sessions()
    return next((words for session in reversed(sessions) if (words := session._words(text))), None)


def _failure_of(text: str) -> core.Failure | None:
    sessions: list[Session] = open_sessions()
    failures = (session._runtime.failure_of(text) for session in reversed(sessions))
    return next((failure for failure in failures if failure is not None), None)


def _part_limit_bytes(device: torch.device) -> int:
    """The most bytes that a part of a list op should touch on a device."""
    sessions: list[Session] = open_sessions()
    for session in sessions:
        if session._splits_lists and session.capacity_bytes and core.tensor_device(session.device) == device:
            return part_limit_bytes(session._capacity.limit_bytes)
    return sys.maxsize


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
