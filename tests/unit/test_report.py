import json
from collections.abc import Mapping
from dataclasses import replace
from typing import get_type_hints

import pytest

from chameleon_lab.report.session_report import Report, StepSummary
from chameleon_lab.trace.overlap import DEFINITION

MIB = 1 << 20

STEP = StepSummary(
    index=11,
    stage="Stable",
    step_s=0.5,
    stall_s=0.01,
    peak_bytes=30 * MIB,
    swapped_out_bytes=101 * MIB,
    swapped_in_bytes=99 * MIB,
    evictions=2,
    evicted_bytes=5 * MIB,
    demand_swap_ins=3,
    late_prefetches=4,
    dropped_triggers=6,
    ops=200,
    matched_ops=150,
    overlap=0.953,
)


@pytest.fixture
def report() -> Report:
    return Report(
        device="cpu",
        stage="Stable",
        steps=12,
        capacity_bytes=33 * MIB,
        peak_bytes=32 * MIB,
        live_peak_bytes=132 * MIB,
        resident_bytes=30 * MIB,
        host_bytes=10 * MIB,
        host_peak_bytes=104 * MIB,
        step_s=0.5,
        newest=STEP,
        link="7.5 GiB/s / 8.0 GiB/s",
        link_margin=0.0,
        decisions=83,
        unmatched_decisions=(),
        escaped_storages=0,
        refused={},
        notes=(),
        history=(STEP,),
    )


def row(report, name):
    (found,) = [row for row in report.rows() if row[0] == name]
    return found[1:]


def test_what_it_takes_from_its_newest_step_is_declared_with_its_types():
    fields = get_type_hints(StepSummary) | {"match_rate": float}
    own = {"index", *Report.__dataclass_fields__}
    declared = {name: kind for name, kind in get_type_hints(Report).items() if name not in own}
    assert declared == {name: kind for name, kind in fields.items() if name not in own}


def test_is_a_mapping_of_its_fields(report):
    assert isinstance(report, Mapping)
    assert report["peak_bytes"] == report.peak_bytes == 32 * MIB
    assert set(report) > set(report.__dataclass_fields__) and len(report) == len(set(report))
    assert report["evictions"] == report.evictions == STEP.evictions, (
        "what it has not itself is its newest step's"
    )
    assert report["peak_bytes"] != STEP.peak_bytes, "what it has itself is not"
    assert dict(report)["stage"] == "Stable"
    assert report.get("no such field") is None
    with pytest.raises(KeyError, match="no such field"):
        report["no such field"]


def test_to_dict_holds_plain_values(report):
    plain = report.to_dict()
    assert plain["history"][0]["step_s"] == 0.5
    assert json.loads(json.dumps(plain))["capacity_bytes"] == 33 * MIB


def test_rows_give_figures_in_three_digits(report):
    assert row(report, "Stage") == ("Stable", "12 steps on cpu")
    assert row(report, "Capacity") == ("33.0 MiB", "25 % of the peak alive")
    ample = replace(report, capacity_bytes=report.live_peak_bytes + 1)
    assert row(ample, "Capacity")[1] == "more than the peak alive"
    assert row(report, "Peak resident")[0] == "32.0 MiB"
    assert row(report, "Peak alive")[0] == "132 MiB"
    assert row(report, "Step time")[0] == "500 ms"
    assert row(report, "Stall") == ("10.0 ms", "2.0 % of the step")
    assert row(report, "Overlap")[0] == "95.3 %"
    assert row(report, "Moved per step") == ("101 MiB out", "99.0 MiB in")
    assert row(report, "Evictions") == ("2", "5.00 MiB; 3 demand swap-ins")
    assert row(report, "Planned moves")[0] == "4 late"
    assert row(report, "Policy") == ("83 decisions", "match rate 75.0 %")


def test_rows_of_a_session_without_capacity_or_steps(report):
    empty = replace(
        report,
        capacity_bytes=None,
        live_peak_bytes=0,
        steps=0,
        step_s=0.0,
        newest=StepSummary.none(),
        history=(),
    )
    assert row(empty, "Capacity") == ("none", "")
    assert row(empty, "Stall") == ("–", "")


def test_rows_appear_for_what_is_out_of_the_ordinary(report):
    assert {"Unmatched", "Kept", "Not adopted", "Note"}.isdisjoint(name for name, _, _ in report.rows())
    odd = replace(
        report,
        unmatched_decisions=("'x' is not in the step", "second"),
        escaped_storages=4,
        escaped_bytes=3 * MIB,
        refused={"a": "foreign", "b": "foreign", "c": "foreign", "d": "foreign"},
        notes=("the ops changed", "profiling again"),
    )
    assert row(odd, "Unmatched") == ("2 decisions", "'x' is not in the step")
    assert row(odd, "Kept") == ("4 storages", "3.00 MiB stay on the device: a raw pointer to them is in use")
    assert row(odd, "Not adopted") == ("4 tensors", "a: foreign")
    assert [text for name, text, _ in odd.rows() if name == "Note"] == ["the ops changed", "profiling again"]


