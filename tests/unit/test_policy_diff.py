"""The difference of two policies: complete, by gap, readable in a terminal and in a notebook."""

from __future__ import annotations

import dataclasses
import json

from synthetic import gpt_step

from chameleon_lab.planner import plan
from chameleon_lab.policy import Decision, Edit, EditAction, Link, Policy, diff
from chameleon_lab.policy.model import Action

A = Decision("h.0/aten::gelu.0#0", "activation", "h.0", 4096, Action.SWAP, 1, 3, 5, 9, 12)
B = Decision("parameter:<w>", "parameter", "", 1 << 20, Action.SWAP, 0, 7, 8, 31, 31)
C = Decision("parameter:b", "parameter", "", 2 << 20, Action.SWAP, 0, 7, 8, 31, 31)
BASE = Policy(1 << 30, Link(1e9, None), (A, B), {"torch": "2.13.0"}, {"stall_s": 0.5})


def test_equal_policies_have_no_difference() -> None:
    same = diff(BASE, dataclasses.replace(BASE))
    assert not same and same.rows() == [] and "the same" in str(same) and "the same" in same._repr_html_()


def test_added_removed_and_changed_decisions_are_told_apart() -> None:
    later = dataclasses.replace(A, in_op=11)
    found = diff(BASE, dataclasses.replace(BASE, decisions=(later, C)))
    assert (found.added, found.removed, found.changed) == ((C,), (B,), ((A, later),))
    assert found.conditions == {}
    text = str(found)
    assert "1 decisions added, 1 removed, 1 changed (+1.00 MiB swapped)" in text
    assert "~ h.0/aten::gelu.0#0, gap 1: in_op 9 -> 11" in text
    assert "- parameter:<w>, gap 0: swap 1.00 MiB, out 7" in text
    assert "parameter:&lt;w&gt;" in found._repr_html_() and "<w>" not in found._repr_html_()


def test_a_swap_that_becomes_a_replay_is_a_change() -> None:
    dropped = Decision("parameter:<w>", "parameter", "", 1 << 20, Action.REMATERIALIZE, 0, 7, 8, 31, 31)
    found = diff(BASE, dataclasses.replace(BASE, decisions=(A, dropped)))
    assert found.changed == ((B, dropped),)
    assert "(-1.00 MiB swapped, +1.00 MiB rematerialized)" in str(found)
    assert "action swap -> rematerialize" in str(found)


def test_the_order_of_decisions_is_no_difference() -> None:
    assert not diff(BASE, dataclasses.replace(BASE, decisions=(B, A)))


def test_edits_alone_make_a_difference() -> None:
    keep, never = (
        Edit(EditAction.KEEP, module="h.<0>"),
        Edit(EditAction.NEVER_TOUCH, "parameter:b", note="used twice"),
    )
    edited, other = (dataclasses.replace(BASE, edits=edits) for edits in ((keep, never), (never,)))
    found = diff(edited, other)
    assert found and (found.edits_added, found.edits_removed) == ((), (keep,))
    assert "0 edits added, 1 removed" in str(found) and "- edit: keep all of module h.<0>" in str(found)
    assert "h.&lt;0&gt;" in found._repr_html_()
    back = diff(BASE, edited).to_dict()
    assert back["edits_added"] == [keep.to_dict(), never.to_dict()] and back["edits_removed"] == []
    assert "+ edit: never touch parameter:b (used twice)" in str(diff(BASE, edited))
    assert diff(edited, dataclasses.replace(BASE, edits=(never, keep))), "order decides"
    assert not diff(edited, dataclasses.replace(edited))


def test_conditions_are_named_with_both_values() -> None:
    other = dataclasses.replace(
        BASE, capacity_bytes=2 << 30, link=Link(2e9, None), assumed={"ops": 3}, predicted={"stall_s": 0.25}
    )
    found = diff(BASE, other)
    assert found.conditions == {
        "capacity_bytes": (1 << 30, 2 << 30),
        "link": (
            {"out_bytes_per_s": 1e9, "in_bytes_per_s": None},
            {"out_bytes_per_s": 2e9, "in_bytes_per_s": None},
        ),
        "assumed.torch": ("2.13.0", None),
        "assumed.ops": (None, 3),
        "predicted.stall_s": (0.5, 0.25),
    }
    assert "capacity_bytes: 1.00 GiB (1073741824) -> 2.00 GiB" in str(found)
    assert "no limit" in str(found) and "predicted.stall_s: 0.5 -> 0.25" in str(found)


def test_the_dict_is_json_and_complete_where_the_text_is_short() -> None:
    step = gpt_step(layers=12)
    tight, wide = (plan(step, int(share * step.live_peak_bytes), Link(1e9, 1e9)) for share in (0.3, 0.9))
    found = diff(wide, tight)
    assert len(found.added) > 20
    data = json.loads(json.dumps(found.to_dict()))
    assert len(data["added"]) == len(found.added) and data["added"][0]["storage"] == found.added[0].storage
    assert f"+ {len(found.added) - 20} more: see to_dict()" in str(found)
    back = diff(tight, wide)
    assert back.removed == found.added and {p[::-1] for p in back.changed} == set(found.changed)
