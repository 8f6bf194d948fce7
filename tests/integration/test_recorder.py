"""What the recorder says of small programs whose every op and byte can be counted by hand."""

from __future__ import annotations

import inspect
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from training import Gpt, KiB, MiB, adamw, child

import chameleon_lab as cl
from chameleon_lab.runtime import core
from chameleon_lab.trace import Category, Stage, StepTrace


def ops_of(step: StepTrace) -> list[tuple[str, str, str]]:
    """(name, stage, module path) of each op, for comparing with a list written by hand."""
    return [
        (
            step.op_name(op),
            Stage(int(step.ops.stage[op])).name.lower(),
            step.module_path(int(step.ops.module[op])),
        )
        for op in range(len(step.ops))
    ]


def rows_named(step: StepTrace) -> dict[str, list[int]]:
    """Storage rows by label."""
    found: dict[str, list[int]] = {}
    for row, label in enumerate(step.storages.name.tolist()):
        if label >= 0:
            found.setdefault(step.labels[label], []).append(row)
    return found


class Two(nn.Module):
    """Two linear layers, one of them a grandchild; (256, 64) inputs make every number below easy."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 128, bias=False)
        self.rest = nn.Sequential(nn.ReLU(), nn.Linear(128, 32, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rest(self.first(x))


@pytest.fixture
def recorded() -> StepTrace:
    """The fourth step of a loop, in which nothing is left to chance."""
    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    with cl.Session() as session:
        for _ in range(4):
            x = torch.ones(256, 64)
            model(x).sum().backward()
            optimizer.step()
            with torch.no_grad():
                model.first.weight.mul_(1.0)
            optimizer.zero_grad()
            del x
        return session.trace().last


def test_ops_stages_and_modules_of_a_known_program(recorded: StepTrace) -> None:
    # The step ends with optimizer.step(), so mul_ and the gradients' end of the step before come first.
    ops = ops_of(recorded)
    assert ops[0] == ("aten::mul_", "no_grad", "")
    forward = [op for op in ops if op[1] == "forward"]
    assert forward == [
        ("aten::ones", "forward", ""),
        ("aten::linear", "forward", "first"),
        ("aten::relu", "forward", "rest.0"),
        ("aten::linear", "forward", "rest.1"),
        ("aten::sum", "forward", ""),
        ("aten::ones_like", "forward", ""),
    ]
    backward = [(name, module) for name, stage, module in ops if stage == "backward"]
    modules = [module for _, module in backward]
    names = [name for name, _ in backward]
    assert names.count("aten::mm") == 3  # two weights and one input; x needs no gradient
    assert [module for name, module in backward if name == "aten::mm"] == ["rest.1", "rest.1", "first"]
    assert ("aten::threshold_backward", "rest.0") in backward
    order = [module for module in dict.fromkeys(modules) if module]
    assert order == ["rest.1", "rest.0", "first"]
    assert {stage for _, stage, _ in ops[ops.index(("aten::ones_like", "forward", "")) + 1 :]} == {
        "backward",
        "optimizer",
    }
    optimizer = [name for name, stage, _ in ops if stage == "optimizer"]
    assert optimizer == ["aten::mul_", "aten::add_", "aten::add_"] * 2
    assert (recorded.ops.duration_s > 0).all() and (
        recorded.ops.start_s[1:] >= recorded.ops.start_s[:-1]
    ).all()


def test_storages_of_a_known_program(recorded: StepTrace) -> None:
    storages, named = recorded.storages, rows_named(recorded)
    sizes = {"first.weight": 64 * 128 * 4, "rest.1.weight": 128 * 32 * 4}
    for name, size in sizes.items():
        for label, category in (
            (name, Category.PARAMETER),
            (f"momentum_buffer of {name}", Category.OPTIMIZER_STATE),
        ):
            (row,) = named[label]
            assert storages.bytes[row] == storages.block_bytes[row] == size
            assert storages.category[row] == category
            assert storages.birth_op[row] == -1 and storages.death_op[row] == len(recorded.ops)
        gradients = named[f"grad of {name}"]  # last step's, which zero_grad frees, and this step's
        assert [int(storages.category[row]) for row in gradients] == [Category.GRADIENT] * 2
        old, new = sorted(gradients, key=lambda row: int(storages.birth_op[row]))
        assert storages.birth_op[old] == -1 and storages.death_op[old] == 0  # after mul_, before ones
        assert recorded.op_name(int(storages.birth_op[new])) == "aten::mm"
        assert storages.death_op[new] == len(recorded.ops)
    born = [row for row in range(len(storages)) if storages.birth_op[row] >= 0]
    by_op = {recorded.op_name(int(storages.birth_op[row])): row for row in born}
    assert storages.category[by_op["aten::ones"]] == Category.INPUT
    assert storages.bytes[by_op["aten::ones"]] == 256 * 64 * 4
    activations = [row for row in born if storages.category[row] == Category.ACTIVATION]
    assert sorted(int(storages.bytes[row]) for row in activations) == [
        256 * 32 * 4,
        256 * 128 * 4,
        256 * 128 * 4,
    ]
    relu = by_op["aten::relu"]
    assert recorded.op_name(int(storages.death_op[relu])) in ("aten::mm", "aten::threshold_backward")
    assert storages.movable[activations].all()
    # 256 x 128 for the ReLU's input: freed when the forward is over, since ReLU saves its output alone.
    linear = min(row for row in activations if storages.bytes[row] == 256 * 128 * 4 and row != relu)
    assert storages.death_op[linear] <= ops_of(recorded).index(("aten::linear", "forward", "rest.1"))
    # Uses: the first weight is read by its linear and by the optimizer, which writes it; mul_ writes it too.
    (weight,) = named["first.weight"]
    uses = [
        (recorded.op_name(int(op)), bool(writes))
        for op, row, writes in zip(recorded.uses.op, recorded.uses.storage, recorded.uses.writes, strict=True)
        if row == weight
    ]
    assert uses == [("aten::mul_", True), ("aten::linear", False), ("aten::add_", True)]


def test_the_live_peak_is_the_number_that_one_gets_by_hand() -> None:
    """A chain of elementwise ops: x, four saved outputs, and one gradient at a time."""
    size = 100 * KiB
    weight = nn.Parameter(torch.ones(size // 4))
    optimizer = torch.optim.SGD([weight], lr=0.1, foreach=False)
    with cl.Session() as session:
        for _ in range(3):
            out = weight
            for _ in range(4):
                out = out.exp()  # saves its output
            loss = out.sum()
            del out
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        report = session.report()
        last = session.trace().last
    block = (size + 4095) // 4096 * 4096
    # At the last exp's backward: the weight, four saved outputs and the gradient that goes out (the one that comes
    # in is an expanded scalar). At the one before: the weight, three outputs, a gradient in, one out. Then less.
    assert report.live_peak_bytes == last.live_peak_bytes == 6 * block
    assert last.peak_bytes == 6 * block
    assert report.peak_bytes == 6 * block


def test_uids_are_stable_and_unique_over_steps() -> None:
    model = Gpt(layers=2)
    optimizer = adamw(model.parameters())
    generator = torch.Generator().manual_seed(0)
    with cl.Session("3MiB") as session:
        for _ in range(4):
            model(model.batch(generator)).backward()
            optimizer.step()
            optimizer.zero_grad()
        steps = session.trace().steps
    assert len(steps) == 4
    persistent = []
    for step in steps:
        assert len(set(step.storages.uid.tolist())) == len(step.storages)
        persistent.append(
            {
                label: int(step.storages.uid[rows[0]])
                for label, rows in rows_named(step).items()
                if step.storages.category[rows[0]] in (Category.PARAMETER, Category.OPTIMIZER_STATE)
            }
        )
    assert len(persistent[0]) > 20 and persistent[1] == persistent[2] == persistent[3]
    assert {key: uid for key, uid in persistent[1].items() if key in persistent[0]} == persistent[0]
    born = [set(step.storages.uid[step.storages.birth_op >= 0].tolist()) for step in steps]
    assert not born[1] & born[2] and not born[2] & born[3]
    # What a step leaves behind, the next one begins with.
    for before, after in zip(steps, steps[1:], strict=False):
        left = set(before.storages.uid[before.storages.death_op == len(before.ops)].tolist())
        assert set(after.storages.uid[after.storages.birth_op < 0].tolist()) == left
    assert set(steps[2].storage_keys) == set(steps[3].storage_keys)
    assert len(set(steps[3].storage_keys)) == len(steps[3].storages)
    assert [op[0] for op in ops_of(steps[2])] == [op[0] for op in ops_of(steps[3])]


def test_recorded_bytes_add_up() -> None:
    """Births and deaths, replayed, give the live bytes that the recorder counted itself, and transfers balance."""
    model = Gpt(layers=3)
    optimizer = adamw(model.parameters())
    generator = torch.Generator().manual_seed(0)
    with cl.Session("2MiB", link="2GiB/s") as session:
        for _ in range(5):
            model(model.batch(generator)).backward()
            optimizer.step()
            optimizer.zero_grad()
        step = session.trace().last
        report = session.report()
    storages = step.storages
    live = sum(
        int(size) for size, birth in zip(storages.block_bytes, storages.birth_op, strict=True) if birth < 0
    )
    peak = live
    for op in range(len(step.ops)):
        born = int(storages.block_bytes[storages.birth_op == op].sum())
        died = int(storages.block_bytes[storages.death_op == op].sum())
        unseen = max(0, int(step.ops.live_peak_bytes[op]) - live - born)
        if unseen:  # op threads of attention take work space at the same time, each in an op of its own
            assert torch.get_num_threads() > 1 and step.op_name(op) == "aten::empty", (
                step.op_name(op),
                unseen,
            )
        peak = max(peak, live + born + unseen)
        live += born - died
    assert peak >= step.live_peak_bytes >= 0.9 * peak
    assert (step.ops.resident_peak_bytes <= 2 * MiB).all()
    out = step.transfers.direction == 0
    assert int(step.transfers.bytes[out].sum()) == report.swapped_out_bytes > 0
    assert int(step.transfers.bytes[~out].sum()) == report.swapped_in_bytes > 0
    finished = step.transfers.end_s == step.transfers.end_s
    assert finished.any()
    assert (step.transfers.end_s >= step.transfers.start_s)[finished].all()
    assert (step.transfers.start_s >= step.transfers.issue_s - 0.01)[finished].all()
    stall = float(step.stalls.duration_s.sum())
    assert stall == pytest.approx(report.stall_s, rel=0.02, abs=1e-6)
    ops_end_s = step.ops.start_s + step.ops.duration_s
    in_op = (step.stalls.start_s >= step.ops.start_s[step.stalls.op]) & (
        step.stalls.start_s < ops_end_s[step.stalls.op]
    )
    in_ops_s = float(step.stalls.duration_s[in_op].sum())
    assert float(step.ops.stall_s.sum()) == pytest.approx(in_ops_s, rel=0.02, abs=1e-6)


def test_stacks_give_the_lines() -> None:
    with cl.Session("8MiB", stacks=True) as session:
        x = torch.ones(1000)
        line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
        y = x.exp()
        y.add_(1)
        session.step()
        step = session.trace().last
    stacks = [step.stacks[number] for number in step.ops.stack]
    assert [step.op_name(op) for op in range(3)] == ["aten::ones", "aten::exp", "aten::add_"]
    for stack, expected in zip(stacks, (line - 2, line, line + 1), strict=True):
        innermost = next(text for text in stack.splitlines() if __file__.rsplit("/", 1)[1] in text)
        assert innermost.endswith(f"{__file__.rsplit('/', 1)[1]}:{expected} test_stacks_give_the_lines")


def test_stacks_of_one_step_serve_all_that_run_the_same_ops() -> None:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    has_own = []
    with cl.Session("8MiB", stacks="once") as session:
        for _ in range(6):
            model(torch.ones(4, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            has_own.append(core.of("cpu").logs()[-1].has_stacks)
        steps = session.trace().steps
    assert has_own[0] and not any(has_own[3:]), "the first ones recorded stacks, and none after"
    for step in steps:
        op = next(op for op in range(len(step.ops)) if step.op_name(op) == "aten::linear")
        assert "test_stacks_of_one_step_serve" in step.stacks[step.ops.stack[op]]
    with pytest.raises(ValueError, match='stacks must be True, False or "once"'):
        cl.Session("8MiB", stacks="always")  # type: ignore[arg-type]


def test_stretches_that_the_user_names_are_marks_also_over_the_end_of_a_step() -> None:
    def mark(name: str) -> torch.profiler.record_function:
        return torch.profiler.record_function(name)

    x = torch.ones(1000)
    with mark("before the session"), cl.Session("8MiB") as session:
        with mark("outer"):
            x.exp()
            with mark("inner"):
                x.sin()
                x.cos()
            session.step()
            x.exp()
        session.step()
        first, second = session.trace().steps
        with mark("never ends in it"):
            x.exp()
    found = [
        [
            (step.mark_names[name], from_op, to_op)
            for name, from_op, to_op in zip(
                step.marks.name, step.marks.from_op, step.marks.to_op, strict=True
            )
        ]
        for step in (first, second)
    ]
    assert found == [[("inner", 1, 3), ("outer", 0, 3)], [("outer", 0, 1)]]
    for step in (first, second):
        assert (step.marks.start_s >= 0).all() and (step.marks.duration_s >= 0).all()
        assert (step.marks.start_s + step.marks.duration_s <= step.duration_s * 1.001 + 1e-3).all()


def marks_of(step) -> list[tuple[str, int, int]]:
    rows = step.marks
    return [
        (step.mark_names[name], int(begin), int(end))
        for name, begin, end in zip(rows.name, rows.from_op, rows.to_op, strict=True)
    ]


class FakeNvtx:
    """``torch._C._nvtx``, as a build with CUDA has it."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def rangePushA(self, message: str) -> int:  # noqa: N802
        self.calls.append(("push", message))
        return 7

    def rangePop(self) -> int:  # noqa: N802
        self.calls.append(("pop",))
        return 6

    def rangeStartA(self, message: str) -> int:  # noqa: N802
        self.calls.append(("start", message))
        return len(self.calls)

    def rangeEnd(self, number: int) -> None:  # noqa: N802
        self.calls.append(("end", number))

    def markA(self, message: str) -> None:  # noqa: N802
        self.calls.append(("mark", message))

    def deviceRangeStart(self, message: str, stream: int) -> str:  # noqa: N802
        return f"{message} on {stream}"


