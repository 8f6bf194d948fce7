"""Plans under arbitrary edits: they fit, they are obeyed or reported, and they survive their file."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from synthetic import gpt_step, random_step

import chameleon_lab
from chameleon_lab.planner import floor, plan, simulate
from chameleon_lab.planner.memory import LEAST_SWAP_BYTES, step_memory
from chameleon_lab.planner.program import compile_program
from chameleon_lab.policy import Edit, EditAction, EditsUnreachableError, Fault, Link, Policy
from chameleon_lab.policy.edits import CATEGORIES, STAGES, StorageIndex
from chameleon_lab.trace import StepTrace

LINKS = [Link(None, None), Link(1e9, 1e9), Link(1e6, 3e6)]
SCHEMA = json.loads((Path(chameleon_lab.__file__).parent / "policy" / "policy.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

steps = st.builds(
    random_step, seed=st.integers(0, 10**6), ops=st.integers(1, 40), storages=st.integers(1, 14)
)
residence = st.sampled_from([EditAction.KEEP, EditAction.SWAP, EditAction.NEVER_TOUCH])
"""Where replays are off; tests/property/test_mix.py has the others."""


@st.composite
def edits_of(draw: st.DrawFn, step: StepTrace) -> tuple[Edit, ...]:
    """Up to 6 edits; most mean something in the step."""
    keys = st.sampled_from([*step.storage_keys, "nothing"])
    target = st.one_of(
        st.builds(dict, storage=keys),
        st.builds(dict, storage=keys, gap=st.integers(0, 3)),
        st.builds(dict, category=st.sampled_from(CATEGORIES)),
        st.builds(dict, stage=st.sampled_from(STAGES), max_bytes=st.integers(1 << 12, 1 << 18)),
        st.builds(dict, min_bytes=st.integers(1 << 12, 1 << 18)),
    )
    ops = st.integers(-9, 9).filter(bool)
    one = st.one_of(
        st.builds(lambda action, at: Edit(action, **at), residence, target),
        st.builds(lambda n, at: Edit(EditAction.PREFETCH, ops_earlier=n, **at), ops, target),
    )
    return tuple(draw(st.lists(one, max_size=6)))


def capacity_of(step: StepTrace, share: float) -> int:
    lowest = int(
        step_memory(step, LEAST_SWAP_BYTES).least_bytes().max()
    )  # of policies alone, without eviction
    return max(1, lowest + int(share * (step.live_peak_bytes - lowest)))


@examples(400)
@given(data=st.data(), step=steps, share=st.floats(0, 1), link=st.sampled_from(LINKS))
def test_edited_plans_fit_and_obey(data: st.DataObject, step: StepTrace, share: float, link: Link) -> None:
    edits = data.draw(edits_of(step))
    capacity = capacity_of(step, share)
    try:
        policy = plan(step, capacity, link, edits=edits)
    except EditsUnreachableError as error:
        stays = (EditAction.KEEP, EditAction.NEVER_TOUCH)
        assert error.findings and all(edits[f.index].action in stays for f in error.findings)
        return
    assert plan(step, capacity, link, edits=edits) == policy
    assert Policy.from_json(policy.to_json()) == policy and policy.is_current
    VALIDATOR.validate(json.loads(policy.to_json()))
    prediction = simulate(step, policy)
    assert prediction.fits and prediction.unmatched == ()
    assert compile_program(policy, step).unmatched == ()

    # An edit that is not reported, and that none of higher rank speaks against, is obeyed.
    reported = {finding.index for finding in policy.findings}
    index, moved = StorageIndex(step), {decision.storage for decision in policy.swaps}
    for k, edit in enumerate(edits):
        others = [other for n, other in enumerate(edits) if n != k and other.is_residence]
        if not edit.is_residence or k in reported:
            continue
        mine = {index.keys[row] for row in index.rows(edit)}
        assert mine, "an edit that means nothing is reported"
        theirs = {index.keys[row] for other in others for row in index.rows(other)}
        for key in mine - theirs:
            if edit.action is not EditAction.SWAP and edit.gap is None:
                assert key not in moved
            elif edit.action is not EditAction.SWAP:
                assert (key, edit.gap) not in {(d.storage, d.gap) for d in policy.swaps}
            elif edit.storage is not None:
                assert key in moved
    for finding in policy.findings:
        assert str(finding) and finding.way_out and 0 <= finding.index < len(edits)
        assert finding.fault is not Fault.UNREACHABLE


@examples(60)
@given(data=st.data(), tokens=st.integers(1, 9), others=st.integers(1, 9), share=st.floats(0, 1))
def test_edits_mean_the_same_at_another_sequence_length(
    data: st.DataObject, tokens: int, others: int, share: float
) -> None:
    """Made at one length, saved, loaded and planned with at another: the same storages, and obeyed or reported."""
    short, long = gpt_step(layers=3, tokens=tokens), gpt_step(layers=3, tokens=others)
    target = st.one_of(
        st.builds(dict, storage=st.sampled_from(short.storage_keys)),
        st.builds(dict, module=st.sampled_from(["h.0", "h.*", "h.1", "wte"])),
        st.builds(dict, category=st.sampled_from(CATEGORIES), stage=st.sampled_from([None, *STAGES])),
    )
    one = st.builds(lambda action, at: Edit(action, **at), residence, target)
    edits = tuple(data.draw(st.lists(one, min_size=1, max_size=5)))
    try:
        made = plan(short, short.live_peak_bytes, LINKS[1], edits=edits)
    except EditsUnreachableError:
        return
    draft = Policy.from_json(made.to_json()).draft(long).set_capacity(capacity_of(long, share))
    assert draft.edits[:-1] == edits
    here, there = StorageIndex(short), StorageIndex(long)
    meant = [{there.keys[row] for row in there.rows(edit)} for edit in edits]
    assert meant == [{here.keys[row] for row in here.rows(edit)} for edit in edits]
    reported = {finding.index for finding in draft.validate()}
    if any(finding.fault is Fault.UNREACHABLE for finding in draft.validate()):
        return
    moved = {decision.storage for decision in draft.policy().swaps}
    for k, edit in enumerate(edits):
        theirs = set().union(*(keys for n, keys in enumerate(meant) if n != k))
        if k not in reported and edit.action is not EditAction.SWAP:
            assert not (meant[k] - theirs) & moved
        elif k not in reported and edit.storage is not None:
            assert meant[k] - theirs <= moved


@examples(100)
@given(step=steps, share=st.floats(0, 1), link=st.sampled_from(LINKS))
def test_the_step_survives_the_file(step: StepTrace, share: float, link: Link) -> None:
    policy = plan(step, capacity_of(step, share), link)
    loaded = Policy.from_json(policy.to_json())
    assert loaded.source is not None and loaded.to_json() == policy.to_json()
    assert loaded.source.storage_keys == step.storage_keys
    assert plan(loaded.source, policy.capacity_bytes, link).decisions == policy.decisions
    assert floor(loaded.source) == floor(step)
