"""What a session keeps of the models and optimizers that it finds, and what it leaves on them."""

from __future__ import annotations

import gc
import sys
import weakref
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.testing._internal.two_tensor import TwoTensor
from training import adamw

import chameleon_lab as cl
from chameleon_lab.runtime.parameter_names import ParameterNames


def model() -> nn.Module:
    """With buffers; its weights are larger than what stays on the device anyway."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.Tanh(), nn.Linear(256, 64))


def step(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    net(torch.ones(32, 64, dtype=next(net.parameters()).dtype)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


def tensors_of(net: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    states = [value for state in optimizer.state.values() for value in state.values()]
    gradients = [p.grad for p in net.parameters() if p.grad is not None]
    return [*net.parameters(), *net.buffers(), *gradients, *filter(torch.is_tensor, states)]


def converted(net: nn.Module, dtype: torch.dtype) -> nn.Module:
    """As ``Module.to`` converts weights that are tensor subclasses: by ``torch.utils.swap_tensors``."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return net.to(dtype)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def test_no_tensor_has_a_weak_reference_in_a_session_or_after_it() -> None:
    with cl.Session("64MiB", device="cpu"):
        net = model()
        optimizer = adamw(net.parameters())
        loose = torch.optim.SGD([nn.Parameter(torch.ones(64, 64))])  # of no module
        for _ in range(3):
            step(net, optimizer)
            loose.param_groups[0]["params"][0].square().sum().backward()
            loose.step()
        found = [*tensors_of(net, optimizer), *loose.param_groups[0]["params"]]
        assert len(found) == 34 and [weakref.getweakrefs(one) for one in found] == [[]] * len(found)
    assert [weakref.getweakrefs(one) for one in found] == [[]] * len(found)


def swaps() -> list[Any]:
    """Trains, with its parameters swapped between steps; the weights and the losses."""
    net = model()
    net[3].weight = nn.Parameter(TwoTensor(torch.full((64, 256), 0.01), torch.full((64, 256), 0.02)))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    for _ in range(3):
        step(net, optimizer)
    optimizer.zero_grad()
    converted(net, torch.float64)
    step(net, optimizer)
    optimizer.zero_grad()
    torch.utils.swap_tensors(net[0].weight, nn.Parameter(torch.full((256, 64), 0.01, dtype=torch.float64)))
    for _ in range(3):
        step(net, optimizer)
    return [
        part.detach() for p in net.parameters() for part in ([p.a, p.b] if isinstance(p, TwoTensor) else [p])
    ]


@pytest.mark.bits
def test_parameters_are_swapped_in_a_session_and_after_it() -> None:
    expected = swaps()
    with cl.Session(device="cpu") as recording:
        swaps()
    with cl.Session(recording.report().enough_bytes, device="cpu", min_swap="4KiB") as session:
        got = swaps()
    assert session.report().evictions
    assert [torch.equal(a, b) for a, b in zip(got, expected, strict=True)] == [True] * 7
    converted(net := model(), torch.float64)
    assert net[0].weight.dtype == torch.float64


def test_a_parameter_keeps_its_name_when_another_one_is_swapped_into_it() -> None:
    with cl.Session(device="cpu") as session:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
        step(net, optimizer)
        converted(net, torch.float64)
        net.zero_grad()
        step(net, optimizer)
        labels = session.trace().last.labels
    assert "grad of 0.weight" in labels and not any("parameter0" in label for label in labels)


def test_a_session_that_is_over_is_gone_while_its_model_lives() -> None:
    net = model()
    optimizer = adamw(net.parameters())
    with cl.Session("64MiB", device="cpu") as session:
        for _ in range(4):
            step(net, optimizer)
        session.report()
    over = weakref.ref(session)
    del session
    gc.collect()
    assert over() is None
    step(net, optimizer)


def test_modules_that_die_in_a_session_are_forgotten_in_it() -> None:
    with cl.Session(device="cpu") as session:
        model()(torch.ones(32, 64))
        gc.collect()
        assert not session._discovery._module_ids and not session._discovery._module_ends