def test_ranges_and_marks_of_nvtx_are_noted_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    nvtx, library = torch.cuda.nvtx, FakeNvtx()
    monkeypatch.setattr(nvtx, "_nvtx", library)
    push_imported_before = nvtx.range_push
    x = torch.ones(1000)
    nvtx.range_push("before the session")
    with cl.Session("8MiB") as session:
        assert push_imported_before("outer") == 7
        x.exp()
        with nvtx.range("batch {}", 3):
            x.sin()
            nvtx.mark("now")
        number = nvtx.range_start("across")
        assert nvtx.range_pop() == 6
        x.cos()
        nvtx.range_end(number)
        nvtx.range_pop()  # of what was pushed before the session
        assert nvtx._device_range_start("d", 1) == "d on 1"
        session.step()
        assert marks_of(session.trace().last) == [
            ("now", 2, 2),
            ("batch 3", 1, 2),
            ("outer", 0, 2),
            ("across", 2, 3),
        ]
    assert nvtx._nvtx is library
    assert [call[0] for call in library.calls] == [
        "push",
        "push",
        "push",
        "mark",
        "pop",
        "start",
        "pop",
        "end",
        "pop",
    ]


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="this PyTorch has CUDA, and with it NVTX")
def test_without_cuda_nvtx_raises_as_before_and_is_noted() -> None:
    nvtx, x, stub = torch.cuda.nvtx, torch.ones(1000), torch.cuda.nvtx._nvtx
    with cl.Session("8MiB") as session:
        with pytest.raises(RuntimeError, match="NVTX functions not installed"):
            nvtx.range_push("outer")
        with pytest.raises(RuntimeError, match="NVTX functions not installed"), nvtx.range("never entered"):
            raise AssertionError
        with pytest.raises(AttributeError):
            nvtx.range_start("no such function in a stub")
        x.exp()
        with pytest.raises(RuntimeError, match="NVTX functions not installed"):
            nvtx.range_pop()
        for _ in range(1000):  # and never popped
            with pytest.raises(RuntimeError):
                nvtx.range_push("again")
        session.step()
        found = marks_of(session.trace().last)
        assert found[0] == ("outer", 0, 1)
        assert set(found[1:]) == {("again", 1, 1)} and len(found) == 257
    assert nvtx._nvtx is stub
    with pytest.raises(RuntimeError, match="NVTX functions not installed"):
        nvtx.range_push("after")


