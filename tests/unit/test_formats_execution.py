"""PyTorch's execution traces as traces that are planned, alone and with a profile of the same run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memory_use import memory_use
from recordings import gpu_trace, record, trainer, written

import chameleon_lab as cl
from chameleon_lab.errors import TraceError
from chameleon_lab.planner import floor, plan, simulate
from chameleon_lab.policy import Link
from chameleon_lab.trace import Category, Stage, StepTrace, Trace
from chameleon_lab.trace.check import check_step

LINK = Link(1e9, 1e9)
LAYER = 96 * 96 * 4


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A Chrome trace and an execution trace of the same steps."""
    return record(tmp_path_factory.mktemp("recorded"), steps=False)


@pytest.fixture(scope="module")
def own() -> StepTrace:
    """The same training's step as a session records it."""
    step = trainer()
    with cl.Session(device="cpu", capacity="unlimited", min_swap="512") as session:
        for _ in range(3):
            step()
        return session.trace().last


def names_of(step: StepTrace) -> list[str]:
    return [step.op_name(op) for op in range(len(step.ops))]


def is_part(part: list[str], whole: list[str]) -> bool:
    rest = iter(whole)
    return all(name in rest for name in part)


def test_it_is_the_step_that_a_session_records(recorded: tuple[Path, Path], own: StepTrace) -> None:
    trace = Trace.open(recorded[1])
    assert trace.meta == {"format": "PyTorch execution trace", "device": "cpu"}
    assert [step.index for step in trace] == [0, 1]
    for step in trace:
        check_step(step)
        assert not step.lacks
        assert is_part(names_of(own), names_of(step))  # which has views besides
        # What is freed after its last use is taken to die with it: a lower bound, and a close one.
        assert 0.9 * own.live_peak_bytes < step.live_peak_bytes <= own.live_peak_bytes
        assert floor(step).op_name == floor(own).op_name
        assert floor(step).working_set_bytes == floor(own).working_set_bytes
    last = trace.last
    kinds = {
        category: sorted(
            last.storages.bytes[(last.storages.category == category) & (last.storages.bytes >= 512)].tolist()
        )
        for category in Category
    }
    assert kinds[Category.PARAMETER] == [LAYER] * 3
    assert kinds[Category.GRADIENT] == [LAYER] * 3
    assert kinds[Category.OPTIMIZER_STATE] == [LAYER] * 6
    stages = dict(zip(names_of(last), last.ops.stage.tolist(), strict=True))
    assert stages["aten::linear"] == Stage.FORWARD and stages["aten::mm"] == Stage.BACKWARD
    assert stages["aten::addcdiv_"] == Stage.OPTIMIZER
    assert "my forward" in last.mark_names


def test_it_is_planned_without_running_it(recorded: tuple[Path, Path], own: StepTrace) -> None:
    trace = Trace.open(recorded[1])
    capacity = int(0.7 * trace.last.live_peak_bytes)
    policy = plan(trace, capacity, LINK, min_swap_bytes="1KiB")
    found = simulate(trace, policy)
    assert policy.swaps and found.peak_bytes <= capacity
    theirs = plan(own, capacity, LINK, min_swap_bytes="1KiB")
    assert theirs.swaps


def test_writes_are_those_of_the_schema(recorded: tuple[Path, Path]) -> None:
    step = Trace.open(recorded[1]).last
    names = names_of(step)
    op = names.index("aten::addcdiv_")
    uses = step.uses
    here = uses.op == op
    assert uses.writes[here].sum() == 1 and uses.reads[here].sum() == 3
    mm = uses.op == names.index("aten::mm")
    made = uses.storage[mm & uses.writes]
    assert (step.storages.birth_op[made] == names.index("aten::mm")).all()


def test_a_profile_beside_it_gives_times_modules_and_deaths(
    recorded: tuple[Path, Path], own: StepTrace
) -> None:
    chrome, execution = recorded
    alone = Trace.open(execution)
    for both in (Trace.open(execution, chrome), Trace.open(chrome, execution)):
        assert len(both) == len(alone) and "and" in both.meta["format"]
        for step, plain in zip(both, alone, strict=True):
            check_step(step)
            assert not step.lacks and names_of(step) == names_of(plain)
            assert (np.diff(step.ops.start_s) >= 0).all() and step.ops.duration_s.min() > 0
            assert step.duration_s < 60 and step.start_s > 1.6e9
            linear = names_of(step).index("aten::linear")
            assert "Linear" in step.module_path(int(step.ops.module[linear]))
            assert plain.live_peak_bytes <= step.live_peak_bytes
    assert both.last.live_peak_bytes == pytest.approx(own.live_peak_bytes, rel=0.1)
    assert plan(both, "70%", LINK, min_swap_bytes="1KiB").swaps


