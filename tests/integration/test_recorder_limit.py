"""A step that never ends must not eat memory: what is recorded of it has a bound."""

from __future__ import annotations

import torch

import chameleon_lab as cl
from chameleon_lab.runtime import core


def test_a_step_longer_than_the_limit_is_cut_off_and_gets_no_policy() -> None:
    with cl.Session("8MiB", max_ops=50, warmup_steps=0) as session:
        for _ in range(300):
            torch.ones(5000).add_(1)
        session.step()
        step = session.trace().last
        assert len(step.ops) == 50
        assert step.truncated_ops > 500
        # What is still recorded belongs to the first 50 ops; only storages alive at the end may come on top.
        assert len(step.uses) < 200 and len(step.storages) < 100 and len(step.residencies) < 200
        assert session.policy is None
        assert any("more ops than are recorded" in note for note in session.report().notes)


def test_host_buffers_of_sizes_that_never_come_again_do_not_pile_up() -> None:
    with cl.Session("8MiB") as session:
        for k in range(200):
            x = torch.ones(200_000 + 1024 * k)
            assert session.evict(x)
            del x
        counters = core.of().counters()
        assert counters["host_reserved_bytes"] <= 2 * counters["host_peak_bytes"]


def test_the_trace_gives_the_newest_steps_columns() -> None:
    with cl.Session("8MiB") as session:
        torch.ones(5000).add_(1)
        session.step()
        trace = session.trace()
    assert trace.ops is trace.last.ops and trace.transfers is trace.last.transfers
    assert trace.storages is trace.last.storages and trace.uses is trace.last.uses
