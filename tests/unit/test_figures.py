import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from synthetic import StepBuilder, dropped_step, gpt_step

import chameleon_lab as cl
from chameleon_lab.lab.figures.packages import MissingPackageError
from chameleon_lab.lab.figures.palette import STACK
from chameleon_lab.lab.figures.step_figures import (
    session_figure,
    step_figure,
    thin,
)
from chameleon_lab.report.session_report import StepSummary
from chameleon_lab.trace import (
    Category,
    Cause,
    Direction,
    Residencies,
    Stalls,
    StepTrace,
    Trace,
    Transfers,
)
from chameleon_lab.trace.occupancy import resident_by_category

MIB = 1 << 20


def residencies(rows) -> Residencies:
    """From (storage, from_op, to_op, from_s, to_s)."""
    table = np.array(rows, dtype=np.float64).reshape(-1, 5)
    whole = table[:, :3].astype(np.int32)
    return Residencies(whole[:, 0], whole[:, 1], whole[:, 2], table[:, 3].copy(), table[:, 4].copy())


def transfers(rows) -> Transfers:
    """From (storage, direction, cause, start_s, end_s); 1 MiB each."""
    table = np.array(rows, dtype=np.float64).reshape(-1, 5)
    storage, direction, cause = (table[:, k].astype(kind) for k, kind in enumerate(("i4", "u1", "u1")))
    start, end = table[:, 3].copy(), table[:, 4].copy()
    size, op = np.full(len(table), MIB, dtype=np.int64), np.zeros(len(table), dtype=np.int32)
    return Transfers(storage, direction, cause, size, op, start, start, end)


def stalls(rows) -> Stalls:
    """From (op, storage, start_s, duration_s)."""
    table = np.array(rows, dtype=np.float64).reshape(-1, 4)
    way = np.full(len(table), Direction.IN, dtype=np.uint8)
    cause = np.full(len(table), Cause.DEMAND, dtype=np.uint8)
    op, storage = table[:, 0].astype(np.int32), table[:, 1].astype(np.int32)
    return Stalls(op, storage, way, cause, table[:, 2].copy(), table[:, 3].copy())


@pytest.fixture
def step() -> StepTrace:
    """A weight that is away during the third of four ops, and an activation of the first two; 1 s an op."""
    builder = StepBuilder(op_s=1.0)
    weight = builder.carried(Category.PARAMETER, 4 * MIB, "weight")
    (activation,) = builder.op("aten::mm", reads=(weight,), makes=((Category.ACTIVATION, 2 * MIB),))
    builder.op("aten::gelu", reads=(activation,))
    builder.free(activation)
    builder.op("aten::sum")
    builder.op("aten::add_", reads=(weight,))
    return replace(
        builder.build(index=7),
        residencies=residencies(
            [(activation, 0, 2, 0.5, 1.75), (weight, 0, 2, 0.0, 2.0), (weight, 3, 4, 2.5, 4.0)]
        ),
        transfers=transfers(
            [
                (weight, Direction.OUT, Cause.PLANNED, 1.0, 2.0),
                (weight, Direction.IN, Cause.DEMAND, 2.5, 3.25),
                (weight, Direction.OUT, Cause.PLANNED, np.nan, np.nan),  # still on its way when read
            ]
        ),
        stalls=stalls([(3, weight, 3.0, 0.25)]),
    )


def drawn(figure, name):
    found = [trace for trace in figure.data if trace.name == name]
    assert len(found) == 1, f"{name!r} is drawn {len(found)} times"
    return found[0]


def names(figure):
    return [trace.name for trace in figure.data]


# ------------------------------------------------------------------------------------------------ residency