def test_ranges_and_marks_of_the_nvtx_package_are_noted_by_name() -> None:
    nvtx = pytest.importorskip("nvtx")
    before = nvtx.push_range, nvtx.pop_range, nvtx.mark, nvtx.annotate.__enter__, nvtx.annotate.__exit__
    x = torch.ones(1000)
    with cl.Session("8MiB") as session:
        nvtx.push_range("outer", color="red")
        with nvtx.annotate("inner", color="blue"), nvtx.annotate():
            x.exp()
            nvtx.mark("now")
        nvtx.pop_range()
        nvtx.pop_range()  # one too many
        nvtx.end_range(nvtx.start_range("across"))
        session.step()
        found = marks_of(session.trace().last)
    assert found[:3] == [("now", 1, 1), ("inner", 0, 1), ("outer", 0, 1)]
    after = nvtx.push_range, nvtx.pop_range, nvtx.mark, nvtx.annotate.__enter__, nvtx.annotate.__exit__
    assert after == before


def test_decorators_and_domains_of_the_nvtx_package_are_noted_by_name() -> None:
    """In a process of its own: what is decorated before a session, and even before the package's import, counts."""
    pytest.importorskip("nvtx")
    said = child("""
        import sys

        assert "nvtx" not in sys.modules
        import nvtx

        x = torch.ones(1000)

        @nvtx.annotate("named", domain="mine", color="red")
        def decorated():
            return x.exp()

        @nvtx.annotate()
        def own_name(fails=False):
            if fails:
                raise KeyError("inside")
            return decorated()

        domain = nvtx.get_domain("third")
        attributes = domain.get_event_attributes(message="kept")
        domain.push_range(attributes)  # without a session it does what it did
        domain.pop_range()
        assert decorated.__name__ == "decorated" and own_name().sum() > 0
        with cl.Session("8MiB") as session:
            own_name()
            try:
                own_name(fails=True)
            except KeyError:
                pass
            nvtx.push_range("a", domain="one")
            nvtx.push_range("b", domain="two")
            nvtx.pop_range("one")  # the stacks of domains are apart
            x.exp()
            nvtx.pop_range(domain="two")
            with nvtx.annotate("in a domain", domain="one"):
                x.exp()
            domain.push_range(attributes)
            domain.push_range(message="at once")
            domain.mark(message="now")
            domain.pop_range()
            x.exp()
            domain.pop_range()
            domain.pop_range()
            session.step()
            step = session.trace().last
        own_name()
        names = [step.mark_names[name] for name in step.marks.name]
        print(*zip(names, step.marks.from_op.tolist(), step.marks.to_op.tolist()), sep="\\n")
    """).stdout
    assert said.splitlines() == [
        *("('named', 0, 1)", "('own_name', 0, 1)", "('own_name', 1, 1)"),
        *("('a', 1, 1)", "('b', 1, 2)", "('in a domain', 2, 3)"),
        *("('now', 3, 3)", "('at once', 3, 3)", "('kept', 3, 4)"),
    ]


