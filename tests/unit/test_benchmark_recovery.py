"""The simulation of recovery policies: what it writes, and states that are checked by hand."""

import json

import pytest

from benchmarks import recovery

pytestmark = pytest.mark.full

NONE = (frozenset(),) * recovery.PIPELINES


@pytest.fixture(scope="module")
def loads():
    return recovery.Loads(quick=True)


def dead(*stages):
    """A state with these stages dead, each in a pipeline of its own."""
    return tuple([frozenset()] * (recovery.PIPELINES - len(stages)) + [frozenset({s}) for s in stages])


def test_it_writes_what_it_prints(tmp_path, capsys):
    file = tmp_path / "recovery.json"
    assert recovery.main(["--quick", "--seeds", "1", "--json", str(file)]) == 0
    document, printed = json.loads(file.read_text()), capsys.readouterr().out
    assert document["benchmark"] == "recovery" and document["simulated"]
    assert "nothing was measured" in document["environment"]["device"] and "SIMULATED" in printed
    assert len(document["rows"]) == 2
    for row in document["rows"]:
        assert all(0 < row[column] <= 1 for column in recovery.COLUMNS)
        assert f"{row['replay']:.3f}" in printed
        # Whatever fits without headroom fits with it.
        assert row["chooser"] <= row["swap"] + 1e-9
    assert document["assumed"]["ranks"] == 32 and set(document["shapes"]) == set(recovery.SHAPES)


def test_rates_of_states(loads):
    tight, roomy = (recovery.Job(loads, capacity, 25, "none") for capacity in (1.0, 2.0))
    for policy in ("drop", *recovery.ALL):
        assert tight.rate(NONE, policy) == 1.0
    one = dead(1)
    assert tight.rate(one, "drop") == 7 / 8
    assert tight.rate(one, "part") < roomy.rate(one, "part") <= 1
    assert tight.rate(one, "fill") == 0 < roomy.rate(one, "fill")  # it does not fit without headroom
    assert recovery.Job(loads, 1.0, 25, "swap").rate(one, "fill") > 0
    assert tight.rate(one, "keep") == tight.rate(one, "reroute") < 1
    everywhere = dead(*[0] * recovery.PIPELINES)
    assert roomy.rate(everywhere, "reroute") == roomy.rate(everywhere, "drop") == 0
    assert roomy.rate(everywhere, "part") > roomy.rate(everywhere, "regroup") > 0


def test_runs_are_the_same_for_a_seed_and_add_up():
    run = recovery.changes(0.5, 1.0, 2.0, seed=3)
    assert run == recovery.changes(0.5, 1.0, 2.0, seed=3) != recovery.changes(0.5, 1.0, 2.0, seed=4)
    assert sum(lasts_s for lasts_s, _, _ in run) == pytest.approx(2 * 86400)
    assert run[0][1] == NONE and 0.8 < recovery.limit(run) < 1
    counts = [sum(map(len, state)) for _, state, _ in run]
    assert all(abs(a - b) == 1 for a, b in zip(counts, counts[1:], strict=False))


def test_a_run_without_failures_loses_nothing(loads):
    job = recovery.Job(loads, 1.0, 25, "none")
    assert recovery.throughput(job, recovery.ALL, True, [(1000.0, NONE, 100.0)]) == 1.0
    half = [(500.0, NONE, 100.0), (500.0, dead(1), 100.0)]
    assert recovery.throughput(job, ["drop"], False, half) == pytest.approx((500 + 498 * 7 / 8) / 1000)
