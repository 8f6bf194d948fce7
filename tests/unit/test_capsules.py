"""DLPack capsules of what is on a GPU: torch before 2.13 does not say that their bytes are accessed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from chameleon_lab.runtime import core
from chameleon_lab.runtime.patches import loans


def test_a_tensor_that_is_not_the_host_s_is_lent_to_its_capsule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened: list[str] = []

    def capsule_of(tensor: torch.Tensor) -> str:
        happened.append("taken")
        return "capsule"

    replaced = {name: wrap for _, name, wrap in loans.replacements()}
    capsule: Any = replaced["_to_dlpack"](capsule_of)
    monkeypatch.setattr(core, "lend", lambda tensor: happened.append(tensor.device.type))
    assert capsule(torch.empty(3, device="meta")) == "capsule"
    assert happened == ["meta", "taken"]


def test_before_torch_2_13_the_copy_that_a_capsule_shows_is_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    lent: list[torch.Tensor] = []
    shown: list[torch.Tensor] = []

    def capsule_of(tensor: torch.Tensor, *, copy: bool | None = None) -> str:
        assert not copy
        shown.append(tensor)
        return "capsule"

    replaced = {name: wrap for _, name, wrap in loans.replacements()}
    capsule: Any = replaced["_to_dlpack"](capsule_of)
    monkeypatch.setattr(core, "SEES_RAW_ACCESS", False)
    monkeypatch.setattr(core, "lend", lent.append)
    source = torch.ones(3)
    assert capsule(source, copy=True) == "capsule"
    assert lent[0] is shown[0] is not source and torch.equal(shown[0], source)
