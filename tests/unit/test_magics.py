import json
import sys

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from synthetic import gpt_step

import chameleon_lab as cl
from chameleon_lab.lab import magics
from chameleon_lab.trace import Trace

MODEL = """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(6)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(steps):
    for _ in range(steps):
        loss = model(torch.randn(256, 256)).square().mean()
        loss.backward()
        value = loss.item()
        optimizer.step()
        optimizer.zero_grad()
    return value
"""


class Cells:
    """A shell that runs cells, and what the last one printed and showed."""

    def __init__(self, shell):
        self.shell = shell
        self.result = None

    def run(self, source) -> str:
        """What the cell prints, errors included."""
        with capture_output() as captured:
            self.result = self.shell.run_cell(source)
        self.shown = captured.outputs
        return captured.stdout + captured.stderr

    def good(self, source) -> str:
        text = self.run(source)
        assert self.result.success, text
        return text

    def error(self, source) -> str:
        """The one line of a usage error."""
        text = self.run(source)
        lines = text.strip().splitlines()
        assert len(lines) == 1 and lines[0].startswith("UsageError: "), text
        return lines[0].removeprefix("UsageError: ")


@pytest.fixture
def cells(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    InteractiveShell.clear_instance()
    cells = Cells(InteractiveShell.instance(colors="nocolor"))
    cells.good("%load_ext chameleon_lab")
    yield cells
    if cl.current_session() is not None:
        cl.current_session().stop()
    InteractiveShell.clear_instance()


# ------------------------------------------------------------------------------------------------ a session


def test_a_session_from_start_to_stop(cells):
    cells.good(MODEL)
    assert cells.good("%chameleon status").startswith("No session. Next: %chameleon start --capacity")
    text = cells.good("%chameleon start --capacity 3MiB --link 1GiB/s")
    assert text.startswith("Session on cpu, 3.00 MiB, WarmUp, 0 steps.")
    assert "a policy is in force after 2 more steps" in text
    assert cl.current_session().capacity_bytes == 3 << 20

    cells.good("train(1)")
    assert "after 1 more step\n" in cells.good("%chameleon status")
    cells.good("train(3)")
    assert "Stable, 4 steps" in cells.good("%chameleon status")
    report = cells.good("%chameleon report")
    assert report.startswith("Chameleon Lab\n") and "Peak alive" in report
    assert cells.shown == []  # in a terminal, a table and no figure

    assert "ended after 4 steps" in cells.good("%chameleon stop")
    assert cl.current_session() is None
    assert cells.good("%chameleon report") == report
    assert "ended after 4 steps" in cells.good("%chameleon status")


def test_values_of_the_notebook_go_in_braces(cells):
    cells.good("peak = 64 << 20")
    cells.good("%chameleon start --capacity {peak // 4} --link 2GiB/s,1GiB/s")
    session = cl.current_session()
    assert session.capacity_bytes == 16 << 20
    assert session.link.out_bytes_per_s == 2 * session.link.in_bytes_per_s == 2 << 30


def test_options_reach_the_session(cells):
    options = "--no-planning --stacks --rematerialize no --no-inference-steps"
    cells.good(f"%chameleon start --capacity 25% --device cpu {options}")
    session = cl.current_session()
    assert session.capacity_bytes == cl.Session(0.25, device="cpu").capacity_bytes
    assert (session.planning, session.stacks, session.rematerialize) == (False, True, False)
    assert session.inference_steps is False
    assert "eviction only" in cells.good("%chameleon status")


def test_a_session_without_capacity_records(cells):
    cells.good(MODEL)
    assert "recording only" in cells.good("%chameleon start")
    cells.good("train(1)")
    cells.good("%chameleon stop")
    assert "none" in cells.good("%chameleon report")
    error = cells.error("%chameleon save p.json")
    assert error == "%chameleon save p.json: no policy: this session only records: start one with a capacity"


def test_the_magics_follow_sessions_that_they_did_not_begin(cells):
    with cl.Session("64MiB", device="cpu"):
        assert "64.0 MiB, WarmUp" in cells.good("%chameleon status")
    assert "ended after 0 steps" in cells.good("%chameleon status")
    session = cl.Session("32MiB", device="cpu").start()
    cells.good("%chameleon stop")
    assert not session.is_open


def test_a_report_before_the_first_step_says_what_ends_one(cells):
    cells.good("%chameleon start --capacity 16MiB")
    assert "optimizer's step() ends one" in cells.good("%chameleon report")


# ------------------------------------------------------------------------------------------------ files


def test_policies_and_traces_are_saved_after_the_end_and_loaded(cells, tmp_path):
    cells.good(MODEL)
    cells.good("%chameleon start --capacity 3MiB --link 1GiB/s\ntrain(4)\n%chameleon stop")
    assert "swaps for 3.00 MiB in policy.json" in cells.good("%chameleon save policy.json")
    assert (
        cells.good("%chameleon save 'a trace.parquet'") == "Saved the trace of 4 steps in a trace.parquet.\n"
    )
    assert len(cl.Trace.load(tmp_path / "a trace.parquet")) == 4
    saved = cl.Policy.load(tmp_path / "policy.json")
    assert saved.swaps

    assert cells.good('%chameleon load "a trace.parquet"').startswith("a trace.parquet: 4 steps; newest: ")
    loaded = cells.good("%chameleon load policy.json")
    assert loaded.endswith("Next: %chameleon start --capacity 3MiB, which will use it\n")
    assert cells.good("%chameleon status").endswith("or %chameleon start --capacity 3MiB\n")
    assert "Using a policy of" in cells.good("%chameleon start --capacity 3MiB")
    assert cl.current_session().policy == saved
    cells.good("%chameleon stop")
    cells.good("%chameleon start --capacity 3MiB")
    assert cl.current_session().policy is None  # a loaded policy serves one start

    assert "in force from the next whole step" in cells.good("%chameleon load policy.json")
    assert cl.current_session().policy == saved
    cells.good("%chameleon stop")
    cells.good("%chameleon start --capacity 3MiB --policy policy.json")
    assert cl.current_session().policy == saved
    cells.good("%chameleon stop")
    cells.good("%chameleon start --policy policy.json")  # the policy's own capacity
    assert (cl.current_session().policy, cl.current_session().capacity_bytes) == (saved, 3 << 20)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("save p.json", "%chameleon save: there has been no session yet. Begin one with %chameleon start"),
        ("save p.txt", "%chameleon save: 'p.txt' tells no format. End it with .json for the policy"),
        ("save", "%chameleon save: the following arguments are required: FILE"),
        ("load no.json", "no.json: No such file or directory. Check the path"),
        ("load no.parquet", "no.parquet: No such file or directory. Check the path"),
        ("load bad.json", "bad.json, line 1 column 2: truncated, or not JSON"),
        ("load bad.parquet", "bad.parquet: truncated: it begins as a trace"),
        ("load newer.json", "newer.json: it is of policy version 99"),
        ("start --capacity 1MiB --policy no.json", "no.json: No such file or directory. Check the path"),
        ("start --policy bad.json", "bad.json, line 1 column 2: truncated, or not JSON"),
    ],
)
def test_files_that_cannot_be_used(cells, tmp_path, line, error):
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    (tmp_path / "newer.json").write_text(json.dumps({"chameleon_lab_policy": 99}))
    assert cells.error(f"%chameleon {line}").startswith(error)
    assert cl.current_session() is None


