"""Ways around the dispatcher, and things that autograd, compilers and subclasses do with tensors behind its back.

Each way makes its own tensors and returns what it found out. It is a case of its own, so that a crash names it.
"""

from __future__ import annotations

import copy
import ctypes
import io
import pickle
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from .cases import Cases
from .compare import attempt, seed_all
from .forced import compare
from .outcome import Outcome
from .pool import ROOT, Options

Way = Callable[[], Any]
_WAYS: Cases[Way] = Cases()
way = _WAYS.named  # slow: those that compile, or train long


def cases(options: Options) -> list[str]:
    """A case is a way."""
    return _WAYS.names(options)


def check(case: str, options: Options) -> Outcome:
    """Once without Chameleon Lab, and twice with it."""
    outcome = Outcome(case)

    def run() -> list[tuple[bool, Any]]:
        seed_all(options.seed)
        return [attempt(_WAYS[case])]

    compare(outcome, case, run, options.seed, sure=True)
    return outcome


def _x(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (64, 40)))


def _busy() -> None:
    """Ops on other tensors, so that what may leave has left."""
    held = [torch.full((5000,), float(k)) for k in range(6)]
    for block in held:
        block.add_(1)


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(40, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8))


def _gradients(module: nn.Module) -> list[torch.Tensor | None]:
    return [p.grad for p in module.parameters()]


# ---------------------------------------------------------------------------------- raw pointers, and their copies


@way("tolist")
def _tolist() -> Any:
    x = _x()
    return x.tolist(), x[3].tolist(), x.long().tolist(), x.double().t().tolist()


@way("item, bool, float, int, index")
def _scalars() -> Any:
    x = _x()
    return x[1, 2].item(), bool(x[0, 0] > 0), float(x[2, 2]), int(x[3, 3]), [1, 2, 3][torch.tensor(1)]


@way("repr and format")
def _repr() -> Any:
    x = _x()
    return repr(x), f"{x[0, 0]:.3f}", str(x[:2])


@way("iteration, len, contains, reversed")
def _iteration() -> Any:
    x = _x()
    return [row.sum() for row in x], len(x), 5.0 in x, list(reversed(x[:3]))


@way("data_ptr with ctypes, read and write")
def _ctypes() -> Any:
    x = _x()
    array = (ctypes.c_float * x.numel()).from_address(x.data_ptr())
    _busy()
    array[7] = 70.0
    _busy()
    x[1] += 1
    _busy()
    return x, list(array)


@way("data_ptr of a view")
def _view_pointer() -> Any:
    x = _x()
    part = x[5:, 3]
    address = part.data_ptr()
    _busy()
    stride = part.stride(0) * 4
    return [ctypes.c_float.from_address(address + k * stride).value for k in range(len(part))]


@way("untyped_storage().data_ptr")
def _storage_pointer() -> Any:
    x = _x()
    address = x.untyped_storage().data_ptr()
    _busy()
    return list((ctypes.c_float * 9).from_address(address))


@way("storage bytes: index, tolist, iteration, setitem")
def _storage_bytes() -> Any:
    storage = _x(30).untyped_storage()
    first = storage[0], storage.tolist(), list(storage)[:9]
    storage[3] = 64
    _busy()
    return first, storage.tolist(), bytes(storage)[:8]


@way("typed storage")
def _typed_storage() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        storage = _x(30).storage()
        return storage[2], storage.tolist(), storage.double().tolist()


@way("storage clone, copy_, fill_, resize_")
def _storage_ops() -> Any:
    x, y = _x(), _x()
    storage = x.untyped_storage()
    copied = torch.empty(0).set_(storage.clone(), 0, (64, 40), (40, 1))
    storage.copy_(y.untyped_storage())
    _busy()
    kept = x.clone()
    storage.fill_(0)
    storage.resize_(8 * 64 * 40)
    return copied, kept, x


@way("storage new_shared, share_memory_")
def _shared() -> Any:
    x = _x()
    x.share_memory_()
    _busy()
    x.add_(1)
    return x, x.is_shared()


@way("is_shared, is_pinned, nbytes, hash")
def _questions() -> Any:
    x = _x()
    return x.is_shared(), x.is_pinned(), x.nbytes, x.untyped_storage().nbytes(), isinstance(hash(x), int)


