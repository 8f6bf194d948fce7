"""A share of `make torture`: whatever is tried gives the right bits or a named error, and nothing crashes."""

from __future__ import annotations

import pytest
from hangs import HANGS_AFTER_S

from torture import pool
from torture.outcome import total

pytestmark = pytest.mark.bits

# What must at least be tried, so that a part that skips everything fails.
LEAST = {
    "operators": 700,
    "modules": 400,
    "composite": 30,
    "optimizers": 80,
    "bypass": 100,
    "faults": 40,
    "disk": 40,
    "models": 4,
    "files": 150,
    "off": 4,
    "soak": 4,
    "machines": 2,
}


@pytest.mark.parametrize("part", LEAST)
def test_nothing_goes_wrong(part: str) -> None:
    options = pool.Options(share=True)
    cases = pool.part(part).cases(options)
    outcomes = pool.run(part, cases, options, jobs=2, timeout_s=HANGS_AFTER_S)
    whole = total(outcomes)
    assert not whole.wrong, "\n".join(whole.wrong[:30])
    assert len(outcomes) == len(cases)
    assert whole.tried >= LEAST[part], (whole.tried, whole.skipped)
