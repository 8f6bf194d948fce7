"""Children whose chameleon_lab has a fake GPU: the CUDA device on one of the fakes of tests/fake_cuda."""

from __future__ import annotations

import json
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from training import built, child

SEED = 1
"""What orders and programs are drawn from: `make explore` draws others, and a test ends as it did before."""


@cache
def fake_library(target: str) -> Path:
    library = built(target) / target / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not library.exists():
        pytest.skip("CUDA's headers were not found: install nvidia-cuda-runtime and nvidia-cuda-crt")
    return library


def on_fake_gpu(target: str, code: str) -> Any:
    """Run code in a process that has the fake of that name, as ``fake``; returns the JSON of its last line.

    The code has :data:`SEED` as ``SEED``.
    """
    load = f"""
        import sys, json
        from importlib.machinery import ExtensionFileLoader
        from importlib.util import module_from_spec, spec_from_loader
        import torch

        SEED = {SEED}

        def load(name):
            loader = ExtensionFileLoader(name, {str(fake_library(target))!r})
            module = module_from_spec(spec_from_loader(name, loader))
            sys.modules[name] = module
            loader.exec_module(module)
            return module

        load("chameleon_lab._C")
        fake = load("_{target}")
        fake.install()
        if hasattr(fake, "anchor_every"):
            fake.anchor_every(0.0)  # always: steps of milliseconds would never see a new one
    """
    lines = child(code, first=load).stdout.strip().splitlines()
    return json.loads(lines[-1]) if lines else None