@way("storage write_file")
def _write_file() -> Any:
    with tempfile.NamedTemporaryFile() as file:
        _x(30).untyped_storage()._write_file(file, True, False, 1)
        file.flush()
        return Path(file.name).read_bytes()


@way("numpy, both ways")
def _numpy() -> Any:
    x = _x()
    view = x.numpy()
    _busy()
    view[0] = 5
    _busy()
    x[1] = 6
    _busy()
    return x, view.copy()


@way("numpy of views, force, conj, asarray, array, buffer")
def _numpy_more() -> Any:
    x = _x()
    z = torch.complex(x, x).conj()
    found = [x.t().numpy(), x[::2].numpy(), z.numpy(force=True), np.asarray(x), np.array(x)]
    return [array.copy() for array in [*found, np.abs(np.asarray(x))]]


@way("numpy ufunc and matmul on tensors")
def _ufunc() -> Any:
    x = _x()
    return np.add(x.numpy(), 1), np.dot(x.numpy(), x.t().numpy()), np.mean(x.numpy())


@way("from_numpy and torch.as_tensor share memory")
def _from_numpy() -> Any:
    array = np.arange(500.0)
    a, b = torch.from_numpy(array), torch.as_tensor(array)
    a.add_(1)
    _busy()
    array[3] = 7
    return a, b, torch.frombuffer(bytearray(b"12345678" * 40), dtype=torch.float32) * 1


@way("DLPack to numpy and back")
def _dlpack() -> Any:
    x = _x()
    array = np.from_dlpack(x)
    y = torch.from_dlpack(x)
    _busy()
    y[0] = 3
    _busy()
    return x, array.copy(), torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x[2:])) * 1


@way("pickle: tensor, parameter, storage, view, module")
def _pickle() -> Any:
    x = _x()
    model = _net()
    things = (x, nn.Parameter(x), x[3:, 2:], x.t(), x.untyped_storage().clone().tolist()[:5], model)
    back = pickle.loads(pickle.dumps(things))
    return back[:5], list(back[5].state_dict().values())


@way("copy, deepcopy, of models and graphs")
def _deepcopy() -> Any:
    x, model = _x(), _net()
    shallow, deep = copy.copy(x), copy.deepcopy(x)
    twin = copy.deepcopy(model)
    twin(x).sum().backward()
    again = copy.deepcopy(twin)  # with gradients
    shallow.add_(1)
    return x, deep, _gradients(again)


@way("torch.save and torch.load, zip, legacy, mmap")
def _save() -> Any:
    x = {"a": _x(), "net": _net().state_dict()}
    x["view"] = x["a"][3:, 1]
    found = []
    for zipped in (True, False):
        file = io.BytesIO()
        torch.save(x, file, _use_new_zipfile_serialization=zipped)
        file.seek(0)
        found.append(torch.load(file))
    with tempfile.TemporaryDirectory() as folder:
        torch.save(x, f"{folder}/t.pt")
        mapped = torch.load(f"{folder}/t.pt", mmap=True)
        found.append({name: value * 1 for name, value in mapped.items() if name != "net"})
    return found


@way("safetensors")
def _safetensors() -> Any:
    from safetensors.torch import load, load_file, save, save_file

    x = {"a": _x(), "b": _x(9).bfloat16()}
    with tempfile.TemporaryDirectory() as folder:
        save_file(x, f"{folder}/t.safetensors")
        back = load_file(f"{folder}/t.safetensors"), load(save(x))
    return [dict(sorted(found.items())) for found in back]  # theirs have any order


@way("multiprocessing queue")
def _queue() -> Any:
    import torch.multiprocessing as mp

    queue = mp.get_context("fork").SimpleQueue()
    x = _x()
    queue.put(x)
    y = queue.get()
    y[0] = 5
    _busy()
    return x, y * 1


@way("copy on write")
def _copy_on_write() -> Any:
    x = _x()
    y, z = torch._lazy_clone(x), torch._lazy_clone(x)
    _busy()
    x[0] = 1
    y[0] = 2
    _busy()
    return x, y, z, z.numpy().copy()


