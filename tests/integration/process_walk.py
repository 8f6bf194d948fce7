"""Takes fingerprints of a process before, in and after a session, and prints them as JSON. Run it as a program.

The arguments: how the session ends (``stop``, ``error`` or ``interrupt``), and the seconds after which something hangs.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import threading
import time
import types
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._inductor.output_code
import torch.nn.modules.module as modules
import torch.optim.optimizer as optimizers
import torch.utils.data

for optional in ("safetensors.torch", "nvtx"):
    with suppress(ImportError):
        importlib.import_module(optional)

LIBRARIES = ("torch", "numpy", "safetensors", "nvtx")
GET_TIMERSLACK = 30
prctl = ctypes.CDLL(None).prctl


def places() -> dict[str, Any]:
    """What the attributes of the libraries' modules, and of the classes in them, are: by full name."""
    found: dict[str, Any] = {}
    for module in list(sys.modules.values()):
        if not isinstance(module, types.ModuleType) or module.__name__.split(".")[0] not in LIBRARIES:
            continue
        for name, value in list(vars(module).items()):
            found[f"{module.__name__}.{name}"] = value
            if isinstance(value, type) and value.__module__.split(".")[0] in LIBRARIES:
                for inner, held in list(vars(value).items()):
                    found[f"{value.__module__}.{value.__qualname__}.{inner}"] = held
    return found


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names of what is another thing, or has come or gone in a class or module that was there. Plain values (a counter,
    a flag that something has been looked for) and what an import brings are not meant."""
    plain = (int, float, str, type(None))
    names = [
        name
        for name, value in before.items()
        if not isinstance(value, plain) and (name not in after or after[name] is not value)
    ]
    for name in after.keys() - before.keys():
        owner = before.get(name.rpartition(".")[0])
        if isinstance(owner, type):  # what it has inherited until then
            names.append(name)
    return sorted(names)


def state() -> dict[str, Any]:
    """What else there is of a process, as plain values."""
    core = importlib.import_module("chameleon_lab.runtime.core")
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "switch_interval_s": sys.getswitchinterval(),
        "timer_slack_ns": prctl(GET_TIMERSLACK),
        "caught_signals": status["SigCgt"].strip(),
        "python_handlers": [str(signal.getsignal(number)) for number in signal.valid_signals()],
        "meta_path": [str(finder) for finder in sys.meta_path],
        "hooks": {
            f"{module.__name__}.{name}": [str(hook) for hook in value.values()]
            for module in (modules, optimizers)
            for name, value in vars(module).items()
            if name.startswith("_global") and isinstance(value, dict)
        },
        "ops_are_watched": core.torch_is_watched(),
        "python_threads": sorted(thread.name for thread in threading.enumerate()),
        "threads": sorted(
            name
            for task in Path("/proc/self/task").iterdir()
            if (name := (task / "comm").read_text().strip())
        ),
        "environment": dict(os.environ),
        "warning_filters": len(warnings.filters),
        "excepthook": str(sys.excepthook),
        "gc": [gc.isenabled(), gc.get_threshold(), len(gc.callbacks)],
        "numerics": core.numerics_key(torch.device("cpu")).hex(),
        "grad": [torch.is_grad_enabled(), torch.is_inference_mode_enabled()],
        "folder": os.getcwd(),
        "mask": signal.pthread_sigmask(signal.SIG_BLOCK, []) == set(),
    }


def settled() -> None:
    """Wait until a plan that nobody wants any more has let go of the interpreter."""
    until_s = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < until_s and any("planner" in thread.name for thread in threading.enumerate()):
        time.sleep(0.01)


def walk(end: str) -> dict[str, Any]:
    """Train in a session, with what it replaces at first use (a loader's iterator) in use too."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters())
    batches = torch.utils.data.DataLoader([torch.ones(256)] * 32, batch_size=8)

    def train() -> None:
        for batch in batches:
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    train()  # torch makes threads, caches and imports of its own
    places_first = places()
    assert "chameleon_lab" not in sys.modules
    sessions = importlib.import_module("chameleon_lab.session")
    places_before, before = places(), state()
    session = sessions.Session("8MiB", device="cpu")
    opening = ended = torch.get_rng_state()
    drew = False
    with suppress(ZeroDivisionError, KeyboardInterrupt), session:
        drew = not torch.equal(opening, torch.get_rng_state())
        train()
        places_inside, inside = places(), state()
        ended = torch.get_rng_state()
        if end == "error":
            raise ZeroDivisionError
        if end == "interrupt":
            signal.raise_signal(signal.SIGINT)
    drew |= not torch.equal(ended, torch.get_rng_state())
    settled()
    places_after, after = places(), state()
    return {
        "at_import": changed(places_first, places_before),
        "replaced": changed(places_before, places_inside),
        "left": changed(places_before, places_after),
        "before": before,
        "inside": inside,
        "after": after,
        "session_drew": drew,
    }


if __name__ == "__main__":
    print(json.dumps(walk(sys.argv[1])))
