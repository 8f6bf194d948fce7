"""Steps without an optimizer: a model that is called again and again without gradients is planned for."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from training import Gpt, adamw

import chameleon_lab as cl
from chameleon_lab.testing import wait_for_plans

CALLS = 12


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(12) for layer in (nn.Linear(128, 128), nn.Tanh()))).eval()


def features(capacity: int | None, calls: int = CALLS) -> tuple[list[bytes], cl.Session]:
    network, found = model(), []
    with cl.Session(capacity, device="cpu") as session, torch.inference_mode():
        for _ in range(calls):
            found.append(network(torch.randn(64, 128)).sum().item())
            wait_for_plans(session)
    return found, session


def test_calls_of_a_model_are_steps_that_are_planned_for() -> None:
    bare, recorded = features(None)
    assert recorded.step_count >= CALLS - 4
    ops = [step.ops for step in recorded.history[1:]]
    assert len(set(ops)) == 1
    lowest = recorded.report().floor
    assert lowest is not None
    found, session = features(2 * lowest.bytes)
    assert found == bare
    assert session.stage is cl.SessionStage.STABLE
    assert session.policy is not None and session.policy.decisions
    assert session.history[-1].match_rate == 1.0


@pytest.mark.bits
def test_generation_has_a_step_a_token() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=2,
        pad_token_id=0,
        eos_token_id=None,
    )
    network = transformers.LlamaForCausalLM(config).eval()
    prompt = torch.randint(1, 64, (2, 8))
    options = dict(attention_mask=torch.ones_like(prompt), max_new_tokens=16, do_sample=False)
    bare = network.generate(prompt, **options)
    with cl.Session("300KiB", device="cpu") as session:
        assert network.generate(prompt, **options).equal(bare)
        assert session.step_count >= 12
        assert session.report().evictions + session.report().decisions > 0


def test_a_validation_before_a_training_makes_no_steps() -> None:
    torch.manual_seed(0)
    network, generator = Gpt(), torch.Generator().manual_seed(0)
    optimizer = adamw(network.parameters())
    with cl.Session(device="cpu") as session:
        with torch.no_grad():
            for _ in range(2):
                network(network.batch(generator))
        for number in range(4):
            network(network.batch(generator)).backward()
            with torch.no_grad():
                for _ in range(5):
                    network(network.batch(generator))
            optimizer.step()
            optimizer.zero_grad()
            assert session.step_count >= number + 1
        counts = [step.ops for step in session.history]
    assert len(session.history) <= 6 and len(set(counts[-3:])) == 1


def agent() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))
    return network, adamw(network.parameters())


def act(network: nn.Module, calls: int = 40) -> None:
    with torch.no_grad():
        for _ in range(calls):
            network(torch.ones(16, 64))


def learn(network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    network(torch.ones(64, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_what_a_model_is_called_for_before_it_learns_is_no_step() -> None:
    with cl.Session(device="cpu") as session:
        network, optimizer = agent()
        for number in range(4):
            act(network)
            learn(network, optimizer)
            assert session.step_count == number + 1
        assert "4 steps" in str(session.report())


def test_an_optimizer_made_after_the_first_calls_is_found_by_the_next_ones() -> None:
    with cl.Session(device="cpu") as session:
        network = agent()[0]
        act(network, 10)
        before = session.step_count
        assert before == 7
        optimizer = adamw(network.parameters())
        act(network, 100)
        assert session.step_count <= 16 - 3, "found at the sixteenth call at the latest"
        learn(network, optimizer)


def test_older_optimizers_of_another_model_or_of_a_training_that_is_over_are_not_waited_for() -> None:
    network, optimizer = agent()
    learn(network, optimizer)
    other = agent()
    with cl.Session(device="cpu") as session:
        other[0](torch.ones(16, 64))  # with gradients, which says nothing of the first one
        act(network)
        assert session.step_count == 37


def test_an_optimizer_that_goes_on_from_a_checkpoint_is_waited_for() -> None:
    network, optimizer = agent()
    learn(network, optimizer)
    saved = optimizer.state_dict()
    with cl.Session(device="cpu") as session:
        network, optimizer = agent()
        optimizer.load_state_dict(saved)
        act(network)
        assert session.step_count == 0
        learn(network, optimizer)
        assert session.step_count == 1


def test_a_frozen_body_is_no_inference_while_the_optimizer_of_its_head_waits() -> None:
    with cl.Session(device="cpu") as session:
        body, head = agent()[0].requires_grad_(False), nn.Linear(64, 4)
        optimizer = adamw(head.parameters())
        act(body)
        assert session.step_count == 0 and optimizer


def test_what_waits_is_named_and_can_be_overruled() -> None:
    """An evaluation with the script of a training."""
    network, optimizer = agent()
    with cl.Session(device="cpu") as session:
        act(network)
        assert "an optimizer, AdamW, has been made and has not stepped" in str(session.report())
    with cl.Session(device="cpu", inference_steps=True) as session:
        act(network)
        assert session.step_count == 37 and optimizer


def test_an_optimizer_that_cannot_be_asked_is_passed_over() -> None:
    class Closed(torch.optim.SGD):
        closed = False

        @property
        def param_groups(self):  # type: ignore[no-untyped-def]  # as torch declares it: an attribute
            if self.closed:
                raise RuntimeError("not ready")
            return vars(self)["param_groups"]

        @param_groups.setter
        def param_groups(self, groups):  # type: ignore[no-untyped-def]
            vars(self)["param_groups"] = groups

    with cl.Session(device="cpu") as session:
        network = agent()[0]
        optimizer = Closed(network.parameters())
        optimizer.closed = True
        act(network)
        assert session.step_count == 37


def test_an_optimizer_is_waited_for_with_its_own_model_alone() -> None:
    network, optimizer = agent()
    other = agent()[0]
    with cl.Session(device="cpu") as session:
        act(network)
        del network
        act(other)
        assert session.step_count == 37 and optimizer


def test_a_model_that_trains_between_its_calls_is_waited_for() -> None:
    """Its optimizer has stepped before: it goes on from a checkpoint."""
    network, optimizer = agent()
    learn(network, optimizer)
    with cl.Session(device="cpu") as session:
        network(torch.ones(64, 64)).square().mean().backward()
        act(network)
        assert session.step_count == 0


def test_an_optimizer_that_is_gone_is_not_waited_for() -> None:
    network, optimizer = agent()
    with cl.Session(device="cpu") as session:
        act(network)
        assert session.step_count == 0
        del optimizer
        gc.collect()
        act(network, 64)
        assert session.step_count > 0


def test_calls_end_no_step_where_they_are_not_to() -> None:
    network = agent()[0]
    with cl.Session(device="cpu", inference_steps=False) as session:
        act(network)
        assert session.step_count == 0 and "session.step()" in str(session.report())


def test_where_no_step_is_found_the_report_says_what_to_call() -> None:
    weight = torch.randn(64, 64)
    with cl.Session("1MiB", device="cpu") as session:
        for _ in range(5):
            weight = (weight @ weight).tanh()
        assert "current_session().step()" in str(session.report())
        session.step()
        assert "current_session().step()" not in str(session.report())


def lbfgs(capacity: str) -> cl.Session:
    """Its closure is evaluated a few times a step, and its history of directions grows at first, and then moves on."""
    torch.manual_seed(0)
    network = nn.Sequential(*(layer for _ in range(5) for layer in (nn.Linear(64, 64), nn.Tanh())))
    x, y = torch.randn(256, 64), torch.randn(256, 64)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(network(x), y)
        loss.backward()
        return loss

    with cl.Session(capacity, device="cpu") as session:
        optimizer = torch.optim.LBFGS(
            network.parameters(), max_iter=4, history_size=5, line_search_fn="strong_wolfe"
        )
        for _ in range(24):
            optimizer.step(closure)
            wait_for_plans(session)
    return session


def test_lbfgs_settles() -> None:
    """Then one plan is followed."""
    session = lbfgs("1MiB")
    newest = session.history[-1]
    assert newest.match_rate > 0.95
    assert {step.plan for step in session.history[-3:]} == {newest.plan}
    report = session.report()
    assert report.replan_reason is None and report.stage == "Stable"
    assert report.planning_s > 0 and "of one core" in str(report)


@pytest.mark.parametrize("capacity", ["900KiB", "600KiB"])
def test_what_no_plan_can_foresee_is_named(capacity: str) -> None:
    """Storages of a history that moves on change places from step to step: what a plan knows of is another one then."""
    session = lbfgs(capacity)
    report = session.report()
    assert all(step.evictions > 10 for step in session.history[-3:]) and report.replan_reason is None
    assert report.unserved is not None
    assert "plans for the same ops" in report.unserved or "evicted beside the plan" in report.unserved
    assert f"Plan incomplete {report.unserved}" in " ".join(str(report).split())