@way("set_, resize_, swap_tensors, data assignment")
def _set() -> Any:
    x, y = _x(), _x()
    a = torch.empty(0).set_(x)
    b = torch.empty(0).set_(x.untyped_storage(), 5, (10, 3), (3, 1))
    c = torch.empty(0)
    c.data = y
    x.resize_(10, 40)
    torch.utils.swap_tensors(x, y)
    _busy()
    x.mul_(2)
    return x, y, a, b, c


@way("data games: data, detach_, data of a parameter, data swapped in training")
def _data_games() -> Any:
    model, x = _net(), _x()
    model(x).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data.mul_(0.5)
            parameter.data = parameter.data.clone().add_(1)
            parameter.grad.data.zero_()
    _busy()
    out = model(x)
    model[0].weight.data = torch.zeros_like(model[0].weight)
    return out.detach_(), list(model.state_dict().values()), _gradients(model)


@way("apply_, map_, map2_")
def _apply() -> Any:
    x, y = _x(9, 9), _x(9, 9)
    x.apply_(lambda value: value + 1)
    x.map_(y, lambda a, b: a * b)
    return x


@way("torch.tensor, asarray, as_tensor, new_tensor of tensors and lists of them")
def _constructors() -> Any:
    x = _x(9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.tensor(x), torch.tensor([x[0], x[1]]), torch.asarray(x) * 1, x.new_tensor([1.0, 2.0])


@way("index with tensors, lists, masks; setitem")
def _indexing() -> Any:
    x, index = _x(), torch.tensor([3, 1, 2])
    found = [x[index], x[index, index], x[x > 0], x[[1, 2]], x[index.tolist()], x[None, ..., index]]
    x[index] = 0
    x[x > 1] = 9
    x[:, index] += 1
    return found, x


@way("out= arguments")
def _out() -> Any:
    x, out, index = _x(), torch.empty(0), torch.empty(0, dtype=torch.long)
    torch.add(x, 1, out=out)
    values = torch.empty(0)
    torch.max(x, 1, out=(values, index))
    torch.mm(x, x.t(), out=x.new_empty(64, 64))
    return out, values, index


@way("random generators and their states")
def _generators() -> Any:
    generator = torch.Generator().manual_seed(3)
    state = generator.get_state()
    first = torch.randn(50, generator=generator)
    generator.set_state(state)
    kept = torch.get_rng_state()
    drawn = torch.rand(40)
    torch.set_rng_state(kept)
    return first, torch.randn(50, generator=generator), drawn, torch.rand(40), torch.randperm(400)


# ------------------------------------------------------------------------------------------------ C++ and compilers


_SOURCE = """
#include <torch/extension.h>
using at::Tensor;

// None of these is a dispatcher op: they are called straight from Python.
double read_const(const Tensor& t) {
  const float* p = t.const_data_ptr<float>();
  double sum = 0;
  for (int64_t i = 0; i < t.numel(); ++i) sum += p[i];
  return sum;
}
double read_storage_const(const Tensor& t) {
  const float* p = static_cast<const float*>(t.storage().data());
  double sum = 0;
  for (size_t i = 0; i < t.storage().nbytes() / 4; ++i) sum += p[i];
  return sum;
}
double read_accessor(const Tensor& t) {
  auto a = t.accessor<const float, 2>();
  double sum = 0;
  for (int64_t i = 0; i < a.size(0); ++i)
    for (int64_t j = 0; j < a.size(1); ++j) sum += a[i][j];
  return sum;
}
void write_mutable(const Tensor& t) { t.mutable_data_ptr<float>()[1] = 11; t.data_ptr<float>()[2] = 12; }
void write_accessor(const Tensor& t) { t.accessor<float, 2>()[1][1] = 13; }
Tensor native(const Tensor& t) {
  Tensor out = at::empty_like(t);
  std::memcpy(out.mutable_data_ptr(), t.const_data_ptr(), t.nbytes());
  return out;
}
Tensor blob(const Tensor& t) {  // keeps the tensor alive, and its address
  return torch::from_blob(t.data_ptr(), t.sizes(), [t](void*) {}, t.options()).mul_(2);
}

Tensor twice_cpu(const Tensor& t) {
  Tensor out = at::empty_like(t);
  const float* p = t.const_data_ptr<float>();
  float* q = out.mutable_data_ptr<float>();
  for (int64_t i = 0; i < t.numel(); ++i) q[i] = 2 * p[i];
  return out;
}
Tensor& add_one_cpu(Tensor& t) {
  float* p = t.mutable_data_ptr<float>();
  for (int64_t i = 0; i < t.numel(); ++i) p[i] += 1;
  return t;
}
struct Square : torch::autograd::Function<Square> {
  static Tensor forward(torch::autograd::AutogradContext* c, Tensor t) {
    c->save_for_backward({t});
    Tensor out = at::empty_like(t);
    const float* p = t.const_data_ptr<float>();
    for (int64_t i = 0; i < t.numel(); ++i) out.mutable_data_ptr<float>()[i] = p[i] * p[i];
    return out;
  }
  static std::vector<Tensor> backward(torch::autograd::AutogradContext* c, std::vector<Tensor> g) {
    Tensor t = c->get_saved_variables()[0];
    Tensor out = at::empty_like(t);
    const float* p = t.const_data_ptr<float>();
    Tensor given = g[0].contiguous();
    const float* s = given.const_data_ptr<float>();
    for (int64_t i = 0; i < t.numel(); ++i) out.mutable_data_ptr<float>()[i] = 2 * p[i] * s[i];
    return {out};
  }
};
Tensor square(Tensor t) { return Square::apply(t); }

TORCH_LIBRARY(chameleon_torture, m) {
  m.def("twice(Tensor t) -> Tensor");
  m.def("add_one_(Tensor(a!) t) -> Tensor(a!)");
}
TORCH_LIBRARY_IMPL(chameleon_torture, CPU, m) {
  m.impl("twice", twice_cpu);
  m.impl("add_one_", add_one_cpu);
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("read_const", read_const);
  m.def("read_storage_const", read_storage_const);
  m.def("read_accessor", read_accessor);
  m.def("write_mutable", write_mutable);
  m.def("write_accessor", write_accessor);
  m.def("native", native);
  m.def("blob", blob);
  m.def("square", square);
}
"""


def _extension() -> Any:
    from torch.utils.cpp_extension import load

    folder = ROOT / "build" / "torture_extension"
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "extension.cpp"
    if not source.exists() or source.read_text() != _SOURCE:
        source.write_text(_SOURCE)
    return load("chameleon_torture", [str(source)], build_directory=str(folder), extra_cflags=["-O1"])


@way("C++: const pointers outside of ops", slow=True)
def _const_pointers() -> Any:
    cpp, x = _extension(), _x()
    found = [cpp.read_const(x), cpp.read_storage_const(x), cpp.read_accessor(x)]
    x.add_(1)
    _busy()
    again = [cpp.read_const(x), cpp.read_storage_const(x), cpp.read_accessor(x)]
    large = _x(600, 700)
    _busy()
    return found, again, cpp.read_const(large), large.sum()


@way("C++: mutable pointers and accessors outside of ops", slow=True)
def _mutable_pointers() -> Any:
    cpp, x = _extension(), _x()
    cpp.write_mutable(x)
    _busy()
    cpp.write_accessor(x)
    _busy()
    return x, cpp.native(x), cpp.blob(x), x


@way("C++: custom ops of the dispatcher", slow=True)
def _custom_cpp_ops() -> Any:
    _extension()
    x = _x()
    torch.ops.chameleon_torture.add_one_(x)
    return torch.ops.chameleon_torture.twice(x), x


@way("C++: custom autograd function", slow=True)
def _custom_cpp_function() -> Any:
    cpp, x = _extension(), _x().requires_grad_()
    out = cpp.square(x)
    _busy()
    out.sum().backward()
    return out, x.grad


@way("custom op in Python, through numpy")
def _custom_op() -> Any:
    if not hasattr(torch.ops.chameleon_torture_py, "flip"):

        @torch.library.custom_op("chameleon_torture_py::flip", mutates_args=())
        def flip(x: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(x.numpy()[::-1].copy())

        @torch.library.custom_op("chameleon_torture_py::bump", mutates_args=("x",))
        def bump(x: torch.Tensor) -> None:
            x.numpy()[:] += 1

    x = _x()
    torch.ops.chameleon_torture_py.bump(x)
    return torch.ops.chameleon_torture_py.flip(x), x


def _compiled(backend: str) -> Any:
    torch._dynamo.reset()
    model, x = _net(), _x()
    compiled = torch.compile(model, backend=backend)
    for _ in range(2):
        compiled(x).pow(2).sum().backward()
    return compiled(x), _gradients(model)


@way("torch.compile, eager backend")
def _compile_eager() -> Any:
    return _compiled("eager")


@way("torch.compile, aot_eager backend")
def _compile_aot() -> Any:
    return _compiled("aot_eager")


@way("torch.compile, inductor", slow=True)
def _compile_inductor() -> Any:
    return _compiled("inductor")


@way("torch.jit trace and script")
def _jit() -> Any:
    model, x = _net(), _x()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced, scripted = torch.jit.trace(model, x), torch.jit.script(model)
        return traced(x), traced(x), scripted(x), scripted(x)


@way("make_fx and export")
def _fx() -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    model, x = _net(), _x()
    graph = make_fx(lambda t: model(t).tanh())(x)
    program = torch.export.export(model, (x,))
    return graph(x), program.module()(x)


# --------------------------------------------------------------------------------------------------------- autograd


class _Numpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(x, y)
        ctx.plain = x.detach()  # stashed without autograd knowing
        return torch.from_numpy(np.sin(x.detach().numpy())), (x * y)

    @staticmethod
    def backward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = ctx.saved_tensors
        return a * torch.from_numpy(np.cos(ctx.plain.numpy())) + b * y, b * x


@way("custom autograd function, with numpy and a stash")
def _custom_function() -> Any:
    x, y = _x().requires_grad_(), _x().requires_grad_()
    a, b = _Numpy.apply(x, y)
    _busy()
    (a.sum() + b.pow(2).sum()).backward()
    return a, b, x.grad, y.grad


@way("double backward")
def _double_backward() -> Any:
    model, x = _net(), _x().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).pow(2).sum(), x, create_graph=True)
    _busy()
    gradient.pow(2).sum().backward()
    return gradient, x.grad, _gradients(model)


