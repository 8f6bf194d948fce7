"""Lets every test import ``synthetic``, the maker of step traces, and fixes op threads and what hypothesis draws."""

import contextlib
import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Of this process and its children, before any of them imports torch. Another number gives other sums.
os.environ["CHAMELEON_CHECK_RESULTS"] = "1"  # of the panel's line, before it is imported
os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS") or "1"

if capability := os.environ.get("ATEN_CPU_CAPABILITY"):
    # Inductor's cache takes code that was made for one set of instructions for that of another.
    os.environ.setdefault(
        "TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/chameleon-inductor-{os.getuid()}-{capability}"
    )

sys.path.insert(0, str(Path(__file__).parent / "unit"))

with contextlib.suppress(ImportError):  # where tests/cuda run there may be none
    from hypothesis import settings
    from hypothesis.internal.conjecture import providers

    # The same examples each time: what fails after a change is the change's doing. Hypothesis also draws numbers that
    # stand in the project's modules, of those that are loaded by then: of a worker of pytest no one knows which.
    assert callable(providers._get_local_constants)
    providers._get_local_constants = lambda: providers._local_constants
    settings.register_profile("gate", derandomize=True)  # see tests/unit/examples.py
    settings.register_profile("all", derandomize=True)
    settings.register_profile("explore", print_blob=True)
    settings.load_profile("gate")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--without-hook``: in this process and its children. ``--fork-children``: see tests/integration/children.py."""
    parser.addoption(
        "--without-hook", action="store_true", help="as with torch 2.11 and 2.12: no hook on raw access"
    )
    parser.addoption(
        "--fork-children", action="store_true", help="tests' processes begin where PyTorch has been imported"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Only the tests of the GPU see one: a session takes it where it is, and the others' models are on the CPU.

    Likewise Triton: the others launch its kernels by its interpreter, which has to be known when Triton is imported.
    """
    if config.getoption("--without-hook"):
        from chameleon_lab.runtime import core

        os.environ["CHAMELEON_WITHOUT_HOOK"] = "1"
        core.pretend_no_hook(True)
        core.SEES_RAW_ACCESS = False
    if config.getoption("--fork-children"):
        os.environ["CHAMELEON_FORK_CHILDREN"] = "1"
    if not hasattr(config, "workerinput") and not any("cuda" in Path(word).parts for word in config.args):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ["TRITON_INTERPRET"] = "1"


_BESIDE_COMPUTE = {"integration", "property", "torture"}
"""Folders whose tests have every copy of the CPU device made beside compute, as a GPU's copies are: the harder case."""


@pytest.fixture(autouse=True)
def copies_beside_compute(request: pytest.FixtureRequest) -> Iterator[None]:
    """Small copies too are made by the engines' threads, where most would be made by the thread that asks for them."""
    if _BESIDE_COMPUTE.isdisjoint(request.path.parts):
        yield
        return
    from chameleon_lab.runtime import core

    core.hand_over_copies(True)
    yield
    core.hand_over_copies(False)


def _settings() -> dict[str, Any]:
    """Of torch, for the whole process: the next tests would run under them."""
    import torch

    return {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "filled memory": torch.utils.deterministic.fill_uninitialized_memory,
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "gradients": torch.is_grad_enabled(),
    }


@pytest.fixture(autouse=True)
def settings_are_put_back() -> Iterator[None]:
    """A test that leaves settings changed fails, and does not take the next ones with it."""
    import torch

    before = _settings()
    yield
    after = _settings()
    torch.use_deterministic_algorithms(before["deterministic"])
    torch.utils.deterministic.fill_uninitialized_memory = before["filled memory"]
    torch.set_default_dtype(before["default dtype"])
    torch.set_default_device(None)
    torch.set_float32_matmul_precision(before["matmul precision"])
    torch.set_grad_enabled(before["gradients"])
    assert after == before, "the test left these settings changed"


def pytest_collection_finish() -> None:
    """What is imported by now stays: no garbage collection of a test need look through it again."""
    gc.collect()
    gc.freeze()


_ended_workers: list[str] = []
_crashed_tests: list[str] = []


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A worker has ended: with an error, if it has crashed."""
    if error:
        _ended_workers.append(f"{node.gateway.id}: {error}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Pytest-xdist reports the test that a worker has crashed in."""
    if report.when == "???":
        _crashed_tests.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker that has crashed outside of any test is no test's failure, and would be forgotten."""
    if len(_ended_workers) > len(_crashed_tests):
        print(f"\nworkers crashed outside of a test: {_ended_workers}", file=sys.stderr)
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR


_OF_THE_GATE = {"unit", "property", "integration"}
"""Folders of tests that the gate runs, but for those that are marked ``full``."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What soaks, or needs torchft, runs where it is asked for. The full run's long files come first."""
    for marker, why in (("soak", "soaks for minutes"), ("torchft", "kills processes under torchft")):
        if marker in config.getoption("-m"):
            continue
        for item in items:
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=f"{why}: ask for it with `-m {marker}`"))
    items.sort(key=lambda item: item.path.parent.name in _OF_THE_GATE and not item.get_closest_marker("full"))
