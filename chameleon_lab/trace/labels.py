"""Labels of storages: ``0.weight`` of a parameter, ``grad of 0.weight`` and ``exp_avg of 0.weight`` of its belongings.

A tensor subclass has a storage for each of the tensors that it is made of: ``qdata of 0.weight`` of a quantized weight,
``exp_avg.codes of 0.weight`` of a quantized state.
"""

from __future__ import annotations

_OF = " of "


def part_label(label: str, part: str) -> str:
    """The label of one part of a tensor that has this label. Where the part is empty, that is the label itself."""
    if not part:
        return label
    belonging, of, parameter = label.partition(_OF)
    return f"{belonging}.{part}{of}{parameter}" if of else f"{part}{_OF}{label}"


def parameter_of(label: str) -> str:
    """The name of the parameter in a label: ``h.0.weight`` for ``exp_avg of h.0.weight``."""
    return label.split(_OF, 1)[-1]


def holder(label: str) -> str:
    """The path of the module that holds the parameter in a label: ``h.0`` for ``exp_avg of h.0.weight``."""
    return parameter_of(label).rpartition(".")[0]
