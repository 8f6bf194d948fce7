"""The counts of random programs on the fake GPU, and what becomes of a wrong one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import fake_gpu

pytestmark = pytest.mark.full


def test_the_record_says_what_was_run_and_from_which_seeds(tmp_path: Path) -> None:
    file = tmp_path / "fake_gpu.json"
    assert fake_gpu.main(["--programs", "10", "--seed", "1", "--workers", "1", "--json", str(file)]) == 0
    record = json.loads(file.read_text())
    assert record["environment"]["device"] == "fake CUDA runtime"
    assert {name: kind["programs"] for name, kind in record["kinds"].items()} == {
        "swapper": 10,
        "sessions": 10,
        "more streams than lanes": 1,
        "two host threads": 10,
        "without the hook": 10,
        "a call fails": 10,
        "a call fails beside another thread": 1,
        "a call fails without the hook": 10,
        "the GPU is gone": 10,
        "the GPU is gone without the hook": 10,
        "the GPU is gone for two threads": 1,
        "plans": 1,
        "a call fails in a planned step": 10,
        "a call fails in a planned step without the hook": 1,
        "the GPU is gone in a planned step": 1,
        "without a session": 1,
        "two host threads without a session": 1,
    }
    for name, kind in record["kinds"].items():
        assert kind["wrong"] == 0 and kind["errors"] == []
        assert sum(count for _, count in kind["seeds"]) == kind["programs"]
        # The GPU may be gone with the first call.
        least = 0 if name.startswith("the GPU is gone") else 10 * kind["programs"]
        assert kind["contains"]["kernels"] > least, name


def test_a_wrong_program_is_counted_and_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(seed: int, count: int) -> dict[str, Any]:
        return {"programs": count, "kernels": count, "wrong": 2, "errors": [f"{seed} read wrong bytes"]}

    monkeypatch.setattr(fake_gpu, "_KINDS", {"toy": ("a toy", run, 1)})
    file = tmp_path / "fake_gpu.json"
    assert fake_gpu.main(["--programs", "600", "--json", str(file)]) == 1
    kind = json.loads(file.read_text())["kinds"]["toy"]
    assert (kind["programs"], kind["wrong"], len(kind["errors"])) == (600, 6, 3)
    assert "6 wrong" in capsys.readouterr().out
