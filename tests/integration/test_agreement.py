"""Ranks with the same program follow one plan, from the same step on, and train as without a session to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
from several_ranks import ranks

pytestmark = pytest.mark.full

_TRAIN = """
    import contextlib

    def until(done, session, training, limit_s=120.0):
        # All ranks train the same number of steps: they end when each is done, or at the first one's limit.
        losses, end_s = [], time.monotonic() + limit_s
        while True:
            losses.append(training.step())
            go_on = torch.tensor([int(not done(session)), int(time.monotonic() < end_s)])
            dist.all_reduce(go_on, dist.ReduceOp.MAX)
            if not go_on[0] or not go_on[1]:
                return losses

    def agreed(report):
        return [plan for plan in report.plans if plan.why.startswith("agreed")]

    def run(kind, done, session=None):
        with session or contextlib.nullcontext():
            training = Training(kind)
            losses = until(done, session, training)
            found = (session.report(), session.policy) if session else None
        return losses + [training.digest()], found

    def plain(kind, steps):
        training = Training(kind)
        losses = [training.step() for _ in range(steps)]
        return losses + [training.digest()]
"""


def test_ranks_agree_on_one_plan_and_begin_at_one_step(tmp_path: Path) -> None:
    results = ranks(
        _TRAIN
        + """
    policies = {}

    def done(session):
        if agreed(session.report()):
            policies.setdefault(session, session.policy)
        return session in policies

    result = {}
    for kind in ("fsdp", "tp"):
        # Each believes in a link of its own.
        session = cl.Session("1536KiB", device="cpu", link=["2GiB/s", "6GiB/s"][rank], min_swap="2KiB", agree=True)
        trained, (report, _) = run(kind, done, session)
        policy = policies[session]
        result[kind] = {
            "same": trained == plain(kind, len(trained) - 1),
            "agreed": [(plan.why, plan.made_from_step) for plan in agreed(report)],
            "decisions": [[d.storage, d.gap, d.out_op, d.free_op, d.in_op] for d in policy.decisions],
            "link_margin": policy.assumed["link_margin"], "link": policy.link.out_bytes_per_s,
            "has_step": policy.source is not None,
            "notes": list(report.notes),
        }
    """,
        tmp_path,
    )
    for kind in ("fsdp", "tp"):
        one, other = results[0][kind], results[1][kind]
        assert one["same"] and other["same"], kind
        assert len(one["agreed"]) == 1, one
        assert one["has_step"] and other["has_step"], "else the policy cannot be edited"
        assert one["agreed"] == other["agreed"] and one["agreed"][0][0] == "agreed by ranks 0, 1", (
            one,
            other,
        )
        assert one["decisions"] == other["decisions"] and one["decisions"]
        assert one["link"] == other["link"] == pytest.approx(12**0.5 * 2**30)
        # For the slower rank, which the other one waits for.
        assert one["link_margin"] == other["link_margin"] == pytest.approx(1 - 2 / 12**0.5)
