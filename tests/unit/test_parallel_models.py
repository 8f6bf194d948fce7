"""Names of parallel models' modules are those of the modules inside of wrappers."""

from __future__ import annotations

import pytest
from torch import nn

from chameleon_lab.runtime.parallel_models import own_names, unwrapped


class _Wrapper(nn.Module):
    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__()
        self.add_module(name, module)


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


@pytest.mark.parametrize("name", ["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"])
def test_wrappers_are_left_out_wherever_they_are(name: str) -> None:
    net = _net()
    net[1] = _Wrapper(name, net[1])
    model = _Wrapper(name, net)
    own = own_names(model)
    assert [own(path) for path, _ in model.named_parameters()] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert unwrapped(model) is net


def test_a_module_of_the_users_may_be_called_module() -> None:
    model = _Wrapper("module", _net())
    assert own_names(model)("module.0.weight") == "module.0.weight"
    assert unwrapped(model) is model
    assert own_names(nn.DataParallel(_net()))("module.0.weight") == "0.weight"
