"""Drops and replays of what models keep, op by op, on any device: the same bits must come back.

Each case runs forward and backward under a setting. Then everything that it has left (results, what autograd has saved,
gradients) is dropped, the memory is written over, the setting is changed, and the tensors are read: by the main thread,
by autograd's, on another stream, or with no memory to spare. A drop that the runtime refuses is counted by its reason.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import chameleon_lab as cl
from chameleon_lab.runtime import core

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Sizes:
    """Of the cases' tensors."""

    batch: int
    length: int
    width: int
    heads: int
    image: int

    @property
    def tokens(self) -> tuple[int, int, int]:
        """(batch, length, width)"""
        return (self.batch, self.length, self.width)

    @property
    def per_head(self) -> tuple[int, int, int, int]:
        """(batch, heads, length, width of a head)"""
        return (self.batch, self.heads, self.length, self.width // self.heads)


SMALL = Sizes(batch=2, length=24, width=64, heads=2, image=10)
REAL = Sizes(batch=4, length=256, width=1024, heads=16, image=56)


@dataclass(frozen=True)
class Case:
    """A call, the shapes of its inputs, and the op that must be among those replayed."""

    name: str
    op: str
    call: Callable[..., Any]
    shapes: Callable[[Sizes], list[tuple[int, ...]]]


def _tokens(count: int = 1) -> Callable[[Sizes], list[tuple[int, ...]]]:
    return lambda s: [s.tokens] * count


def _linear(bias: bool) -> Callable[[Sizes], list[tuple[int, ...]]]:
    return lambda s: [s.tokens, (4 * s.width, s.width), *([(4 * s.width,)] if bias else [])]


def _attention(backend: SDPBackend, **kwargs: Any) -> Callable[..., torch.Tensor]:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, **kwargs)

    return attention


def _embedding(table: torch.Tensor) -> torch.Tensor:
    index = torch.arange(3 * len(table), device=table.device).remainder(7)
    return F.embedding(index, table)


def _heads(count: int = 3) -> Callable[[Sizes], list[tuple[int, ...]]]:
    return lambda s: [s.per_head] * count


def _image(weight: Callable[[int], tuple[int, ...]]) -> Callable[[Sizes], list[tuple[int, ...]]]:
    return lambda s: [(s.batch, 16, s.image, s.image), weight(16), (weight(16)[0],)]


