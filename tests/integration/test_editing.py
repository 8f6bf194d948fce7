"""Edits at work: files that start a run in Stable, other sequence lengths, dry runs, enabling and rolling back."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training import Gpt, Run, adamw, child, of_the_gate, raw, reference, state_bytes, train

import chameleon_lab as cl
from chameleon_lab.policy import Edit, EditAction, Link, Policy, diff
from chameleon_lab.policy.edits import digest
from chameleon_lab.session import session as sessions
from chameleon_lab.testing import modeled_time, wait_for_plans
from chameleon_lab.trace import Category, Cause

STEPS = 10
GELU = "blocks.1/aten::gelu.0#0"
WEIGHT = "parameter:blocks.0.up.weight"


@pytest.fixture(scope="module", autouse=True)
def steady() -> Iterator[None]:
    """Plans that no clock decides."""
    with modeled_time():
        yield


@pytest.fixture(scope="module")
def made() -> Policy:
    """The policy that a run of the GPT at half of its peak makes."""
    _, live_peak = reference(Gpt, steps=STEPS)
    found: list[Policy | None] = []
    train(
        Gpt,
        steps=4,
        session_kwargs={"capacity": live_peak // 2},
        each_step=lambda number, model, session: found.append(session.policy if session else None),
    )
    assert found[-1] is not None
    return found[-1]


def swapped(policy: Policy | None) -> set[str]:
    assert policy is not None
    return {decision.storage for decision in policy.swaps}


def larger_batch() -> Gpt:
    model = Gpt()
    model.batch = partial(Gpt.batch, model, size=6)  # type: ignore[method-assign]
    return model


class Trainer:
    """A loop that tests drive step by step."""

    def __init__(self, session: cl.Session, *, reads_loss: bool = False) -> None:
        torch.manual_seed(0)
        self.session, self.reads_loss = session, reads_loss
        self.model, self.generator = Gpt(), torch.Generator().manual_seed(0)
        self.optimizer = adamw(self.model.parameters())
        self.losses: list[bytes] = []

    def step(self) -> None:
        loss = self.model(self.model.batch(self.generator))
        loss.backward()
        self.losses.append(raw(loss))
        self.optimizer.step()
        if self.reads_loss:
            loss.detach().clone()
            loss.item()
        self.optimizer.zero_grad(set_to_none=not self.reads_loss)
        self.session.step()

    def same(self, bare: Run) -> bool:
        return tuple(self.losses) == bare.losses and state_bytes(self.model, self.optimizer) == bare.state


@contextmanager
def trainer(steps: int = 3, **kwargs: Any) -> Iterator[Trainer]:
    """A trainer some steps into its run, under a policy."""
    _, live_peak = reference(Gpt, steps=STEPS)
    with cl.Session(**{"capacity": live_peak // 2, **kwargs}) as session:
        loop = Trainer(session)
        for _ in range(steps):
            loop.step()
        yield loop


# --------------------------------------------------------------------------------------------- files at the start


@pytest.mark.bits
@pytest.mark.parametrize("edited", [False, True])
def test_a_file_that_fits_is_in_force_from_the_second_step_on(
    made: Policy, tmp_path: Path, edited: bool
) -> None:
    bare, _ = reference(Gpt, steps=STEPS)
    policy = made.draft().keep(GELU).never_touch(category="parameter").policy() if edited else made
    policy.save(tmp_path / "policy.json")
    run = train(
        Gpt, steps=STEPS, session_kwargs={"capacity": made.capacity_bytes, "policy": tmp_path / "policy.json"}
    )
    report = run.report
    assert run.same(bare) and report is not None
    assert [step.stage for step in report.history] == ["WarmUp"] + ["Stable"] * (STEPS - 1)
    assert report.notes == ("the given policy fits: in force from the second step on",)
    assert report.decisions == len(policy) and report.unmatched_decisions == ()
    for step in report.history[3:]:
        assert (step.match_rate, step.demand_swap_ins, step.evictions) == (1.0, 0, 0)
        assert step.peak_bytes <= made.capacity_bytes and step.swapped_in_bytes > 0
    assert report.history[1].swapped_out_bytes > 0 and report.history[1].match_rate > 0.9


@pytest.mark.bits
def test_ops_between_the_optimizer_and_the_end_of_the_step_are_part_of_it(tmp_path: Path) -> None:
    """The first step is ended by its optimizer: nobody knows yet that the loop will say where steps end."""
    bare, live_peak = reference(Gpt, steps=STEPS)

    def run(**kwargs: Any) -> tuple[list[str], cl.Session]:
        with cl.Session(live_peak // 2, **kwargs) as session:
            loop = Trainer(session, reads_loss=True)
            for _ in range(STEPS):
                loop.step()
        assert tuple(loop.losses) == bare.losses
        return [step.stage for step in session.history], session

    stages, session = run()
    # The second entry is what followed the optimizer in the first step.
    assert stages == ["WarmUp", "Profile", "Profile"] + ["Stable"] * (STEPS - 2)
    assert session.policy is not None and session.policy.source is not None
    session.policy.save(tmp_path / "policy.json")
    stages, given = run(policy=tmp_path / "policy.json")
    assert stages == ["WarmUp"] + ["Stable"] * STEPS, given.report().notes
    assert given.report().notes == ("the given policy fits: in force from the second step on",)
    last = given.history[-1]
    assert (last.match_rate, last.demand_swap_ins, last.evictions) == (
        1.0,
        0,
        0,
    ) and last.swapped_in_bytes > 0
    assert len(session.policy.source.ops) == last.ops


def test_other_conditions_than_a_fitting_policy_was_made_for_are_said(made: Policy) -> None:
    assumed = {**made.assumed, "torch": "1.0"}
    other = dataclasses.replace(made, assumed=assumed, link=Link(1e6, 1e9))
    with trainer(capacity=made.capacity_bytes, policy=other, link="1GB/s") as loop:
        notes = loop.session.report().notes  # what the slow link brings about comes after these
    assert notes[0] == "the given policy fits: in force from the second step on"
    assert notes[1].startswith("the given policy fits, but it was made with torch 1.0, and this is ")
    assert notes[2].startswith(
        "the given policy fits, but it was made for a link of 977 KiB/s / 954 MiB/s, and "
    )


def test_a_file_whose_step_is_another_than_it_says_is_not_started_with(made: Policy) -> None:
    other = dataclasses.replace(made, assumed={**made.assumed, "fingerprint": "0" * 16})
    with trainer(capacity=made.capacity_bytes, policy=other) as loop:
        assert "its fingerprint is of another step than the one in its file" in loop.session.report().notes[0]


def test_a_policy_that_fits_the_profiled_step_only_is_said_to(made: Policy) -> None:
    """A file without the step that it was made for cannot be recognized by the first step."""
    lost = dataclasses.replace(made, source=None)
    run = train(Gpt, steps=4, session_kwargs={"capacity": made.capacity_bytes, "policy": lost})
    assert run.report is not None
    first, second = run.report.notes
    assert "its file has no step" in first
    assert second == "the given policy fits the profiled step: in force from the next one on"
    assert run.report.decisions == len(made)


def test_a_policy_brings_its_capacity(made: Policy) -> None:
    with cl.Session(policy=made) as session:
        assert session.capacity_bytes == made.capacity_bytes


def test_a_file_fits_in_another_process(made: Policy, tmp_path: Path) -> None:
    made.draft().keep(GELU).never_touch(category="parameter").save(str(tmp_path / "policy.json"))
    child(f"""
        from chameleon_lab.policy import Policy
        path = {str(tmp_path / "policy.json")!r}
        kwargs = {{"capacity": {made.capacity_bytes}, "policy": path}}
        policies = []
        run = train(Gpt, steps=6, session_kwargs=kwargs, each_step=lambda n, m, s: policies.append(s.policy))
        history = run.report.history
        assert [step.stage for step in history] == ["WarmUp"] + ["Stable"] * 5, run.report
        assert policies[-1] == Policy.load(path) and run.report.unmatched_decisions == ()
        assert (history[-1].match_rate, history[-1].demand_swap_ins, history[-1].evictions) == (1.0, 0, 0)
        assert history[-1].swapped_in_bytes > 0
    """)


@pytest.mark.bits
@pytest.mark.parametrize(
    "change, said",
    [
        ("layers", "in blocks.6, and it was made for aten::flatten"),
        (
            "other ops",
            "forward and backward is aten::relu in blocks.0, and it was made for aten::gelu in blocks.0",
        ),
        ("width", "tokens.weight has 36.0 KiB, and it was made for 24.0 KiB"),
        ("length", "positions.weight has 24.0 KiB, and it was made for 16.0 KiB"),
        ("batch", "it was made for activations of"),
        ("capacity", "it was made for"),
        ("no step", "its file has no step"),
        ("edits", "its edits were changed after its decisions were made"),
    ],
)
def test_what_does_not_fit_is_said_and_the_edits_are_merged(
    made: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, said: str
) -> None:
    path, edits = tmp_path / "policy.json", (Edit(EditAction.KEEP, WEIGHT), Edit(EditAction.SWAP, GELU))
    draft = made.draft()
    draft.edits = edits
    draft.save(str(path))
    data = json.loads(path.read_text())
    model: Any = Gpt
    if change == "layers":
        model = partial(Gpt, layers=7)
    elif change == "other ops":
        model = partial(Gpt, time=64)  # not the one that reference() knows
        monkeypatch.setattr(torch.nn.functional, "gelu", torch.nn.functional.relu)
    elif change == "batch":
        model = larger_batch
    elif change == "width":
        model = partial(Gpt, dim=96)
    elif change == "length":
        model = partial(Gpt, time=96)
    elif change == "no step":
        data["step"] = ""
    elif change == "edits":
        data["edits"].append({"action": "keep", "storage": "parameter:blocks.3.up.weight"})
    path.write_text(json.dumps(data))
    bare, live_peak = reference(model, steps=STEPS)
    capacity = live_peak // 3 if change == "capacity" else max(live_peak // 2, made.capacity_bytes)
    policies: list[Policy | None] = []
    run = train(
        model,
        steps=STEPS,
        session_kwargs={"capacity": capacity, "policy": path},
        each_step=lambda number, model, session: policies.append(session.policy if session else None),
    )
    report, policy = run.report, policies[-1]
    assert run.same(bare) and report is not None and policy is not None
    assert report.notes[0].startswith("the given policy is not in force from the second step on: ")
    assert said in report.notes[0]
    assert [step.stage for step in report.history[:3]] == ["WarmUp", "Profile", "Stable"]
    assert policy.edits == Policy.load(path).edits and policy.edits[:2] == edits
    assert WEIGHT not in swapped(policy)
    if change == "other ops":
        assert any(GELU in note and "unmatched" in note for note in report.notes)
    else:
        assert GELU in swapped(policy)
    assert max(step.peak_bytes for step in report.history) <= capacity
    assert (report.history[-1].match_rate, report.history[-1].demand_swap_ins) == (1.0, 0)


@pytest.mark.bits
def test_edits_survive_another_sequence_length(made: Policy, tmp_path: Path) -> None:
    """Edited at 64 tokens, used at 96: every edit means the same storages, and is obeyed."""
    draft = made.draft()
    draft.keep(WEIGHT).swap(GELU).never_touch(module="blocks.4", category="optimizer_state")
    draft.keep(module="blocks.2", category="activation", min_bytes=1 << 16)
    assert draft.validate() == ()
    draft.save(str(tmp_path / "policy.json"))
    longer = partial(Gpt, time=96)
    bare, live_peak = reference(longer, steps=STEPS)
    policies: list[Policy | None] = []
    run = train(
        longer,
        steps=STEPS,
        session_kwargs={"capacity": live_peak // 2, "policy": tmp_path / "policy.json"},
        each_step=lambda number, model, session: policies.append(session.policy if session else None),
    )
    policy = policies[-1]
    assert run.same(bare) and policy is not None and policy.edits == draft.edits and policy.findings == ()
    stays = {WEIGHT} | {key for key in swapped(made) if "of blocks.4." in key}
    assert GELU in swapped(policy) and not stays & swapped(policy)
    large = [d for d in policy.swaps if d.module.startswith("blocks.2") and d.bytes >= 1 << 16]
    assert [d for d in large if d.category == "activation"] == []


@pytest.mark.bits
def test_faulty_edits_in_a_file_are_noted_one_by_one_and_stay_in_the_policy(
    made: Policy, tmp_path: Path
) -> None:
    bare, _ = reference(Gpt, steps=STEPS)
    edits = [
        Edit(EditAction.KEEP, "blocks.1/aten::gelo.0#0"),
        Edit(EditAction.KEEP, GELU),
        Edit(EditAction.SWAP, GELU),
        Edit(EditAction.NEVER_TOUCH, min_bytes=1),  # no room with it
        Edit(EditAction.CAPACITY, capacity_bytes=2 * made.capacity_bytes),
    ]
    data = json.loads(made.to_json())
    data["edits"] = [edit.to_dict() for edit in edits]
    (tmp_path / "policy.json").write_text(json.dumps(data))
    policies: list[Policy | None] = []
    run = train(
        Gpt,
        steps=STEPS,
        session_kwargs={"capacity": made.capacity_bytes, "policy": tmp_path / "policy.json"},
        each_step=lambda number, model, session: policies.append(session.policy if session else None),
    )
    policy = policies[-1]
    assert run.same(bare) and run.report is not None and policy is not None
    text = "\n".join(run.report.notes)
    for part in (
        "(keep blocks.1/aten::gelo.0#0) is unmatched",
        f"(keep {GELU}) is contradicted",
        "not obeyed: edit 4 (never touch all of from 1 B) is unreachable",
        "edit 5 (capacity 10.0 MiB) is not obeyed: there are 5.02 MiB",
    ):
        assert part in text, text
    assert policy.edits == tuple(edits) and GELU in swapped(policy)
    assert policy.is_current and policy.disobeyed == (3, 4)
    assert max(step.peak_bytes for step in run.report.history) <= made.capacity_bytes


# ------------------------------------------------------------------------------------------- enable and roll back


@pytest.mark.bits
def test_enable_and_rollback_take_force_at_the_next_border_and_change_no_number() -> None:
    bare, _ = reference(Gpt, steps=STEPS)
    with trainer() as loop:
        session = loop.session
        before = session.policy
        assert before is not None and GELU in swapped(before)
        session.enable(before.draft().keep(GELU))
        assert session.policy is not before, "session.step() has just ended a step: this is a border"
        enabled = session.policy
        loop.step()
        loop.step()
        assert GELU not in swapped(session.policy) and session.stage is cl.SessionStage.STABLE
        assert session.rollback() is before and session.policy is before
        loop.step()
        with pytest.raises(cl.SessionError, match="no way back"):
            session.rollback()
        # In the middle of a step the switch waits for its end.
        torch.ones(3).add_(1)
        assert enabled is not None
        session.enable(enabled)
        assert session.policy is before
        while len(loop.losses) < STEPS:
            loop.step()
        assert session.policy is enabled
        report = session.report()
        assert report.history[-1].match_rate == 1.0 and report.history[-1].demand_swap_ins == 0
        assert loop.same(bare)


@pytest.mark.bits
@pytest.mark.parametrize("seed", of_the_gate(0, all_of=range(4)))
def test_random_edits_in_the_middle_of_training_change_no_number(seed: int) -> None:
    bare, live_peak = reference(Gpt, steps=STEPS)
    chance = random.Random(seed)
    with trainer(steps=2) as loop:
        session, enabled, highest = loop.session, 0, live_peak // 2
        while len(loop.losses) < STEPS:
            assert session.policy is not None
            draft = session.policy.draft()
            keys = draft.step.storage_keys
            for _ in range(chance.randint(1, 5)):
                target = chance.choice(
                    [
                        {"storage": chance.choice(keys)},
                        {"storage": chance.choice(keys), "gap": chance.randint(0, 2)},
                        {"module": f"blocks.{chance.randint(0, 6)}"},
                        {"category": chance.choice(["parameter", "activation", "optimizer_state"])},
                        {"min_bytes": 1 << chance.randint(14, 18)},
                    ]
                )
                call = chance.choice([draft.keep, draft.swap, draft.swap, draft.never_touch, draft.prefetch])
                call(**target, **({"ops_earlier": chance.choice([-9, 5])} if call == draft.prefetch else {}))
            if chance.random() < 0.3:
                draft.set_capacity(int(live_peak * chance.uniform(0.4, 0.8)))
            kind = chance.random()
            try:
                if kind < 0.6:
                    session.enable(draft)
                    enabled += 1
                elif kind < 0.8:
                    session.dry_run(draft, loop.step if len(loop.losses) < STEPS - 3 else None)
                elif enabled:
                    session.rollback()
                    enabled -= 1
            except cl.BelowFloorError:
                pass
            if len(loop.losses) < STEPS:
                loop.step()
            highest = max(highest, session.capacity_bytes or 0)
        assert loop.same(bare)
        assert session.report().peak_bytes <= highest


@pytest.mark.bits
def test_a_capacity_edit_moves_the_device_and_rollback_moves_it_back() -> None:
    bare, live_peak = reference(Gpt, steps=STEPS)
    with trainer() as loop:
        session = loop.session
        own = session.capacity_bytes
        assert session.policy is not None and own is not None
        for share in (0.4, 0.7):
            session.enable(session.policy.draft().set_capacity(int(share * live_peak)))
            loop.step()
            loop.step()
            assert session.capacity_bytes == int(share * live_peak)
            peak = session.report().history[-1].peak_bytes
            assert 0.8 * share * live_peak < peak <= share * live_peak
        session.rollback()
        session.rollback()
        assert session.capacity_bytes == own
        while len(loop.losses) < STEPS:
            loop.step()
        assert session.report().history[-1].peak_bytes <= own and loop.same(bare)
        report = session.report()
        assert report.capacity_peak_bytes is not None
        assert report.capacity_peak_bytes <= own < report.peak_bytes
        assert "since the capacity changed" in str(report)


def test_a_loop_that_ends_its_steps_itself_has_no_empty_one() -> None:
    """The first optimizer ends the first step, and session.step() finds it ended."""
    with trainer(steps=4) as loop:
        history = loop.session.report().history
    assert [step.stage for step in history] == ["WarmUp", "Profile", "Stable", "Stable"]
    assert all(step.ops > 0 for step in history)
    with cl.Session() as session:
        for _ in range(3):
            torch.ones(1000).sum()
            session.step()
        session.step()
        assert session.step_count == 4, "whoever says that a step ends is taken at the word"


def test_never_touch_is_evicted_last() -> None:
    """With nothing planned, eviction takes activations and spares the parameters; without the edit it takes them."""
    _, live_peak = reference(Gpt, steps=STEPS)

    def evicted(*edits: Edit) -> set[int]:
        with trainer(capacity=2 * live_peak // 3) as loop:
            loop.session.policy = Policy(
                2 * live_peak // 3, Link(None, None), (), {"edits": digest(edits)}, {}, edits
            )
            loop.step()
            loop.step()
            step = loop.session.trace().last
            rows = step.transfers.storage[step.transfers.cause == Cause.EVICT]
            return set(step.storages.category[rows[rows >= 0]].tolist())

    assert Category.PARAMETER in evicted()
    evict_last = evicted(Edit(EditAction.NEVER_TOUCH, category="parameter"))
    assert evict_last and Category.PARAMETER not in evict_last


@pytest.mark.parametrize("planning", [True, False])
def test_never_touch_of_a_given_policy_holds_from_the_first_step_on(
    made: Policy, tmp_path: Path, planning: bool
) -> None:
    """Without a plan too, and where the first one knows nothing of storages that later steps make."""
    made.draft().never_touch(category="parameter").save(str(tmp_path / "policy.json"))
    evicted: list[set[str]] = []
    given = {"policy": tmp_path / "policy.json", "planning": planning}
    with cl.Session(made.capacity_bytes, **given) as session:
        loop = Trainer(session)
        for _ in range(5):
            loop.step()
            step = session.recorded_step(session.recorded_steps()[-1])
            rows = step.transfers.storage[
                (step.transfers.cause == Cause.EVICT) & (step.transfers.storage >= 0)
            ]
            evicted.append({step.storage_keys[row].split(":")[0] for row in rows.tolist()})
    assert any(evicted[:2]), "there was pressure"
    assert not any("parameter" in kinds for kinds in evicted), evicted


# --------------------------------------------------------------------------------------------------- dry runs


@pytest.mark.bits
@pytest.mark.parametrize("driven", [True, False])
def test_a_dry_run_shows_measured_beside_predicted_and_goes_back(driven: bool) -> None:
    bare, _ = reference(Gpt, steps=STEPS)
    with trainer() as loop:
        session, before = loop.session, loop.session.policy
        assert before is not None
        draft = before.draft().keep(GELU).keep(WEIGHT)
        if driven:
            result = session.dry_run(draft, loop.step, steps=2)
            assert len(loop.losses) == 3 + 1 + 2
        else:
            result = session.dry_run(draft, steps=2)
            assert not result.done and "waiting for steps" in str(result)
            for _ in range(3):
                assert not result.done and swapped(session.policy) == swapped(draft.policy())
                loop.step()
        assert result.done and result.note == "" and session.policy is before
        assert len(result.measured) == 2
        for step in result.measured:
            assert step.peak_bytes == pytest.approx(result.prediction.peak_bytes, rel=0.03)
            assert step.swapped_in_bytes == pytest.approx(result.prediction.swapped_in_bytes, rel=0.05)
            assert (step.match_rate, step.demand_swap_ins, step.evictions) == (1.0, 0, 0)
        assert [row[0] for row in result.rows()] == ["Peak", "Step", "Stall", "Overlap", "Out", "In"]
        assert "predicted" in str(result) and "<th>measured</th>" in result._repr_html_()
        assert json.loads(json.dumps(result.to_dict()))["measured"][0]["peak_bytes"] > 0
        while len(loop.losses) < STEPS:
            loop.step()
        assert loop.same(bare) and diff(before, session.policy).conditions == {}


def test_a_dry_run_that_fails_goes_back() -> None:
    with trainer() as loop:
        session, before = loop.session, loop.session.policy
        assert before is not None
        draft = before.draft().keep(GELU)

        def fails() -> None:
            loop.step()
            raise KeyError("data ran out")

        with pytest.raises(KeyError):
            session.dry_run(draft, fails, steps=3)
        assert session.policy is before
        with pytest.raises(cl.SessionError, match="no step ended"):
            session.dry_run(draft, lambda: None)
        assert session.policy is before
        waiting = session.dry_run(draft)
        session.enable(draft)
        assert waiting.done and waiting.note == "another policy was enabled"
        loop.step()
        assert session.rollback() is before


def test_staging_needs_a_running_session_with_a_policy(made: Policy) -> None:
    with trainer(steps=1) as loop:
        with pytest.raises(cl.SessionError, match="no policy is in force yet: train 2 whole steps"):
            loop.session.dry_run(made.draft())
        session = loop.session
    with pytest.raises(cl.SessionError, match="needs a running session"):
        session.enable(made)
    with trainer() as loop:
        with pytest.raises(cl.PolicyError, match=r"draft\.set_capacity"):
            loop.session.enable(Policy(1 << 30, made.link, ()))
        with pytest.raises(TypeError, match="takes a draft, not Policy"):
            loop.session.dry_run(made)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="steps must be a number of steps from 1 up, got 0"):
            loop.session.dry_run(made.draft(), steps=0)
    with cl.Session() as session, pytest.raises(cl.PolicyError, match="only records"):
        session.enable(made)


def test_edits_outlive_a_lasting_change_of_the_ops() -> None:
    """Back to Profile by itself: the new plan is made under the same edits."""
    _, live_peak = reference(Gpt, steps=STEPS)
    torch.manual_seed(0)
    model, other = Gpt(), Gpt(layers=5, dropout=0.1)
    with cl.Session(live_peak // 2) as session:
        generator = torch.Generator().manual_seed(0)
        optimizers: dict[nn.Module, Any] = {}
        for number in range(20):
            used = model if number < 5 else other
            optimizer = optimizers.setdefault(used, adamw(used.parameters()))
            used(used.batch(generator)).backward()
            optimizer.step()
            optimizer.zero_grad()
            session.step()
            if number == 3:
                assert session.policy is not None
                session.enable(session.policy.draft().never_touch(category="parameter"))
        assert session.policy is not None and session.stage is cl.SessionStage.STABLE
        assert session.policy.edits == (Edit(EditAction.NEVER_TOUCH, category="parameter"),)
        assert {d.category for d in session.policy.swaps} - {"parameter"} == {
            d.category for d in session.policy.swaps
        }
        assert "planning for it" in "".join(session.report().notes)


def test_a_session_that_takes_what_there_is_leaves_to_others_after_its_first_and_its_first_planned_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a GPU, whose memory other processes have too, and pinned memory takes a part of."""
    there = [50 << 20, 30 << 20, 20 << 20]
    monkeypatch.setattr(sessions, "available_bytes", lambda _: there.pop(0))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 0)
    session = cl.Session("64MiB", device="cpu")
    session._takes_what_there_is = True
    model = torch.nn.Linear(64, 64)
    seen = []
    with session:
        assert session.capacity_bytes == session.own_capacity_bytes == 50 << 20
        for _ in range(6):
            model(torch.ones(8, 64)).sum().backward()
            session.step()
            wait_for_plans(session)
            assert session.capacity_bytes == session.own_capacity_bytes
            seen.append(session.counters()["capacity_bytes"] >> 20)
        assert seen[0] == 30 and seen[-1] == 20 and sorted(seen, reverse=True) == seen
        assert there == [] and session.report().capacity_peak_bytes is not None