def test_storages_know_the_dtype_and_shape_of_their_tensors() -> None:
    with cl.Session("8MiB") as session:
        x = torch.ones(80, 16)
        y = x.half()
        z = x.t().contiguous()[2:4]
        held = torch.empty(100, dtype=torch.int64)
        session.step()
        step = session.trace().last
        del x, y, z, held
    found = {
        step.op_name(int(step.storages.birth_op[row])): step.form(row) for row in range(len(step.storages))
    }
    assert found["aten::ones"] == "float32 [80, 16]"
    assert found["aten::empty"] == "int64 [100]"
    assert "float16 [80, 16]" in found.values() and "float32 [16, 80]" in found.values()


def gan_step(
    models: tuple[nn.Module, nn.Module], optimizers: tuple[torch.optim.Optimizer, torch.optim.Optimizer]
) -> None:
    generator, judge = models
    noise = torch.ones(32, 64)
    judge(generator(noise).detach()).sum().backward()
    optimizers[0].step()
    optimizers[0].zero_grad()
    judge(generator(noise)).mean().backward()
    optimizers[1].step()
    optimizers[1].zero_grad()


def test_steps_end_once_with_two_optimizers() -> None:
    models = (nn.Linear(64, 64), nn.Linear(64, 64))
    optimizers = (adamw(models[1].parameters()), adamw(models[0].parameters()))
    with cl.Session("8MiB") as session:
        for _ in range(5):
            gan_step(models, optimizers)
        history = session.report().history
        last = session.trace().last
    assert len(history) == 5
    assert history[3].ops == history[4].ops == len(last.ops)
    names = set(rows_named(last))
    assert {"weight", "Linear1.weight", "exp_avg of weight", "exp_avg of Linear1.weight"} <= names
    assert {Stage(int(stage)).name for stage in last.ops.stage} >= {"FORWARD", "BACKWARD", "OPTIMIZER"}


