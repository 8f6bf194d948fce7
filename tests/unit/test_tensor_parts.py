"""Tensors that are made of tensors, and what libraries keep as attributes of parameters."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.testing._internal.two_tensor import TwoTensor

from chameleon_lab.runtime.tensor_parts import belongings, parts


def named(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    return dict(parts(tensor))


def test_a_plain_tensor_is_its_own_part() -> None:
    for tensor in (torch.zeros(2), nn.Parameter(torch.zeros(2)), nn.Buffer(torch.zeros(2))):
        assert named(tensor) == {"": tensor}


def test_a_subclass_without_tensors_of_its_own_is_its_own_part() -> None:
    class Named(torch.Tensor):
        pass

    tensor = torch.zeros(2).as_subclass(Named)
    assert named(tensor)[""] is tensor


def test_a_subclass_made_of_tensors_has_these_at_any_depth() -> None:
    a, b, c = torch.zeros(2), torch.ones(2), torch.ones(2)
    assert {name: id(part) for name, part in parts(TwoTensor(a, TwoTensor(b, c)))} == {
        "a": id(a),
        "b.a": id(b),
        "b.b": id(c),
    }
    weight = nn.Parameter(TwoTensor(a, b))
    assert [part.data_ptr() for _, part in parts(weight)] == [a.data_ptr(), b.data_ptr()]


def test_a_nested_tensor_has_its_values_and_offsets() -> None:
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)
    found = {name: tuple(part.shape) for name, part in parts(nested)}
    assert (found["_values"], found["_offsets"]) == ((5,), (3,))


def test_what_says_nothing_of_its_tensors_is_its_own_part() -> None:
    class Broken(TwoTensor):
        def __tensor_flatten__(self) -> tuple[list[str], None]:
            raise RuntimeError("not yet")

    class Empty(TwoTensor):
        def __tensor_flatten__(self) -> tuple[list[str], None]:
            return ["nothing"], None

        nothing = None

    for kind in (Broken, Empty):
        tensor = kind(torch.zeros(2), torch.zeros(2))
        assert named(tensor)[""] is tensor


def test_what_a_collective_has_not_made_yet_has_no_part() -> None:
    assert named(AsyncCollectiveTensor(torch.zeros(2))) == {}


def test_only_what_libraries_are_known_to_keep_belongs_to_a_parameter() -> None:
    weight = nn.Parameter(torch.zeros(2))
    assert dict(belongings(weight)) == {}
    weight.ds_tensor, weight.mask, weight.CB = torch.zeros(2), torch.zeros(2), None
    weight.quant_state = SimpleNamespace(absmax=torch.ones(3), dtype=torch.float32, module=nn.Linear(2, 2))
    weight.quant_state.state2 = SimpleNamespace(absmax=torch.ones(4), state2=weight.quant_state)
    assert {name: tensor.numel() for name, tensor in belongings(weight)} == {
        "quant_state.absmax": 3,
        "quant_state.state2.absmax": 4,
        "ds_tensor": 2,
    }
    weight.quant_state = ("absmax",)  # of another library
    assert [name for name, _ in belongings(weight)] == ["ds_tensor"]