def test_load_says_what_a_cut_trace_has_lost(cells, tmp_path):
    Trace([gpt_step(), gpt_step()], {}).save("t.parquet")
    data = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(data[: len(data) - 20])
    said = cells.good("%chameleon load t.parquet")
    assert f"Warning: t.parquet: cut after {len(data) - 20} bytes; 2 of its 2 steps can be read" in said
    assert "t.parquet: 2 steps" in said


def test_what_there_is_not_to_save_yet(cells, tmp_path):
    cells.good("%chameleon start --capacity 16MiB")
    assert "it comes after 2 whole steps, and this session had 0: train on" in cells.error(
        "%chameleon save p.json"
    )
    assert "no trace: no step has ended. An optimizer's step() ends one" in cells.error(
        "%chameleon save t.parquet"
    )
    cells.good("%chameleon stop\n%chameleon start --capacity 16MiB --no-planning")
    assert "this session does not plan: start one with planning" in cells.error("%chameleon save p.json")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written(cells):
    cells.good(MODEL)
    cells.good("%chameleon start --capacity 16MiB\ntrain(2)")
    assert "No such file or directory. Check the path" in cells.error("%chameleon save no/such/folder/p.json")


def test_a_policy_for_a_session_that_only_records(cells):
    cells.good(MODEL)
    cells.good("%chameleon start --capacity 16MiB\ntrain(2)\n%chameleon save p.json\n%chameleon stop")
    cells.good("%chameleon start")
    assert "this session only records" in cells.error("%chameleon load p.json")


