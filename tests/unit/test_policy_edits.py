"""Edits: what they mean, who decides where several speak of one gap, how the plan obeys, and what is reported."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic import StepBuilder, gpt_step

from chameleon_lab.errors import BelowFloorError, PolicyError
from chameleon_lab.planner import floor, plan, simulate
from chameleon_lab.planner.constraints import EvictLastByName, evict_last_rows
from chameleon_lab.planner.memory import step_memory
from chameleon_lab.planner.program import compile_program
from chameleon_lab.policy import Edit, EditAction, EditsUnreachableError, Fault, Link, Policy
from chameleon_lab.policy.edits import StorageIndex, edit_from_dict, in_module
from chameleon_lab.trace import Category, Trace

STEP = gpt_step(layers=6)
LINK = Link(4e9, 4e9)
CAPACITY = int(0.6 * STEP.live_peak_bytes)
GELU = "h.0/aten::gelu.0#0"
PLAIN = plan(STEP, CAPACITY, LINK)


def edited(*edits: Edit, capacity: int = CAPACITY) -> Policy:
    return plan(STEP, capacity, LINK, edits=edits)


def faults(policy: Policy) -> list[tuple[Fault, int]]:
    return [(finding.fault, finding.index) for finding in policy.findings]


def swapped(policy: Policy) -> set[str]:
    return {decision.storage for decision in policy.swaps}


# ---------------------------------------------------------------------------------------------- what they mean


@pytest.mark.parametrize(
    "path, pattern, expected",
    [
        ("h.0.mlp", "h.0.mlp", True),
        ("h.0.mlp", "h.0", True),
        ("h.0.mlp", "h", True),
        ("h.10", "h.1", False),
        ("h.0.mlp", "h.*.mlp", True),
        ("h.0.mlp.up", "h.*.mlp", True),
        ("h.0.attn", "h.*.mlp", False),
        ("h.3", "h.[0-2]", False),
        ("", "*", False),
    ],
)
def test_a_module_glob_takes_in_what_is_below(path: str, pattern: str, expected: bool) -> None:
    assert in_module(path, pattern) is expected


@pytest.mark.parametrize(
    "rule, some, none",
    [
        ({"category": "optimizer_state"}, "optimizer_state:exp_avg of h.3.weight", "parameter:h.3.weight"),
        ({"module": "h.3"}, "optimizer_state:exp_avg of h.3.weight", "parameter:h.2.weight"),
        ({"module": "h.3"}, "h.3/aten::gelu.0#0", "h.2/aten::gelu.0#0"),
        ({"stage": "backward"}, "h.3/aten::gelu_backward.0@backward#0", "h.3/aten::gelu.0#0"),
        ({"min_bytes": 4 << 20}, "h.3/aten::gelu.0#0", "parameter:h.3.weight"),
        ({"max_bytes": 1 << 20}, "parameter:h.3.weight", "h.3/aten::gelu.0#0"),
        ({"module": "h.3", "category": "parameter"}, "parameter:h.3.weight", "h.3/aten::gelu.0#0"),
    ],
)
def test_every_condition_of_a_rule_must_hold(rule: dict[str, object], some: str, none: str) -> None:
    index = StorageIndex(STEP)
    keys = {index.keys[row] for row in index.rows(Edit(EditAction.KEEP, **rule))}  # type: ignore[arg-type]
    assert some in keys and none not in keys


@pytest.mark.parametrize(
    "values, message",
    [
        ({"action": "fly"}, "no edit 'fly'; known are keep, swap, never_touch"),
        ({"action": "keep"}, "it names no storage"),
        ({"action": "keep", "storage": "a", "module": "h"}, "has a rule too: leave out module"),
        ({"action": "keep", "gap": 1, "module": "h"}, "gap 1 needs a storage"),
        ({"action": "keep", "storage": "a", "gap": -1}, "counts from 0"),
        ({"action": "keep", "category": "weights"}, "'weights' is none of parameter, gradient"),
        ({"action": "keep", "stage": "eval"}, "'eval' is none of forward"),
        ({"action": "keep", "module": ""}, "module is ''"),
        ({"action": "keep", "storage": 3}, "storage is 3: give a str"),
        ({"action": "keep", "storage": "a", "gap": True}, "gap is True: give a int"),
        ({"action": "keep", "min_bytes": 9, "max_bytes": 8}, "no size is from 9 to 8"),
        ({"action": "prefetch", "module": "h"}, "give ops_earlier"),
        ({"action": "prefetch", "module": "h", "ops_earlier": 0}, "0 ops earlier changes nothing"),
        ({"action": "keep", "module": "h", "ops_earlier": 3}, "leave out ops_earlier"),
        ({"action": "capacity"}, "give capacity_bytes"),
        ({"action": "capacity", "capacity_bytes": 0}, "capacity_bytes is 0"),
        (
            {"action": "capacity", "capacity_bytes": 10**400},
            "capacity_bytes has 1329 bits: give a whole number",
        ),
        ({"action": "capacity", "capacity_bytes": 10**5000}, "capacity_bytes has 16610 bits"),
        ({"action": "keep", "max_bytes": 2**63}, "max_bytes has 64 bits"),
        ({"action": "prefetch", "module": "h", "ops_earlier": -(2**63)}, "ops_earlier has 64 bits"),
        ({"action": "keep", "storage": "\ud800"}, "storage is .* half a surrogate pair"),
        ({"action": "keep", "module": "h", "note": "why \udfff"}, "note is .* half a surrogate pair"),
        ({"action": "capacity", "capacity_bytes": 9, "module": "h"}, "for the whole plan: leave out module"),
        ({"action": "link", "link": {"out_bytes_per_s": 1.0}}, "out_bytes_per_s and in_bytes_per_s"),
        ({"action": "keep", "modul": "h"}, "modul is no field of an edit"),
        ({"storage": "a"}, "action is missing"),
    ],
)
def test_a_bad_edit_is_refused_with_the_way_out(values: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        edit_from_dict(values)


def test_an_edit_survives_its_dict() -> None:
    for edit in (
        Edit(EditAction.KEEP, GELU, gap=1, note="why"),
        Edit(EditAction.PREFETCH, module="h.*", category="activation", stage="forward", ops_earlier=-4),
        Edit(EditAction.NEVER_TOUCH, min_bytes=1, max_bytes=9),
        Edit(EditAction.CAPACITY, capacity_bytes=5),
        Edit(EditAction.LINK, link=Link(None, 5.0)),
    ):
        assert edit_from_dict(edit.to_dict()) == edit and None not in edit.to_dict().values()


# ------------------------------------------------------------------------------------------- how plans obey them


def test_no_edits_change_nothing() -> None:
    assert plan(STEP, CAPACITY, LINK, edits=()) == PLAIN and PLAIN.findings == ()


@pytest.mark.parametrize("action", [EditAction.KEEP, EditAction.NEVER_TOUCH])
def test_what_is_kept_has_no_decision_and_the_rest_makes_up_for_it(action: EditAction) -> None:
    assert GELU in swapped(PLAIN)
    policy = edited(Edit(action, GELU))
    assert GELU not in swapped(policy) and policy.findings == ()
    prediction = simulate(STEP, policy)
    assert prediction.fits and prediction.unmatched == ()
    assert swapped(policy) - swapped(PLAIN), "something else leaves instead"


def test_never_touch_alone_is_evicted_last() -> None:
    edits = (
        Edit(EditAction.NEVER_TOUCH, category="parameter"),
        Edit(EditAction.KEEP, "parameter:h.0.weight"),
        Edit(EditAction.KEEP, GELU),
    )
    evict_last = {STEP.storage_keys[row] for row in evict_last_rows(STEP, edits).nonzero()[0]}
    assert evict_last == {f"parameter:h.{k}.weight" for k in range(1, 6)}
    program = compile_program(edited(*edits), STEP)
    keys = [STEP.storage_keys[row] for row in program.storage_row]
    assert {key for key, last in zip(keys, program.evict_last, strict=True) if last} == evict_last


@pytest.mark.parametrize(
    "edits",
    [
        (Edit(EditAction.NEVER_TOUCH, category="parameter"), Edit(EditAction.KEEP, "parameter:h.0.weight")),
        (Edit(EditAction.NEVER_TOUCH, module="h.1"), Edit(EditAction.KEEP, category="optimizer_state")),
        (Edit(EditAction.NEVER_TOUCH, min_bytes=1), Edit(EditAction.SWAP, module="h.2")),
        (Edit(EditAction.NEVER_TOUCH, max_bytes=1),),
    ],
)
def test_names_alone_tell_what_is_evicted_last(edits: tuple[Edit, ...]) -> None:
    rows, evict_last, by_name = STEP.storages, evict_last_rows(STEP, edits), EvictLastByName()
    named = [row for row in range(len(rows)) if rows.name[row] >= 0]
    assert named
    for row in named:
        asked = (
            Category(int(rows.category[row])),
            STEP.labels[rows.name[row]],
            int(rows.block_bytes[row]),
        )
        assert by_name(edits, *asked) == evict_last[row], STEP.storage_keys[row]


def test_never_touch_of_a_gap_spares_the_storage_at_any_time() -> None:
    key = "parameter:h.2.weight"
    edits = (Edit(EditAction.NEVER_TOUCH, key, gap=1), Edit(EditAction.KEEP, key, gap=0))
    assert [STEP.storage_keys[row] for row in evict_last_rows(STEP, edits).nonzero()[0]] == [key]


def test_a_forced_swap_takes_the_longest_gap_and_others_may_stay() -> None:
    roomy = int(0.9 * STEP.live_peak_bytes)
    before, other = plan(STEP, roomy, LINK), "h.2/aten::gelu.0#0"
    assert other not in swapped(before)
    policy = edited(Edit(EditAction.SWAP, other), capacity=roomy)
    mine = [decision for decision in policy.swaps if decision.storage == other]
    assert len(mine) == 1 and mine[0].decided_by == "user" and policy.findings == ()
    assert {decision.decided_by for decision in policy.swaps if decision.storage != other} <= {"planner"}
    assert simulate(STEP, policy).fits
    assert len(swapped(policy) - {other}) < len(swapped(before)), "the plan counts on the forced swap"


def test_a_gap_is_forced_by_its_ordinal() -> None:
    key = "parameter:h.2.weight"
    for gap in (0, 1):
        policy = edited(Edit(EditAction.SWAP, key, gap=gap), capacity=STEP.live_peak_bytes)
        assert [(d.storage, d.gap) for d in policy.swaps] == [(key, gap)]


def test_forced_swaps_widen_where_the_capacity_needs_them() -> None:
    lowest = floor(STEP).bytes
    policy = edited(Edit(EditAction.SWAP, category="activation"), capacity=lowest)
    assert simulate(STEP, policy).peak_bytes <= lowest and policy.findings == ()


def test_prefetch_moves_by_so_many_ops() -> None:
    target = next(d for d in PLAIN.swaps if d.use_op - d.in_op >= 2 and d.in_op - d.free_op >= 2)
    for ops in (-1, 1):
        capacity = STEP.live_peak_bytes
        policy = edited(
            Edit(EditAction.SWAP, target.storage, gap=target.gap),
            Edit(EditAction.PREFETCH, target.storage, ops_earlier=ops),
            capacity=capacity,
        )
        base = edited(Edit(EditAction.SWAP, target.storage, gap=target.gap), capacity=capacity)
        (moved,), (still,) = policy.swaps, base.swaps
        assert still.in_op - moved.in_op == ops and moved.decided_by == "user" and policy.findings == ()


def test_a_prefetch_stops_where_memory_ends_and_says_so() -> None:
    policy = edited(Edit(EditAction.PREFETCH, category="activation", ops_earlier=1000))
    assert faults(policy) == [(Fault.CLIPPED, 0)]
    assert simulate(STEP, policy).fits
    assert "move less far" in str(policy.findings[0]) and "ask for fewer ops" in str(policy)


def test_capacity_and_link_edits_take_the_place_of_the_arguments() -> None:
    policy = edited(
        Edit(EditAction.CAPACITY, capacity_bytes=CAPACITY + 1), Edit(EditAction.LINK, link=Link(1e9, 2e9))
    )
    assert (policy.capacity_bytes, policy.link) == (CAPACITY + 1, Link(1e9, 2e9))
    assert policy.assumed["without_edits"] == {"capacity_bytes": CAPACITY, "link": LINK.to_dict()}


# ------------------------------------------------------------------------------------------------- who decides


KEEP_GELU, SWAP_GELU = Edit(EditAction.KEEP, GELU), Edit(EditAction.SWAP, GELU)
KEEP_ALL, SWAP_ALL = (
    Edit(action, category="activation", module="h.0") for action in (EditAction.KEEP, EditAction.SWAP)
)


@pytest.mark.parametrize(
    "edits, is_swapped, reported",
    [
        ((SWAP_ALL, KEEP_GELU), False, []),
        ((KEEP_GELU, SWAP_ALL), False, []),
        ((KEEP_ALL, SWAP_GELU), True, []),
        ((SWAP_GELU, KEEP_ALL), True, []),
        ((KEEP_GELU, SWAP_GELU), True, [(Fault.CONTRADICTED, 0)]),
        ((SWAP_GELU, KEEP_GELU), False, [(Fault.CONTRADICTED, 0)]),
        ((SWAP_ALL, KEEP_ALL), False, [(Fault.CONTRADICTED, 0)]),
        ((KEEP_GELU, Edit(EditAction.SWAP, GELU, gap=1)), True, []),  # kept where it is used no more
        ((Edit(EditAction.KEEP, GELU, gap=1), SWAP_GELU), False, [(Fault.OVERRIDDEN, 1)]),
        ((KEEP_GELU, KEEP_GELU), False, [(Fault.OVERRIDDEN, 0)]),
    ],
)
def test_gap_before_storage_before_rule_and_later_before_earlier(
    edits: tuple[Edit, ...], is_swapped: bool, reported: list[tuple[Fault, int]]
) -> None:
    policy = edited(*edits, capacity=int(0.9 * STEP.live_peak_bytes))
    assert (GELU in swapped(policy)) is is_swapped
    assert faults(policy) == reported


# --------------------------------------------------------------------------------------------- what is reported


def test_each_faulty_edit_is_reported_by_itself_and_the_others_are_obeyed() -> None:
    policy = edited(
        Edit(EditAction.KEEP, "h.0/aten::gelo.0#0"),
        Edit(EditAction.KEEP, module="h.7"),
        Edit(EditAction.KEEP, GELU),
        Edit(EditAction.SWAP, "parameter:h.0.weight", gap=40),
        Edit(EditAction.PREFETCH, GELU, ops_earlier=3),
        Edit(EditAction.CAPACITY, capacity_bytes=CAPACITY - 1),
        Edit(EditAction.CAPACITY, capacity_bytes=CAPACITY),
    )
    assert faults(policy) == [
        (Fault.UNMATCHED, 0),
        (Fault.UNMATCHED, 1),
        (Fault.IMPOSSIBLE, 3),
        (Fault.IMPOSSIBLE, 4),
        (Fault.CONTRADICTED, 5),
    ]
    assert GELU not in swapped(policy)
    texts = [str(finding) for finding in policy.findings]
    assert (
        "edit 1 (keep h.0/aten::gelo.0#0) is unmatched" in texts[0] and f"did you mean {GELU!r}" in texts[0]
    )
    assert "did you mean 'h." in texts[1]
    assert "no gap 40" in texts[2] and "it has 0, 1" in texts[2]
    assert "no prefetch to move" in texts[3]
    assert all(text in str(policy) for text in texts)
    assert all(
        {"fault", "index", "edit", "why", "way_out", "least_bytes"} == finding.to_dict().keys()
        for finding in policy.findings
    )


def test_a_prefetch_of_what_never_returns_is_reported() -> None:
    memory = step_memory(STEP)
    returning = set(memory.gap_storage[memory.gap_returns].tolist())
    row = next(row for number, row in enumerate(memory.row.tolist()) if number not in returning)
    policy = edited(Edit(EditAction.PREFETCH, STEP.storage_keys[row], ops_earlier=5))
    assert faults(policy) == [(Fault.IMPOSSIBLE, 0)] and "no prefetch to move" in policy.findings[0].why


def test_a_kept_gap_that_is_not_there_is_reported_of_small_storages_too() -> None:
    size = int(STEP.storages.block_bytes.min())
    small = STEP.storage_keys[int(STEP.storages.block_bytes.argmin())]
    edits = Edit(EditAction.KEEP, small, gap=0), Edit(EditAction.KEEP, small, gap=99)
    policy = plan(STEP, STEP.live_peak_bytes, LINK, edits=edits, min_swap_bytes=size + 1)
    assert faults(policy) == [(Fault.IMPOSSIBLE, 1)] and "no gap 99" in policy.findings[0].why


def test_a_keep_that_takes_part_of_a_never_touch_back_is_reported() -> None:
    never, keep = Edit(EditAction.NEVER_TOUCH, category="parameter"), Edit(EditAction.KEEP, module="h.0")
    roomy = int(0.9 * STEP.live_peak_bytes)
    assert faults(edited(never, keep, capacity=roomy)) == [(Fault.CONTRADICTED, 0)]
    assert faults(edited(keep, never, capacity=roomy)) == []


def test_what_can_never_leave_cannot_be_swapped() -> None:
    policy = plan(
        STEP, CAPACITY, LINK, min_swap_bytes=2 << 20, edits=[Edit(EditAction.SWAP, "parameter:h.0.weight")]
    )
    assert faults(policy) == [(Fault.IMPOSSIBLE, 0)] and "too small to move" in str(policy.findings[0])


def test_edits_that_leave_no_room_are_named_with_their_bytes() -> None:
    edits = (
        Edit(EditAction.KEEP, "parameter:h.0.weight"),
        Edit(EditAction.NEVER_TOUCH, category="activation", stage="forward"),
    )
    with pytest.raises(EditsUnreachableError, match="no policy fits") as caught:
        edited(*edits, capacity=floor(STEP).bytes)
    heaviest, other = caught.value.findings
    assert (heaviest.index, other.index) == (1, 0) and heaviest.is_error
    assert "keeps 1.00 MiB there" in other.why and "take it back" in heaviest.way_out
    assert isinstance(caught.value, BelowFloorError)
    assert heaviest.least_bytes == other.least_bytes
    assert edited(*edits, capacity=heaviest.least_bytes).findings == ()
    with pytest.raises(EditsUnreachableError) as caught:
        plan(Trace([STEP], {"kernels": "a CPU (AVX2)"}), floor(STEP).bytes, LINK, edits=edits)
    for finding in caught.value.findings:
        assert "keeps" in finding.why and "(the floor is measured on a CPU (AVX2); the op has" in finding.why


def test_a_capacity_edit_below_the_floor_is_the_edits_fault() -> None:
    edits = [Edit(EditAction.CAPACITY, capacity_bytes=floor(STEP).bytes - 1)]
    with pytest.raises(EditsUnreachableError, match="below the floor") as caught:
        edited(*edits)
    assert caught.value.findings[0].index == 0
    with pytest.raises(BelowFloorError) as plain:
        edited(Edit(EditAction.KEEP, GELU), capacity=floor(STEP).bytes - 1)
    assert not isinstance(plain.value, EditsUnreachableError)
    assert (plain.value.capacity_bytes, plain.value.needed_bytes) == (
        floor(STEP).bytes - 1,
        floor(STEP).bytes,
    )
    named = replace(STEP, modules=tuple(f"head: {name}" for name in STEP.modules))
    with pytest.raises(EditsUnreachableError) as caught:
        plan(named, CAPACITY, LINK, edits=edits)
    (finding,) = caught.value.findings
    assert finding.way_out.startswith("give the session at least") and "head: " in finding.why
    assert caught.value.op_name == floor(STEP).op_name and caught.value.needed_bytes == floor(STEP).bytes


def test_the_capacity_that_an_edit_is_said_to_need_is_enough() -> None:
    """Small storages leave where the edits keep so much that nothing else helps."""
    step = StepBuilder()
    kept, small = (
        step.carried(Category.PARAMETER, size, name) for size, name in ((1 << 20, "w"), (8192, "b"))
    )
    for op in range(8):
        step.op(
            "aten::mm",
            reads=(kept,) if op in (0, 7) else (small,) if op == 1 else (),
            scratch=(op == 3) << 18,
        )
    seen = step.build()
    edits = (Edit(EditAction.KEEP, "parameter:w"),)
    with pytest.raises(EditsUnreachableError) as caught:
        plan(seen, 1 << 20, LINK, edits=edits)
    (finding,) = caught.value.findings
    assert finding.least_bytes == (1 << 20) + (1 << 18)  # at the op that uses neither: "b" is away there
    policy = plan(seen, finding.least_bytes, LINK, edits=edits)
    assert {decision.storage for decision in policy.swaps} == {"parameter:b"}


def test_edits_of_another_length_and_other_rows_mean_the_same_storages() -> None:
    longer = gpt_step(layers=6, tokens=6)
    edits = (Edit(EditAction.KEEP, GELU), Edit(EditAction.SWAP, "parameter:h.0.weight", gap=1))
    policy = plan(longer, int(0.6 * longer.live_peak_bytes), LINK, edits=edits)
    assert policy.findings == () and GELU not in swapped(policy)
    assert ("parameter:h.0.weight", 1) in {(d.storage, d.gap) for d in policy.swaps}