class Numbers:
    """Labels in the order in which they are asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, text: str) -> int:
        self.asked.append(text)
        return len(self.asked) - 1


def test_names_are_those_of_the_parameters_that_are_held_now() -> None:
    names = ParameterNames(Numbers())
    net, other = nn.Linear(2, 3), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([net.weight, other], lr=0.1)
    names.add_module(net, lambda path: f"net.{path}")
    assert names.of(net.weight, optimizer) == "net.weight" and names.of(other, optimizer) == "parameter0"
    assert (
        names.of_gradient(other, optimizer)
        == names.of_gradient(other, optimizer)
        == ("grad of parameter0", 0)
    )
    old = net.weight
    net.weight = nn.Parameter(torch.ones(3, 2))
    assert old not in names and net.weight not in names and other in names
    assert names.of(net.weight, optimizer) == "net.weight", "it is looked for where its module has it now"
    optimizer.param_groups[0]["params"][1] = nn.Parameter(torch.ones(2))
    assert other not in names and names.of(other, optimizer) == "parameter1"
    optimizer.param_groups.clear()
    assert other not in names and names.of(other, torch.optim.SGD([other])) == "parameter2"


def test_names_of_what_is_gone_are_dropped() -> None:
    names = ParameterNames(Numbers())
    kept = nn.Linear(2, 2, bias=False)
    names.add_module(kept, str)
    for number in range(1000):
        net = nn.Linear(2, 2, bias=False)
        names.add_module(net, lambda path, number=number: f"{number}.{path}")
    assert len(names) < 200 and kept.weight in names


class Renames(nn.Module):
    """Lists its parameter under a name of its own making."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Parameter(torch.ones(2))

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        yield "layers.0.weight", self.flat


def test_a_parameter_under_another_path_than_its_attribute_is_known_while_it_is_listed() -> None:
    names, net = ParameterNames(Numbers()), Renames()
    names.add_module(net, str)
    assert net.flat in names
    old, net.flat = net.flat, nn.Parameter(torch.ones(2))
    assert old not in names and names.of(net.flat, torch.optim.SGD([net.flat])) == "layers.0.weight"


def test_a_pruned_parameter_is_named_after_its_new_place() -> None:
    with cl.Session(device="cpu") as session:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
        step(net, optimizer)
        prune.l1_unstructured(net[0], "weight", amount=0.5)
        step(net, optimizer)
        assert "grad of 0.weight_orig" in session.trace().last.labels


def test_a_forward_that_ends_behind_the_session_leaves_nothing_of_it() -> None:
    net = model()
    with cl.Session(device="cpu") as session:
        pass
    session._discovery.adopt_module(net)
    assert not session._discovery._module_ends