# ------------------------------------------------------------------------------------------------ misuse


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("stop", "%chameleon stop: no session is open. Begin one with %chameleon start --capacity 256MiB"),
        ("report", "%chameleon report: there has been no session yet. Begin one with %chameleon start"),
        ("strat", "%chameleon does not know 'strat': did you mean 'start'?"),
        (
            "xyz",
            "%chameleon does not know 'xyz': it knows start, status, dashboard, report, stop, panel, save, load, "
            "help",
        ),
        ("--capacity 1GiB", "%chameleon does not know '--capacity': it knows start"),
        (
            "start --capcity=1GiB",
            "%chameleon start does not know '--capcity=1GiB': did you mean '--capacity'?",
        ),
        ("start 256MiB", "%chameleon start does not know '256MiB': it knows --capacity, --link"),
        ("start --capacity", "%chameleon start: argument --capacity: expected one argument"),
        ("start --capacity lots", "capacity 'lots' is not a size: write it like"),
        ("start --capacity 0", "capacity must be positive, got '0'"),
        ("start --capacity 1GiB --link 8", "link '8' is not a bandwidth"),
        (
            "start --link 1GiB/s,2GiB/s,3GiB/s",
            "link '1GiB/s,2GiB/s,3GiB/s' is no bandwidth, nor a pair (out, in)",
        ),
        ("start --device abacus", "there is no device 'abacus'"),
        ("dashboard", "%chameleon dashboard: it needs a notebook. Try %chameleon report"),
        ("status now", "%chameleon status does not know 'now': it takes no more than that"),
        ("save 'p.json", '%chameleon: No closing quotation in "save \'p.json": close the quote'),
    ],
)
def test_misuse_is_one_line(cells, line, error):
    assert cells.error(f"%chameleon {line}").startswith(error)
    assert cl.current_session() is None


def test_a_second_start_names_the_open_session(cells):
    cells.good("%chameleon start --capacity 16MiB")
    first = cl.current_session()
    for cell in ("%chameleon start --capacity 8MiB", "%%chameleon --capacity 8MiB\npass"):
        error = cells.error(cell)
        assert "<Session cpu, 16.0 MiB, WarmUp, step 0, open> is open" in error
        assert error.endswith("End it first with %chameleon stop")
    assert cl.current_session() is first


def test_alone_it_prints_what_there_is(cells):
    text = cells.good("%chameleon")
    assert cells.good("%chameleon help") == text
    for command in magics._COMMANDS[:-1]:
        assert f"%chameleon {command}" in text
    for action in magics._session_options("")._actions:
        assert action.option_strings[0] in text


# ------------------------------------------------------------------------------------------------ the cell magic


def test_a_cell_runs_in_a_session_of_its_own(cells):
    cells.good(MODEL)
    text = cells.good(
        "%%chameleon --capacity 3MiB --link 1GiB/s\nx = 41\nprint('in the cell')\ntrain(3); x + 1"
    )
    assert cells.result.result == 42
    assert cells.shell.user_ns["x"] == 41
    assert text.startswith("in the cell\n") and "3 steps on cpu" in text
    assert cl.current_session() is None
    assert "ended after 3 steps" in cells.good("%chameleon status")
    assert "swaps" in cells.good("%chameleon save p.json")


def test_a_cell_computes_the_same_numbers(cells):
    cells.good(MODEL)
    cells.good(
        "torch.manual_seed(0)\nstart = [p.detach().clone() for p in model.parameters()]\nplain = train(4)"
    )
    cells.good(
        "torch.manual_seed(0)\n"
        "with torch.no_grad():\n    for p, q in zip(model.parameters(), start): p.copy_(q)\n"
        "del p, q"
    )
    cells.good("%%chameleon --capacity 3MiB --link 1GiB/s\nsmall = train(4)")
    assert cells.shell.user_ns["plain"] == cells.shell.user_ns["small"]


def test_a_semicolon_silences_the_last_value(cells):
    assert "Out" not in cells.good("%%chameleon\n6 * 7;")
    assert cells.result.result is None
    assert "42" in cells.good("%%chameleon\n6 * 7")


def test_a_cell_without_an_op_is_fine(cells):
    assert "No step has ended" in cells.good("%%chameleon\npass")
    assert cl.current_session() is None


def test_magics_work_inside_the_cell(cells):
    text = cells.good("%%chameleon --capacity 16MiB\n%chameleon status\nfolder = !echo here")
    assert "16.0 MiB, WarmUp" in text
    assert list(cells.shell.user_ns["folder"]) == ["here"]


def test_an_exception_ends_the_session_and_fails_the_cell(cells):
    cells.good(MODEL)
    text = cells.run("%%chameleon --capacity 3MiB --link 1GiB/s\ntrain(2)\nraise KeyError('mine')")
    assert isinstance(cells.result.error_in_exec, KeyError)
    assert "KeyError: 'mine'" in text and "raise KeyError" in text
    assert "magics.py" not in text and "Chameleon Lab" not in text
    assert cl.current_session() is None
    model = cells.shell.user_ns["model"]
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    cells.good("train(1)")


