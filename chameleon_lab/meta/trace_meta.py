"""Traces without a device or memory: a training step run on meta tensors, with op times from a roofline.

The recorder sees the same dispatcher calls as in a session, so names, stages, modules and uses are the same. The
storages of meta tensors have no bytes, but they have births and deaths: csrc/runtime_unbacked.cpp follows those. Times
come from the shapes of the calls.
"""

from __future__ import annotations

from ..runtime import core  # first: where torch is missing or another one, this says so

# isort: split
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from ..errors import SessionError, TraceError
from ..runtime.discovery import Discovery
from ..runtime.patches.launches import launches_without_data
from ..runtime.patches.optimizer_groups import small_groups
from ..runtime.recording import step_trace
from ..trace.list_ops import part_limit_bytes
from ..trace.step import StepTrace
from ..trace.trace import Trace
from ..util.progress import bar, tick
from ..util.units import parse_capacity
from .autocast import MetaAutocast
from .kernels import DeviceKernels
from .roofline import Roofline, find_device

_GPU_BLOCK_BYTES = 512
"""CUDA's caching allocator rounds up to this."""


def trace_meta(
    build_or_step: Callable[[], Any],
    *,
    device: str | Roofline = "H100",
    steps: int = 2,
    capacity: int | float | str | None = None,
    split_optimizer: bool = True,
    stand_ins: Mapping[str, Callable[..., Any]] | None = None,
) -> Trace:
    """Trace training steps of a model of any size on any machine: no tensor has memory, and no kernel runs.

    ::

        def build():
            model = transformers.LlamaForCausalLM(config)
            optimizer = torch.optim.AdamW(model.parameters())
            tokens = torch.randint(config.vocab_size, (2, 4096))

            def step():
                optimizer.zero_grad()
                model(input_ids=tokens, labels=tokens).loss.backward()
                optimizer.step()

            return step

        trace = cl.trace_meta(build, device="H100")
        cl.policy.floor(trace)

    Args:
        build_or_step: a function that builds model and optimizer and returns the function that trains one step. If it
            returns nothing to call, it is the step itself, and its model must be on the meta device already. Inside,
            new tensors are meta tensors unless they are made with ``device="cpu"``, and ``"cuda"`` means meta.
        device: a name in :data:`~chameleon_lab.meta.roofline.DEVICES`, or a
            :class:`~chameleon_lab.meta.roofline.Roofline` of your own.
        steps: how many steps to trace, at least 2: in the first one the optimizer's states are only made.
        capacity: what list ops are split for, written as for :class:`~chameleon_lab.Session`: a fraction
            is of the device's memory. None: all of it.
        split_optimizer: False leaves them whole.
        stand_ins: by op name, such as ``"aten::nonzero"``: a function that is called with the op's arguments in its
            place. Needed for ops whose result has a shape that depends on data. Reading a number, as
            ``loss.item()`` does, gives 1 unless there is one for ``"aten::_local_scalar_dense"``.

    Raises:
        TraceError: an op needs data, a step holds no op, or a tensor on the meta device goes to the host.
        SessionError: a session is open.
        ValueError, TypeError: an argument is not what it should be.
    """
    roofline = find_device(device)
    if not callable(build_or_step):
        raise TypeError(
            f"trace_meta needs a function that builds a step or is one, not {type(build_or_step).__name__}: "
            "pass the function itself, without calling it"
        )
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 2:
        raise ValueError(
            f"steps must be a number from 2 up, got {steps!r}: the first step is not a steady one"
        )
    capacity_bytes = (
        roofline.memory_bytes if capacity is None else parse_capacity(capacity, roofline.memory_bytes)
    )
    tracer = _Tracer(roofline, capacity_bytes if split_optimizer else None, stand_ins or {})
    return Trace(
        tracer.run(build_or_step, steps),
        {
            "torch": torch.__version__,
            "device": f"{roofline.name}, traced without it",
            "kernels": "",
            "capacity_bytes": capacity_bytes,
            "link_out_bytes_per_s": roofline.link_out_bytes_per_s,
            "link_in_bytes_per_s": roofline.link_in_bytes_per_s,
            "created_s": time.time(),
        },
    )


