"""What changes of the script would do, and when they are worth proposing.

tests/integration/test_suggest.py makes them.
"""

from __future__ import annotations

from typing import Any

import pytest
from synthetic import gpt_step

from chameleon_lab.planner import Suggestion, suggest
from chameleon_lab.planner.suggestions.checkpointing import Checkpointing
from chameleon_lab.planner.suggestions.gradient_accumulation import GradientAccumulation
from chameleon_lab.trace import StepTrace

STEP = gpt_step(layers=8, size=1 << 20, tokens=4)
BLOCK = 4 << 20


def of_kind(step: StepTrace, kind: type[Suggestion], capacity_bytes: int | None = None) -> list[Any]:
    """The suggestions of a kind."""
    return [found for found in suggest(step, capacity_bytes) if isinstance(found, kind)]


def test_the_blocks_of_a_transformer_are_proposed_with_their_effect() -> None:
    (found,) = of_kind(STEP, Checkpointing)
    assert (found.pattern, found.of, len(found.modules)) == ("h.*", 8, 8)
    assert found.modules[0] == "h.0" and found.live_peak_bytes == STEP.live_peak_bytes
    # Of each block the product goes, and its activation stays, since the next block reads it; the last block's is
    # still there when backward begins.
    assert found.saved_bytes == 7 * BLOCK
    assert found.extra_s == pytest.approx(16e-3) and 0 < found.extra_share < 1
    assert "checkpoint the 8 modules h.*" in str(found) and "28.0 MiB" in str(found)
    assert "h.*" in found._repr_html_()


def test_as_few_modules_as_the_capacity_asks_for() -> None:
    (found,) = of_kind(STEP, Checkpointing, STEP.live_peak_bytes - 2 * BLOCK)
    assert found.modules == ("h.0", "h.1") and "the first 2 of the 8" in str(found)
    assert found.changed_peak_bytes <= STEP.live_peak_bytes - 2 * BLOCK
    assert suggest(STEP, STEP.live_peak_bytes) == ()


def test_nothing_is_proposed_where_nothing_repeats_or_little_is_saved() -> None:
    assert of_kind(gpt_step(layers=1), Checkpointing) == []


def test_what_fits_comes_first_then_what_keeps_the_numbers() -> None:
    goal = STEP.live_peak_bytes // 2
    found = suggest(STEP, goal)
    # The peak lies where the backward begins: gradients that live shorter do not lower it.
    assert {type(each) for each in found} == {Checkpointing, GradientAccumulation}
    fits = [each.changed_peak_bytes <= goal for each in found]
    assert fits == sorted(fits, reverse=True) and any(fits)
    assert not found[fits.index(True)].extra_s < 0
    for each in found:
        assert each.saved_bytes > 0 and each.what in str(each)
        compile(each.code, "paste", "exec")


def test_parts_of_a_batch_keep_all_gradients_from_the_second_part_on() -> None:
    (found,) = of_kind(STEP, GradientAccumulation, STEP.live_peak_bytes - BLOCK)
    assert found.parts == 2 and not found.same_bits and "another order" in str(found)
    weights = states = 8 << 20
    gradients, one = 8 << 20, 1 << 20
    activations = STEP.live_peak_bytes - weights - 2 * states
    assert found.changed_peak_bytes <= weights + 2 * states + gradients + one + activations // 2