@way("retain_graph, several backwards, accumulation")
def _retain() -> Any:
    model, x = _net(), _x()
    loss = model(x).pow(2).sum()
    for _ in range(3):
        loss.backward(retain_graph=True)
        _busy()
    model(x).sum().backward()
    return _gradients(model)


@way("hooks that stash tensors")
def _hooks() -> Any:
    model, x = _net(), _x().requires_grad_()
    stash: list[torch.Tensor] = []
    model[1].register_forward_hook(lambda module, args, out: stash.extend((args[0], out)))
    model[0].register_full_backward_hook(lambda module, into, out: stash.extend(t for t in out))
    x.register_hook(lambda gradient: stash.append(gradient))
    model[0].weight.register_post_accumulate_grad_hook(lambda p: stash.append(p.grad))
    out = model(x)
    out.grad_fn.register_hook(lambda into, out: stash.extend(t for t in into if t is not None))
    out.sum().backward()
    _busy()
    return stash, _gradients(model)


@way("saved_tensors_hooks: numpy, pickle, save_on_cpu")
def _saved_hooks() -> Any:
    model, x = _net(), _x()
    hooks = torch.autograd.graph.saved_tensors_hooks
    found = []
    for context in (
        hooks(lambda t: t.detach().numpy().copy(), torch.from_numpy),
        hooks(lambda t: pickle.dumps(t.detach()), pickle.loads),
        torch.autograd.graph.save_on_cpu(),
    ):
        with context:
            loss = model(x).pow(2).sum()
        loss.backward()
        found.append([g.clone() for g in _gradients(model)])
    return found


