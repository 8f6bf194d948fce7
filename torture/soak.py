"""Thousands of steps with random lengths, edits of the capacity and changes of policy: memory flat, the same bits.

What the core keeps on the device must be the same to the byte after every step once the first quarter has warmed up;
its host memory, and the memory of the process, may grow by no more than ``_MOST_HOST_BYTES`` in the rest of the run and
``_MOST_BYTES_A_STEP``. Times are printed, and decide nothing.
"""

from __future__ import annotations

import ctypes
import gc
import random
import resource
import statistics
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

import chameleon_lab as cl
from benchmarks.models import GPT
from chameleon_lab.runtime import core

from .compare import bits, different, seed_all
from .outcome import Outcome
from .pool import Options

STEPS = 20_000
_STEPS_OF_SHARE = 300
_MOST_LENGTH, _VOCABULARY, _BATCH = 24, 32, 2
_EDIT_EVERY = 137
_SAMPLES = 200
_EXACT = ("live_bytes", "storages", "escaped", "ghosts", "dropped")
_MOST_HOST_BYTES = 64 << 10  # pages that another order of copies takes
_MOST_BYTES_A_STEP = (
    256.0  # of the process, fitted over the last half: the least that a record kept of each step is
)


def cases(options: Options) -> list[str]:
    """One."""
    return [f"{_STEPS_OF_SHARE if options.share else STEPS} steps"]


def check(case: str, options: Options) -> Outcome:
    """Plain, then under a session whose capacity and policy change."""
    outcome, steps = Outcome(case), int(case.split()[0])
    want = _train(steps, None, options.seed, outcome)
    recorder = cl.Session(None)
    _train(4, recorder, options.seed, Outcome(""))
    peak_bytes = int(recorder.report().live_peak_bytes)
    session = cl.Session(peak_bytes // 2, min_swap="2KiB", link="2GiB/s")
    got = _train(steps, session, options.seed, outcome)
    outcome.tried += 1
    if difference := different(want, got):
        outcome.wrong.append(f"after {steps} steps: {difference}")
    gc.collect()
    left = core.of().counters()
    if left["live_bytes"] or left["host_used_bytes"]:
        outcome.wrong.append(f"left behind: {left}")
    return outcome


def _train(steps: int, session: cl.Session | None, seed: int, outcome: Outcome) -> list[Any]:
    gc.collect()
    seed_all(seed)
    draw, edits = random.Random(seed), random.Random(seed + 1)
    losses = torch.zeros(())
    samples: dict[str, list[float]] = {}
    times: list[float] = []
    with session or nullcontext():
        model = GPT(_VOCABULARY, _MOST_LENGTH, 32, 2, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for step in range(steps):
            start_s = time.perf_counter()
            length = draw.choice((8, 16, _MOST_LENGTH))
            tokens = torch.randint(_VOCABULARY, (_BATCH, length))
            optimizer.zero_grad()
            logits = model(tokens)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()
            losses = losses + loss.detach()
            del loss, logits
            times.append(time.perf_counter() - start_s)
            if session is None or not session.is_open:
                continue
            if step % _EDIT_EVERY == _EDIT_EVERY - 1 and session.capacity_bytes is not None:
                _edit(session, edits, outcome)
            if step % max(steps // _SAMPLES, 1) == 0:
                _sample(samples, step)
    if session is not None and session.capacity_bytes is not None:
        _judge(samples, times, outcome)
    return bits([losses, list(model.state_dict().values()), optimizer.state_dict()["state"]])


def _edit(session: cl.Session, draw: random.Random, outcome: Outcome) -> None:
    """Another capacity, other rules, back to what was, or a policy of its own."""
    if session.policy is None:
        return
    outcome.tried += 1
    own = session.own_capacity_bytes
    assert own is not None
    try:
        match draw.randrange(4):
            case 0:
                from chameleon_lab.planner import Draft

                draft = Draft(session.policy).set_capacity(int(own * draw.uniform(0.8, 1.6)))
                session.enable(draft)
            case 1:
                from chameleon_lab.planner import Draft

                session.enable(Draft(session.policy).keep(category=draw.choice(["activation", "gradient"])))
            case 2:
                session.rollback()
            case 3:
                session.policy = session.policy
    except (cl.ChameleonError, cl.BelowFloorError):
        outcome.named += 1


def _sample(samples: dict[str, list[float]], step: int) -> None:
    counters = core.of().counters()
    gc.collect()
    _trim()  # what malloc keeps for later is nobody's leak
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    now = {
        **{name: counters[name] for name in (*_EXACT, "host_reserved_bytes")},
        "step": step,
        "rss": pages * resource.getpagesize(),
    }
    for name, value in now.items():
        samples.setdefault(name, []).append(value)


def _trim() -> None:
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # glibc
        libc.malloc_trim(0)


def _judge(samples: dict[str, list[float]], times: list[float], outcome: Outcome) -> None:
    quarter = len(times) // 4
    early, late = statistics.median(times[quarter : 2 * quarter]), statistics.median(times[-quarter:])
    outcome.notes["step time, last quarter to second: ratio"] = late / early
    warm = len(samples["step"]) // 4
    for name in _EXACT:
        values = set(samples[name][warm:])
        outcome.tried += 1
        if len(values) > 1:
            outcome.wrong.append(f"{name} after a step is now {min(values):.0f}, now {max(values):.0f}")
    outcome.notes["live MiB"] = samples["live_bytes"][-1] / 2**20
    host = samples["host_reserved_bytes"]
    outcome.notes["host MiB, first half at most"] = max(host[: 2 * warm]) / 2**20
    outcome.notes["host MiB, last half at most"] = max(host[2 * warm :]) / 2**20
    outcome.tried += 1
    if max(host[2 * warm :]) > max(host[: 2 * warm]) + _MOST_HOST_BYTES:
        outcome.wrong.append(
            f"host bytes grew from {max(host[: 2 * warm]):.0f} to {max(host[2 * warm :]):.0f}"
        )
    grown = statistics.linear_regression(samples["step"][2 * warm :], samples["rss"][2 * warm :]).slope
    outcome.notes["memory of the process MiB"] = samples["rss"][-1] / 2**20
    outcome.notes["its growth in the last half, bytes a step"] = grown
    if len(times) < STEPS:
        return  # too short to tell growth from caches that fill
    outcome.tried += 1
    if grown > _MOST_BYTES_A_STEP:
        outcome.wrong.append(f"the process grows by {grown:.0f} bytes a step")
