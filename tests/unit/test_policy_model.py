"""The policy file: it reads back as it was, in lines that diff well, and says what is wrong with a bad one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from synthetic import gpt_step

from chameleon_lab.errors import PolicyError, TraceError
from chameleon_lab.planner import plan
from chameleon_lab.policy import Decision, Link, Policy
from chameleon_lab.policy.model import Action, fingerprint
from chameleon_lab.trace import Trace

GELU = Decision("h.0/aten::gelu.0#0", "activation", "h.0", 4096, Action.SWAP, 1, 3, 5, 9, 12)
WEIGHT = Decision("parameter:größe", "parameter", "", 1 << 20, Action.SWAP, 0, 7, 8, 31, 31, "user")
POLICY = Policy(
    capacity_bytes=1 << 30,
    link=Link(12e9, None),
    decisions=(GELU, WEIGHT),
    assumed={"fingerprint": "00ff00ff00ff00ff", "ops": 30, "torch": "2.13.0", "live_peak_bytes": 3 << 30},
    predicted={"step_s": 0.125, "stall_s": 0.025},
)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "policy.json"
    POLICY.save(path)
    return path


def broken(saved: Path, *place: str | int, value: object) -> Path:
    """The saved policy with one value replaced, or left out if ``value`` is ``...``."""
    data = json.loads(saved.read_text())
    target = data
    for key in place[:-1]:
        target = target[key]
    if value is ...:
        del target[place[-1]]
    else:
        target[place[-1]] = value
    saved.write_text(json.dumps(data))
    return saved


def test_round_trip_is_the_identity(saved: Path) -> None:
    assert Policy.load(saved) == POLICY
    assert Policy.load(str(saved)).decisions[0].action is Action.SWAP
    empty = Policy(1, Link(None, None), ())
    assert Policy.from_json(empty.to_json()) == empty


def test_generated_policy_survives_its_file(tmp_path: Path) -> None:
    step = gpt_step()
    policy = plan(step, int(0.6 * step.live_peak_bytes), Link(1e9, 1e9))
    assert policy.decisions
    policy.save(tmp_path / "policy.json")
    assert Policy.load(tmp_path / "policy.json") == policy


def test_one_decision_is_one_line(saved: Path) -> None:
    lines = saved.read_text(encoding="utf-8").splitlines()
    assert [line.count('"storage"') for line in lines].count(1) == 2
    assert max(line.count('"storage"') for line in lines) == 1
    assert "parameter:größe" in saved.read_text(encoding="utf-8")
    changed = dataclasses.replace(POLICY, decisions=(dataclasses.replace(GELU, in_op=8), WEIGHT))
    different = [a != b for a, b in zip(lines, changed.to_json().splitlines(), strict=True)]
    assert sum(different) == 1


def test_save_replaces_the_file_and_leaves_nothing_beside_it(saved: Path) -> None:
    dataclasses.replace(POLICY, decisions=()).save(saved)
    assert len(Policy.load(saved)) == 0
    assert [path.name for path in saved.parent.iterdir()] == ["policy.json"]


def test_failed_save_keeps_the_old_file(saved: Path) -> None:
    with pytest.raises(PolicyError, match="plain, finite JSON"):
        dataclasses.replace(POLICY, predicted={"stall_s": float("inf")}).save(saved)
    with pytest.raises(PolicyError, match="plain, finite JSON"):
        dataclasses.replace(POLICY, assumed={"torch": object()}).save(saved)
    assert Policy.load(saved) == POLICY


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_name_that_no_file_can_have_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="no file has a name with"):
        Policy.load(name)
    with pytest.raises(PolicyError, match="no file has a name with"):
        POLICY.save(tmp_path / name)
    with pytest.raises(TraceError, match="no file has a name with"):
        Trace.load(name)
    assert list(tmp_path.iterdir()) == []


def test_half_a_surrogate_pair_survives_the_file(tmp_path: Path) -> None:
    """A file may say it, escaped; UTF-8 itself cannot."""
    policy = dataclasses.replace(POLICY, assumed={**POLICY.assumed, "torch": "\ud800 \u00e9"})
    policy.save(tmp_path / "p.json")
    assert Policy.load(tmp_path / "p.json").assumed == policy.assumed


def test_truncated_file_is_named_with_its_place(saved: Path) -> None:
    text = saved.read_text(encoding="utf-8")
    for length in (0, 1, len(text) // 2, len(text) - 3):
        saved.write_text(text[:length], encoding="utf-8")
        with pytest.raises(
            PolicyError, match=r"policy\.json, line \d+ column \d+: truncated.*write the file again"
        ):
            Policy.load(saved)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"\x89PNG\r\n\x00"])
def test_binary_file_is_no_policy(saved: Path, data: bytes) -> None:
    saved.write_bytes(data)
    with pytest.raises(PolicyError, match="not UTF-8"):
        Policy.load(saved)


@pytest.mark.parametrize("text", ["[]", "3", "{}", '{"decisions": []}', "null"])
def test_other_json_is_no_policy(saved: Path, text: str) -> None:
    saved.write_text(text)
    with pytest.raises(PolicyError, match="no Chameleon Lab policy"):
        Policy.load(saved)


def test_deeply_nested_file_is_refused(saved: Path) -> None:
    saved.write_text("[" * 100_000)
    with pytest.raises(PolicyError, match="truncated, or not JSON"):
        Policy.load(saved)


@pytest.mark.parametrize("version", [5, 7])
def test_another_version_is_refused(version: int, saved: Path) -> None:
    with pytest.raises(
        PolicyError, match=f"version {version}, and this .* reads version 6: generate the policy anew"
    ):
        Policy.load(broken(saved, "chameleon_lab_policy", value=version))


@pytest.mark.parametrize(
    "place, value, message",
    [
        (("capacity_bytes",), ..., "capacity_bytes is missing"),
        (("capacity_bytes",), "1 GiB", 'capacity_bytes is "1 GiB", but it must be of type int'),
        (("capacity_bytes",), True, "capacity_bytes is true, but it must be of type int"),
        (("link",), [], r"link is \[\], but it must be of type object"),
        (("link", "in_bytes_per_s"), ..., r"link\.in_bytes_per_s is missing"),
        (("link", "out_bytes_per_s"), "fast", r'link\.out_bytes_per_s is "fast"'),
        (("link", "out_bytes_per_s"), -1, "out_bytes_per_s is -1: give a bandwidth above 0"),
        (("decisions",), {}, "decisions is {}, but it must be of type array"),
        (("decisions", 1), 7, r"decisions\[1\] is 7, but it must be of type object"),
        (("decisions", 1, "gap"), ..., r"decisions\[1\]\.gap is missing"),
        (("decisions", 0, "out_op"), 3.5, r"decisions\[0\]\.out_op is 3\.5, but it must be of type int"),
        (("decisions", 0, "storage"), None, r"decisions\[0\]\.storage is null"),
        (
            ("decisions", 0, "action"),
            "teleport",
            r"decisions\[0\]\.action is 'teleport'; .* knows keep, swap",
        ),
        (("decisions", 0, "free_op"), 2, r"decisions\[0\]: .* needs 0 <= out_op < free_op"),
        (("decisions", 0, "bytes"), -1, r"decisions\[0\]: .* bytes is -1"),
        (("decisions", 0, "color"), "red", r"decisions\[0\]\.color is no field of a policy"),
        (("decisions", 1, "use_op"), -1, r"decisions\[1\]: .*are both -1"),
    ],
)
def test_bad_value_is_named_with_file_and_place(
    saved: Path, place: tuple[str | int, ...], value: object, message: str
) -> None:
    with pytest.raises(PolicyError, match=r"policy\.json(, line 1)?: " + message):
        Policy.load(broken(saved, *place, value=value))


def test_two_decisions_on_a_gap_contradict_each_other() -> None:
    with pytest.raises(PolicyError, match="two decisions on"):
        dataclasses.replace(POLICY, decisions=(GELU, GELU))


def test_kept_gaps_may_lie_anywhere() -> None:
    kept = dataclasses.replace(GELU, action="keep", free_op=-1, in_op=-1)
    assert kept.action is Action.KEEP
    assert dataclasses.replace(POLICY, decisions=(kept,)).swaps == ()


def test_summary_counts_by_category() -> None:
    assert POLICY.summary() == [("parameter", 1, 1 << 20), ("activation", 1, 4096)]
    text = str(POLICY)
    assert text.splitlines()[0] == (
        "Policy: 2 swaps, capacity 1.00 GiB of 3.00 GiB live, predicted stall 25.0 % of compute"
    )
    assert "parameter" in text and "1.00 MiB" in text


def test_html_escapes_what_comes_from_a_file() -> None:
    nasty = dataclasses.replace(GELU, category="<script>alert(1)</script>")
    page = dataclasses.replace(POLICY, decisions=(nasty,))._repr_html_()
    assert "<script>" not in page and "&lt;script&gt;" in page


def test_fingerprint_sees_names_stages_and_order_only() -> None:
    step = gpt_step(layers=3)
    assert fingerprint(step) == fingerprint(gpt_step(layers=3, size=4096, tokens=9))
    assert fingerprint(step) != fingerprint(gpt_step(layers=2))
    stages = dataclasses.replace(step.ops, stage=np.zeros_like(step.ops.stage))
    assert fingerprint(step) != fingerprint(dataclasses.replace(step, ops=stages))