def test_a_syntax_error_starts_no_session(cells):
    text = cells.run("%%chameleon --capacity 16MiB\nx = (1")
    assert "SyntaxError" in text and "x = (1" in text
    assert "No session" in cells.good("%chameleon status")


def test_a_capacity_below_the_floor_says_so(cells):
    cells.run(f"%%chameleon --capacity 64KiB\n{MODEL}\ntrain(1)")
    assert isinstance(cells.result.error_in_exec, cl.BelowFloorError)
    assert "is below the floor" in str(cells.result.error_in_exec)
    assert cl.current_session() is None


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("start --capacity 1GiB", "%%chameleon takes options and a cell, and not 'start'"),
        ("--capacity lots", "capacity 'lots' is not a size"),
        ("--capcity 1GiB", "%%chameleon does not know '--capcity': did you mean '--capacity'?"),
    ],
)
def test_misuse_of_the_cell_magic_runs_nothing(cells, line, error):
    assert cells.error(f"%%chameleon {line}\nran = True").startswith(error)
    assert "ran" not in cells.shell.user_ns


def test_a_cell_that_stops_its_session_itself(cells):
    cells.good("%%chameleon --capacity 16MiB\n%chameleon stop")
    assert cl.current_session() is None


# ------------------------------------------------------------------------------------------------ notebook, shell


class Kernel:
    """Stands for the attribute by which shells in notebooks are known."""


def test_in_a_notebook_the_report_is_a_table_and_a_figure(cells, monkeypatch):
    cells.good(MODEL)
    cells.good("%chameleon start --capacity 3MiB --link 1GiB/s\ntrain(3)\n%chameleon stop")
    monkeypatch.setattr(cells.shell, "kernel", Kernel(), raising=False)
    shown = []
    monkeypatch.setattr(magics, "display", lambda value, **_: shown.append(value))
    cells.good("%chameleon report")
    table, figure = shown
    assert table["text/plain"].startswith("Chameleon Lab") and "<table>" in table["text/html"]
    assert "Capacity 3.00 MiB" in [trace.name for trace in figure.data]

    cells.good("%chameleon save t.parquet")
    shown.clear()
    cells.good("%chameleon load t.parquet")
    assert [type(value).__name__ for value in shown] == ["Figure"]


def test_in_a_notebook_the_dashboard_follows_the_open_session(cells, monkeypatch):
    monkeypatch.setattr(cells.shell, "kernel", Kernel(), raising=False)
    shown = []
    monkeypatch.setattr(magics, "display", lambda value, **_: shown.append(value))
    assert "no session yet" in cells.error("%chameleon dashboard")
    cells.good(MODEL)
    cells.good("%chameleon start --capacity 16MiB\n%chameleon dashboard\ntrain(2)\n%chameleon stop")
    (dashboard,) = shown
    assert list(dashboard.steps.data["index"]) == [0, 1]


def test_in_a_notebook_without_plotly_there_is_the_table_and_a_line(cells, monkeypatch):
    cells.good(MODEL)
    cells.good("%chameleon start --capacity 16MiB\ntrain(1)")
    monkeypatch.setattr(cells.shell, "kernel", Kernel(), raising=False)
    monkeypatch.setattr(magics, "display", lambda value, **_: None)
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    assert "pip install plotly" in cells.good("%chameleon report")


@pytest.mark.filterwarnings("ignore:.*Completer.complete")
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("%chameleon st", ["start", "status", "stop"]),
        ("%chameleon start --ca", ["--capacity"]),
        ("%chameleon start --capacity 1GiB --l", ["--link"]),
        ("%%chameleon --p", ["--policy"]),
    ],
)
def test_tab_completes_commands_and_options(cells, line, found):
    assert cells.shell.complete(line.split()[-1], line)[1] == found


@pytest.mark.filterwarnings("ignore:.*Completer.complete")
def test_unload_takes_everything_away_and_leaves_the_session(cells):
    cells.good("%chameleon start --capacity 16MiB")
    with capture_output() as captured:
        magics.unload(cells.shell)
    assert "stop() ends it" in captured.stdout
    assert cl.current_session() is not None
    assert "not found" in cells.run("%chameleon status")
    assert "--capacity" not in cells.shell.complete("--ca", "%chameleon start --ca")[1]
    magics.load(cells.shell)
    assert "16.0 MiB" in cells.good("%chameleon status")