def test_steps_end_where_they_are_told_to() -> None:
    models = (nn.Linear(64, 64), nn.Linear(64, 64))
    optimizers = (adamw(models[1].parameters()), adamw(models[0].parameters()))
    with cl.Session("8MiB") as session:
        session.step()
        for _ in range(4):
            gan_step(models, optimizers)
            gan_step(models, optimizers)
            session.step()
        history = session.report().history
    assert len(history) == 5
    assert history[0].ops == 0 and history[3].ops == history[4].ops > 0


def test_a_step_without_ops_or_twice_told_is_no_harm() -> None:
    with cl.Session("8MiB") as session:
        for _ in range(3):
            torch.ones(99_999).add_(1)
            session.step()
            session.step()
        assert len(session.report().history) == 6
        assert session.report().notes == ()


def test_accumulation_is_one_step_and_optimizer_free_loops_need_telling() -> None:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with cl.Session("8MiB") as session:
        for number in range(6):
            model(torch.ones(8, 64)).sum().backward()
            if number % 3 == 2:
                optimizer.step()
        assert session.report().steps == 2
        assert [step.stage for step in session.report().history] == ["WarmUp", "Profile"]
    with cl.Session("8MiB") as session, torch.no_grad():
        for _ in range(3):
            model(torch.ones(8, 64))
        assert session.report().steps == 0 and len(session.trace()) == 0


