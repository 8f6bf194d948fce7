"""What checkpointing modules would do, and when it is worth proposing."""

from __future__ import annotations

import pytest
from synthetic import gpt_step

from chameleon_lab.planner import suggest

STEP = gpt_step(layers=8, size=1 << 20, tokens=4)
BLOCK = 4 << 20


def test_the_blocks_of_a_transformer_are_proposed_with_their_effect() -> None:
    (found,) = suggest(STEP)
    assert (found.pattern, found.of, len(found.modules)) == ("h.*", 8, 8)
    assert found.modules[0] == "h.0" and found.live_peak_bytes == STEP.live_peak_bytes
    # Of each block the product goes, and its activation stays, since the next block reads it; the last block's is
    # still there when backward begins.
    assert found.saved_bytes == 7 * BLOCK
    assert found.replay_s == pytest.approx(16e-3) and 0 < found.replay_share < 1
    assert "checkpoint the 8 modules h.*" in str(found) and "28.0 MiB" in str(found)
    assert "h.*" in found._repr_html_()


def test_as_few_modules_as_the_capacity_asks_for() -> None:
    (found,) = suggest(STEP, STEP.live_peak_bytes - 2 * BLOCK)
    assert found.modules == ("h.0", "h.1") and "the first 2 of the 8" in str(found)
    assert found.checkpointed_peak_bytes <= STEP.live_peak_bytes - 2 * BLOCK
    assert suggest(STEP, STEP.live_peak_bytes) == ()


def test_nothing_is_proposed_where_nothing_repeats_or_little_is_saved() -> None:
    assert suggest(gpt_step(layers=1)) == ()