def test_recordings_of_two_runs_are_not_joined(recorded: tuple[Path, Path], tmp_path: Path) -> None:
    chrome, execution = recorded
    other = written(gpu_trace(), tmp_path / "gpu.json")
    with pytest.raises(TraceError, match="not of one run"):
        Trace.open(execution, other)
    with pytest.raises(TraceError, match="are not joined"):
        Trace.open(chrome, chrome)
    with pytest.raises(TraceError, match="are not joined"):
        Trace.open(chrome, execution, execution)


def test_an_observer_that_was_not_stopped_leaves_a_file_that_is_read(
    recorded: tuple[Path, Path], tmp_path: Path
) -> None:
    text = recorded[1].read_text()
    path = tmp_path / "open.json"
    path.write_text(text[: text.rindex("]")].rstrip() + ",\n")
    trace = Trace.open(path)
    assert trace.lost is not None and "not stopped" in trace.lost
    assert len(trace.last.ops) == len(Trace.open(recorded[1]).last.ops)


def test_odd_values_anywhere_do_no_harm(recorded: tuple[Path, Path], tmp_path: Path) -> None:
    values = json.loads(recorded[1].read_text())
    values["nodes"] = values["nodes"][:60]
    path = tmp_path / "odd.json"
    place = next(i for i, node in enumerate(values["nodes"]) if node["name"] == "aten::addmm")
    node = values["nodes"][place]
    for odd in (None, -1, 1 << 70, 1.5, "x", [], {}, [[]], True):
        for key in node:
            _open_and_check(values, place, node | {key: odd}, path)
        for key in node["inputs"]:
            _open_and_check(values, place, node | {"inputs": node["inputs"] | {key: odd}}, path)
            _open_and_check(values, place, node | {"inputs": node["inputs"] | {key: [odd] * 5}}, path)
        for at in range(6):
            tensor = list(node["inputs"]["values"][0])
            tensor[at] = odd
            inputs = node["inputs"] | {"values": [tensor, *node["inputs"]["values"][1:]]}
            _open_and_check(values, place, node | {"inputs": inputs}, path)


def _open_and_check(values: dict[str, Any], place: int, node: Any, path: Path) -> None:
    nodes = [*values["nodes"][:place], node, *values["nodes"][place + 1 :]]
    try:
        trace = Trace.open(written(values | {"nodes": nodes}, path))
    except TraceError:
        return
    for step in trace:
        check_step(step)


def test_nodes_in_a_circle_and_no_nodes(tmp_path: Path) -> None:
    op = {"name": "op_schema", "type": "string", "value": "aten::mm(Tensor self, Tensor mat2) -> Tensor"}
    nodes = [
        {"id": i, "name": "aten::mm", "ctrl_deps": 3 - i, "attrs": [op], "inputs": {}, "outputs": {}}
        for i in (1, 2)
    ]
    step = Trace.open(written({"schema": "1.1.1-chakra.0.0.4", "nodes": nodes}, tmp_path / "c.json")).last
    check_step(step)
    with pytest.raises(TraceError, match="no node in it is an op"):
        Trace.open(written({"schema": "1.1.1-chakra.0.0.4", "nodes": []}, tmp_path / "n.json"))


@pytest.mark.full
def test_a_large_execution_trace_takes_less_than_its_size(
    recorded: tuple[Path, Path], tmp_path: Path
) -> None:
    values = json.loads(recorded[1].read_text())
    path = tmp_path / "large.json"
    nodes, size, number = values["nodes"], 0, 0
    with path.open("w") as file:
        file.write('{"schema": "1.1.1-chakra.0.0.4", "nodes": [\n')
        while size < 24 << 20:
            for node in nodes:
                text = json.dumps(node | {"id": node["id"] + number, "ctrl_deps": node["ctrl_deps"] + number})
                size += file.write(text + ",\n")
            number += 10_000
        file.write("{}]}")
    taken, ops = memory_use(path)
    assert ops > 5000 and taken < 2 * path.stat().st_size + (32 << 20)