def test_modules_of_checkpoints_shared_and_later_parts() -> None:
    """A module called twice, one checkpointed, and one that joined the model after its first step."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
    model.append(model[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with cl.Session("8MiB") as session:
        for number in range(3):
            if number == 1:
                model.append(nn.Linear(64, 8))
                optimizer.add_param_group({"params": model[3].parameters()})
            hidden = torch.utils.checkpoint.checkpoint(model[:3], torch.ones(8, 64), use_reentrant=False)
            F.relu(model[3](hidden) if number else hidden).sum().backward()
            optimizer.step()
        last = session.trace().last
    linear = [module for name, stage, module in ops_of(last) if name == "aten::linear" and stage == "forward"]
    assert len(linear) == 3 and linear[0] == linear[1] != linear[2]
    again = [module for name, stage, module in ops_of(last) if name == "aten::linear" and stage == "backward"]
    assert again and set(again) == {linear[0]}


def test_an_op_that_makes_no_node_takes_no_number_from_the_next() -> None:
    """Before it has a node of its own, an op is seen with the number that the next node will get."""
    model = nn.Sequential(nn.Embedding(50, 64), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with cl.Session("8MiB") as session:
        for _ in range(3):
            model(torch.randint(0, 50, (8,))).sum().backward()
            optimizer.step()
        last = session.trace().last
    assert ("aten::embedding_backward", "backward", "0") in ops_of(last)


@pytest.mark.parametrize("capacity", [None, "64MiB"])
def test_training_inside_a_function_that_is_no_step_is_cut_off(capacity: str | None) -> None:
    """A step with no end must not eat memory: the recorder counts on, and says what it lost."""
    with cl.Session(capacity) as session:
        x = torch.ones(200)
        for _ in range(3000):
            x = x + 1
        session.step()
        step = session.trace().last
        assert len(step.ops) + step.truncated_ops == 3001


@pytest.mark.parametrize("named", [False, True])
def test_a_closure_is_no_part_of_the_optimizer(named: bool) -> None:
    """It runs forward and backward inside of step(), as L-BFGS and Lightning do: categories are those of any step."""
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.randn(64, 256)).square().mean()
        loss.backward()
        return loss

    with cl.Session() as session:
        for _ in range(3):
            loss = optimizer.step(closure=closure) if named else optimizer.step(closure)
        step = session.trace().last
    assert isinstance(loss, torch.Tensor) and session.report().steps == 3
    of = step.storages.category
    activations = step.storages.bytes[of == Category.ACTIVATION]
    assert (activations == 64 * KiB).sum() >= 4
    grown = {step.labels[name] for name in step.storages.name[of == Category.GRADIENT] if name >= 0}
    assert {f"grad of {name}" for name, _ in model.named_parameters()} == grown


def test_what_is_known_of_autograd_s_nodes_does_not_grow_with_the_steps() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8))
    with cl.Session() as session:
        session.adopt(model)
        kept = []
        for step in range(60):
            loss = model(torch.ones(2, 8)).sum()
            if step % 2:  # another thread's nodes go when it is long gone
                worker = threading.Thread(target=lambda: model(torch.ones(2, 8)).sum().backward())
                worker.start()
                worker.join()
            loss.backward()
            session.step()
            kept.append(session.counters()["forward_nodes"])
        in_backward = {
            module for _, stage, module in ops_of(session.recorded_step(59)) if stage == "backward"
        }
    assert {"0", "1", "2"} <= in_backward
    assert kept[20] > 0 and len(set(kept[20::2])) == 1, kept


@pytest.mark.full
def test_shapes_of_storages_are_bounded() -> None:
    """A loop may have other lengths at each of its steps. The shapes are the process's, to its end."""
    child("""
        most, side = 1 << 16, 256
        with cl.Session() as session:
            for number in range(most + 100):
                torch.empty(16 + number // side, 16 + number % side).zero_()
            assert len(core.of().shapes()) == most
            session.step()
            known, new = torch.ones(16, 17), torch.ones(3, 700)
            session.step()
            step = session.trace().last
            forms = {step.form(row) for row in range(len(step.storages))}
            assert known.numel() < new.numel()
        assert "float32 [16, 17]" in forms and not any("700" in form for form in forms)
        assert any(form.startswith("float32") and "[" not in form for form in forms), forms
    """)


@pytest.mark.full
def test_names_of_stretches_are_bounded() -> None:
    """A script may name each of its batches anew. The names are the process's, to its end."""
    child("""
        most = 1 << 16
        with cl.Session() as session:
            for batch in range(most + 100):
                with torch.profiler.record_function(f"batch {batch}"):
                    pass
            assert len(core.of().mark_names()) == most
            session.step()
            assert len(session.recorded_step(0).marks) <= most
    """)