def test_what_is_not_replayed_is_told_with_its_reasons(report):
    def rows(**refused):
        return [
            (text, remark)
            for name, text, remark in replace(report, not_replayed=refused).rows()
            if name == "Not replayed"
        ]

    differs = "bfloat16: repeated runs are not bit-identical"
    assert rows() == []
    assert rows(a=differs, b=differs, c=differs) == [("3 ops", f"a and 2 more ({differs})")]
    absent = "float32: not implemented on cpu"
    assert rows(a=absent, b=absent) == [], "nobody misses an op that the device does not implement"
    assert rows(a=absent, mm=f"{absent}; {differs}") == [("1 op", f"mm ({differs})")]
    many = rows(a="z", b="x", c="y", d="y")
    assert many == [("2 ops", "c and 1 more (y)"), ("1 op", "a (z); 1 other reason in not_replayed")]
    assert differs in str(replace(report, not_replayed={"mm": differs}))
    off = replace(report, not_replayed={"mm": differs}, replays_off="rematerialize=False")
    assert "Not replayed" not in str(off) and "rematerialize=False" in str(off)


def test_text_is_an_aligned_table(report):
    lines = str(replace(report, notes=("a note that is much longer than any value",))).splitlines()
    assert lines[0] == "Chameleon Lab"
    assert all(line == line.rstrip() and line.startswith("  ") for line in lines[1:])
    starts = {
        line.index(value) for line, value in zip(lines[1:4], ["Stable", "33.0 MiB", "32.0 MiB"], strict=True)
    }
    assert len(starts) == 1


def test_html_escapes_what_it_shows(report):
    page = replace(report, notes=("<script>&",))._repr_html_()
    assert "&lt;script&gt;&amp;" in page and "<script>" not in page
    assert page.startswith("<table>") and page.endswith("</table>")
    assert page.count("<tr>") == len(report.rows()) + 1


def test_match_rate_of_a_step():
    assert STEP.match_rate == 0.75
    assert replace(STEP, ops=0, matched_ops=0).match_rate == 0.0


def test_fragmentation_is_told_where_the_allocator_splits_segments(report: Report) -> None:
    assert "Reserved" not in str(report)
    little = replace(report, reserved_bytes=33 * MIB, split_bytes=MIB)
    assert "33.0 MiB" in str(little) and "3.00 MiB unused; 1.00 MiB of it" in str(little), str(little)
    assert "expandable_segments" not in str(little)
    assert "expandable_segments:True" in str(replace(little, split_bytes=3 * MIB))


def test_what_nobody_has_measured_is_a_dash_and_no_number(report):
    begun = replace(
        report,
        **{name: 0 for name in ("steps", "step_s", "live_peak_bytes")},
        newest=StepSummary.none(),
        history=(),
    )
    for name in ("Peak alive", "Step time", "Stall", "Overlap", "Moved per step"):
        assert row(begun, name)[0] == "–", name
    assert row(begun, "Policy")[1] == "no plan was followed"
    assert "100" not in str(begun) and "0 µs" not in str(begun)
    still = replace(report, newest=replace(STEP, overlap=None, swapped_out_bytes=0, swapped_in_bytes=0))
    assert row(still, "Overlap") == ("–", "no copies")
    assert row(report, "Overlap") == ("95.3 %", DEFINITION)


def test_the_allocator_s_setting_is_told_on_gpus(report: Report) -> None:
    assert "Allocator" not in str(report), "the embedded device has none"
    gpu = replace(report, device="cuda:0", allocator="default")
    step = replace(STEP, refusals=3, soft_ooms=1, alloc_retries=2, device_allocs=5, device_frees=4)
    told = replace(gpu, newest=step)
    row = next(row for row in told.rows() if row[0] == "Allocator")
    assert row[1] == "default"
    assert row[2].startswith(
        "3 refused requests (1 counted in num_ooms); 2 cache flushes; 5 segments allocated and 4 freed"
    )
    assert "leave" not in row[2] and "1.00 MiB free" in str(replace(told, reserve_bytes=MIB))
    for setting in ("default", "expandable_segments"):
        assert setting in replace(gpu, allocator=setting)._repr_html_()
    split = replace(gpu, reserved_bytes=33 * MIB, split_bytes=3 * MIB)
    assert "expandable_segments:True" in str(split)
    assert "expandable_segments:True" not in str(replace(split, allocator="expandable_segments"))
