"""Random small trainings on the fake GPU (tests/fake_cuda), in sessions that plan: their kernels run late.

They are made of the toy ops of tests/fake_cuda/programs.cpp, which check all bytes that they read. They are right
themselves: all streams run one after another, and a tensor dies in the order of the stream that made it, or was
recorded on all of them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from training import call_here

import chameleon_lab as cl
import chameleon_lab.session.session as session_module
from chameleon_lab.planner.process import PlannerProcess
from chameleon_lab.runtime import core
from chameleon_lab.runtime.replay_check import replayable
from chameleon_lab.testing import wait_for_plans
from chameleon_lab.trace.replay_ops import REPLAY_CLASS

_STEPS = 8
_PLANNED_FROM = 2
"""The first two steps are the warm-up, and the one that the plan is made from."""
_ACTIVATION_BYTES = 4096
_ROOM_BYTES = 28 << 10
"""What an op of these uses at most."""
_OP_S = 1e-3
_FAST_BYTES_PER_S = 1e12
_SLOW_BYTES_PER_S = 2e6
"""A copy of an activation takes two ops: storages are dropped instead."""

_streams: list[int] = []
"""The device knows them from program to program."""


class _Value:
    """A tensor, the value that its bytes repeat, and the stream that its memory belongs to."""

    def __init__(self, tensor: torch.Tensor, value: int, stream: int) -> None:
        self.tensor, self.value, self.stream = tensor, value, stream


class PlannedProgram:
    """Layers with a weight each: forward, backward, and an optimizer that writes the weights in place."""

    counts: Counter[str]
    """What there was: kernels of ops (those of replays are not among them), planned steps, replays and so on."""

    def __init__(self, fake: Any, seed: int, failing: str) -> None:
        self._fake, self._draw, self._failing = fake, random.Random(seed), failing
        draw = self._draw
        self.counts = Counter()
        fake.start(seed)
        fake.leave_out(None)  # forgets what the kernels of other programs have read wrong
        while len(_streams) < 3:
            _streams.append(fake.stream())
        self._streams = _streams[: draw.choice((1, 1, 2, 3))]
        self._records = draw.random() < 0.3  # tensors, on all streams
        self._at, self._newest = 0, 0
        fake.use(self._streams[0])
        self._layers = [
            (512 * draw.randrange(1, 17), 512 * draw.randrange(1, 17), draw.randrange(len(self._streams)))
            for _ in range(draw.randrange(5, 10))
        ]
        self._saves = [draw.random() < 0.5 for _ in self._layers]
        self._weights = [self._make(weight_bytes) for weight_bytes, _, _ in self._layers]
        self._of_step: list[_Value] = []

    def run(self) -> None:
        """Train in a session, and use the weights after it."""
        draw = self._draw
        fails_at = draw.randrange(_PLANNED_FROM, _STEPS - 1) if self._failing else -1
        failing_call, in_a_row = int(2 ** draw.uniform(0, 6)), draw.choice((1, 1, 2, 3, 6))
        rate = draw.choice((_FAST_BYTES_PER_S, _SLOW_BYTES_PER_S))
        # Without the hook, True replays nothing, and no copy on the host outlives its storage's return.
        replays = draw.choice((True, "trusting"))
        session = cl.Session(
            self._capacity_bytes(), device="cuda", rematerialize=replays, min_swap=512
        ).start()
        session.link, session._measures_link = cl.Link(rate, rate), False
        session.adopt(*(weight.tensor for weight in self._weights))
        for number in range(_STEPS):
            if number == fails_at:
                self._fake.fail_call(failing_call, self._failing == "gone", in_a_row)
            self._try(lambda number=number: self._step(number))
            self._try(session.step)
            wait_for_plans(session)
        session.stop()
        self._count(session)
        if not self._fake.dead():
            for weight in self._weights:
                self._read(weight)
        self._let_go(self._weights)
        self._fake.run_all()
        self._fake.use(0)

    def _count(self, session: cl.Session) -> None:
        planned = [step for step in session.history if step.plan > 0]
        self.counts.update(
            {
                "open": session.is_open or core.of("cuda:0").is_open(),
                "failed_calls": self._fake.failed_calls(),
                "planned steps": len(planned),
                "steps without eviction": sum(not step.evictions for step in planned),
                "replays": sum(step.replays for step in planned),
                "swapped_out_bytes": sum(step.swapped_out_bytes for step in planned),
            }
        )

    def _capacity_bytes(self) -> int:
        live = sum(
            weight + _ACTIVATION_BYTES + middle * saves
            for (weight, middle, _), saves in zip(self._layers, self._saves, strict=True)
        )
        return int(self._draw.uniform(0.3, 0.8) * live) + _ROOM_BYTES

    def _try(self, call: Callable[[], object]) -> None:
        try:
            call()
        except RuntimeError as error:
            said = str(error)
        else:
            return
        if not self._failing or ("Chameleon Lab" not in said and not self._fake.dead()):
            raise AssertionError(said)
        self.counts["told"] += 1
        self._let_go(self._of_step)

    # --- the user's order between streams

    def _use(self, stream: int) -> None:
        """From here on ops run along that one, after all that came before."""
        if stream == self._at:
            return
        before = self._fake.moment()
        self._fake.use(self._streams[stream])
        self._fake.come_after(before)
        self._at = stream

    def _let_go(self, values: list[_Value]) -> None:
        """What was recorded on all streams may die along any of them."""
        while values:
            value = values.pop()
            if not self._records:
                self._use(value.stream)
            del value.tensor

    # --- ops

    def _make(self, bytes_: int, *inputs: _Value) -> _Value:
        self._newest += 1
        self.counts["kernels"] += 1
        made = torch.ops.aten._toy_make(*_views(inputs), bytes_, self._newest)
        if self._records:
            for stream in self._streams:
                made.record_stream(torch.Stream(stream_id=stream, device_index=-1, device_type=0))
        return _Value(made, self._newest, self._at)

    def _read(self, *inputs: _Value) -> None:
        self.counts["kernels"] += 1
        torch.ops.aten._toy_read(*_views(inputs))

    def _write(self, written: _Value, *inputs: _Value) -> None:
        self._newest += 1
        self.counts["kernels"] += 1
        torch.ops.aten._toy_write_(written.tensor, *_views(inputs), written.value, self._newest)
        written.value = self._newest

    # --- a step

    def _step(self, number: int) -> None:
        skipped = -1
        if number > _PLANNED_FROM and self._draw.random() < 0.2:  # the plan is of another one
            skipped = self._draw.randrange(len(self._layers))
        self._use(0)
        x, saved = self._made(_ACTIVATION_BYTES), []
        for layer, (_, middle_bytes, stream) in enumerate(self._layers):
            if layer == skipped:
                continue
            self._use(stream)
            middle = self._made(middle_bytes, x, self._weights[layer])
            y = self._made(_ACTIVATION_BYTES, middle)
            saved.append((layer, [x, middle] if self._saves[layer] else [x]))
            if not self._saves[layer]:
                self._die(middle)
            x = y
        gradient, gradients = self._made(_ACTIVATION_BYTES, x), []
        self._die(x)
        for layer, inputs in reversed(saved):
            weight_bytes, _, stream = self._layers[layer]
            self._use(stream)
            gradients.append((layer, self._made(weight_bytes, gradient, *inputs)))
            below = self._made(_ACTIVATION_BYTES, gradient, self._weights[layer])
            self._die(gradient, *inputs)
            gradient = below
        self._die(gradient)
        self._use(0)
        for layer, one in gradients:
            self._write(self._weights[layer], one)
            self._die(one)

    def _made(self, bytes_: int, *inputs: _Value) -> _Value:
        made = self._make(bytes_, *inputs)
        self._of_step.append(made)
        return made

    def _die(self, *values: _Value) -> None:
        for value in values:
            self._of_step.remove(value)
            self._let_go([value])


def _views(values: Sequence[_Value]) -> tuple[list[torch.Tensor], list[int]]:
    return [value.tensor for value in values], [value.value for value in values]


def planned_program(fake: Any, seed: int, failing: str) -> dict[str, Any]:
    """Run one. ``failing``: in a planned step no call of CUDA fails (""), up to six in a row do ("once"), or all that
    come from one on ("gone"). Returns counts, and what was read wrong under "errors".
    """
    program = PlannedProgram(fake, seed, failing)
    program.run()
    return dict(program.counts) | {"errors": fake.errors()}


def prepare() -> None:
    """From here on plans depend on no clock, and what toy ops make may be made again."""
    session_module.step_op_times = lambda step: np.full(len(step.ops), _OP_S)
    REPLAY_CLASS["aten::_toy_make"] = 1  # as what needs no check
    PlannerProcess.call = call_here  # type: ignore[method-assign]  # for good: this process runs nothing else
    for trusting in (True, False):  # checks the others once, and not in each program's process
        replayable(core.tensor_device("cuda:0"), trusting=trusting)
