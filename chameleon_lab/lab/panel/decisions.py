"""The policy editor's table: one row for every storage of a step that can leave."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ...planner import Prediction
from ...planner.estimate import Deciders
from ...planner.host_room import HostRoom
from ...planner.memory import StepMemory, step_memory
from ...planner.program import bind
from ...planner.replay import Chain, PlannedReplays, ReplayChains
from ...planner.retention import as_planned
from ...planner.simulate import simulate_swaps
from ...policy import EditAction, Link, Policy
from ...policy.edits import Edit, StorageIndex
from ...policy.model import Action
from ...trace import StepTrace
from .query import fits_text, parse_query

ACTIONS = tuple(
    action.value
    for action in EditAction
    if action
    not in (EditAction.NEVER_REMATERIALIZE, EditAction.PREFETCH, EditAction.CAPACITY, EditAction.LINK)
)
"""What an edit can say of a storage, as the planner knows it."""

YOU, RULE, FOLLOWS, PLANNER = "you", "rule", "follows", "planner"
"""Who decided: an edit of the storage, a rule, the planner because of an edit of others, or the planner alone."""

_SHOWN_GAPS = 12


@dataclass(frozen=True)
class RowActions:
    """What a policy does with each row, columns of shape (rows,)."""

    action: np.ndarray
    """object: ``"keep"``, ``"swap"``, ...: the action of most of its decisions."""
    count: np.ndarray
    """int64: gaps in which it is away or dropped."""
    drops: np.ndarray
    """int64: those in which it is dropped."""
    moved_bytes: np.ndarray
    """int64: both ways, in a step."""
    transfer_s: np.ndarray
    """float64: what its copies take of the link."""
    stall_s: np.ndarray
    """float64: what a step waits for it."""
    replay_s: np.ndarray
    """float64: what the replays that make it again take."""


class Candidates:
    """The storages of a step that a policy can decide about: movable, large enough, and idle at some time.

    Args:
        step: the step that the policy is for.
        op_times: compute seconds of each op, shape (ops,).
        min_swap_bytes: smaller blocks stay.
        replay_class: the highest class of ops that can be replayed; 0: none.
        refused: names of ops and keys of storages that the runtime does not replay.
    """

    def __init__(
        self,
        step: StepTrace,
        op_times: np.ndarray,
        min_swap_bytes: int,
        replay_class: int = 0,
        refused: Collection[str] = (),
    ) -> None:
        self.step, self.op_times = step, op_times
        self.min_swap_bytes, self.replay_class, self.refused = (
            min_swap_bytes,
            replay_class,
            frozenset(refused),
        )
        self.index = StorageIndex(step)
        self.memory = memory = step_memory(step, min_swap_bytes)
        start = np.concatenate([[0.0], np.cumsum(np.tile(op_times, 2))])
        self._start, n = start, memory.ops
        first = np.minimum(memory.gap_out + 1, 2 * n)
        length_s = start[np.minimum(memory.gap_use, 2 * n)] - start[first]
        order = np.lexsort((length_s, memory.gap_returns, memory.gap_storage))
        owner = memory.gap_storage[order]
        longest = order[np.append(owner[1:] != owner[:-1], True)[: len(owner)]]
        self._longest = dict(zip(memory.gap_storage[longest].tolist(), longest.tolist(), strict=True))
        candidate = np.concatenate([memory.gap_storage[longest], memory.dormant])
        idle_s = np.concatenate([length_s[longest], np.full(len(memory.dormant), start[n])])
        idle_ops = np.concatenate(
            [(memory.gap_use - memory.gap_out - 1)[longest], np.full(len(memory.dormant), n)]
        )
        idle_from = np.concatenate([memory.gap_out[longest] + 1, np.zeros(len(memory.dormant))]).astype(
            np.int64
        )
        order = np.argsort(candidate, kind="stable")
        self.candidate = candidate[order]
        self.row = memory.row[self.candidate]
        """int64 (rows,): row in ``StepTrace.storages``."""
        self.idle_s, self.idle_ops, self._idle_from = idle_s[order], idle_ops[order], idle_from[order]
        self.bytes = memory.block_bytes[self.candidate]
        self.category = step.storages.category[self.row].astype(np.int64)
        self.modules = [self.index.module[row] for row in self.row.tolist()]
        self.keys = [self.index.keys[row] for row in self.row.tolist()]
        self.place = {key: place for place, key in enumerate(self.keys)}
        self.gap_count = np.bincount(memory.gap_storage, minlength=len(memory.row))[self.candidate]
        self._length_s = length_s

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def replayable(self) -> ReplayChains | None:
        """What can be replayed in the step; None where replays are switched off."""
        if not self.replay_class:
            return None
        return ReplayChains(self.step, self.memory, self.op_times, self.replay_class, self.refused)

    def replay(self, place: int) -> Chain | str:
        """How a row's storage would be made again at the end of its longest gap, or why it cannot be."""
        gap = self._longest.get(int(self.candidate[place]))
        if self.replayable is None:
            return "replaying is switched off"
        if gap is None:
            return "no op of the step uses it"
        if (why := self.replayable.why_not(gap)) is not None:
            return why
        chain = self.replayable.chain(int(self.row[place]), int(self.memory.gap_use[gap]))
        assert chain is not None  # why_not has looked
        return chain

    @cached_property
    def replay_s(self) -> np.ndarray:
        """float64 (rows,): what :meth:`replay` would take; NaN where it cannot be."""
        found = [self.replay(place) for place in range(len(self))]
        return np.array([chain.seconds if isinstance(chain, Chain) else np.nan for chain in found])

    def judged(self, policy: Policy, *, at_half: bool = True) -> Judged:
        """What a step takes under a policy, ``at_half`` the link too, and what the policy does with each row."""
        memory, swaps, replays, unmatched = bind(policy, self.step, self.op_times)
        room = HostRoom(as_planned(policy, self.step), policy.host_capacity_bytes)

        def on(link: Link) -> Prediction:
            return simulate_swaps(
                memory,
                swaps,
                policy.capacity_bytes,
                link,
                self.op_times,
                replays,
                host=room,
                unmatched=tuple(unmatched),
                step=self.step,
            )

        prediction = on(policy.link)
        count, drops = (np.zeros(len(self), dtype=np.int64) for _ in range(2))
        for decision in policy.decisions:
            place = self.place.get(decision.storage)
            if place is not None and decision.action is not Action.KEEP:
                count[place] += 1
                drops[place] += decision.action is Action.REMATERIALIZE
        action = np.where(count > 0, Action.SWAP.value, Action.KEEP.value).astype(object)
        action[drops * 2 > count] = Action.REMATERIALIZE.value
        storages = len(self.step.storages)
        copied, link = swaps.needs_copy(memory, room.kept(memory, swaps)), policy.link
        size = memory.block_bytes[swaps.storage]
        owner = memory.row[swaps.storage]
        moved = np.bincount(owner, weights=size * copied + size * swaps.returns, minlength=storages)
        spent = np.array([link.out_s(b) for b in size.tolist()]) * copied
        spent = spent + np.array([link.in_s(b) for b in size.tolist()]) * swaps.returns
        spent = np.bincount(owner, weights=spent, minlength=storages)
        waits = prediction.waits
        stall = np.bincount(waits.storage, weights=waits.duration_s, minlength=storages)
        rows = RowActions(
            action=action,
            count=count,
            drops=drops,
            moved_bytes=moved[self.row].astype(np.int64),
            transfer_s=spent[self.row],
            stall_s=stall[self.row],
            replay_s=self._replayed_s(memory, replays)[self.row],
        )
        half_link_step_s = prediction.step_s if not prediction.transfer_s else None
        if at_half and half_link_step_s is None:
            half_link_step_s = on(link.reduced(0.5)).step_s
        return Judged(prediction, half_link_step_s, rows)

    def _replayed_s(self, memory: StepMemory, replays: PlannedReplays) -> np.ndarray:
        """float64 (storages,): what replaying each takes in a step."""
        seconds = np.zeros(len(self.step.storages))
        rows = memory.row[replays.storage].tolist()
        for row, chain in zip(rows, replays.chains, strict=True):
            seconds[row] += chain.seconds
        return seconds