CASES = (
    Case("add", "aten::add", torch.add, _tokens(2)),
    Case("add a bias", "aten::add", torch.add, lambda s: [s.tokens, (s.width,)]),
    Case("mul", "aten::mul", torch.mul, _tokens(2)),
    Case("mul by a number", "aten::mul", lambda x: x * 0.125, _tokens()),
    Case("sub and div", "aten::div", lambda x, y: (x - y) / (y.abs() + 1), _tokens(2)),
    Case("gelu", "aten::gelu", F.gelu, _tokens()),
    Case("gelu tanh", "aten::gelu", lambda x: F.gelu(x, approximate="tanh"), _tokens()),
    Case("silu gate", "aten::silu", lambda x, y: F.silu(x) * y, _tokens(2)),
    Case("relu", "aten::relu", F.relu, _tokens()),
    Case("relu in place", "aten::relu_", lambda x: F.relu(x * 1.5, inplace=True), _tokens()),
    Case("part in place", "aten::add_", lambda x: (x * 1.5)[:, ::2].add_(1)._base, _tokens()),
    Case("filled in place", "aten::zero_", lambda x: (x * 1.5).zero_(), _tokens()),
    Case("tanh", "aten::tanh", torch.tanh, _tokens()),
    Case("sigmoid", "aten::sigmoid", torch.sigmoid, _tokens()),
    Case("exp and log", "aten::exp", lambda x: (x.exp() + 1).log(), _tokens()),
    Case("rsqrt", "aten::rsqrt", lambda x: x * (x * x).add(1e-5).rsqrt(), _tokens()),
    Case("rotary", "aten::cat", lambda x, c: x * c + torch.cat((-x[..., 8:], x[..., :8]), -1) * c, _tokens(2)),
    Case("where", "aten::where", lambda x, y: torch.where(x > 0, x, y), _tokens(2)),
    Case("masked_fill", "aten::masked_fill", lambda x: x.masked_fill(x > 1, -1e4), _tokens()),
    Case("layer_norm", "aten::native_layer_norm", lambda x, w, b: F.layer_norm(x, w.shape, w, b),
         lambda s: [s.tokens, (s.width,), (s.width,)]),
    Case("rms_norm", "aten::mul", lambda x, w: F.rms_norm(x, w.shape, w, 1e-6), lambda s: [s.tokens, (s.width,)]),
    Case("group_norm", "aten::native_group_norm", lambda x, w, b: F.group_norm(x, 4, w, b),
         lambda s: [(s.batch, 16, s.image, s.image), (16,), (16,)]),
    Case("softmax", "aten::_softmax", lambda x: x.softmax(-1), _tokens()),
    Case("log_softmax", "aten::_log_softmax", lambda x: x.log_softmax(-1), _tokens()),
    Case("casts", "aten::_to_copy", lambda x: x.double().to(torch.bfloat16), _tokens()),
    Case("cat", "aten::cat", lambda x, y: torch.cat((x, y), -1), _tokens(2)),
    Case("stack", "aten::stack", lambda x, y: torch.stack((x, y)), _tokens(2)),
    Case("contiguous heads", "aten::clone", lambda x: x.transpose(1, 2).contiguous(), lambda s: [s.per_head]),
    Case("embedding", "aten::embedding", _embedding, lambda s: [(8 * s.length, s.width)]),
    Case("max_pool2d", "aten::max_pool2d_with_indices", lambda x: F.max_pool2d(x, 2),
         lambda s: [(s.batch, 16, s.image, s.image)]),
    Case("mm", "aten::mm", torch.mm, lambda s: [(s.length, s.width), (s.width, 3 * s.width)]),
    Case("mm transposed", "aten::mm", lambda a, b: a @ b.t(), lambda s: [(s.length, s.width), (5 * s.width, s.width)]),
    Case("mm with a long sum", "aten::mm", torch.mm, lambda s: [(16, 16 * s.width), (16 * s.width, 32)]),
    Case("addmm", "aten::addmm", torch.addmm, lambda s: [(s.width,), (s.length, s.width), (s.width, s.width)]),
    Case("bmm", "aten::bmm", torch.bmm, lambda s: [(s.batch, s.length, s.width), (s.batch, s.width, s.length)]),
    Case("baddbmm", "aten::baddbmm", torch.baddbmm,
         lambda s: [(s.batch, s.length, 48), (s.batch, s.length, s.width), (s.batch, s.width, 48)]),
    Case("linear", "aten::addmm", F.linear, _linear(True)),
    Case("linear without bias", "aten::mm", F.linear, _linear(False)),
    Case("norm, linear, gelu", "aten::gelu", lambda x, w: F.gelu(F.linear(F.layer_norm(x, x.shape[-1:]), w)),
         _linear(False)),
    Case("conv2d", "aten::convolution", lambda x, w, b: F.conv2d(x, w, b, padding=1), _image(lambda c: (32, c, 3, 3))),
    Case("conv2d by group", "aten::convolution", lambda x, w, b: F.conv2d(x, w, b, stride=2, groups=16),
         _image(lambda c: (c, 1, 3, 3))),
    Case("conv2d channels last", "aten::convolution",
         lambda x, w, b: F.conv2d(x.to(memory_format=torch.channels_last), w, b), _image(lambda c: (24, c, 1, 1))),
    Case("conv_transpose2d", "aten::convolution", lambda x, w: F.conv_transpose2d(x, w, stride=2),
         lambda s: [(s.batch, 16, s.image, s.image), (16, 8, 3, 3)]),
    Case("conv1d", "aten::convolution", lambda x, w: F.conv1d(x, w, dilation=2),
         lambda s: [(s.batch, 16, 4 * s.image), (24, 16, 3)]),
    *(
        Case(f"attention {kind}{' causal' * causal}", op, _attention(backend, is_causal=causal), _heads())
        for (kind, op, backend), causal in product(
            (
                ("flash", "aten::_scaled_dot_product_flash_attention", SDPBackend.FLASH_ATTENTION),
                ("efficient", "aten::_scaled_dot_product_efficient_attention", SDPBackend.EFFICIENT_ATTENTION),
                ("cudnn", "aten::_scaled_dot_product_cudnn_attention", SDPBackend.CUDNN_ATTENTION),
                ("math", "aten::bmm", SDPBackend.MATH),
            ),
            (False, True),
        )
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """What a case's numbers depend on beside its inputs; ``amp`` is autocast's dtype."""

    dtype: torch.dtype
    amp: torch.dtype | None = None
    tf32: bool = False

    def __str__(self) -> str:
        parts = [_short(self.dtype)]
        parts += [f"autocast {_short(self.amp)}"] if self.amp else []
        return " ".join([*parts, *(["tf32"] if self.tf32 else [])])

    @property
    def other(self) -> Setting:
        """The one to read under: everything that can be otherwise is."""
        return Setting(self.dtype, None if self.amp else torch.bfloat16, not self.tf32)

    @contextmanager
    def __call__(self, device: torch.device) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(_tf32(self.tf32))
            if self.amp:
                stack.enter_context(torch.autocast(device.type, self.amp))
            yield


def _short(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


@contextmanager
def _tf32(on: bool) -> Iterator[None]:
    """Of matrix products and convolutions; what was set is there afterwards."""
    # Not through torch.backends: its flags are frozen where torch's own test tools have been imported.
    settings = (
        (torch._C._get_cublas_allow_tf32, torch._C._set_cublas_allow_tf32),
        (torch._C._get_cudnn_allow_tf32, torch._C._set_cudnn_allow_tf32),
    )
    before = [get() for get, _ in settings]
    try:
        for _, set_ in settings:
            set_(on)
        yield
        assert all(get() == on for get, _ in settings), "a replay has left another setting behind"
    finally:
        for (_, set_), was in zip(settings, before, strict=True):
            set_(was)


SETTINGS = (
    Setting(torch.float32),
    Setting(torch.float32, tf32=True),
    Setting(torch.bfloat16),
    Setting(torch.float16),
    Setting(torch.float32, amp=torch.bfloat16),
    Setting(torch.float32, amp=torch.float16, tf32=True),
)


# ------------------------------------------------------------------------------------------------------------- readers

Read = Callable[[], list[torch.Tensor]]


def by_main(read: Read, device: torch.device) -> list[torch.Tensor]:
    """As code between forward and backward does."""
    return read()


def by_autograd(read: Read, device: torch.device) -> list[torch.Tensor]:
    """In a node of a backward pass. The engine has a thread for each GPU; on a CPU backward itself gets one."""
    found: list[Any] = []

    class Reading(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
            found.extend((threading.get_ident(), read()))
            return grad

    out = Reading.apply(torch.ones(1, device=device, requires_grad=True))
    if device.type == "cpu":
        thread = threading.Thread(target=out.backward)
        thread.start()
        thread.join()
    else:
        out.backward()
    ident, bits = found
    assert ident != threading.get_ident()
    return bits


def on_another_stream(read: Read, device: torch.device) -> list[torch.Tensor]:
    """Of the user's own, which waits for what was done before, as streams must."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        bits = read()
    torch.cuda.current_stream(device).wait_stream(stream)
    return bits


def without_room(read: Read, device: torch.device) -> list[torch.Tensor]:
    """Libraries that would take workspace find less of it than in the first run: the capacity is what is resident, what
    comes back, and as much again for what a replay makes beside it."""
    session = cl.current_session()
    assert session is not None
    runtime = core.of(session.device)
    held = runtime.counters()
    taken = held["resident_bytes"] + held["other_bytes"]
    runtime.set_capacity(taken + 3 * max(held["live_bytes"] - held["resident_bytes"], 1 << 20))
    try:
        return read()
    finally:
        runtime.set_capacity(held["capacity_bytes"])


def readers(device: torch.device) -> dict[str, Callable[[Read, torch.device], list[torch.Tensor]]]:
    """Those that there are on a device, by name."""
    found = {"main thread": by_main, "autograd's thread": by_autograd, "without room": without_room}
    return found | ({"another stream": on_another_stream} if device.type == "cuda" else {})


# --------------------------------------------------------------------------------------------------------------- count


@dataclass
class Count:
    """What became of all drops."""

    device: str = ""
    replayed: Counter[str] = field(default_factory=Counter)
    """By reader."""
    refused: Counter[str] = field(default_factory=Counter)
    """By reason."""
    different: list[str] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)
    """Cases that the device cannot run, and what torch says."""
    unseen: list[str] = field(default_factory=list)
    """Cases whose op was not replayed although it may be."""
    ops: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Count) -> Count:
        return Count(
            self.device,
            self.replayed + other.replayed,
            self.refused + other.refused,
            self.different + other.different,
            self.not_run | other.not_run,
            self.unseen + other.unseen,
            self.ops + other.ops,
        )

    def lines(self) -> list[str]:
        """The table."""
        told = [
            f"replays on {self.device}: {sum(self.replayed.values())} the same, {len(self.different)} different, "
            f"{sum(self.refused.values())} drops refused"
        ]
        told += ["  read: " + ", ".join(f"{name} {count}" for name, count in self.replayed.items())]
        told += [f"  refused {count}: {reason}" for reason, count in self.refused.most_common(6)]
        told += [f"  DIFFERENT: {text}" for text in self.different[:5]]
        reasons = Counter(self.not_run.values())
        told += [
            f"  {count} cases do not run here: {reason[:80]}" for reason, count in reasons.most_common(3)
        ]
        names = [f"{name.removeprefix('aten::')} {count}" for name, count in self.ops.most_common()]
        return [*told, f"  {len(names)} ops: " + ", ".join(names[:24]) + (", ..." if len(names) > 24 else "")]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().contiguous().flatten().view(torch.uint8)
    return flat.clone() if flat.device.type == "cpu" else flat.cpu()


def _left(results: list[torch.Tensor], inputs: Tensors) -> list[torch.Tensor]:
    """Results, what autograd has saved for them, and gradients: a tensor for each storage."""
    tensors, nodes, seen = [t.detach() for t in results], [t.grad_fn for t in results], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        saved = [getattr(node, name) for name in dir(node) if name.startswith("_saved_")]
        for value in saved:
            tensors += [
                t.detach() for t in (value if isinstance(value, tuple) else [value]) if torch.is_tensor(t)
            ]
        nodes += [after for after, _ in node.next_functions]
    seeds = [torch.full_like(t, 0.5) for t in results]
    tensors += torch.autograd.grad(results, inputs, seeds)
    mine = {t.untyped_storage()._cdata for t in (*inputs, *seeds)}
    by_storage = {t.untyped_storage()._cdata: t for t in reversed(tensors) if t.numel()}
    return [t for address, t in by_storage.items() if address not in mine and core.residency(t) is not None]


def _try(case: Case, setting: Setting, reader: str, device: torch.device, sizes: Sizes, count: Count) -> None:
    generator = torch.Generator().manual_seed(1)
    inputs = tuple(
        torch.randn(shape, generator=generator).to(device, setting.dtype).requires_grad_()
        for shape in case.shapes(sizes)
    )
    with setting(device):
        try:
            out = case.call(*inputs)
        except RuntimeError as error:
            count.not_run[f"{case.name}, {setting}"] = str(error).splitlines()[0]
            return
        left = _left([out] if torch.is_tensor(out) else list(out), inputs)
    del out
    first = [_bits(tensor) for tensor in left]
    reasons = [core.drop(tensor) for tensor in left]
    count.refused.update(reason for reason in reasons if reason)
    dropped = [(t, f) for t, f, reason in zip(left, first, reasons, strict=True) if not reason]
    rubbish = [torch.full((len(bits),), 0x5A, dtype=torch.uint8, device=device) for _, bits in dropped]
    del rubbish
    with setting.other(device):
        read = lambda: [_bits(tensor) for tensor, _ in dropped]  # noqa: E731
        try:
            again = readers(device)[reader](read, device)
        except RuntimeError:
            if reader != "without room":
                raise
            count.refused["there was no room for the replay, until there was more"] += 1
            core.of().take_failure()
            again = read()
    same = [torch.equal(bits, before) for bits, (_, before) in zip(again, dropped, strict=True)]
    count.replayed[reader] += sum(same)
    count.different += [
        f"{case.name}, {setting}, {reader}: {tuple(tensor.shape)} {_short(tensor.dtype)}"
        for (tensor, _), equal in zip(dropped, same, strict=True)
        if not equal
    ]


def _replayed_ops(session: cl.Session) -> Counter[str]:
    names = core.op_names()
    return Counter(names[name] for name in core.of(session.device).end_step().replays()["name"].tolist())


def count_replays(session_device: str, sizes: Sizes, cases: tuple[Case, ...] = CASES) -> Count:
    """Run all cases under all settings with all readers, in one session."""
    count = Count(session_device)
    with (
        cl.Session("2GiB", device=session_device, min_swap=512, rematerialize="trusting") as session,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # attention says at length why a back-end does not run
        device = core.tensor_device(session.device)
        core.of(session.device).keep_producers(True)
        not_replayed = session.report().not_replayed
        for case, setting in product(cases, SETTINGS):
            seen: Counter[str] = Counter()
            for reader in readers(device):
                _try(case, setting, reader, device, sizes, count)
                seen += _replayed_ops(session)
            count.ops += seen
            label = f"{case.name}, {setting}"
            op = case.op + "_for_cpu" if device.type == "cpu" and "flash" in case.op else case.op
            runs = label not in count.not_run
            if runs and not seen[op] and _short(setting.amp or setting.dtype) not in not_replayed.get(op, ""):
                count.unseen.append(f"{label}: {op} was not replayed, but {dict(seen)}")
    return count
