"""Programs as people write them: the same bits in less memory, or the exact floor says why not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

sys.path.insert(0, str(Path(__file__).parent))
import runner
from _skipping import skip_without

import chameleon_lab as cl
from chameleon_lab.testing import wait_for_plans

pytestmark = pytest.mark.bits


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    yield
    assert cl.current_session() is None


def test_there_are_as_many_of_them_as_the_pages_say() -> None:
    for page in ("CONTRIBUTING.md", "benchmarks/README.md"):
        text = (runner.HERE.parents[1] / page).read_text()
        assert f" {len(runner.NAMES)} small programs as people write them" in text, page


@pytest.mark.parametrize("name", runner.NAMES)
def test_a_program_gives_the_same_bits_in_less_memory(name: str) -> None:
    skip_without(name)
    steps = runner.STEPS
    bare, without = runner.plain(name, steps), runner.recorded(name, steps)
    assert bare.bits == without.bits, "recording alone changed the numbers"
    assert without.report is not None and without.report.enough_bytes is not None
    ran_tight = True
    for share in runner.SHARES:
        row = runner.tried(name, steps, share, without)
        if row.run is None:
            assert not row.above_floor, f"did not run in {share:.0%}, above its floor"
            ran_tight = False
        else:
            assert not row.below_floor, f"ran in {share:.0%}, below what is called its floor"
            assert row.run.bits == bare.bits, f"other numbers in {share:.0%}"
    if not ran_tight:  # then the floor is what it is said to be
        assert runner.within(name, steps, without.report.enough_bytes).bits == bare.bits


@pytest.mark.parametrize("name", ["exports", "liger_llama", "triton_by_hand"])
def test_raw_access_leaves_all_as_movable_as_before(name: str) -> None:
    """Exports in the middle of a training; kernels that are launched by hand."""
    skip_without(name)
    report = runner.recorded(name, runner.STEPS).report
    assert report is not None and (report.escaped_storages, report.escaped_bytes) == (0, 0)


def test_a_loop_whose_every_step_is_another_names_the_cause_of_its_evictions(tmp_path: Path) -> None:
    """Of every step that the first plan was there for, and that evicted more than a little."""
    without = runner.recorded("packed_lstm", runner.STEPS).report
    assert without is not None
    reports: list[cl.Report] = []
    with cl.Session(without.peak_bytes // 3, device="cpu", link=runner.LINK) as session:

        def look(*_: object) -> None:  # in the middle of a step, at the one before it
            wait_for_plans(session)
            reports.append(session.report())

        hook = register_optimizer_step_pre_hook(look)
        try:
            runner.module_of("packed_lstm").run(tmp_path, 14)
        finally:
            hook.remove()
    served = [report for report in reports if report.steps > 2]
    evicting = [report for report in served if report.evicted_bytes > 0.05 * session.capacity_bytes]
    assert len(evicting) > len(served) // 2, "it evicts too little to show anything"
    for report in evicting:
        cause = report.replan_reason or report.unserved
        assert cause and cause in str(report), (
            f"step {report.steps}: {report.evictions} evictions, and no cause"
        )


def test_the_table_names_the_op_that_sets_the_floor() -> None:
    without = runner.recorded("gan", runner.STEPS)
    row = runner.tried("gan", runner.STEPS, 0.05, without)
    assert row.run is None and row.below_floor
    lines = runner.table("gan", [runner.plain_values(row)])
    assert "gan" in lines[1] and f"floor set by {row.floor_op}" in lines[1]


def test_steps_that_take_turns_between_two_forms_have_one_usual_time() -> None:
    turns = [(10, 1.0), (20, 3.0)] * 5
    assert runner.typical_s(turns) == runner.typical_s(turns[1:-1]) == 2.0
    assert runner.typical_s([*turns, (10, 9.0)]) == pytest.approx(21 / 11), "one slow step does not count"


def test_of_several_processes_the_median_counts() -> None:
    def found(ratio: float | None, wrong: list[str]) -> dict[str, Any]:
        row = {"share": 0.5, "peak_bytes": 8, "floor_bytes": 4, "floor_op": "op", "evictions": ratio}
        return {"rows": [row | {"ratio": ratio, "below_floor": ratio is None}], "wrong": wrong}

    of_three = runner.middle("one", [found(1.6, []), found(1.2, ["other numbers"]), found(1.4, [])])
    (row,) = of_three["rows"]
    assert (row["ratio"], row["evictions"], row["ratios"]) == (1.4, 1.4, [1.6, 1.2, 1.4])
    assert of_three["wrong"] == ["other numbers"] and "1.40x" in of_three["lines"][1]
    (below,) = runner.middle("one", [found(None, []), found(None, [])])["rows"]
    assert below["below_floor"] and below["ratios"] == [None, None]


def test_the_benchmark_prints_and_writes_the_table(tmp_path: Path) -> None:
    path = tmp_path / "programs.json"
    command = [
        "-m",
        "benchmarks.programs",
        "--only",
        "vae",
        "--steps",
        "4",
        "--rounds",
        "2",
        "--json",
        str(path),
    ]
    done = subprocess.run(
        [sys.executable, *command], cwd=Path(__file__).parents[2], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("program") and "vae" in done.stdout
    (program,) = json.loads(path.read_text())["programs"]
    assert [row["share"] for row in program["rows"]] == list(runner.SHARES)
    assert all(len(row["ratios"]) == 2 for row in program["rows"])
    assert all(
        row["ratio"] > 0 and row["evictions"] >= 0 for row in program["rows"] if not row["below_floor"]
    )