class Judged(NamedTuple):
    """What a policy comes to."""

    prediction: Prediction
    half_link_step_s: float | None
    """What a step would take were the link half as fast; None where that takes too long to find out."""
    rows: RowActions
    """What it does with each row."""

    def with_step(self, step: StepTrace | None) -> Judged:
        """The same about this object of the step, or about none."""
        return self._replace(prediction=replace(self.prediction, step=step))


class DecisionTable:
    """All rows under a draft, beside what is in force.

    Args:
        candidates: the storages.
        now, then: what is in force does with them, and what the draft does.
        edits: the draft's.
        in_force: the edits in force.
        declined: by the key of a storage, why the runtime has declined to drop it.
    """

    def __init__(
        self,
        candidates: Candidates,
        now: RowActions,
        then: RowActions,
        edits: Sequence[Edit],
        in_force: Sequence[Edit],
        declined: Mapping[str, str] | None = None,
    ) -> None:
        self.candidates, self.now, self.then = candidates, now, then
        self.declined = declined or {}
        self.edits = edits = tuple(edits)
        deciders = Deciders(candidates.index, edits)
        residence = deciders.residence[candidates.row]
        self.prefetch = deciders.prefetch[candidates.row]
        for (key, _), k in deciders.gaps.items():
            place = candidates.place.get(key)
            if place is not None:
                residence[place] = k
        self.never_replayed = deciders.never_replayed[candidates.row]
        """bool (rows,): does an edit forbid to rematerialize it?"""
        replay = np.where(self.never_replayed, deciders.replay[candidates.row], -1)
        self.deciding = np.where(residence >= 0, residence, np.where(replay >= 0, replay, self.prefetch))
        """int64 (rows,): the edit that decides, -1 for none."""
        self.before = self._named(now.action, Deciders(candidates.index, in_force), in_force)
        self.after = self._named(then.action, deciders, edits)
        """object (rows,): what the draft does with each, such as ``"swap"``."""
        differs = (self.before != self.after) | (now.count != then.count) | (now.drops != then.drops)
        specific = np.array([edit.specificity > 0 for edit in edits] + [False])
        self.by = np.where(differs, FOLLOWS, PLANNER).astype(object)
        """object (rows,): who decided."""
        decided = self.deciding >= 0
        self.by[decided] = np.where(specific[self.deciding], YOU, RULE)[decided]
        new = np.array([edit not in in_force for edit in edits] + [False])
        self.staged = new[self.deciding] | new[self.prefetch] | new[replay] | differs
        """bool (rows,): other than what is in force."""
        self.follows = int((differs & ~decided).sum())
        """Rows that the planner changes because of edits of others."""

    def _named(self, action: np.ndarray, deciders: Deciders, edits: Sequence[Edit]) -> np.ndarray:
        """The actions, with those named that only eviction knows of: a storage that is never touched is kept too."""
        residence = deciders.residence[self.candidates.row]
        never = np.array([edit.action is EditAction.NEVER_TOUCH for edit in edits] + [False])
        named = action.copy()
        named[never[residence] & (action == Action.KEEP.value)] = EditAction.NEVER_TOUCH.value
        return named

    @property
    def hidden(self) -> np.ndarray:
        """float64 (rows,): share of each storage's copies that hides behind compute; NaN where nothing is copied."""
        spent = self.then.transfer_s
        share = np.full(len(spent), np.nan)
        busy = spent > 0
        share[busy] = np.clip(1.0 - self.then.stall_s[busy] / spent[busy], 0.0, 1.0)
        return share

    def found(self, text: str) -> np.ndarray:
        """Places of the rows that a filter fits, int64, ascending. An empty text fits all.

        Beside the terms of :func:`~chameleon_lab.lab.panel.query.parse_query` there are the names of actions (``keep``,
        ``swap``, ``never``, ``rematerialize``), ``by:you``, ``by:rule``, ``by:planner``, ``by:follows``, ``stall>0``,
        ``declined`` (the runtime would not drop it) and ``staged``.

        Raises:
            ValueError: a term cannot be read.
        """
        fits = np.ones(len(self.candidates), dtype=bool)
        rest, actions = [], []
        for term in text.split():
            named = [a for a in ACTIONS if len(term) >= 4 and a.startswith(term.lower())]
            if named:
                actions += named
            elif term.startswith("by:"):
                who = [
                    name for name in (YOU, RULE, FOLLOWS, PLANNER) if term[3:] and name.startswith(term[3:])
                ]
                if not who:
                    raise ValueError(f"{term!r} is none of by:you, by:rule, by:follows and by:planner")
                fits &= np.isin(self.by.astype(str), who)
            elif term == "stall>0":
                fits &= self.then.stall_s > 0
            elif term == "staged":
                fits &= self.staged
            elif term == "declined":
                fits &= np.array([key in self.declined for key in self.candidates.keys], dtype=bool)
            else:
                rest.append(term)
        if actions:
            fits &= np.isin(self.after.astype(str), actions)
        query = parse_query(" ".join(rest))
        rows, index = self.candidates.row, self.candidates.index
        paths = sorted(set(self.candidates.modules))
        number = {path: i for i, path in enumerate(paths)}
        path = np.array([number[p] for p in self.candidates.modules], dtype=np.int32)
        texts = [
            f"{key} {index.category[row].replace('_', ' ')}"
            for key, row in zip(self.candidates.keys, rows.tolist(), strict=True)
        ]
        fits &= fits_text(query, paths, path, texts)
        sizes = self.candidates.bytes
        if query.at_least is not None:
            fits &= sizes >= query.at_least
        if query.at_most is not None:
            fits &= sizes <= query.at_most
        if query.category is not None:
            fits &= self.candidates.category == query.category
        if query.stage is not None:
            births = np.array(
                [index.stage[row] == query.stage.name.lower() for row in rows.tolist()], dtype=bool
            )
            fits &= births
        return np.flatnonzero(fits)

    def ordered(self, places: np.ndarray, sort: str, down: bool) -> np.ndarray:
        """The places, sorted by a column; ties by size, largest first, then as in the step."""
        candidates = self.candidates
        columns: dict[str, Any] = {
            "name": lambda: np.array(candidates.keys, dtype=str),
            "module": lambda: np.array(candidates.modules, dtype=str),
            "bytes": lambda: candidates.bytes,
            "idle_s": lambda: candidates.idle_s,
            "decision": lambda: self.after.astype(str),
            "hidden": lambda: np.nan_to_num(self.hidden, nan=2.0),
            "stall_s": lambda: self.then.stall_s,
            "replay_s": lambda: np.nan_to_num(candidates.replay_s, nan=-1.0),
            "by": lambda: self.by.astype(str),
        }
        values = np.unique(columns[sort]()[places], return_inverse=True)[1]
        return places[np.lexsort((places, -candidates.bytes[places], -values if down else values))]

    def facts(self, place: int) -> dict[str, Any]:
        """One row, as the panel shows it. Shares of the step count from its begin; above 1 they lie in the next one."""
        c, n = self.candidates, self.candidates.memory.ops
        row = int(c.row[place])
        k, shift = int(self.deciding[place]), int(self.prefetch[place])
        storages = c.step.storages
        birth = max(int(storages.birth_op[row]), 0)
        death = min(int(storages.death_op[row]) + 1, n)
        idle = int(c._idle_from[place])
        total = float(c._start[n]) or 1.0

        def share(op: int) -> float:
            return float(c._start[min(op, 2 * n)]) / total

        hidden, replay = float(self.hidden[place]), c.replay(place)
        return {
            "storage": c.keys[place],
            "category": int(c.category[place]),
            "module": c.modules[place],
            "bytes": int(c.bytes[place]),
            "idle_s": float(c.idle_s[place]),
            "idle_ops": int(c.idle_ops[place]),
            "gaps": int(c.gap_count[place]),
            "before": str(self.before[place]),
            "after": str(self.after[place]),
            "swaps": int(self.then.count[place] - self.then.drops[place]),
            "drops": int(self.then.drops[place]),
            "moved_bytes": int(self.then.moved_bytes[place]),
            "hidden": None if np.isnan(hidden) else hidden,
            "stall_s": float(self.then.stall_s[place]),
            "replay_s": float(self.then.replay_s[place]),
            "replay_cost_s": replay.seconds if isinstance(replay, Chain) else None,
            "never_rematerialize": bool(self.never_replayed[place]),
            "declined": self.declined.get(c.keys[place], ""),
            "by": str(self.by[place]),
            "edit": k,
            "ops_earlier": (self.edits[shift].ops_earlier or 0) if shift >= 0 else 0,
            "staged": bool(self.staged[place]),
            "life": [share(birth), share(death)],
            "idle": [share(idle), share(idle + int(c.idle_ops[place]))],
        }

    def page(self, text: str, sort: str, down: bool, start: int, count: int) -> dict[str, Any]:
        """Some of the rows that a filter fits, in order, and how many there are. Raises ValueError as :meth:`found`."""
        places = self.ordered(self.found(text), sort, down)
        return {
            "total": len(places),
            "bytes": int(self.candidates.bytes[places].sum()),
            "all": len(self.candidates),
            "start": start,
            "rows": [self.facts(place) for place in places[start : start + count].tolist()],
        }

    def gaps(self, place: int, policy: Policy) -> list[dict[str, Any]]:
        """The gaps of one row, longest first, with what a policy decides about each."""
        c = self.candidates
        memory, step, key = c.memory, c.step, c.keys[place]
        decided = {decision.gap: decision for decision in policy.decisions if decision.storage == key}
        own = np.flatnonzero(memory.gap_storage == c.candidate[place])
        own = own[np.argsort(-c._length_s[own], kind="stable")][:_SHOWN_GAPS]
        found = []
        for gap in own.tolist():
            out, use = int(memory.gap_out[gap]), int(memory.gap_use[gap])
            decision = decided.get(int(memory.gap_ordinal[gap]))
            returns = bool(memory.gap_returns[gap])
            back = -1 if decision is None or decision.in_op < 0 else decision.in_op
            found.append(
                {
                    "gap": int(memory.gap_ordinal[gap]),
                    "after": _op(step, out),
                    "before": _op(step, use % memory.ops) if returns else None,
                    "ops": use - out - 1,
                    "seconds": float(c._length_s[gap]),
                    "action": Action.KEEP.value if decision is None else decision.action.value,
                    "lead_ops": use - back if back >= 0 else None,
                    "lead_s": float(c._start[min(use, 2 * memory.ops)] - c._start[min(back, 2 * memory.ops)])
                    if back >= 0
                    else None,
                }
            )
        return found


def _op(step: StepTrace, op: int) -> dict[str, Any]:
    return {"op": op, "name": step.op_name(op), "module": step.module_path(int(step.ops.module[op]))}
