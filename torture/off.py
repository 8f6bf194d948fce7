"""Off means off: once a session has been left, nothing watches, and ops cost what they cost without one."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from typing import Any

import torch

import chameleon_lab as cl
from chameleon_lab.runtime import core
from chameleon_lab.runtime.patches.shared import Shared

from .outcome import Outcome
from .pool import ROOT, Options

_ROUNDS = 9

_MEASURE = """
import json, statistics, time
import torch
torch.set_num_threads(1)
{prepare}
x, y = torch.ones(64), torch.ones(64)
big = torch.ones(256, 256)
def tiny():
    for _ in range(3000):
        torch.add(x, y)
def real():
    for _ in range(20):
        torch.mm(big, big).relu_()
found = {{}}
for name, run in (("tiny", tiny), ("real", real)):
    run()
    times = []
    for _ in range(15):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    found[name] = min(times)
print(json.dumps(found))
"""
_NEVER = ""
_LEFT = """
import chameleon_lab as cl
for capacity in (None, "8MiB"):
    with cl.Session(capacity):
        model = torch.nn.Linear(64, 64)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            model(torch.ones(512, 64)).sum().backward()
            optimizer.step()
"""


def cases(options: Options) -> list[str]:
    """Two: what is left registered, and what ops cost."""
    return ["nothing is registered"] if options.share else ["nothing is registered", "what ops cost"]


def check(case: str, options: Options) -> Outcome:
    """See the module."""
    outcome = Outcome(case)
    if case == "what ops cost":
        _cost(outcome)
        return outcome
    places = _replaced()
    before = watchers(places)
    for capacity in (None, "8MiB"):
        outcome.tried += 3
        with cl.Session(capacity):
            now = watchers(places)
            if now == before:
                outcome.wrong.append("a session watches nothing: the check cannot fail")
            if capacity and (same := [name for name in now if now[name] == before[name]]):
                outcome.wrong.append(
                    f"a session of {capacity} leaves these alone: the check sees too little: {same}"
                )
            torch.nn.Linear(9, 9)(torch.ones(9)).sum().backward()
        if watchers(places) != before:
            outcome.wrong.append(f"left after a session of {capacity}: {watchers(places)}, before {before}")
        try:
            with cl.Session(capacity):
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        if watchers(places) != before:
            outcome.wrong.append(f"left after an error in a session of {capacity}: {watchers(places)}")
    return outcome


def watchers(places: list[tuple[Any, str]]) -> dict[str, object]:
    """Everything in torch that a session registers itself with, and every attribute that one replaces."""
    from torch.nn.modules import module
    from torch.optim import optimizer

    return {
        "RecordFunction callbacks": core.torch_is_watched(),
        "forward pre-hooks": len(module._global_forward_pre_hooks),
        "forward hooks": len(module._global_forward_hooks),
        "optimizer pre-hooks": len(optimizer._global_optimizer_pre_hooks),
        "optimizer post-hooks": len(optimizer._global_optimizer_post_hooks),
        **{f"{owner.__name__}.{name}": vars(owner).get(name) for owner, name in places},
    }


def _replaced() -> list[tuple[Any, str]]:
    """What a session with a capacity replaces, by its own word: owners and names of attributes."""
    import torch._dynamo  # a session replaces nothing in what nobody has imported
    import torch._inductor.output_code  # noqa: F401

    parts = cl.Session("8MiB")._hooks  # never opened
    return [place for part in parts if isinstance(part, Shared) for place in part.places()]


def _cost(outcome: Outcome) -> None:
    """The same loops in processes that never had a session, and that have left one, in turns."""
    ratios: dict[str, list[float]] = {"tiny": [], "real": []}
    for number in range(_ROUNDS):
        found = {}
        for name, prepare in (
            (("never", _NEVER), ("left", _LEFT)) if number % 2 else (("left", _LEFT), ("never", _NEVER))
        ):
            command = [sys.executable, "-W", "ignore", "-c", _MEASURE.format(prepare=prepare)]
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
            found[name] = json.loads(done.stdout.splitlines()[-1])
        for name, values in ratios.items():
            values.append(found["left"][name] / found["never"][name])
        outcome.tried += 1
    for name, values in ratios.items():
        outcome.notes[f"{name} ops, after a session to never: median ratio"] = statistics.median(values)
