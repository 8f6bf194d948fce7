"""Timed training steps, and what stands beside every row of them: their spread, memory by the driver's count, pinned
memory, and the GPU's clocks and power before and after.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

import chameleon_lab as cl

from ..host_memory import looking
from .common import Gpu, spread

TIMED_STEPS = 10
SAMPLED_STEPS = 2
"""After the timed ones, since the sampler would disturb them."""

_SAMPLE_S = 0.002


class Steps:
    """The steps of one row. Make it before the model: what the row takes counts from here."""

    def __init__(self, gpu: Gpu, settling: int) -> None:
        gpu.clean()
        self._gpu, self._settling = gpu, settling
        self.times_s: list[float] = []
        self._reserved_bytes = torch.cuda.memory_reserved() if gpu.real else 0
        self._driver_bytes = self._driver_peak_bytes = gpu.driver_bytes()
        self._before = gpu.state()
        self._after: dict[str, float | None] = {}

    def run(
        self, prepare: Callable[[int], Callable[[], object]], timed: int, least: int | None = None
    ) -> None:
        """Run the settling steps and the timed ones. ``prepare`` makes the step of a number, untimed.

        With ``least`` the timed ones end, after so many, before the time does.
        """
        least = timed if least is None else least
        for number in range(self._settling + timed):
            if number >= self._settling + least and self._gpu.left_s() < 2 * self.times_s[-1]:
                break
            self.times_s.append(self._gpu.seconds(prepare(number)))
            self._look()
        self._after = self._gpu.state()

    def sample(self, prepare: Callable[[int], Callable[[], object]], steps: int = SAMPLED_STEPS) -> None:
        """Run some more, in which the driver's count is taken all the time: what a step frees counts, too."""
        with looking(self._look, _SAMPLE_S):
            for number in range(len(self.times_s), len(self.times_s) + steps):
                self._gpu.seconds(prepare(number))

    def _look(self) -> None:
        self._driver_peak_bytes = max(self._driver_peak_bytes, self._gpu.driver_bytes())

    def figures(self) -> dict[str, Any]:
        """Median, least and most of the timed steps (the last one, where none is), and what the GPU says of them."""
        timed_s = self.times_s[self._settling :] or self.times_s[-1:]
        return {
            **spread("step", timed_s, "_s"),
            "timed_steps": len(self.times_s) - self._settling,
            "steps_s": self.times_s,
            "reserved_bytes": self._gpu.reserved_peak_bytes() - self._reserved_bytes,
            "driver_bytes": self._driver_peak_bytes - self._driver_bytes,
            "before": self._before,
            "after": self._after,
        }


def pinned(gpu: Gpu, session: cl.Session | None) -> dict[str, float]:
    """Host memory that a row has pinned, and the seconds that it took: a session's, or what went through torch."""
    if session is not None:
        pinned_bytes = session.counters()["host_pinned_bytes"]
        return {"pinned_bytes": pinned_bytes, "pinning_s": session.report().host_pinning_s or 0.0}
    found: dict[str, Any] = {}
    if gpu.real:
        with contextlib.suppress(AttributeError, RuntimeError):
            found = torch.cuda.host_memory_stats()
    return {
        "pinned_bytes": found.get("allocated_bytes.peak", 0),
        "pinning_s": found.get("host_alloc_time.total", 0) * 1e-6,
    }


def same_losses(losses: list[str], others: list[str]) -> bool:
    """Are those equal that both have? Not all rows have run as many steps."""
    steps = min(len(losses), len(others))
    return losses[:steps] == others[:steps]