def test_weights_that_are_made_of_tensors_are_adopted_by_their_parts() -> None:
    """Made before the session, as a quantized checkpoint is; torchao's subclasses are like this one."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128))
    for layer in (net[0], net[2]):
        layer.weight = nn.Parameter(TwoTensor(layer.weight.detach(), layer.weight.detach().clone()))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    with cl.Session("1MiB", device="cpu") as session:
        session.adopt(net)
        weight = net[0].weight
        assert session.report().refused == {} and session.where(weight) == "resident"
        assert session.evict(weight) and session.where(weight) == "away"
        assert {session.where(part) for part in (weight.a, weight.b)} == {"away"}
        session.restore(weight)
        assert {session.where(part) for part in (weight.a, weight.b)} == {"resident"}
        for _ in range(3):
            net(torch.ones(32, 128)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        with cl.launch("none", read=[weight]):
            assert not session.evict(weight)
        names = set(session.trace().steps[-1].labels)
    assert {"a of 0.weight", "b of 0.weight", "momentum_buffer.a of 2.weight", "0.bias"} <= names


def test_the_scales_of_a_quantized_weight_are_adopted_with_it() -> None:
    """bitsandbytes keeps them as attributes of the parameter. One of the attributes is another view of the weight."""
    layer = nn.Linear(64, 64)
    layer.weight.SCB = torch.ones(1024)
    layer.weight.CB = layer.weight.detach()
    layer.weight.mask = torch.ones(1024)  # no known library has such an attribute
    with cl.Session("1MiB", device="cpu") as session:
        layer(torch.ones(2, 64)).sum().backward()
        assert session.where(layer.weight.SCB) == session.where(layer.weight) == "resident"
        assert session.where(layer.weight.mask) is None and session.report().refused == {}
        session.step()
        labels = session.trace().steps[-1].labels
        assert "SCB of weight" in labels and "weight" in labels and "CB of weight" not in labels


def test_what_others_hold_of_a_weight_made_of_tensors_keeps_its_address() -> None:
    """The session may find it several times: as two tensors of one weight, and as an attribute of two parameters."""
    for both in (True, False):
        data, other = torch.rand(128, 128), torch.rand(128, 128)
        array = np.from_dlpack(data)
        layer = nn.Linear(128, 128)
        layer.weight = nn.Parameter(TwoTensor(data, data if both else other))
        layer.weight.CB = layer.bias.CB = data
        with cl.Session("1MiB", device="cpu") as session:
            layer(torch.ones(2, 128))
            assert "a of weight" in session.report().refused
            assert not session.evict(data)
            layer.weight.a.fill_(5)
            assert (array == 5).all()


@pytest.mark.parametrize("kind", ["gradient", "part of a gradient", "parameter"])
def test_what_a_capsule_holds_keeps_its_address(kind: str) -> None:
    """DLPack holds the tensor and not its storage."""
    net = nn.Linear(128, 128)
    if kind == "part of a gradient":
        net.weight = nn.Parameter(TwoTensor(torch.rand(128, 128), torch.rand(128, 128)))
    net(torch.ones(2, 128)).square().sum().backward()
    grad = net.weight.grad
    held = {"gradient": grad, "part of a gradient": getattr(grad, "a", None), "parameter": net.weight}[kind]
    capsule = torch.utils.dlpack.to_dlpack(held)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    with cl.Session("1MiB", device="cpu") as session, torch.no_grad():
        net(torch.ones(2, 128))
        optimizer.step()
        assert not session.evict(held)
        held.fill_(5)
        assert (torch.from_dlpack(capsule) == 5).all()


def test_a_tensor_of_several_storages_is_brought_in_whole_or_not_at_all() -> None:
    with cl.Session("1MiB", device="cpu") as session:
        two = TwoTensor(torch.ones(150_000), torch.ones(150_000))  # 600,000 bytes each
        with pytest.raises(cl.BelowFloorError, match=r"1\.14 MiB do not fit"):
            session.restore(two)


def test_where_a_sparse_tensor_is_asked_for_runs_no_op() -> None:
    with cl.Session("1MiB", device="cpu") as session:
        sparse = torch.eye(256).to_sparse()
        before = session.counters()["ops_in_step"]
        assert session.where(sparse) is None and not session.evict(sparse)
        assert session.counters()["ops_in_step"] == before
        for call in (session.where, session.evict, session.restore):
            with pytest.raises(TypeError, match=r"takes a tensor, not str: 'x'"):
                call("x")


def test_a_step_of_several_parts_is_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed's ZeRO makes Adam step like this. The model and its optimizer are older than the session."""
    monkeypatch.setitem(sys.modules, "deepspeed.runtime.zero", ModuleType("zero"))
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3)))
    flat = [nn.Parameter(layer.weight.detach().clone()) for layer in net]  # not in the model, as ZeRO's
    optimizer = torch.optim.AdamW([flat[0]])
    with cl.Session(device="cpu") as session:
        for _ in range(4):
            net(torch.ones(4, 64)).square().sum().backward()
            for layer, parameter in zip(net, flat, strict=True):
                parameter.grad = layer.weight.grad
                optimizer.param_groups[0]["params"] = [parameter]
                optimizer.step()
                nn.Identity()(parameter)
        assert session.step_count == 4
        assert {session.where(parameter) for parameter in flat} == {"resident"}
        named = [name for name in session.trace().last.labels if name.startswith("exp_avg of ")]
    assert named == ["exp_avg of parameter0", "exp_avg of parameter1", "exp_avg of parameter2"]


def test_an_optimizer_that_is_given_other_parameters_each_step_ends_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In evolution strategies there is no backward, and gradients are set by hand."""
    monkeypatch.delitem(sys.modules, "deepspeed.runtime.zero", raising=False)
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(64, 64)) for _ in range(3)]
    optimizer = torch.optim.AdamW(weights)
    with cl.Session(device="cpu") as session, torch.no_grad():
        for number in range(6):
            weight = weights[number % 3]
            weight.grad = torch.full_like(
                weight, nn.functional.linear(torch.ones(4, 64), weight).sum().item()
            )
            optimizer.param_groups[0]["params"] = [weight]
            optimizer.step()
        assert session.step_count == 6


def test_states_in_managed_memory_are_said_to_stay() -> None:
    """bitsandbytes marks such tensors, and to torch they are in host memory. Here numpy has made the memory."""
    weight = nn.Parameter(torch.ones(64, 64))
    optimizer = torch.optim.AdamW([weight])
    optimizer.state[weight]["state1"] = torch.from_numpy(np.zeros((64, 64), dtype=np.float32))
    optimizer.state[weight]["state1"].is_paged = True
    with cl.Session("1MiB", device="cpu") as session:
        session.adopt(optimizer)
        assert "not paged" in str(session.report())
        assert not session.evict(optimizer.state[weight]["state1"])
