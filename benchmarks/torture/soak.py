"""Thousands of steps with random lengths, edits of the capacity and changes of policy: memory flat, the same bits."""

from __future__ import annotations

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
_GROWTH = 1.1  # of bytes, from the second quarter to the end: caches fill, and no more


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
    left = core.counters()
    if left["live_bytes"] or left["host_used_bytes"]:
        outcome.wrong.append(f"left behind: {left}")
    return outcome


def _train(steps: int, session: cl.Session | None, seed: int, outcome: Outcome) -> list[Any]:
    gc.collect()
    seed_all(seed)
    draw, edits = random.Random(seed), random.Random(seed + 1)
    losses = torch.zeros(())
    samples: dict[str, list[float]] = {"live": [], "host": [], "rss": []}
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
            if step % max(steps // 200, 1) == 0:
                counters = core.counters()
                samples["live"].append(counters["live_bytes"])
                samples["host"].append(counters["host_reserved_bytes"])
                pages = int(Path("/proc/self/statm").read_text().split()[1])
                samples["rss"].append(pages * resource.getpagesize())
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
                from chameleon_lab.policy import Draft

                draft = Draft(session.policy).set_capacity(int(own * draw.uniform(0.8, 1.6)))
                session.enable(draft)
            case 1:
                from chameleon_lab.policy import Draft

                session.enable(Draft(session.policy).keep(category=draw.choice(["activation", "gradient"])))
            case 2:
                session.rollback()
            case 3:
                session.policy = session.policy
    except (cl.ChameleonError, cl.BelowFloorError):
        outcome.named += 1


def _judge(samples: dict[str, list[float]], times: list[float], outcome: Outcome) -> None:
    quarter = len(times) // 4
    early, late = statistics.median(times[quarter : 2 * quarter]), statistics.median(times[-quarter:])
    outcome.notes["step time, last quarter to second: ratio"] = late / early
    for name, values in samples.items():
        part = max(len(values) // 4, 1)
        before, after = max(values[part : 2 * part]), max(values[-part:])
        outcome.notes[f"{name} MiB, second quarter"] = before / 2**20
        outcome.notes[f"{name} MiB, last quarter"] = after / 2**20
        outcome.tried += 1
        if after > _GROWTH * before + (1 << 20):
            outcome.wrong.append(f"{name} bytes grew from {before:.0f} to {after:.0f}")
