import json
import re
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from synthetic import gpt_step

from benchmarks import editor, link, main_job, measure, overhead, planner, programs
from benchmarks.campaign import Cell
from benchmarks.measure import Comparison, Run
from benchmarks.models import CASES
from chameleon_lab.planner import floor, plan
from chameleon_lab.policy import Link as PolicyLink
from chameleon_lab.trace import Trace

pytestmark = pytest.mark.full


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_main_job_writes_what_it_prints(tmp_path, capsys, one_thread):
    file = tmp_path / "deeper" / "main_job.json"
    code = main_job.main(["--quick", "--models", "char-gpt", "--fractions", "1/2,1/3", "--json", str(file)])
    assert code == 0
    document = json.loads(file.read_text())
    assert document["benchmark"] == "main_job" and document["correct"]
    environment = document["environment"]
    assert environment["torch"] == torch.__version__ and environment["machine"]["cpu"]
    assert environment["commit"] and environment["date"] and environment["threads"] == 1
    assert environment["arguments"]["fractions"] == ["1/2", "1/3"]
    assert (
        document["models"]["char-gpt"]["floor_bytes"] < document["models"]["char-gpt"]["unswapped_peak_bytes"]
    )
    rows = document["rows"]
    variants = [(row["variant"], row["fraction"]) for row in rows]
    assert variants == [
        ("plain", None),
        ("uncapped", None),
        ("eviction", "1/2"),
        ("planned", "1/2"),
        ("eviction", "1/3"),
        ("planned", "1/3"),
    ]
    for row in rows:
        assert (
            row["bit_identical"] and row["losses_identical"] and row["weights_identical"] and row["correct"]
        )
        assert (
            row["step_s"] > 0 and row["ratio"] > 0 and row["ratio_of_minima"] > 0 and row["ratio_of_cpu"] > 0
        )
        assert row["unswapped_peak_bytes"] > 0 and not row["error"] and not row["first_difference"]
        if row["capacity_bytes"] is None:
            assert row["within_capacity"] is None and not row["arithmetic"]
        else:
            assert row["within_capacity"] and row["peak_bytes"] <= row["capacity_bytes"]
            assert row["capacity_bytes"] == int(row["unswapped_peak_bytes"] * Fraction(row["fraction"]))
            assert row["out_bytes"] > 0 and row["in_bytes"] > 0
            assert row["arithmetic"]["expected_stall_s"] >= 0
    screen = capsys.readouterr().out
    assert "char-gpt  1/3      8GiB/s  planned" in screen and "NOT IDENTICAL" not in screen
    assert not list(file.parent.glob("*.tmp")) and not list(file.parent.glob(".*"))


@pytest.mark.parametrize("where", ["loss", "weight"])
def test_a_corrupted_run_fails_the_main_job(where, monkeypatch, tmp_path, capsys, one_thread):
    train = measure.train

    def corrupting(case, steps, session=None, **options):
        run = train(case, steps, session, **options)
        if session and session().capacity_bytes:
            if where == "loss":
                run.losses[1] = float.fromhex("0x1.0000000000001p+0") * run.losses[1]
            else:
                run.digests[next(iter(run.digests))] = "0" * 64
        return run

    monkeypatch.setattr(measure, "train", corrupting)
    file = tmp_path / "main_job.json"
    assert main_job.main(["--quick", "--models", "char-gpt", "--json", str(file)]) == 1
    screen = capsys.readouterr().out
    assert re.search(r"NOT IDENTICAL: char-gpt 1/2 8GiB/s planned: " + where, screen)
    document = json.loads(file.read_text())
    assert not document["correct"]
    wrong = {row["variant"] for row in document["rows"] if not row["bit_identical"]}
    assert wrong == {"eviction", "planned"}


