"""DLPack capsules of what is on a GPU: torch before 2.13 does not say that their bytes are accessed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from chameleon_lab.runtime import core
from chameleon_lab.runtime.patches import loans


def test_a_tensor_that_is_not_the_host_s_comes_in_for_its_capsule_and_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened: list[str] = []

    def capsule_of(tensor: torch.Tensor) -> str:
        happened.append("taken")
        return "capsule"

    replaced = {name: wrap for _, name, wrap in loans.replacements()}
    capsule: Any = replaced["_to_dlpack"](capsule_of)
    monkeypatch.setattr(core, "expose_tensor", lambda tensor: happened.append(tensor.device.type))
    assert capsule(torch.empty(3, device="meta")) == "capsule"
    assert happened == ["meta", "taken"]
