"""The commands that read and write files, in this process. ``chameleon run`` has tests/integration/test_cli_run.py."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from synthetic import gpt_step

import chameleon_lab as cl
from chameleon_lab.planner import lower_bound, plan, simulate
from chameleon_lab.policy import Link
from chameleon_lab.report.trace_report import TraceReport
from chameleon_lab.trace import Trace
from chameleon_lab.util.units import format_seconds

MiB = 1 << 20


@pytest.fixture(scope="module")
def steps():
    return [replace(gpt_step(), index=index) for index in range(3)]


@pytest.fixture
def trace(steps, tmp_path, monkeypatch):
    """A trace in the file t.parquet of the current folder."""
    monkeypatch.chdir(tmp_path)
    meta = {
        "device": "cpu",
        "kernels": "a CPU (AVX2)",
        "capacity_bytes": 8 * MiB,
        "link_out_bytes_per_s": 2.0**30,
        "link_in_bytes_per_s": 2.0**30,
    }
    trace = Trace(steps, meta)
    trace.save("t.parquet")
    return trace


def test_plan_writes_what_the_planner_plans(trace, chameleon):
    code, out, err = chameleon("plan", "t.parquet", "--capacity", "60%", "-o", "p.json", "--margin", "0")
    capacity = int(0.6 * trace.last.live_peak_bytes)
    expected = plan(trace.last, capacity, Link(2.0**30, 2.0**30))
    assert (code, err) == (0, "")
    assert cl.Policy.load("p.json") == expected and expected.swaps
    assert "Saved in p.json" in out and re.search("Floor: .*; measured on a CPU \\(AVX2\\); ", out)

    code, out, _ = chameleon(
        *("plan", "t.parquet", "--capacity", str(capacity), "--link", "512MiB/s,2GiB/s"),
        *("--margin", "0", "--bound", "--json"),
    )
    values, link = json.loads(out), Link(2.0**29, 2.0**31)
    planned = plan(trace.last, capacity, link)
    assert code == 0
    assert values["predicted"]["stall_s"] == simulate(trace.last, planned).stall_s
    assert values["lower_bound_stall_s"] == pytest.approx(lower_bound(trace.last, capacity, link).stall_s)
    assert values["link"] == {"out_bytes_per_s": 2.0**29, "in_bytes_per_s": 2.0**31}
    assert values["swaps"] == len(planned.swaps) and values["output"] is None


def test_plan_tells_what_half_the_link_costs_and_keeps_a_margin_of_it(trace, chameleon):
    command = ("plan", "t.parquet", "--capacity", "60%", "--link", "64MiB/s", "-o", "p.json")
    code, out, err = chameleon(*command, "--link-margin", "25%")
    made = cl.Policy.load("p.json")
    assert (code, err) == (0, "") and made.assumed["link_margin"] == 0.25
    assert made.decisions == plan(trace, "60%", "48MiB/s", margin="2%").decisions
    half = simulate(trace.last, made, link="32MiB/s")
    assert half.step_s > simulate(trace.last, made).step_s
    assert (
        f"At half the link: step {format_seconds(half.step_s)}, stall {format_seconds(half.stall_s)}" in out
    )
    values = json.loads(chameleon(*command, "--json")[1])
    assert "link_margin" not in cl.Policy.load("p.json").assumed
    assert values["half_link_step_s"] == simulate(trace.last, cl.Policy.load("p.json"), link="32MiB/s").step_s
    assert values["half_link_step_s"] > values["predicted"]["step_s"]


def test_fractions_and_links_are_written_as_in_python(trace, chameleon):
    common = ("plan", "t.parquet", "--json", "--host-capacity")
    values = [
        json.loads(chameleon(*common, share, "--capacity", share, "--link", link, "--margin", margin)[1])
        for share, link, margin in (
            ("60%", "1GB/s,2GB/s", "2%"),
            ("0.6", "1e9,2e9", "0.02"),
            (str(int(0.6 * trace.last.live_peak_bytes)), "1000000000,2GB/s", ".02"),
        )
    ]
    assert values[0]["link"] == {"out_bytes_per_s": 1e9, "in_bytes_per_s": 2e9}
    assert values[0]["capacity_bytes"] == values[0]["host_capacity_bytes"]
    assert values[0] == values[1] == values[2]


def test_plan_and_sweep_replay_where_they_are_told_to(trace, chameleon):
    slow = ("--link", "64MiB/s", "--json")
    command = ("plan", "t.parquet", "--capacity", "60%", *slow, "--bound", "-o", "p.json")
    alone = json.loads(chameleon(*command)[1])
    mixed = json.loads(chameleon(*command, "--rematerialize", "all")[1])
    assert alone["replays"] == 0 and alone["rematerialized"] == [] and alone["predicted"]["replay_s"] == 0.0
    policy = cl.Policy.load("p.json")
    assert mixed["replays"] == len(policy.drops) > 0 and mixed["swaps"] == len(policy.swaps)
    cost, before = (
        mixed["predicted"]["stall_s"] + mixed["predicted"]["replay_s"],
        alone["predicted"]["stall_s"],
    )
    assert mixed["lower_bound_stall_s"] <= cost < before
    assert sum(row["gaps"] for row in mixed["rematerialized"]) == mixed["replays"]
    swept = ("sweep", "t.parquet", "--capacity", "60%", *slow)
    (point,) = json.loads(chameleon(*swept, "--rematerialize", "all")[1])["points"]
    assert (
        point["replay_s"] > 0.0 and point["step_s"] < json.loads(chameleon(*swept)[1])["points"][0]["step_s"]
    )
    code, _, err = chameleon("plan", "t.parquet", "--capacity", "60%", "--rematerialize", "some")
    assert code == 2 and "'some' is not one of" in err


def test_plan_and_sweep_know_what_the_session_did_not_replay(trace, chameleon):
    def planned(*words):
        command = ("plan", "u.parquet", "--capacity", "60%", "--link", "64MiB/s", "--bound", "--json", *words)
        return json.loads(chameleon(*command, "-o", "p.json")[1]), cl.Policy.load("p.json")

    swept = ("sweep", "u.parquet", "--capacity", "60%", "--link", "64MiB/s", "--json")
    meta = trace.meta | {"replay_class": 2}
    Trace(trace.steps, meta).save("u.parquet")
    values, free = planned()
    (point,) = json.loads(chameleon(*swept)[1])["points"]
    assert free.assumed["refused"] == [] and free.drops
    names = sorted({decision.storage.split("/")[1].split(".")[0] for decision in free.drops})
    Trace(trace.steps, meta | {"refused": names}).save("u.parquet")
    for words in ((), ("--rematerialize", "all")):
        held, policy = planned(*words)
        assert policy.assumed["refused"] == names and not policy.drops
        assert held["lower_bound_stall_s"] > values["lower_bound_stall_s"]
    (alone,) = json.loads(chameleon(*swept)[1])["points"]
    assert alone["replay_s"] == 0.0 < point["replay_s"] and alone["step_s"] > point["step_s"]
    Trace(trace.steps, meta | {"refused": "all"}).save("u.parquet")
    code, _, err = chameleon("plan", "u.parquet", "--capacity", "60%")
    assert code == 4 and "'all' is refused" in err


def test_simulate_says_whether_a_policy_fits(trace, chameleon):
    chameleon("plan", "t.parquet", "--capacity", "60%", "-o", "p.json")
    policy = cl.Policy.load("p.json")
    code, out, _ = chameleon("simulate", "t.parquet", "p.json")
    assert code == 0 and out == f"{simulate(trace.last, policy)}\n"
    code, out, _ = chameleon("simulate", "t.parquet", "p.json", "--capacity", "30%", "--json")
    values = json.loads(out)
    assert code == 3 and not values["fits"]
    assert sum(values["stall_by_cause"].values()) == pytest.approx(values["stall_s"])
    slower = json.loads(chameleon("simulate", "t.parquet", "p.json", "--link", "10MiB/s", "--json")[1])
    assert slower["stall_s"] > values["stall_s"]


def test_simulate_lists_decisions_that_fit_no_gap(trace, chameleon):
    policy = plan(trace.last, int(0.6 * trace.last.live_peak_bytes), Link(2.0**30, 2.0**30))
    text = policy.to_json().replace(policy.swaps[0].storage, "gone/aten::mm.0#0")
    cl.Policy.from_json(text).save("p.json")
    code, out, _ = chameleon("simulate", "t.parquet", "p.json")
    assert code in (0, 3) and "unmatched: " in out and "gone/aten::mm.0#0" in out


def test_diff_exits_like_diff(trace, chameleon):
    chameleon("plan", "t.parquet", "--capacity", "60%", "-o", "a.json")
    chameleon("plan", "t.parquet", "--capacity", "50%", "-o", "b.json")
    assert chameleon("diff", "a.json", "a.json") == (0, "The policies are the same\n", "")
    data = json.loads(Path("a.json").read_text())
    data["edits"] = [{"action": "keep", "category": "parameter"}]
    Path("edited.json").write_text(json.dumps(data))
    code, out, _ = chameleon("diff", "a.json", "edited.json")
    assert code == 1 and "+ edit: keep all of category parameter" in out
    code, out, _ = chameleon("diff", "a.json", "b.json")
    assert code == 1 and "capacity_bytes" in out
    code, out, _ = chameleon("diff", "a.json", "b.json", "--json")
    assert code == 1 and "capacity_bytes" in json.loads(out)["conditions"]
    code, out, err = chameleon("diff", "a.json", "gone.json")
    assert (code, out) == (2, "") and "gone.json" in err
    assert chameleon("diff", "a.json", "t.parquet")[0] == 2


def test_sweep_shows_the_knee(trace, chameleon):
    code, out, _ = chameleon("sweep", "t.parquet")
    assert re.search("Floor: .*; measured on a CPU \\(AVX2\\); ", out)
    assert code == 0 and "knee" in out and out.splitlines()[-1].split()[3] == "%"
    words = ("sweep", "t.parquet", "--json", "--capacity", "1%", "--capacity", "60%", "--capacity", "9000MiB")
    values = json.loads(chameleon(*words)[1])
    assert [point["feasible"] for point in values["points"]] == [False, True, True]
    assert values["points"][0]["step_s"] is None and values["knee"]["stall_s"] == 0


def test_report_shows_steps_and_what_fills_the_device(trace, chameleon):
    code, out, err = chameleon("report", "t.parquet")
    assert "measured on a CPU (AVX2);" in out
    assert (code, err) == (0, "")
    assert re.search(r"^Peak alive +\S+ \wiB +at aten::", out, re.M)
    assert re.search(r"^  parameter +\S+ \wiB +[\d.]+ %$", out, re.M)
    assert len(re.findall(r"^ +\d  Profile", out, re.M)) == 3
    assert len(re.findall(r"^Step \d: no plan was followed$", out, re.M)) == 3
    assert not any(line.endswith(" ") for line in out.splitlines())

    code, out, _ = chameleon("report", "t.parquet", "--json", "--step", "1")
    values = json.loads(out)
    assert values == json.loads(json.dumps(TraceReport.of(trace, trace.steps[1]).to_dict()))
    assert values["step"]["index"] == 1 and len(values["history"]) == 3
    # All that is alive at the peak, less what is no storage there.
    alive = sum(size for _, size in values["peak_categories"])
    assert 0 < alive <= trace.last.live_peak_bytes


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.addresses, self.names = [], []

    def handle_starttag(self, tag, attributes):
        self.names.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href", "srcset", "data")]


def test_report_tells_what_was_not_replayed_and_why(trace, chameleon):
    refused = {"aten::mm": "bfloat16: repeated runs are not bit-identical"}
    Trace(trace.steps, trace.meta | {"replay_class": 2, "not_replayed": refused}).save("u.parquet")
    out = chameleon("report", "u.parquet")[1]
    (line,) = [line for line in out.splitlines() if line.startswith("Not replayed")]
    assert "1 op" in line and "aten::mm (bfloat16: repeated runs are not" in line
    assert json.loads(chameleon("report", "u.parquet", "--json")[1])["meta"]["not_replayed"] == refused
    Trace(trace.steps, trace.meta | {"replays_off": "rematerialize=False"}).save("u.parquet")
    out = chameleon("report", "u.parquet")[1]
    assert re.search(r"Replays +off +rematerialize=False", out) and "Not replayed" not in out
    assert "eplay" not in chameleon("report", "t.parquet")[1].split("Step", 2)[1]


def test_the_html_report_needs_no_network(trace, chameleon):
    code, out, _ = chameleon("report", "t.parquet", "--html", "t.html")
    assert code == 0 and out.endswith("Saved in t.html\n")
    with open("t.html", encoding="utf-8") as file:
        text = file.read()
    tags = Tags()
    tags.feed(text)
    assert tags.addresses == [] and "link" not in tags.names and "@import" not in text
    assert text.count("Plotly.newPlot(") >= 2 and len(text) > 3_000_000  # Plotly's code is in it, once
    assert len(text) < 8_000_000
    assert text.count("<th>Peak alive</th>") == 2


def test_report_shows_what_a_cut_file_still_has_with_a_warning(trace, chameleon):
    data = Path("t.parquet").read_bytes()
    place = data.rindex(b"CLab") + 50
    Path("t.parquet").write_bytes(data[:place])
    lost = f"t.parquet: cut after {place} bytes; 2 of its 3 steps can be read"
    code, out, err = chameleon("report", "t.parquet", "--html", "t.html")
    assert (code, err) == (0, f"Warning: {lost}\n")
    assert len(re.findall(r"^ +\d  Profile", out, re.M)) == 2
    assert f"<p class=lost>{lost}</p>" in Path("t.html").read_text(encoding="utf-8")
    code, out, _ = chameleon("report", "t.parquet", "--json")
    assert json.loads(out)["lost"] == lost


def test_every_command_takes_the_whole_steps_of_a_cut_file_and_says_what_is_lost(trace, chameleon):
    data = Path("t.parquet").read_bytes()
    link = ("--link", "8GiB/s")
    chameleon("plan", "t.parquet", "--capacity", "60%", *link, "-o", "p.json")
    place = data.rindex(b"CLab") + 50
    Path("t.parquet").write_bytes(data[:place])
    lost = f"t.parquet: cut after {place} bytes; 2 of its 3 steps can be read"
    of_part = Trace.load("t.parquet", partial=True)
    commands = {
        "plan": ("plan", "t.parquet", "--capacity", "60%", *link, "-o", "cut.json"),
        "simulate": ("simulate", "t.parquet", "p.json"),
        "sweep": ("sweep", "t.parquet", "--capacity", "80%", *link),
    }
    for name, words in commands.items():
        code, out, err = chameleon(*words, "--json")
        assert (code, err) == (0, f"Warning: {lost}\n"), name
        assert json.loads(out)["lost"] == lost, name
    assert cl.Policy.load("cut.json").decisions == plan(of_part, "60%", "8GiB/s", margin="2%").decisions
    Path("t.parquet").write_bytes(data[:200])
    for name, words in {**commands, "report": ("report", "t.parquet")}.items():
        code, _, err = chameleon(*words)
        assert code == 4 and "t.parquet: truncated" in err, name


def test_the_html_report_escapes_names(trace, chameleon):
    Trace(trace.steps, trace.meta | {"device": "<script>bad()</script>"}).save("t.parquet")
    chameleon("report", "t.parquet", "--html", "t.html")
    with open("t.html", encoding="utf-8") as file:
        text = file.read()
    assert "<script>bad()" not in text and "&lt;script&gt;bad()" in text


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        (["plan", "t.parquet"], 2, "Missing option '--capacity'"),
        (["plan", "t.parquet", "--capacity", "lots"], 2, "--capacity 'lots' is not a size"),
        (["plan", "t.parquet", "--capacity", "150%"], 2, "--capacity '150%' is neither a fraction"),
        (["plan", "t.parquet", "--capacity", "1.5"], 2, "--capacity '1.5' is neither a fraction"),
        (["plan", "t.parquet", "--capacity", "60%", "--margin", "100%"], 2, "--margin is '100%'"),
        (["sweep", "t.parquet", "--capacity", "1.5"], 2, "--capacity '1.5' is neither a fraction"),
        (["sweep", "t.parquet", "--host-capacity", "1.5"], 2, "--host-capacity '1.5' is neither a fraction"),
        (["plan", "t.parquet", "--capacity", "60%", "--link", "1,2,3"], 2, "--link '1,2,3' is no bandwidth"),
        (["plan", "t.parquet", "--capacity", "60%", "--step", "9"], 2, "the trace holds the steps 0 to 2"),
        (["plan", "t.parquet", "--capacity", "1KiB"], 3, "t.parquet: capacity 1.00 KiB"),
        (["plan", "t.parquet", "--capacity", "60%", "-o", "gone/p.json"], 4, "gone/"),
        (
            ["plan", "gone.parquet", "--capacity", "60%"],
            4,
            "gone.parquet: No such file or directory: check the path",
        ),
        (
            ["plan", "text", "--capacity", "60%"],
            4,
            "text: the content is of no format that is read; files that are read: Chameleon Lab trace",
        ),
        (["plan", "empty.parquet", "--capacity", "60%"], 4, "empty.parquet: the trace holds no step"),
        (["plan", "recorded.parquet", "--capacity", "60%"], 2, "give one, such as --link 8GiB/s"),
        (["simulate", "t.parquet", "text"], 4, "text, line 1"),
        (["report", "t.parquet", "--html", "gone/t.html"], 4, "gone/"),
        (["report", "t.parquet", "--htm", "t.html"], 2, "--html"),
        (["reprot"], 2, "No such command 'reprot'"),
    ],
)
def test_mistakes_are_one_line_with_an_exit_code(trace, chameleon, words, status, error, tmp_path):
    (tmp_path / "text").write_text("no such thing")
    Trace([], trace.meta).save("empty.parquet")
    Trace(trace.steps, {"device": "cpu", "link_out_bytes_per_s": None}).save("recorded.parquet")
    code, out, err = chameleon(*words)
    assert (code, out) == (status, ""), err
    assert error in err and len(err.splitlines()) == 1 and err.startswith("chameleon")


@pytest.mark.parametrize("command", ["advise", "run", "plan", "simulate", "sweep", "diff", "report"])
def test_help_shows_examples(chameleon, command):
    code, out, _ = chameleon(command, "--help")
    assert code == 0 and "Examples:" in out
    examples = [line for line in out.splitlines() if line.strip().startswith("chameleon ")]
    assert len(examples) >= 2 and all(f"chameleon {command}" in line for line in examples)


def test_the_group_tells_commands_and_exit_codes(chameleon):
    code, out, _ = chameleon("--help")
    assert code == 0 and "Exit codes:" in out and "below the floor" in out
    assert chameleon("--version")[1] == f"chameleon, version {cl.__version__}\n"


def test_export_writes_by_the_ending(trace, chameleon):
    code, out, err = chameleon("export", "t.parquet", "t.json.gz", "--step", "1")
    assert (code, out, err) == (0, "Saved in t.json.gz\n", "")
    code, out, _ = chameleon("export", "t.parquet", "ops", "--format", "csv", "--table", "ops")
    assert (code, out) == (0, "Saved in ops\n")
    assert Path("ops").read_text().startswith('"step","row","name"')
    code, out, _ = chameleon("export", "t.parquet", "t.csv")
    assert code == 0 and "Saved in t.storages.csv" in out


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["t.xyz"], 2, "t.xyz: its ending is that of no format"),
        (["t.json", "--format", "xyz"], 2, "'xyz' is not one of"),
        (["t.json", "--step", "9"], 2, "the trace has no step 9"),
        (["t.csv", "--table", "op"], 2, "there is no table 'op'"),
        (["nowhere/t.json"], 4, "nowhere/t.json: No such file or directory"),
    ],
)
def test_export_says_what_is_wrong(trace, chameleon, words, code, told):
    ended, out, err = chameleon("export", "t.parquet", *words)
    assert (ended, out) == (code, "")
    assert err.count("\n") == 1 and told in err


@pytest.fixture
def page_code(monkeypatch, tmp_path):
    """Stands for what a build makes of the panel's TypeScript."""
    from chameleon_lab.lab.page import html_page

    code = tmp_path / "code"
    code.mkdir()
    (code / "page.js").write_text("'</script>'")
    (code / "page.css").write_text(".cl-panel { color: red }")
    monkeypatch.setattr(html_page, "_CODE", code)
    html_page._built.cache_clear()
    yield code
    html_page._built.cache_clear()


