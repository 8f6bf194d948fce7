"""Off means off: once a session has been left, nothing watches, and ops cost what they cost without one."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

import torch

import chameleon_lab as cl
from chameleon_lab.runtime import core

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
    before = watchers()
    for capacity in (None, "8MiB"):
        outcome.tried += 3
        with cl.Session(capacity):
            if watchers() == before:
                outcome.wrong.append("a session watches nothing: the check cannot fail")
            torch.nn.Linear(9, 9)(torch.ones(9)).sum().backward()
        if watchers() != before:
            outcome.wrong.append(f"left after a session of {capacity}: {watchers()}, before {before}")
        try:
            with cl.Session(capacity):
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        if watchers() != before:
            outcome.wrong.append(f"left after an error in a session of {capacity}: {watchers()}")
    return outcome


def watchers() -> dict[str, object]:
    """Everything in torch that a session registers itself with."""
    from torch.nn.modules import module
    from torch.nn.utils import clip_grad
    from torch.optim import optimizer

    return {
        "RecordFunction callbacks": core.torch_is_watched(),
        "forward pre-hooks": len(module._global_forward_pre_hooks),
        "forward hooks": len(module._global_forward_hooks),
        "optimizer pre-hooks": len(optimizer._global_optimizer_pre_hooks),
        "optimizer post-hooks": len(optimizer._global_optimizer_post_hooks),
        "grouping of clip_grad": clip_grad._group_tensors_by_device_and_dtype,
        "grouping of optimizers": optimizer.Optimizer._group_tensors_by_device_and_dtype,
        "torch.save": torch.serialization._save,
        "storage data_ptr": torch.UntypedStorage.data_ptr,
        "storage resize_": torch.UntypedStorage.resize_,
        "tolist": torch.Tensor.tolist,
    }


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