def test_resident_by_category_follows_the_residencies(step):
    times, levels = resident_by_category(step)
    assert times.tolist() == [0.0, 0.5, 1.75, 2.0, 2.5]
    assert (levels[:, Category.PARAMETER] // MIB).tolist() == [4, 4, 4, 0, 4]
    assert (levels[:, Category.ACTIVATION] // MIB).tolist() == [0, 2, 0, 0, 0]
    assert not levels[:, Category.GRADIENT].any()


def test_resident_by_category_takes_blocks_and_not_what_was_asked_for(step):
    padded = replace(step, storages=replace(step.storages, block_bytes=step.storages.bytes * 2))
    assert resident_by_category(padded)[1].max() == 8 * MIB


def test_resident_by_category_of_a_step_that_holds_nothing(step):
    times, levels = resident_by_category(replace(step, residencies=residencies([])))
    assert times.tolist() == [0.0] and not levels.any()


def test_resident_by_category_adds_up_to_the_recorded_peak():
    layers = [torch.nn.Linear(256, 256) for _ in range(6)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with cl.Session("3MiB", device="cpu", link="1GiB/s") as session:
        for _ in range(4):
            model(torch.randn(256, 256)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    trace = session.trace()
    assert len(trace) == 4
    for step in trace:
        _, levels = resident_by_category(step)
        assert (levels >= 0).all()
        assert levels.sum(axis=1).max() == step.peak_bytes < step.live_peak_bytes


# ------------------------------------------------------------------------------------------------ thinning


def test_thin_leaves_short_series_alone():
    assert thin(np.arange(5.0), np.arange(5), 5).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("most", [4, 5, 100, 600])
def test_thin_keeps_the_highest_the_lowest_and_both_ends(most):
    random = np.random.default_rng(most)
    times, values = np.sort(random.random(5000)), random.integers(0, 10**9, 5000)
    kept = thin(times, values, most)
    assert len(kept) <= most
    assert (np.diff(kept) > 0).all()
    assert {0, 4999, values.argmax(), values.argmin()} <= set(kept.tolist())


def test_thin_with_all_points_at_one_instant():
    kept = thin(np.zeros(1000), np.arange(1000), 10)
    assert len(kept) <= 10 and kept[-1] == 999


# ------------------------------------------------------------------------------------------------ a step


def test_step_figure_stacks_categories_bottom_first(step):
    figure = step_figure(Trace([step], {"capacity_bytes": 6 * MIB}))
    assert names(figure)[:2] == ["Parameters", "Activations"]
    parameters = drawn(figure, "Parameters")
    assert parameters.stackgroup == drawn(figure, "Activations").stackgroup is not None
    assert parameters.line.shape == "hv"
    assert list(parameters.x) == [0.0, 0.5, 1.75, 2.0, 2.5, 4.0]
    assert list(parameters.y) == [4, 4, 4, 0, 4, 4]  # MiB, held to the step's end


def test_step_figure_draws_the_capacity_of_the_trace_and_of_the_call(step):
    figure = step_figure(Trace([step], {"capacity_bytes": 6 * MIB}))
    assert list(drawn(figure, "Capacity 6.00 MiB").y) == [6, 6]
    assert "Capacity 5.00 MiB" in names(step_figure(step, capacity_bytes=5 * MIB))
    for without in (step, Trace([step], {"capacity_bytes": None})):
        assert not [name for name in names(step_figure(without)) if name.startswith("Capacity")]


def test_step_figure_draws_what_would_be_alive_as_dashes(step):
    ghost = drawn(step_figure(step), "Alive, without swapping")
    assert ghost.line.dash == "dash"
    assert max(ghost.y) * MIB == step.live_peak_bytes


def test_step_figure_draws_finished_transfers_in_their_lanes(step):
    figure = step_figure(step)
    planned, forced = drawn(figure, "Planned transfer"), drawn(figure, "Forced transfer")
    assert (list(planned.y), list(planned.base), list(planned.x)) == (["Out"], [1.0], [1.0])
    assert (list(forced.y), list(forced.base), list(forced.x)) == (["In"], [2.5], [0.75])
    for part in ("parameter:weight", "1.00 MiB", "demand"):
        assert part in forced.hovertext[0]


def test_step_figure_keeps_the_alarm_color_for_stalls(step):
    figure = step_figure(step)
    stall = drawn(figure, "Stall")
    assert (list(stall.base), list(stall.x)) == ([3.0], [0.25])
    assert "aten::add_ waited for parameter:weight" in stall.hovertext[0]
    colors = {
        trace.name: trace.marker.color if trace.type == "bar" else trace.line.color for trace in figure.data
    }
    assert [name for name, color in colors.items() if color == stall.marker.color] == ["Stall"]


def test_step_figure_takes_the_newest_step_and_titles_it(step):
    older = replace(step, index=6)
    assert step_figure(Trace([older, step])).layout.title.text.startswith("Step 7, Profile: 4.00 s, peak")
    assert step_figure(step, title="Mine").layout.title.text == "Mine"


def test_step_figure_names_the_stages():
    notes = step_figure(gpt_step()).layout.annotations
    texts = [note.text for note in notes if note.yref == "paper"]
    assert texts == ["Forward", "Backward", "Optimizer"]


def test_lanes_without_a_bar_keep_their_names_and_say_none(step):
    calm = replace(step, stalls=stalls([]))
    figure = step_figure(calm)
    stall = drawn(figure, "Stall")
    assert list(stall.y) == ["Stall"] and list(stall.x) == [None] and not stall.showlegend
    assert figure.layout.yaxis3.type == "category"
    assert [note.text for note in figure.layout.annotations if note.yref == "y3"] == ["none"]
    assert not [n for n in step_figure(step).layout.annotations if n.yref == "y3"]


def test_step_figure_draws_replays_in_a_lane_below_the_stalls():
    step, row = dropped_step()
    figure = step_figure(step)
    replays = drawn(figure, "Replay")
    assert list(replays.base) == step.replays.start_s.tolist() and set(replays.y) == {"Replay"}
    assert step.storage_keys[row] in replays.hovertext[0] and "demand" in replays.hovertext[0]
    assert figure.layout.yaxis3.categoryarray == ("Stall", "Replay")
    assert "1 replay " in figure.layout.title.text
    assert "Replay" not in [trace.name for trace in step_figure(gpt_step()).data]


def test_session_figure_tells_replays_from_stall_and_from_the_rest():
    step = replace(summary(0, stall_s=0.1), replays=3, replay_s=0.15)
    figure = session_figure(report_of(step))
    assert drawn(figure, "Replays").y[0] == 0.15 and drawn(figure, "Stall").y[0] == 0.1
    assert drawn(figure, "Stable").y[0] == pytest.approx(0.25)
    assert "Replays" not in [trace.name for trace in session_figure(report_of(summary(0))).data]


def test_step_figure_of_a_step_that_moved_nothing():
    figure = step_figure(gpt_step())
    assert set(drawn(figure, "Planned transfer").x) == {None}
    assert list(drawn(figure, "Planned transfer").y) == ["Out", "In"]
    assert figure.layout.yaxis2.categoryarray == ("Out", "In")


def test_step_figure_of_transfers_of_storages_that_died_before_the_step(step):
    lost = replace(step, transfers=transfers([(-1, Direction.OUT, Cause.EVICT, 0.0, 1.0)]))
    assert "died before the step" in drawn(step_figure(lost), "Forced transfer").hovertext[0]


def test_step_figure_stays_small_for_a_long_step():
    count, random = 30_000, np.random.default_rng(0)
    builder = StepBuilder()
    for _ in range(count):
        builder.ops.append((0, -1, 0, 0, 1e-3))
        builder.storages.append([4096, 3, -1, -1, len(builder.ops) - 1, 0, len(builder.ops) - 1, 1])
    builder.names.append("aten::mm")
    step = builder.build()
    begin = np.sort(random.random(count)) * step.duration_s
    rows = np.arange(count)
    step = replace(
        step,
        residencies=residencies(
            np.stack([rows, rows, rows + 1, begin, begin + random.random(count)], axis=1)
        ),
        transfers=transfers(
            np.stack([rows, rows % 2, np.zeros(count), begin, begin + 1e-4], axis=1),
        ),
        stalls=stalls(np.stack([rows, rows, begin, np.full(count, 1e-5)], axis=1)),
    )
    figure = step_figure(step)
    assert sum(len(trace.x) for trace in figure.data) <= 5000
    most = resident_by_category(step)[1].sum(axis=1).max()
    assert max(drawn(figure, "Activations").y) * 1024 == most
    moved = drawn(figure, "Planned transfer")
    assert moved.base[0] == begin[0] and "transfers" in moved.hovertext[0]


def test_step_figure_works_as_a_page_without_a_network(step):
    page = step_figure(step).to_html(include_plotlyjs=True)
    assert "Alive, without swapping" in page
    assert '<script src="http' not in page


def test_step_figure_says_what_it_cannot_draw(step):
    with pytest.raises(ValueError, match="train at least one whole step"):
        step_figure(Trace([]))
    with pytest.raises(TypeError, match=r"not Session: pass session\.trace\(\)"):
        step_figure(cl.Session(device="cpu"))
    with pytest.raises(ValueError, match="step 0 has no ops"):
        step_figure(StepBuilder().build())


# ------------------------------------------------------------------------------------------------ a session


def summary(index, stage="Stable", step_s=0.5, stall_s=0.0) -> StepSummary:
    return StepSummary(index, stage, step_s, stall_s, 1 * MIB, 0, 0, 0, 0, 0, 0, 0, 10, 10)


def report_of(*history):
    with cl.Session(device="cpu") as session:
        pass
    return replace(session.report(), history=history)


def test_session_figure_colors_steps_by_stage_and_shows_stall_on_top():
    report = report_of(summary(0, "WarmUp", 1.0, 0.25), summary(1, "Profile"), summary(2), summary(3))
    figure = session_figure(report)
    assert names(figure) == ["WarmUp", "Profile", "Stable", "Stall"]
    assert list(drawn(figure, "WarmUp").y) == [0.75]
    assert list(drawn(figure, "Stable").x) == [2, 3]
    assert list(drawn(figure, "Stall").y) == [0.25, 0, 0, 0]
    assert len({trace.marker.color for trace in figure.data}) == 4


def test_session_figure_of_a_long_session_shows_the_slowest_of_each_group():
    history = [summary(i, step_s=9.0 if i == 4321 else 0.5) for i in range(10_000)]
    figure = session_figure(report_of(*history))
    stable = drawn(figure, "Stable")
    assert len(stable.x) == 1000
    assert max(stable.y) == 9.0 and 4321 in stable.x
    assert "slowest of every 10" in figure.layout.title.text


def test_session_figure_before_the_first_step():
    with pytest.raises(ValueError, match="no step has ended"):
        session_figure(report_of())


# ------------------------------------------------------------------------------------------------ imports


def test_without_plotly_the_error_says_what_to_install(step, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(MissingPackageError, match="pip install plotly") as caught:
        step_figure(step)
    assert isinstance(caught.value, ImportError)


def test_importing_the_package_imports_nothing_that_draws():
    code = (
        "import sys, chameleon_lab, chameleon_lab.lab.figures\n"
        "heavy = {'plotly', 'IPython', 'bokeh', 'ipywidgets', 'pyarrow', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_category_is_drawn():
    drawn_categories = [category for _, _, categories in STACK for category in categories]
    assert sorted(drawn_categories) == sorted(Category)