@way("checkpointing, both kinds")
def _checkpoint() -> Any:
    from torch.utils.checkpoint import checkpoint

    model, x = _net(), _x().requires_grad_()
    for reentrant in (True, False):
        checkpoint(lambda t: F.dropout(model(t), 0.3), x, use_reentrant=reentrant).sum().backward()
    return x.grad, _gradients(model)


@way("in-place on views and bases, with and without gradients")
def _views() -> Any:
    base = _x().requires_grad_()
    work = base * 1
    left, right = work.split(20, dim=1)
    work[3:9, 2] = 5
    work.view(-1)[::7].mul_(2)
    work.t()[0].add_(work[0, 0])
    with torch.no_grad():
        base[0].zero_()
    _busy()
    work.sum().backward()
    return work, left, right, base.grad, base


@way("weight tying and shared storages")
def _tied() -> Any:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(60, 40)
            self.head = nn.Linear(40, 60, bias=False)
            self.head.weight = self.embed.weight
            self.register_buffer("alias", self.embed.weight.detach()[5:10])

        def forward(self, index: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(index)) + self.alias.sum()

    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.arange(50)).pow(2).mean().backward()
        optimizer.step()
    return list(model.state_dict().values()), _gradients(model)


@way("no_grad, inference_mode, set_grad_enabled")
def _modes() -> Any:
    model, x = _net(), _x()
    with torch.inference_mode():
        a = model(x)
        a.add_(1)
    with torch.no_grad():
        b = model(x)
        model[0].weight.mul_(0.5)
    with torch.set_grad_enabled(False):
        c = model(a.clone()[:, :1].expand(64, 40))
    return a.clone(), b, c