class _Tracer:
    """One trace: opens the recorder for meta tensors, runs the steps, and puts the roofline's times in."""

    def __init__(
        self, roofline: Roofline, split_bytes: int | None, stand_ins: Mapping[str, Callable[..., Any]]
    ) -> None:
        self.roofline = roofline
        self.logs: list[core.StepLog] = []
        self.splits_lists = split_bytes is not None
        self.runtime = core.of("cpu")
        self.discovery = Discovery(self.runtime, self.end_step, torch.device("meta"))
        self.parts: list[Any] = [
            self.discovery,
            DeviceKernels(roofline.is_gpu, stand_ins),
            MetaAutocast(roofline.is_gpu),
            launches_without_data(),
        ]
        if split_bytes is not None:
            self.parts.append(small_groups(lambda _: part_limit_bytes(split_bytes)))

    def run(self, build_or_step: Callable[[], Any], steps: int) -> list[StepTrace]:
        options = core.Options()
        options.unbacked = True
        options.splits_lists = self.splits_lists
        options.unbacked_block_bytes = _GPU_BLOCK_BYTES if self.roofline.is_gpu else 0
        try:
            self.runtime.open(options)
        except RuntimeError as error:
            raise SessionError(f"{str(error).splitlines()[0]}: stop the session before you trace") from None
        try:
            for part in self.parts:
                part.install()
            with _OnMeta():
                step = build_or_step()
                if callable(step):
                    self.runtime.end_step()  # building is no step
                    self.logs.clear()
                else:
                    step, steps = build_or_step, steps - 1
                    self.end_unless_optimizer_did(0)
                with bar("Tracing", steps, "step"):
                    for _ in range(steps):
                        before = len(self.logs)
                        step()
                        self.end_unless_optimizer_did(before)
                        tick()
        except NotImplementedError as error:
            raise TraceError(self.needs_data()) from error
        finally:
            for part in reversed(self.parts):
                part.remove()
            self.runtime.close()
        return [self.timed(log) for log in self.logs]

    def end_step(self) -> None:
        self.logs.append(self.runtime.end_step())

    def end_unless_optimizer_did(self, before: int) -> None:
        if len(self.logs) > before:
            return
        self.end_step()
        if not self.logs[-1].op_count:
            raise TraceError("the step ran no op on meta tensors: build the model inside the traced function")

    def needs_data(self) -> str:
        log = self.runtime.end_step()
        ops = log.ops()
        name = core.op_names()[ops["name"][-1]] if len(ops) else "an op"
        module = int(ops["module"][-1]) if len(ops) else -1
        where = f" in {self.discovery.modules.texts[module]}" if module >= 0 else ""
        return (
            f"{name}{where} needs data, and a trace has none: its result, or its result's shape, does not follow from "
            "shapes. Give the op that is named below a stand-in, "
            'trace_meta(..., stand_ins={"aten::nonzero": function}), whose function(*arguments) returns what a typical '
            "batch would give; or record a real step in a session"
        )

    def timed(self, log: core.StepLog) -> StepTrace:
        """The recorder's step on the roofline's clock."""
        step = step_trace(
            self.runtime, log, "Meta", self.discovery.modules.texts, self.discovery.labels.texts
        )
        duration_s = np.zeros(len(step.ops))
        for call in log.leaf_calls:
            duration_s[call.op] += self.roofline.seconds(call)
        border_s = np.concatenate([[0.0], np.cumsum(duration_s)])
        spans = step.residencies
        return replace(
            step,
            duration_s=float(border_s[-1]),
            ops=replace(step.ops, start_s=border_s[:-1], duration_s=duration_s),
            residencies=replace(spans, from_s=border_s[spans.from_op], to_s=border_s[spans.to_op]),
        )


class _OnMeta(TorchFunctionMode):
    """New tensors are meta tensors, and so is what goes to "cuda"; but what an optimizer keeps on the host stays."""

    def __init__(self) -> None:
        super().__init__()
        self._in_optimizer = False
        self._handles: list[Any] = []

    def __enter__(self) -> Any:
        self._handles = [
            register_optimizer_step_pre_hook(lambda *_: self._set_in_optimizer(True)),
            register_optimizer_step_post_hook(lambda *_: self._set_in_optimizer(False)),
        ]
        return super().__enter__()  # type: ignore[no-untyped-call]  # of torch

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # of torch
        for handle in self._handles:
            handle.remove()

    def _set_in_optimizer(self, inside: bool) -> None:
        self._in_optimizer = inside

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = {name: _on_meta(value) for name, value in (kwargs or {}).items()}
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.cuda:
            return args[0].to("meta")
        if func is torch.Tensor.numpy and args[0].is_meta:
            return np.ones(
                args[0].shape, dtype=str(args[0].dtype).removeprefix("torch.")
            )  # no op is recorded
        if func in _device_constructors():
            kwargs.pop("pin_memory", None)
            if kwargs.get("device") is None and not self._in_optimizer:
                kwargs["device"] = _META
        return func(*map(_on_meta, args), **kwargs)


_META = torch.device("meta")


def _on_meta(value: Any) -> Any:
    """The meta device in place of a CUDA one."""
    if isinstance(value, str) and value.partition(":")[0] == "cuda":
        return _META
    return _META if isinstance(value, torch.device) and value.type == "cuda" else value