def test_a_run_that_fails_is_reported_and_fails_the_main_job(monkeypatch, capsys, one_thread):
    train = measure.train

    def failing(case, steps, session=None, **options):
        if session and session().capacity_bytes:
            raise RuntimeError("no luck today")
        return train(case, steps, session, **options)

    monkeypatch.setattr(measure, "train", failing)
    assert main_job.main(["--quick", "--models", "char-gpt"]) == 1
    assert "FAILED: char-gpt 1/2 8GiB/s planned: RuntimeError: no luck today" in capsys.readouterr().out


def test_a_peak_above_the_capacity_is_no_correct_row():
    cell = Cell(CASES["char-gpt"], main_job.PLANNED, Fraction(1, 2), "8GiB/s", 100)
    cell.comparisons = [Comparison(True, True)]
    cell.runs = cell.base = [Run(step_s=[1.0], cpu_s=[1.0], stall_s=[0.1], replay_s=[0.1], peaks=[90, 101])]
    row = main_job.row_of(cell, 200, 0)
    assert row["bit_identical"] and not row["within_capacity"] and not row["correct"]
    cell.runs[0].peaks = [90, 100]
    assert main_job.row_of(cell, 200, 0)["correct"]


@pytest.mark.parametrize(
    ("losses", "digests", "first"),
    [
        ([1.0, 2.0], {"weight a": "x"}, ""),
        ([1.0, 2.0000000000000004], {"weight a": "x"}, "loss of step 1: 2.0000000000000004 instead of 2.0"),
        ([1.0], {"weight a": "x"}, "1 losses instead of 2"),
        ([1.0, 2.0], {"weight a": "y"}, "weight a"),
        ([1.0, 2.0], {}, "weight a"),
        ([1.0, 2.0], {"weight a": "x", "state b": "z"}, "state b"),
    ],
)
def test_compare(losses, digests, first):
    comparison = measure.compare(losses, [1.0, 2.0], digests, {"weight a": "x"})
    assert comparison.first_difference == first
    assert comparison.identical == (not first)
    assert comparison.losses == (not first or "loss" not in first)


def test_digest_sees_every_bit_the_shape_and_the_type():
    zero, minus = torch.zeros(3), torch.tensor([0.0, -0.0, 0.0])
    assert torch.equal(zero, minus) and measure.digest(zero) != measure.digest(minus)
    assert measure.digest(zero) == measure.digest(torch.zeros(6)[::2])
    assert measure.digest(zero) != measure.digest(zero.view(3, 1))
    assert measure.digest(zero) != measure.digest(zero.int())


@pytest.mark.parametrize("name", CASES)
def test_a_seed_gives_the_same_job(name):
    losses = []
    for _ in range(2):
        job = CASES[name].build(7, tiny=True)
        generator = torch.Generator().manual_seed(1)
        losses.append([job.train_step(job.make_batch(generator)).item() for _ in range(2)])
    assert losses[0] == losses[1] and losses[0][0] != losses[0][1]


def test_ratio_of_medians_and_of_minima():
    assert measure.ratio([2.0, 3.0, 100.0], [1.0, 2.0, 3.0]) == 1.5
    assert measure.ratio([2.0, 3.0], [1.0, 5.0], min) == 2.0
    assert measure.ratio([], [1.0]) == 0.0