def test_export_writes_a_page_that_names_nothing_outside(trace, chameleon, page_code):
    Trace(trace.steps, trace.meta | {"device": "<script>bad()</script>"}).save("t.parquet")
    code, out, _ = chameleon("export", "t.parquet", "t.html")
    assert (code, out) == (0, "Saved in t.html\n")
    text = Path("t.html").read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(text)
    assert tags.addresses == [] and "link" not in tags.names and tags.names.count("script") == 2
    assert "<script>bad()" not in text and "<th>Peak alive</th>" in text
    assert len(text) < 100_000


def test_view_opens_a_page_in_a_browser(trace, chameleon, page_code, monkeypatch, tmp_path):
    opened = []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("webbrowser.open", opened.append)
    code, out, err = chameleon("view", "t.parquet", "--step", "1")
    page = Path(out.strip())
    assert (code, err) == (0, "") and page.name == "t.html" and opened == [page.as_uri()]
    assert "chameleon-data" in page.read_text(encoding="utf-8")
    assert chameleon("view", "t.parquet", "--no-browser")[0] == 0 and len(opened) == 1


def test_without_the_panel_a_page_says_so(trace, chameleon, page_code, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (page_code / "page.css").unlink()
    code, out, err = chameleon("view", "t.parquet")
    assert (code, out) == (4, "") and "make build" in err and not list(tmp_path.glob("chameleon-*"))


def test_the_html_report_holds_the_timeline(trace, chameleon, page_code):
    assert chameleon("report", "t.parquet", "--html", "t.html")[0] == 0
    text = Path("t.html").read_text(encoding="utf-8")
    assert text.count("<iframe") == 1 and "chameleon-data" in text
    (page_code / "page.js").unlink()
    from chameleon_lab.lab.page import html_page

    html_page._built.cache_clear()
    assert chameleon("report", "t.parquet", "--html", "t.html")[0] == 0
    assert "<iframe" not in Path("t.html").read_text(encoding="utf-8")


def test_a_trace_without_storages_is_reported_and_exported(trace, page_code):
    from chameleon_lab.lab.figures.html_report import html_report
    from chameleon_lab.trace import Residencies, Storages, Uses

    none = {"uses": Uses.none(), "storages": Storages.none(), "residencies": Residencies.none()}
    bare = Trace([replace(trace.last, lacks="it knows no storages", **none)], trace.meta)
    assert "<iframe" in html_report(bare)
    for ending in ("html", "json", "pickle", "csv"):
        assert all(path.exists() for path in bare.export(f"bare.{ending}"))
