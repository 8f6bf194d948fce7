"""What runs the cases names those that crash, hang or raise, and goes on with the others."""

from __future__ import annotations

import json

import pytest
from hangs import HANGS_AFTER_S

from torture import __main__ as command
from torture import pool
from torture.compare import bits, different
from torture.outcome import Outcome, total


def test_a_case_that_crashes_is_named_and_the_others_go_on() -> None:
    part = "tests.torture.crashing"
    options = pool.Options()
    others = [case for case in pool.part(part).cases(options) if case != "hangs"]
    outcomes = pool.run(part, others, options, jobs=2, timeout_s=HANGS_AFTER_S)
    outcomes += pool.run(part, ["hangs"], options, timeout_s=1)
    found = {outcome.case: outcome for outcome in outcomes}
    assert len(found) == 7
    assert not found["good"].wrong and not found["good again"].wrong
    assert "SIGSEGV" in found["segfault"].wrong[0]
    assert "hangs (after 1 s)" in found["hangs"].wrong[0]
    assert "ZeroDivisionError: here" in found["raises"].wrong[0]
    assert "exited with 9" in found["leaves"].wrong[0]
    assert found["prints"].wrong == ["what the case says"]
    whole = total(outcomes)
    assert whole.tried == 7 and len(whole.wrong) == 5
    assert any(text.startswith("segfault: ") for text in whole.wrong)


def test_bits_tell_apart_what_is_not_the_same() -> None:
    import torch

    x = torch.tensor([0.0, float("nan"), 1.0])
    assert bits(x) == bits(x.clone())
    others = [
        -x,
        x.double(),
        x.view(1, 3),
        x[:2],
        x + 0.0 * 1j,
        torch.tensor([-0.0, float("nan"), 1.0]),
        [x, x],
    ]
    others += [x.to_sparse(), x.expand(3, 3).t(), "x", None]
    for other in others:
        assert different(bits(x), bits(other)), other
    assert bits(torch.eye(3).to_sparse()) == bits(torch.eye(3).to_sparse())
    assert different(bits([1.0, {"a": x}]), bits([1.0, {"a": x + 1}]))


def test_the_command_prints_counts_and_writes_them(tmp_path, capsys) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{command._BEGIN}\nold\n{command._END}\nafter\n")
    file = tmp_path / "found.json"
    code = command.main(
        ["optimizers", "--share", "--only", "SGD", "--jobs", "1", "--json", str(file), "--docs", str(page)]
    )
    out = capsys.readouterr().out
    assert code == 0 and "optimizer" in out
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "every optimizer" in text
    part = json.loads(file.read_text())["parts"]["optimizers"]
    assert part["cases"] == 2 and part["tried"] > 10 and part["wrong"] == []  # SGD and ASGD


def test_cases_that_take_long_are_kept_when_others_are_run(tmp_path, monkeypatch, capsys) -> None:
    def run(name, cases, options, *, told, **_) -> None:
        for case in cases:
            told(Outcome(case, tried=len(cases), wrong=wrong.get(case, []), seconds=1.0))
            if case in breaks_after:
                raise KeyboardInterrupt

    settings = pool.part("machines").cases(pool.Options())
    busy = next(setting for setting in settings if "busy" in setting)
    wrong, breaks_after = {busy: ["test_x: no luck"]}, []
    monkeypatch.setattr(pool, "run", run)
    file, page = tmp_path / "found.json", tmp_path / "page.md"
    page.write_text(f"{command._BEGIN}{command._END}")
    arguments = ["machines", "--json", str(file), "--docs", str(page)]

    def part() -> dict:
        return json.loads(file.read_text())["parts"]["machines"]

    assert command.main([*arguments, "--only", "busy"]) == 1
    assert part()["cases"] == part()["tried"] == 1 and part()["wrong"] == [f"{busy}: test_x: no luck"]
    assert command.main([*arguments, "--only", "random order"]) == 1
    assert part()["cases"] == 3 and part()["tried"] == 5 and part()["seconds"] == 3.0
    wrong.clear()
    breaks_after.append(busy)
    with pytest.raises(KeyboardInterrupt):
        command.main([*arguments, "--only", "busy"])
    assert part()["wrong"] == [], "what was done before it was interrupted is kept"
    breaks_after.clear()
    assert command.main([*arguments, "--only", "busy"]) == 0
    assert part()["cases"] == 3 and part()["wrong"] == [] and "machines: WRONG" not in page.read_text()
    assert command.main(arguments) == 0
    assert list(part()["by_case"]) == settings and part()["tried"] == len(settings) ** 2
    assert "the tests as on other machines" in page.read_text()
