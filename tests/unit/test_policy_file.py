"""The policy file: its published schema, the step it carries, and where it says what is wrong."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from synthetic import gpt_step, random_calls_step

import chameleon_lab
from chameleon_lab.errors import PolicyError
from chameleon_lab.planner import floor, plan, simulate
from chameleon_lab.planner.program import compile_program
from chameleon_lab.policy import Decision, Edit, EditAction, Link, Policy, step_text
from chameleon_lab.policy.file import _DECISION, VERSION
from chameleon_lab.policy.model import Action

PACKAGE = Path(chameleon_lab.__file__).parent
SCHEMA = json.loads((PACKAGE / "policy" / "policy.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
STEP = gpt_step(layers=3)
EDITS = (
    Edit(EditAction.KEEP, "parameter:h.0.weight", note="größer"),
    Edit(EditAction.SWAP, "h.1/aten::gelu.0#0", gap=1),
    Edit(EditAction.NEVER_TOUCH, module="h.*", category="optimizer_state", min_bytes=1, max_bytes=1 << 30),
    Edit(EditAction.PREFETCH, stage="forward", ops_earlier=-2),
    Edit(EditAction.CAPACITY, capacity_bytes=int(0.8 * STEP.live_peak_bytes)),
    Edit(EditAction.LINK, link=Link(2e9, None)),
)
POLICY = plan(STEP, int(0.7 * STEP.live_peak_bytes), Link(1e9, 1e9), edits=EDITS)
DROPS = plan(
    gpt_step(layers=8),
    int(0.5 * gpt_step(layers=8).live_peak_bytes),
    Link(5e8, 5e8),
    edits=(
        Edit(EditAction.REMATERIALIZE, "h.1/aten::gelu.0#0"),
        Edit(EditAction.NEVER_REMATERIALIZE, module="h.2"),
    ),
    rematerialize=True,
    refused=("aten::embedding",),
)
WRITTEN = Path(__file__).parent / "data" / "policy.json"


def with_edit(**edit: Any) -> str:
    data = json.loads(POLICY.to_json())
    data["edits"].insert(1, edit)
    return json.dumps(data, indent=1)


@pytest.mark.parametrize("policy", [POLICY, DROPS, Policy(1, Link(None, None), ()), Policy.load(WRITTEN)])
def test_saved_files_obey_the_published_schema(policy: Policy, tmp_path: Path) -> None:
    VALIDATOR.check_schema(SCHEMA)
    policy.save(tmp_path / "policy.json")
    VALIDATOR.validate(json.loads((tmp_path / "policy.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize("overlap", [None, 1.0, 0.5])
def test_an_overlap_may_be_null(overlap: float | None) -> None:
    data = json.loads(POLICY.to_json())
    data["predicted"]["overlap"] = overlap
    VALIDATOR.validate(data)
    read = Policy.from_json(json.dumps(data))
    assert read.predicted["overlap"] == overlap
    assert Policy.from_json(read.to_json()).predicted == read.predicted


def test_the_schema_in_the_docs_is_that_of_the_package() -> None:
    docs = PACKAGE.parent / "docs" / "policy.schema.json"
    assert json.loads(docs.read_text()) == SCHEMA


def test_the_schema_names_every_field() -> None:
    definitions = SCHEMA["$defs"]
    assert list(definitions["decision"]["properties"]) == list(_DECISION)
    assert list(definitions["edit"]["properties"]) == [f.name for f in dataclasses.fields(Edit)]
    assert list(SCHEMA["properties"]) == SCHEMA["required"] == list(json.loads(POLICY.to_json()))
    for policy in (POLICY, DROPS):
        assert set(policy.assumed) <= set(SCHEMA["properties"]["assumed"]["properties"])
        assert set(policy.predicted) <= set(SCHEMA["properties"]["predicted"]["properties"])
    assert definitions["decision"]["properties"]["action"]["enum"] == [action.value for action in Action]
    assert definitions["edit"]["properties"]["action"]["enum"] == [action.value for action in EditAction]
    assert set(POLICY.predicted) <= set(SCHEMA["properties"]["predicted"]["properties"])


@pytest.mark.parametrize(
    "edit",
    [
        {"action": "fly", "storage": "a"},
        {"action": "keep"},
        {"action": "keep", "gap": 1, "module": "h"},
        {"action": "keep", "storage": "a", "module": "h"},
        {"action": "keep", "storage": "a", "color": "red"},
        {"action": "keep", "category": "weights"},
        {"action": "keep", "module": "h", "ops_earlier": 3},
        {"action": "prefetch", "module": "h"},
        {"action": "prefetch", "module": "h", "ops_earlier": 0},
        {"action": "capacity"},
        {"action": "capacity", "capacity_bytes": 0},
        {"action": "capacity", "capacity_bytes": 9, "module": "h"},
        {"action": "link", "link": {"out_bytes_per_s": 1.0}},
        {"action": "link", "link": {"out_bytes_per_s": 1.0, "in_bytes_per_s": -1.0}},
        {"action": "keep", "storage": ""},
        {"action": "keep", "storage": "a", "gap": -1},
    ],
)
def test_schema_and_loader_refuse_the_same_edits_and_the_loader_says_where(edit: dict[str, Any]) -> None:
    text = with_edit(**edit)
    assert not VALIDATOR.is_valid(json.loads(text))
    line = next(n for n, row in enumerate(text.splitlines(), 1) if '"note"' in row) + 2
    with pytest.raises(PolicyError, match=rf"p\.json, line {line}: edits\[1\]: "):
        Policy.from_json(text, "p.json")


def test_a_bad_decision_is_named_with_its_own_line() -> None:
    lines = POLICY.to_json().splitlines()
    at = next(n for n, row in enumerate(lines) if '"decisions"' in row) + 2
    lines[at] = lines[at].replace('"gap": ', '"gap": 0.5, "gap_": ')
    with pytest.raises(PolicyError, match=rf"p\.json, line {at + 1}: decisions\[1\]"):
        Policy.from_json("\n".join(lines), "p.json")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("capacity_bytes", 0),
        ("capacity_bytes", 10**30),
        ("assumed.fingerprint", 3),
        ("assumed.ops", 0),
        ("assumed.min_swap_bytes", "x"),
        ("assumed.live_peak_bytes", -1),
        ("assumed.margin", None),
        ("assumed.link_margin", 1),
        ("assumed.link_margin", "x"),
        ("assumed.refused", [1]),
        ("assumed.edits", "abc"),
        ("assumed.without_edits", "abc"),
        ("assumed.without_edits.capacity_bytes", "x"),
        ("assumed.without_edits.link", {"a": 1}),
        ("assumed.without_edits.link", {"out_bytes_per_s": -1, "in_bytes_per_s": None}),
        ("predicted.stall_s", True),
        ("predicted.overlap", 2),
        ("predicted.overlap", "none"),
        ("predicted.peak_bytes", 1.5),
        ("edits.1.gap", 10**30),
        ("edits.2.min_bytes", 10**30),
        ("edits.3.ops_earlier", -(10**30)),
        ("decisions.0.storage", ""),
        ("decisions.0.category", "weights"),
        ("decisions.0.decided_by", "me"),
        ("decisions.0.gap", 10**30),
        ("decisions.0.bytes", -1),
        ("decisions.0.use_op", 10**25),
        ("decisions.0.out_op", -1),
    ],
)
def test_schema_and_loader_refuse_the_same_values_and_the_loader_says_where(place: str, value: Any) -> None:
    data = json.loads(POLICY.to_json())
    *path, name = [int(part) if part.isdigit() else part for part in place.split(".")]
    inner = data
    for part in path:
        inner = inner[part]
    inner[name] = value
    assert not VALIDATOR.is_valid(data)
    where = "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in place.split("."))[1:]
    said = where.replace(".bytes", "").replace(".out_op", "")  # Decision checks these itself
    with pytest.raises(PolicyError, match=rf"^p\.json.*{re.escape(said)}"):
        Policy.from_json(json.dumps(data), "p.json")


@pytest.mark.parametrize(
    ("key", "again"),
    [('"edits": [', '"edits": [], "edits": ['), ('{"action": "keep"', '{"action": "swap", "action": "keep"')],
)
def test_a_key_that_is_given_twice_is_refused(key: str, again: str) -> None:
    text = POLICY.to_json()
    assert key in text
    with pytest.raises(
        PolicyError, match=r"p\.json: one object has '(edits|action)' twice, as .* delete one"
    ):
        Policy.from_json(text.replace(key, again, 1), "p.json")


def test_an_edit_is_a_line() -> None:
    text = POLICY.to_json()
    shorter = dataclasses.replace(POLICY, edits=EDITS[:2] + EDITS[3:]).to_json()
    assert set(text.splitlines()) - set(shorter.splitlines()) == {"  " + json.dumps(EDITS[2].to_dict()) + ","}


def test_edits_changed_in_the_file_make_the_decisions_outdated() -> None:
    assert Policy.from_json(POLICY.to_json()).is_current
    edited = Policy.from_json(with_edit(action="keep", module="h.1"))
    assert not edited.is_current and len(edited.edits) == len(EDITS) + 1
    assert Policy.from_json(POLICY.to_json().replace("größer", "grösser")).is_current, (
        "a note changes nothing"
    )


def test_a_file_that_was_written_before_means_what_it_did() -> None:
    """A change that makes this fail raises VERSION, and writes the file anew."""
    written = json.loads(WRITTEN.read_text())
    assert written["chameleon_lab_policy"] == VERSION
    policy = Policy.load(WRITTEN)
    assert policy.drops and policy.swaps and policy.is_current
    assert json.loads(policy.to_json()) == written
    assert simulate(policy.source, policy).replayed_bytes == sum(drop.bytes for drop in policy.drops)
    assert any(drop.retains for drop in policy.drops) and "parameter:w.0" in policy.source.storage_keys


def test_drops_survive_the_file(tmp_path: Path) -> None:
    assert DROPS.drops and DROPS.swaps
    DROPS.save(tmp_path / "policy.json")
    loaded = Policy.load(tmp_path / "policy.json")
    assert loaded == DROPS
    assert simulate(loaded.source, loaded).replayed_bytes == sum(drop.bytes for drop in DROPS.drops)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("free_op", 9, "free_op of a rematerialize is out_op"),
        ("in_op", -1, "a rematerialize needs 0 <= out_op"),
    ],
)
def test_a_drop_that_contradicts_itself_is_refused(field: str, value: int, said: str) -> None:
    data = json.loads(DROPS.to_json())
    index = next(k for k, decision in enumerate(data["decisions"]) if decision["action"] == "rematerialize")
    data["decisions"][index][field] = value
    with pytest.raises(PolicyError, match=said):
        Policy.from_json(json.dumps(data))


# ------------------------------------------------------------------------------------------------ the step


def test_the_step_in_the_file_binds_and_predicts_as_the_one_it_was_made_for(tmp_path: Path) -> None:
    POLICY.save(tmp_path / "policy.json")
    loaded = Policy.load(tmp_path / "policy.json")
    assert loaded == POLICY and loaded.source is not None
    assert loaded.source.storage_keys == STEP.storage_keys
    mine, its = compile_program(POLICY, STEP), compile_program(loaded, loaded.source)
    for field in dataclasses.fields(mine):
        if field.name not in ("uid", "host"):
            np.testing.assert_array_equal(getattr(mine, field.name), getattr(its, field.name))
    np.testing.assert_array_equal(mine.host.place, its.host.place)
    assert (mine.host.pool_bytes, mine.host.peak_bytes) == (its.host.pool_bytes, its.host.peak_bytes)
    here, there = simulate(STEP, POLICY), simulate(loaded.source, loaded)
    assert there.peak_bytes == here.peak_bytes and there.step_s == pytest.approx(here.step_s, rel=1e-9)
    assert loaded.to_json() == POLICY.to_json()


@pytest.mark.parametrize("seed", range(3))
def test_the_step_in_the_file_knows_how_values_are_made(seed: int) -> None:
    step = random_calls_step(seed)
    read = step_text.decode(step_text.encode(step))
    told = [None if name < 0 else step.names[name] for name in step.makings.name.tolist()]
    assert [None if name < 0 else read.names[name] for name in read.makings.name.tolist()] == told
    for name, column in step.makings.columns().items():
        if name != "name":
            np.testing.assert_array_equal(column, getattr(read.makings, name))
    capacity = max(floor(step).bytes, int(0.7 * step.live_peak_bytes))
    plans = [
        plan(one, capacity, Link(1e7, 1e7), op_times=step.ops.duration_s, rematerialize=True)
        for one in (step, read)
    ]
    assert plans[0].decisions == plans[1].decisions
    assert not len(step_text.decode(step_text.encode(gpt_step())).makings)


@pytest.mark.parametrize("damage", ["cut", "turned", "not base64"])
def test_a_damaged_step_is_refused_with_the_way_out(damage: str) -> None:
    data = json.loads(POLICY.to_json())
    text = data["step"]
    data["step"] = {"cut": text[: len(text) // 8 * 4], "turned": text[::-1], "not base64": "?" + text[1:]}[
        damage
    ]
    with pytest.raises(PolicyError, match=r"p\.json: step is damaged .*the step is recorded anew"):
        Policy.from_json(json.dumps(data), "p.json")


def test_a_decision_has_no_field_that_the_file_lacks() -> None:
    assert set(json.loads(POLICY.to_json())["decisions"][0]) == {
        f.name for f in dataclasses.fields(Decision) if f.name != "retains"
    }  # which most do not have


def test_the_line_of_a_wrong_edit_is_that_of_the_edit_whatever_is_assumed() -> None:
    """`assumed` has a hash of the edits by the same name, and an array behind it."""
    data = json.loads(POLICY.to_json())
    data["assumed"]["disobeyed"] = [0]
    data["edits"][1]["action"] = "juggle"
    text = json.dumps(data, indent=1)
    line = 1 + text[: text.index('"juggle"')].count("\n")
    with pytest.raises(PolicyError, match=rf"p\.json, line {line - 1}: edits\[1\]"):
        Policy.from_json(text, "p.json")
