"""What the gate asks the package index: every set that somebody installs at once, read from where it is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script() -> ModuleType:
    """scripts/requirements.py."""
    spec = importlib.util.spec_from_file_location("requirements", ROOT / "scripts" / "requirements.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_set_is_read_from_where_it_is_installed(script: ModuleType) -> None:
    make, plain, lab, oldest, newest, apart, recovery, old_lab, *built = [
        wanted for _, wanted, _ in script.sets()
    ]
    assert {
        "cmake",
        "tqdm",
        "scikit-build-core",
        "nvidia-cuda-crt==13.*",
        "nvidia-cuda-runtime==13.*",
    } <= {*make}
    assert {"jupyterlab>=4.4,<5", "jupyter-builder>=1.2,<2", "hypothesis"} <= {*make}
    assert sum(one.startswith("torch==") for one in make) == 1
    assert "scikit-build-core>=0.11" in plain and "hypothesis" not in plain
    assert {"jupyterlab>=4.4,<5", "comm>=0.2.2", "jupyter_bokeh>=4"} <= {*lab} - {*plain}
    assert {*plain} <= {*lab}
    assert oldest == [*plain, "torch==2.11.*"] and newest == [*plain, "torch==2.15.*"]
    assert [beside[0] for beside in built] == ["torch==2.11.*", "torch==2.15.*"]
    for beside in built:
        assert {"nvidia-cuda-crt==13.*", "pytest-xdist", "psutil", "lightning"} <= {*beside}
        assert not any("$" in one for one in beside)
    assert [one.partition("==")[0] for one in apart] == [
        *("timm", "torchvision", "atheris", "liger-kernel", "bitsandbytes", "torchao"),
        *("deepspeed", "einops", "hjson", "msgpack", "py-cpuinfo"),
    ]
    assert old_lab == ["jupyterlab==4.4.*", "notebook>=7,<8"]
    assert recovery[0].startswith("torchft-nightly==") and "protobuf" in recovery
    names = [one for wanted in (make, plain, apart, recovery) for one in wanted]
    assert not [one for one in names if one.startswith("-") or "$" in one or "/" in one]


def test_what_torch_chooses_is_pinned_nowhere(script: ModuleType) -> None:
    assert script.pinned_for_torch((ROOT / "constraints.txt").read_text()) == []
    planted = "numpy==2.4.0\ntriton==3.7.1\nnvidia-cublas==13.1.1.3\ncuda-toolkit==13.0.3\ntritonclient==2\n"
    assert script.pinned_for_torch(planted) == [
        "triton==3.7.1",
        "nvidia-cublas==13.1.1.3",
        "cuda-toolkit==13.0.3",
    ]


def test_one_package_that_cannot_be_had_fails_and_no_index_does_not(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unresolved(wanted: list[str], *_: str) -> str:
        return "Failed to fetch: timm" if "timm" in wanted else ""

    monkeypatch.setattr(script, "unresolved", unresolved)
    assert script.main() == 1
    assert "what is apart:" in capsys.readouterr().err
    monkeypatch.setattr(script, "unresolved", lambda *_: "error\nFailed to fetch")
    assert script.main() == 0
    assert "skipped, for no index answers: Failed to fetch" in capsys.readouterr().out