@way("autocast and its weight cache")
def _autocast() -> Any:
    model, x = _net(), _x()
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x) + model(x)
    out.float().sum().backward()
    return out, _gradients(model)


@way("forward-mode AD")
def _forward_mode() -> Any:
    import torch.autograd.forward_ad as fwad

    model, x, tangent = _net(), _x(), _x()
    with fwad.dual_level():
        out = fwad.unpack_dual(model(fwad.make_dual(x, tangent)))
        _busy()
        return out.primal.clone(), out.tangent.clone()


@way("torch.func: grad, vjp, jvp, jacrev, jacfwd, hessian, vmap, linearize")
def _functions() -> Any:
    model, x = _net(), _x(5, 40)
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(w: Any, row: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, w, (row,)).pow(2).sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, x)
    out, pull = torch.func.vjp(lambda t: model(t), x)
    pushed, linear = torch.func.linearize(lambda t: model(t), x)
    _busy()
    return (
        each,
        pull(torch.ones_like(out)),
        torch.func.jvp(lambda t: model(t), (x,), (x,)),
        torch.func.jacrev(lambda t: model(t).sum(0))(x),
        torch.func.jacfwd(lambda t: model(t).sum(0))(x),
        torch.func.hessian(lambda t: model(t).pow(2).sum())(x[0]),
        linear(x),
    )


@way("torch.func: functionalize, vmap with randomness and in-place")
def _functionalize() -> Any:
    x = _x()
    return (
        torch.func.functionalize(lambda t: t.clone().add_(1).view(-1)[3:])(x),
        torch.vmap(lambda row: row + torch.rand(40), randomness="different")(x),
        torch.vmap(lambda row: row.clone().mul_(2))(x),
    )


@way("autograd.functional, gradcheck")
def _autograd_functional() -> Any:
    x = _x(4, 5).double().requires_grad_()
    check = torch.autograd.gradcheck(lambda t: t.sin().pow(2), (x,))
    return check, torch.autograd.functional.hessian(lambda t: t.pow(3).sum(), x)


@way("anomaly mode and the profiler")
def _anomaly() -> Any:
    model, x = _net(), _x()
    with torch.autograd.detect_anomaly(check_nan=True), torch.profiler.profile(profile_memory=True):
        model(x).sum().backward()
    return _gradients(model)


# --------------------------------------------------------------------------------- layouts, subclasses, quantization


@way("sparse COO")
def _coo() -> Any:
    d = _x(50, 50).requires_grad_()
    x = torch.eye(50).to_sparse() * 2
    twice = torch.sparse_coo_tensor(torch.arange(60)[None] % 30, _x(60, 8), (30, 8))
    out = torch.sparse.mm(x, d)
    out.sum().backward()
    _busy()
    return x, x.coalesce(), twice.coalesce(), twice.to_dense(), (x + x), torch.sparse.sum(x, 0), out, d.grad


