"""Labels of what belongs to parameters, and of the tensors that parameters and states are made of."""

from __future__ import annotations

import pytest

from chameleon_lab.trace.labels import holder, parameter_of, part_label


@pytest.mark.parametrize(
    ("label", "part", "whole"),
    [
        ("h.0.weight", "", "h.0.weight"),
        ("h.0.weight", "qdata", "qdata of h.0.weight"),
        ("h.0.weight", "quant_state.absmax", "quant_state.absmax of h.0.weight"),
        ("exp_avg of h.0.weight", "codes", "exp_avg.codes of h.0.weight"),
        ("grad of h.0.weight", "", "grad of h.0.weight"),
    ],
)
def test_a_part_has_the_name_of_its_parameter_and_belongs_to_its_module(
    label: str, part: str, whole: str
) -> None:
    assert part_label(label, part) == whole
    assert holder(whole) == "h.0" and parameter_of(whole) == "h.0.weight"


def test_a_parameter_of_the_model_itself_has_no_module() -> None:
    assert holder("weight") == holder("qdata of weight") == ""
