"""The benchmark of swapping and rematerializing: what it writes, what it compares, and what it calls wrong."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import remat
from benchmarks.measure import Comparison, Run
from benchmarks.remat_models import CASES, CHECKPOINT, REENTRANT, SELECTIVE, checkpointed
from chameleon_lab.runtime import core

pytestmark = pytest.mark.full


@pytest.mark.skipif(not core.SEES_RAW_ACCESS, reason="nothing is replayed before torch 2.13")
def test_it_writes_what_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    file = tmp_path / "remat.json"
    try:
        only = "checkpoint,swap,rematerialize,mixed,checkpoint + swap"
        assert remat.main(["--quick", "--only", only, "--json", str(file)]) == 0
    finally:
        torch.set_num_threads(threads)
    document = json.loads(file.read_text())
    assert document["benchmark"] == "remat" and document["correct"] and document["complete"]
    assert document["environment"]["torch"] == torch.__version__ and document["environment"]["commit"]
    rows = {(row["variant"], row["fraction"]): row for row in document["rows"]}
    assert set(rows) == {
        *((variant, None) for variant in ("uncapped", CHECKPOINT)),
        *(
            (variant, "1/2")
            for variant in ("uncapped", "swap", "mixed", "rematerialize", "checkpoint + swap")
        ),
    }
    for row in rows.values():
        assert row["bit_identical"] or row["infeasible"], row
    peak = document["models"]["gpt"]["unswapped_peak_bytes"]
    mixed, swap = rows["mixed", "1/2"], rows["swap", "1/2"]
    assert mixed["capacity_bytes"] == peak // 2 >= mixed["peak_bytes"]
    assert swap["dropped_bytes"] == 0 < swap["out_bytes"]
    assert rows[CHECKPOINT, None]["peak_bytes"] < peak
    rivals = [rows[name, "1/2"]["ratio"] for name in ("swap", "rematerialize", "checkpoint + swap")]
    assert mixed["over_best"] == mixed["ratio"] / min(ratio for ratio in rivals if ratio)
    printed = capsys.readouterr().out
    assert "mixed beside the best" in printed and "checkpoint + swap" in printed


@pytest.mark.parametrize("how", [CHECKPOINT, REENTRANT, SELECTIVE])
@pytest.mark.parametrize("name", ["moe", "dropout"])
def test_checkpointing_gives_the_same_gradients(name: str, how: str) -> None:
    def gradients(case: Any) -> list[torch.Tensor]:
        job = case.build(0, tiny=True)
        batch = job.make_batch(torch.Generator().manual_seed(0))
        job.loss(job.model, *batch).backward()
        return [p.grad for p in job.model.parameters() if p.grad is not None]

    plain, again = gradients(CASES[name]), gradients(checkpointed(CASES[name], how))
    assert len(plain) == len(again) > 0
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


def row(variant: str, ratio: float, link: str | None = "half", **figures: Any) -> dict[str, Any]:
    values = {"fraction": "1/2", "link": link, "variant": variant, "ratio": ratio, "capacity_bytes": 100}
    return values | {"peak_bytes": 90, "ratio_of_minima": ratio, "ratio_of_cpu": ratio} | figures


def test_mixed_stands_beside_the_best_at_its_capacity_and_link() -> None:
    mixed = row("mixed", 1.2)
    rows = [mixed, row("swap", 1.5), row("swap", 1.0, "all"), row("swap", 1.1, fraction="1/3")]
    assert remat.beside_the_others(mixed, rows)["over_best"] == pytest.approx(1.2 / 1.5)
    rows.append(row("rematerialize", 1.25, None))
    assert remat.beside_the_others(mixed, rows)["best_other"] == "rematerialize"
    small, large = (row("checkpoint", 1.1, None, fraction=None, peak_bytes=peak) for peak in (100, 101))
    assert remat.beside_the_others(mixed, [*rows, large])["best_other"] == "rematerialize"
    assert remat.beside_the_others(mixed, [*rows, small])["over_best"] == pytest.approx(1.2 / 1.1)
    assert remat.beside_the_others(mixed, [mixed, row("rematerialize", 0.0, None)]) == {}


def test_a_session_that_changes_a_bit_or_takes_too_much_is_wrong() -> None:
    def made(variant: str, same: bool, peak: int = 90, infeasible: str = "") -> dict[str, Any]:
        cell = remat.Rival(CASES["gpt"], variant, Fraction(1, 2), "1B/s", 100, infeasible=infeasible)
        if variant == CHECKPOINT:
            cell.capacity_bytes = cell.fraction = None
        if not infeasible:
            cell.runs, cell.comparisons = (
                [Run(peaks=[peak])],
                [Comparison(same, same, "" if same else "loss of step 0")],
            )
        return remat.row_of(cell, 200, {CHECKPOINT: 120})

    assert made("mixed", True)["correct"]
    assert not made("mixed", False)["correct"]
    assert not made("mixed", True, peak=101)["correct"]
    assert made(CHECKPOINT, False)["correct"] and not made(CHECKPOINT, False)["losses_identical"]
    assert made("rematerialize", True, infeasible="no room")["correct"]


def test_arguments_that_make_no_sense_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--models", "gtp"], ["--fractions", "2"], ["--links", "fast"], ["--only", "swaps"]):
        with pytest.raises(SystemExit):
            remat.parse_arguments(arguments)
    assert "there is no variant 'swaps'" in capsys.readouterr().err
