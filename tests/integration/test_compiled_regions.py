"""What Inductor has compiled is one op: its inputs come in, nothing escapes, and the numbers stay."""

from __future__ import annotations

import pytest
from training import child

pytestmark = pytest.mark.bits

PROGRAM = """
        import torch.nn.functional as F

        def loss_of(x, up, down, total):
            total.add_(1)
            return (F.gelu(x @ up) @ down + x).square().mean()

        def made():
            torch.manual_seed(0)
            tensors = [torch.randn(*shape) for shape in ((256, 128), (128, 512), (512, 128), (16, 1024))]
            tensors[1].requires_grad_(); tensors[2].requires_grad_()
            return tensors

        def steps(session):
            x, up, down, total = made()
            if session:
                session.adopt(x, up, down, total)
            losses = []
            for number in range(4):
                if session:  # everything is away, and there is a host copy of what the region writes
                    sent = [session.evict(t) for t in (x, up, down, total)]
                    assert all(sent), (number, sent)
                loss = compiled(x, up, down, total)
                if session:
                    saved = [t for t in loss.grad_fn.saved_tensors if session.where(t)]
                    assert len(saved) > 2 and all(session.evict(t) for t in saved)
                    saved.clear()
                loss.backward()
                with torch.no_grad():
                    for weight in (up, down):
                        weight -= weight.grad
                        weight.grad = None
                losses.append(raw(loss))
                if session:
                    session.evict(total)
            return losses, [raw(t) for t in (up, down, total)]
"""


def test_a_compiled_region_reads_what_was_away_without_torch_s_hook() -> None:
    """As under torch 2.11 and 2.12, where every access to what is away raises."""
    child(
        PROGRAM
        + """
        compiled = torch.compile(loss_of)
        bare = steps(None)
        core.pretend_no_hook(True)
        with cl.Session("8MiB", min_swap="1KiB") as session:
            assert steps(session) == bare
        """,
    )


def test_a_compiled_region_is_one_op() -> None:
    child(
        PROGRAM
        + """
        compiled = torch.compile(loss_of)
        bare = steps(None)  # compiled before there is a session
        with cl.Session("8MiB", min_swap="1KiB") as session:
            assert steps(session) == bare
            session.step()
            step = session.trace().last
            names = [step.names[name] for name in step.ops.name]
            assert names.count("chameleon::compiled_region") == 8, names
            assert not {"aten::mm", "aten::addmm", "aten::gelu"} & set(names), "ops inside it show"
            assert session.report().escaped_storages == 0
        assert steps(None) == bare
        torch._dynamo.reset()
        with cl.Session("8MiB", min_swap="1KiB") as session:
            assert steps(session) == bare  # compiled inside
            assert session.report().escaped_storages == 0
        torch._dynamo.reset()
        compiled = torch.compile(loss_of, backend="aot_eager")
        eager = steps(None)
        with cl.Session("8MiB", min_swap="1KiB") as session:
            assert steps(session) == eager
            assert session.report().escaped_storages == 0
        # A region that does not fit says so, and goes on later.
        torch._dynamo.reset()
        compiled = torch.compile(loss_of)
        try:
            with cl.Session("600KiB", min_swap="1KiB") as session:
                steps(session)
        except (cl.BelowFloorError, torch.OutOfMemoryError, RuntimeError) as error:
            assert "floor" in str(error), error
        else:
            raise AssertionError("it fitted")
        with cl.Session("8MiB", min_swap="1KiB") as session:
            assert steps(session) == bare
        """,
    )