@way("sparse gradients")
def _sparse_gradients() -> Any:
    table = nn.Embedding(90, 16, sparse=True)
    optimizer = torch.optim.SparseAdam(list(table.parameters()), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        table(torch.arange(100) % 37).pow(2).sum().backward()
        optimizer.step()
    return table.weight, table.weight.grad


@way("sparse CSR, CSC, BSR, BSC")
def _csr() -> Any:
    d = _x(48, 48)
    found = [d.to_sparse_csr(), d.to_sparse_csc(), d.to_sparse_bsr((4, 4)), d.to_sparse_bsc((4, 4))]
    _busy()
    return found, [x.to_dense() for x in found], found[0] @ d, (found[0] + found[0]).to_dense()


@way("nested tensors, strided")
def _nested() -> Any:
    parts = [_x(30, 16), _x(20, 16)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = torch.nested.nested_tensor(parts)
        _busy()
        return x.to_padded_tensor(0.0), F.softmax(x, -1).to_padded_tensor(0.0), (x * 2).unbind()


@way("nested tensors, jagged")
def _jagged() -> Any:
    x = torch.nested.nested_tensor([_x(30, 16), _x(20, 16)], layout=torch.jagged, requires_grad=True)
    layer = nn.Linear(16, 16)
    out = F.gelu(layer(x))
    _busy()
    out.values().sum().backward()
    return out.values().detach(), out.offsets(), _gradients(layer), [p.detach() for p in x.unbind()]


class _Plain(torch.Tensor):
    """A subclass that adds nothing."""


class _Wrapper(torch.Tensor):
    """A wrapper subclass: a shell without memory, and the real tensor inside."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> _Wrapper:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.utils._pytree import tree_map_only

        args, kwargs = tree_map_only(_Wrapper, lambda t: t.inner, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, _Wrapper, func(*args, **kwargs))


@way("tensor subclasses: plain, wrapper, TwoTensor, masked")
def _subclasses() -> Any:
    from torch.testing._internal.two_tensor import TwoTensor

    plain = _x().as_subclass(_Plain)
    wrapped, two = _Wrapper(_x()), TwoTensor(_x(), _x())
    a, b, c = (plain @ plain.t()).tanh(), (wrapped @ wrapped.t()).tanh(), (two * 2).sin()
    _busy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        masked = torch.masked.masked_tensor(_x(), _x() > 0)
        mean = masked.mean().get_data()
    return a.as_subclass(torch.Tensor), b.inner, c.a, c.b, mean


@way("weights that are subclasses, and Module.to that swaps them")
def _swapped_weights() -> Any:
    from torch.testing._internal.two_tensor import TwoTensor

    net = _net()
    net[0].weight = nn.Parameter(TwoTensor(_x(64, 40), _x(64, 40)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            optimizer.state.clear()
            net.zero_grad()
            net.to(dtype)
            for _ in range(2):
                _busy()
                net(_x(16, 40).to(dtype)).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
    return net[0].weight.a, net[0].weight.b, list(net.parameters())[1:]


@way("torch_dispatch and torch_function modes")
def _torch_modes() -> Any:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[torch.Tensor] = []

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                seen.append(out)
            return out

    class Function(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    model, x = _net(), _x()
    with Dispatch(), Function():
        model(x).sum().backward()
    _busy()
    return _gradients(model), [t.detach() * 1 for t in seen if not t.is_inference()]


@way("quantized tensors")
def _quantized() -> Any:
    x = _x(60, 50)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        a = torch.quantize_per_tensor(x, 0.1, 3, torch.qint8)
        b = torch.quantize_per_channel(x, torch.ones(60).double() / 9, torch.zeros(60), 0, torch.qint8)
        _busy()
        return a.dequantize(), b.dequantize(), a.int_repr(), b.q_per_channel_scales(), a[3:], a


@way("dynamically quantized model, packed weights")
def _quantized_model() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.ao.quantization.quantize_dynamic(_net(), {nn.Linear}, dtype=torch.qint8)
        x = _x()
        first = model(x)
        _busy()
        return first, model(x), model[0].weight()


@way("mkldnn tensors")
def _mkldnn() -> Any:
    x = _x()
    packed = x.to_mkldnn()
    _busy()
    return packed.to_dense(), (packed + packed).to_dense()


@way("complex: conj and neg views, view_as_real")
def _complex() -> Any:
    z = torch.complex(_x(), _x())
    c = z.conj()
    imaginary = c.imag
    torch.view_as_real(z)[..., 0].add_(1)
    _busy()
    return c * 2, imaginary, c.resolve_conj(), z.numpy().copy(), (c @ z.t())


@way("dtype views and as_strided")
def _dtype_views() -> Any:
    x = _x()
    whole = x.view(torch.int32)
    strided = x.as_strided((30, 30), (7, 3))
    strided[0, 0] = 4
    _busy()
    return whole, strided, x.view(torch.uint8), x.as_strided_(x.shape, x.stride())


@way("recurrent kernels with hidden buffers")
def _recurrent() -> Any:
    found = []
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        net, x = kind(16, 20, 2, batch_first=True), _x(4, 9, 16).requires_grad_()
        out, state = net(x)
        _busy()
        out.sum().backward()
        found.append((out, state, x.grad, _gradients(net)))
    return found


@way("lazy modules, parametrizations, weight norm, pruning")
def _parametrized() -> Any:
    from torch.nn.utils import parametrizations, parametrize, prune

    lazy, x = nn.LazyLinear(9), _x()
    first = lazy(x)
    net = parametrizations.weight_norm(nn.Linear(40, 30))
    spectral = parametrizations.spectral_norm(nn.Linear(40, 30))
    pruned = prune.l1_unstructured(nn.Linear(40, 30), "weight", 0.5)
    (net(x).sum() + spectral(x).sum() + pruned(x).sum()).backward()
    parametrize.remove_parametrizations(net, "weight")
    return first, net(x), spectral(x), pruned(x), _gradients(net), _gradients(pruned)


@way("batch norm's running statistics")
def _batch_norm() -> Any:
    net, x = nn.BatchNorm1d(40), _x()
    for _ in range(3):
        net(x).sum().backward()
    return list(net.state_dict().values()), net.eval()(x), _gradients(net)


@way("state dicts: aliases, load_state_dict, assign, EMA")
def _state_dicts() -> Any:
    model, x = _net(), _x()
    alias = model.state_dict()
    kept = {name: value.clone() for name, value in alias.items()}
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        average.update_parameters(model)
    other = _net()
    other.load_state_dict(alias)
    third = _net()
    third.load_state_dict(kept, assign=True)
    _busy()
    return alias, kept, other(x), third(x), average(x), optimizer.state_dict()


@way("gradients: assigned, views of a flat buffer, clipped, cleared")
def _gradient_games() -> Any:
    model, x = _net(), _x()
    flat = torch.zeros(sum(p.numel() for p in model.parameters()))
    offset = 0
    for p in model.parameters():
        p.grad = flat[offset : offset + p.numel()].view_as(p)
        offset += p.numel()
    model(x).pow(2).sum().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    nn.utils.clip_grad_value_(model.parameters(), 0.01)
    _busy()
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(vector * 2, model.parameters())
    kept = flat.clone()
    model.zero_grad(set_to_none=False)
    return norm, kept, flat, list(model.parameters())


@way("transformer layers and their fast path")
def _transformer() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        x = _x(3, 10, 32)
        trained = layer(x)
        trained.sum().backward()
        with torch.no_grad():
            return trained, layer.eval()(x), _gradients(layer)


@way("DataLoader, samplers, collate, pinned-less")
def _data_loader() -> Any:
    data = torch.utils.data.TensorDataset(_x(40, 9), torch.arange(40))
    loader = torch.utils.data.DataLoader(data, batch_size=7, shuffle=True)
    return [(a * 2, b) for a, b in loader]


@way("distributions, FFT, linear algebra, sort, unique, histogram")
def _library() -> Any:
    x = _x(20, 20)
    return (
        torch.distributions.Normal(x, x.abs() + 1).sample(),
        torch.fft.fft2(x),
        torch.linalg.svd(x),
        torch.linalg.eigh(x + x.t()),
        torch.linalg.qr(x),
        x.flatten().sort(),
        (x * 2).long().unique(return_inverse=True, return_counts=True),
        torch.histogram(x, 10),
        torch.linalg.lstsq(x, x, driver="gelsd"),  # the default reads memory that nobody wrote
        torch.linalg.solve(x, x),
    )
