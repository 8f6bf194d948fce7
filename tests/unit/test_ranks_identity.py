"""Which rank a process is, and what its files are called."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

import pytest

from chameleon_lab.errors import PolicyError
from chameleon_lab.policy import Link, Policy
from chameleon_lab.ranks.file_names import found_by_any, of_all, of_rank
from chameleon_lab.ranks.identity import ALONE, Identity, identity
from chameleon_lab.ranks.policies import find_policies
from chameleon_lab.run_files import RunFiles
from chameleon_lab.unfinished_trace import UnfinishedTrace

THIRD = Identity(2, 4, 0, 2, "node1")


@pytest.mark.parametrize(
    ("variables", "rank", "world_size", "local_rank", "local_world_size"),
    [
        ({}, 0, 1, 0, 1),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, 3, 8, 1, 2),
        ({"RANK": "3", "WORLD_SIZE": "8"}, 3, 8, None, None),
        ({"RANK": "8", "WORLD_SIZE": "8"}, 0, 1, 0, 1),
        ({"RANK": "first", "WORLD_SIZE": "2"}, 0, 1, 0, 1),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "0"}, 1, 2, None, None),
        (
            {
                "OMPI_COMM_WORLD_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "2",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            },
            *(1, 2, 1, 2),
        ),
        (
            {
                "SLURM_PROCID": "5",
                "SLURM_STEP_NUM_TASKS": "8",
                "SLURM_LOCALID": "1",
                "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
            },
            *(5, 8, 1, 4),
        ),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, 0, 1, 0, 1),  # a batch script, which is no rank
    ],
)
def test_the_launcher_says_which_rank_it_is(variables, rank, world_size, local_rank, local_world_size):
    found = identity(variables)
    assert (found.rank, found.world_size) == (rank, world_size)
    assert (found.local_rank, found.local_world_size) == (local_rank, local_world_size)
    assert found.host and found.share_of_machine == (local_world_size or 1)


def test_a_trace_says_which_rank_it_is_of():
    assert Identity.of_meta(json.loads(json.dumps({"torch": "2.13.0", **THIRD.to_meta()}))) == THIRD
    for broken in ({}, {"rank": 2}, {"rank": 4, "world_size": 4}, {"rank": "2", "world_size": 4}):
        assert Identity.of_meta(broken) is None
    assert Identity.of_meta({"rank": True, "world_size": 2}) is None
    assert Identity.of_meta({"rank": 0, "world_size": 2, "host": None}) == Identity(0, 2)


def test_every_rank_has_a_file_of_its_own():
    assert of_rank("t.parquet", ALONE) == "t.parquet"
    assert of_rank("t.parquet", THIRD) == "t.rank2.parquet"
    assert of_rank("a.b/trace", THIRD) == "a.b/trace.rank2"
    assert of_rank("{host}/{rank}-{world_size}-{local_rank}.json", THIRD) == "node1/2-4-0.json"
    assert of_rank("{rank}/{other}.json", ALONE) == "0/{other}.json"
    assert of_rank("/dev/stderr", THIRD) == "/dev/stderr"
    assert of_all("r.{rank}.html", THIRD) == "r.all.html"
    assert of_all("r.html", THIRD) == "r.html"


def saved(path) -> str:
    Policy(1 << 20, Link(1e9, 1e9), ()).save(path)
    return str(path)


def test_policies_are_found_whichever_rank_saved_them(tmp_path):
    names = [saved(tmp_path / f"p.rank{rank}.json") for rank in (0, 1, 2, 10)]
    own_first = [names[2], names[0], names[1], names[3]]
    for written in ("p.json", "p.rank{rank}.json", "p.*.json"):
        assert found_by_any(tmp_path / written, THIRD) == own_first
    assert found_by_any(names[1], THIRD) == [names[1]], "a file that is there stands for itself"
    assert set(found_by_any(tmp_path, THIRD)) == set(names)
    assert found_by_any(tmp_path / "p.*.json", Identity(7, 8))[0] == names[0]
    assert found_by_any(tmp_path / "q.json", THIRD) == []
    weird = tmp_path / "[x]"
    weird.mkdir()
    own = saved(weird / "p.rank2.json")
    assert found_by_any(weird / "p.json", THIRD) == [own] == found_by_any(weird / "p.rank{rank}.json", THIRD)


def test_other_files_beside_policies_are_passed_over(tmp_path):
    name = saved(tmp_path / "p.json")
    (tmp_path / "report.json").write_text("{}")
    assert [found for found, _ in find_policies(tmp_path, ALONE)] == [name]
    os.remove(name)
    with pytest.raises(PolicyError, match=r"report\.json"):
        find_policies(tmp_path, ALONE)
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(PolicyError, match="none of 2 files holds a policy"):
        find_policies(tmp_path, ALONE)
    with pytest.raises(FileNotFoundError, match=r"gone\*"):
        find_policies(tmp_path / "gone*", ALONE)


def test_the_place_of_a_ranks_file_is_checked(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    (tmp_path / "1").mkdir()
    RunFiles(trace=tmp_path / "{rank}" / "t.parquet")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(FileNotFoundError):
        RunFiles(trace=tmp_path / "{rank}" / "t.parquet")


class OfSteps:
    """What a session shows of itself while it runs."""

    def __init__(self, step) -> None:
        self.step, self.count = step, 9

    def recorded_steps(self):
        return tuple(range(self.count))

    def recorded_step(self, index):
        return self.step

    def trace_meta(self):
        return asdict(THIRD)


def test_a_trace_is_there_while_the_run_goes_on(tmp_path):
    from synthetic import gpt_step

    from chameleon_lab.trace import Trace

    part = UnfinishedTrace(tmp_path / "t.parquet")
    part.begin()
    part.step_ended(OfSteps(gpt_step(2)))
    found = Trace.load(tmp_path / "t.unfinished.parquet")
    assert len(found) == 4 and Identity.of_meta(found.meta) == THIRD

    again = UnfinishedTrace(tmp_path / "t.parquet")  # the run before was killed
    again.begin()
    assert len(Trace.load(tmp_path / "t.killed.parquet")) == 4 and not again.path.exists()
    again.step_ended(OfSteps(gpt_step(2)))
    again.end()
    assert not again.path.exists() and again.killed_path.exists()

    nowhere = UnfinishedTrace(tmp_path / "gone" / "t.parquet")
    nowhere.begin()
    nowhere.step_ended(OfSteps(gpt_step(2)))  # and no training ends of it
    nowhere.end()
    assert not UnfinishedTrace("/dev/null").path.exists()