def test_overhead_sets_every_tool_against_none(tmp_path, one_thread, monkeypatch):
    chosen = [w for w in overhead.workloads(quick=True) if w.name == "Python loop of adds, 4 KiB"]
    monkeypatch.setattr(overhead, "workloads", lambda quick: chosen)
    file = tmp_path / "overhead.json"
    assert overhead.main(["--quick", "--plain-malloc", "--json", str(file)]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert [row["tool"] for row in rows] == [tool.name for tool in overhead.TOOLS]
    assert all(row["ops"] == 2000 and row["run_s"] > 0 and not row["error"] for row in rows)
    assert rows[0]["ratio"] == 1.0 and rows[0]["us_per_op"] == 0.0


def test_arguments_that_make_no_sense_are_refused(capsys):
    for arguments in (["--models", "gtp2"], ["--fractions", "2"], ["--link", "fast"], ["--rounds", "0"]):
        with pytest.raises(SystemExit):
            main_job.parse_arguments(arguments)
    assert "there is no model 'gtp2'" in capsys.readouterr().err


def small_trace(folder):
    meta = {"device": "made up", "link_out_bytes_per_s": 4e9, "link_in_bytes_per_s": 4e9}
    Trace([gpt_step(layers=8, size=1 << 20, tokens=4)], meta).save(str(folder / "small.parquet"))
    return ["--traces", str(folder), "--models", "small"]


def test_planner_writes_what_it_prints(tmp_path, capsys):
    file = tmp_path / "planner.json"
    arguments = [*small_trace(tmp_path), "--percent", "90,60,1", "--ops", "200"]
    assert planner.main([*arguments, "--rounds", "1", "--json", str(file)]) == 0
    document = json.loads(file.read_text())
    assert document["benchmark"] == "planner" and document["correct"] and document["faults"] == []
    assert (
        document["environment"]["machine"]["cpu"]
        and "nothing was measured" in document["environment"]["device"]
    )
    rows = document["rows"]
    assert [row["feasible"] for row in rows] == [True, True, False]
    assert set(rows[1]["rules"]) == {"ours", "greedy", "mindspeed", "naive"}
    assert rows[1]["bound"]["stall_s"] <= rows[1]["rules"]["ours"]["stall_s"]
    assert rows[1]["mixed_bound"]["stall_s"] <= rows[1]["bound"]["stall_s"]
    assert rows[1]["mixed"]["overhead_share"] <= rows[1]["rules"]["ours"]["stall_share"]
    assert [timing["ops"] for timing in document["timings"]][1] >= 200
    text = capsys.readouterr().out
    assert "below the floor" in text and "nothing was measured" in text


def test_link_writes_what_it_prints(tmp_path, capsys):
    file = tmp_path / "link.json"
    assert link.main([*small_trace(tmp_path), "--percent", "60,1", "--json", str(file)]) == 0
    document = json.loads(file.read_text())
    assert document["benchmark"] == "link" and document["correct"] and document["faults"] == []
    row, below = document["rows"]
    assert not below["feasible"]
    shares = row["overheads"]
    assert shares["whole"]["whole"] <= shares["whole"]["less"] <= shares["whole"]["half"]
    assert row["margin"] == 0.25 and f"{100 * shares['margin']['half']:.1f}" in capsys.readouterr().out
    wrong = {
        "fits": False,
        "predicted_apart": 0.1,
        "bound": shares["half"]["half"] + 0.1,
        "same_as_for_less": False,
    }
    assert [len(link.faults([row | {name: value}])) for name, value in wrong.items()] == [1, 1, 1, 1]


def test_planner_sees_what_must_not_be():
    def row(bound, mixed=0.1, first=0.1, **stalls):
        rules = {
            name: {"fits": stall is not None, "stall_share": stall, "peak_bytes": 2}
            for name, stall in stalls.items()
        }
        values = {"model": "m", "percent": 50, "capacity_bytes": 1, "feasible": True, "rules": rules}
        mixed = {"fits": mixed is not None, "overhead_share": mixed or 0.0, "peak_bytes": 3}
        bounds = {"bound": {"stall_share": bound}, "mixed_bound": {"stall_share": 0.05}}
        return values | bounds | {"mixed": mixed, "first": {"overhead_share": first}, "wanted": 0.05}

    assert planner.faults([row(0.1, ours=0.1, greedy=0.2, naive=None)]) == []
    assert "stalls less" in planner.faults([row(0.1, ours=0.2, greedy=0.1)])[0]
    assert "beats the bound" in planner.faults([row(0.2, ours=0.1)])[0]
    assert "mixed plan costs more than the first" in planner.faults([row(0.1, mixed=0.2, ours=0.1)])[0]
    assert "first plan costs more than swapping" in planner.faults([row(0.1, first=0.2, ours=0.1)])[0]
    assert "mixed plan beats its bound" in planner.faults([row(0.1, mixed=0.01, ours=0.1)])[0]
    assert "mixed plan takes 3 of 1 bytes" in planner.faults([row(0.1, mixed=None, ours=0.1)])[0]
    assert planner.missed([row(0.1, mixed=0.04, ours=0.1)]) == []
    assert len(planner.missed([row(0.1, mixed=0.06, ours=0.1)])) == 1
    over = row(0.0, ours=0.1)
    over["rules"]["ours"]["fits"] = False
    assert "takes 2 of 1 bytes" in planner.faults([over])[0]


def test_steps_in_a_row_are_one_step():
    step = gpt_step(layers=4, size=1 << 20, tokens=4)
    row = planner.in_a_row(step, 3)
    n = len(step.ops)
    assert len(row.ops) == 3 * n and len(row.uses) == 3 * len(step.uses)
    assert row.live_peak_bytes == step.live_peak_bytes and floor(row).bytes == floor(step).bytes
    assert row.storages.death_op.max() <= 3 * n and (row.storages.birth_op < row.ops.name.size).all()
    policy = plan(row, int(0.6 * step.live_peak_bytes), PolicyLink(1e9, 1e9))
    assert policy.predicted["peak_bytes"] <= int(0.6 * step.live_peak_bytes)
    assert max(decision.out_op for decision in policy.decisions) >= 2 * n


def test_editor_writes_what_it_prints(tmp_path, capsys, monkeypatch):
    meta = {"link_out_bytes_per_s": 4e9, "link_in_bytes_per_s": 4e9}
    monkeypatch.setattr(editor.cl, "trace_meta", lambda build, device: Trace([gpt_step(layers=16)], meta))
    file = tmp_path / "editor.json"
    code = editor.main(["--ops", "10", "--rounds", "1", "--json", str(file)])
    document = json.loads(file.read_text())
    assert document["benchmark"] == "editor" and document["correct"] == (code == 0)
    printed = capsys.readouterr().out
    for row in document["rows"]:
        assert 0 < row["first_s"] <= row["table_s"] <= row["planned_s"] and row["rounds"] == 1
        assert row["edit"] in printed
        (once,) = row["each"]
        assert once["last"]["peak_bytes"] <= once["last"]["capacity_bytes"]
        assert row["edit"] == "capacity" or once["last"] != once["first"] or not once["estimated"]
    assert len(document["rows"]) == 6 and (code == 0 or "TOO SLOW" in printed)


def test_a_figure_goes_with_its_arguments_but_not_with_where_it_was_written():
    arguments = measure.environment({"steps": 3, "json": "/somewhere/figures.json"})["arguments"]
    assert arguments == {"steps": 3}
    for path in (Path(measure.__file__).parent / "results").glob("*.json"):
        assert not re.search(r'"json": "/', path.read_text()), path


def test_programs_are_listed_by_library_and_what_was_skipped_is_named():
    row = {"peak_bytes": 4 << 20, "floor_bytes": 1 << 20, "share": 0.5}
    ran = {
        "program": "one",
        "libraries": {"torchao": "0.18.0"},
        "kept_bytes": 0,
        "wrong": [],
        "rows": [row | {"ratio": 1.25, "below_floor": False}, row | {"ratio": None, "below_floor": True}],
    }
    skipped = {
        "program": "two",
        "rows": [],
        "wrong": [],
        "lines": ["", "two skipped: timm cannot be imported"],
    }
    head, _, *lines = programs.by_library([ran, skipped])
    assert head.startswith("| written with | program | kept | peak | floor | 50% |")
    assert lines[0] == "| torchao 0.18.0 | one | 0 B | 4.00 MiB | 25.0 % | 1.25 | below floor | the same |"
    assert lines[1].startswith("| two skipped: timm cannot be imported |")
    assert programs.by_library([ran | {"libraries": {}}]) == []
