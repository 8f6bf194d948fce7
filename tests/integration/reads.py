"""Every way to read a tensor that is not on the device, all of them in one child process."""

from __future__ import annotations

from collections.abc import Collection

from training import child

# Each reads or copies the away tensor x (float32, 1 MiB, x[i] = i) and gives a tensor, array or list equal to it.
READS = {
    "item": "[x[n].item() for n in range(0, N, 5000)]; want = want[::5000]",
    "tolist": "x.tolist()",
    "numpy": "x.numpy()",
    "asarray": "np.asarray(x)",
    "array": "np.array(x)",
    "iteration": "[float(v) for v in x[:50]]; want = want[:50]",
    "print": "[float(v) for v in str(x[:6].long()).strip('tensor([])').split(',')]; print(x, repr(x)); want = want[:6]",
    "format": "[float(f'{x[3]:.1f}')]; want = want[3:4]",
    "pickle": "pickle.loads(pickle.dumps(x))",
    "pickle typed storage": "pickle.loads(pickle.dumps(x.storage())).tolist()",
    "deepcopy": "copy.deepcopy(x)",
    "copy": "copy.copy(x)",
    "deepcopy parameter": "copy.deepcopy(torch.nn.Parameter(x)).detach()",
    "save": "save_and_load(x)",
    "save a view": "save_and_load(x[10:20]); want = want[10:20]",
    "save without zip": "save_and_load(x, _use_new_zipfile_serialization=False)",
    "state dict": "save_and_load({'w': x})['w']",
    "storage clone": "floats_of(x.untyped_storage().clone())",
    "storage index": "as_floats([x.untyped_storage()[n] for n in range(400)]); want = want[:100]",
    "typed storage": "[x.storage()[n] for n in range(90)]; want = want[:90]",
    "dlpack to torch": "torch.from_dlpack(x)",
    "dlpack capsule": "torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))",
    "dlpack to numpy": "np.from_dlpack(x)",
    "share_memory_": "x.share_memory_()",
    "share_memory_ storage": "(x.untyped_storage().share_memory_(), x)[1]",
    "data_ptr": "floats_at(x.data_ptr(), N)",
    "view's data_ptr": "floats_at(x[5:].data_ptr(), 9); want = want[5:14]",
    "storage data_ptr": "floats_at(x.untyped_storage().data_ptr(), N)",
    "set_ tensor": "torch.empty(0).set_(x)",
    "set_ storage": "torch.empty(0).set_(x.untyped_storage(), 0, (N,), (1,))",
    "resize_": "x.resize_(N // 2); want = want[:N // 2]",
    "resize_ larger": "x.resize_(2 * N)[:N]",
    "storage resize_": "(x.untyped_storage().resize_(8 * N), x)[1]",
    "lazy clone": "torch._lazy_clone(x)",
    "lazy clone's source": "(torch._lazy_clone(x), x)[1]",
    "lazy clone's source by DLPack": "(torch._lazy_clone(x), np.from_dlpack(x))[1]",
    "data": "x.data",
    "data assignment": "torch.empty(0); got.data = x",
    "swap_tensors": "torch.zeros(1); torch.utils.swap_tensors(got, x)",
    "dtype view": "x.view(torch.int32).view(torch.float32)",
    "as_strided": "x.as_strided((N,), (1,))",
    "new tensor": "torch.tensor(x)",
    "index": "torch.zeros(N)[:0]; got = torch.arange(N).float()[x.long()]",
    "index op": "torch.ops.aten.index.Tensor(torch.arange(N).float(), [x.long()])",
    "vmap": "torch.vmap(lambda row: row * 1)(x.view(64, -1)).flatten()",
    "jvp": "torch.func.jvp(lambda t: t * 1, (x,), (x,))[1]",
    "inference mode": "in_inference(x)",
    "out=": "torch.mul(x, 1, out=torch.empty(N))",
    "custom function": "Same.apply(x)",
    "custom op through numpy": "torch.ops.chameleon_test.same(x)",
    "multiprocessing queue": "through_queue(x)",
    "buffer file": "to_file(x)",
    "hash": "(hash(x), x.is_shared(), x.is_pinned(), x.untyped_storage().nbytes(), x)[-1]",
}

PRELUDE = """
    import copy, pickle, tempfile
    N = MiB // 4
    def save_and_load(x, **kwargs):
        file = io.BytesIO()
        torch.save(x, file, **kwargs)
        file.seek(0)
        return torch.load(file)
    def as_floats(numbers):
        return np.array(numbers, dtype=np.uint8).view(np.float32)
    def floats_of(storage):
        return torch.empty(0).set_(storage, 0, (N,), (1,)).clone()
    def floats_at(address, count):
        return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address)).copy()
    def in_inference(x):
        with torch.inference_mode():
            return x * 1
    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return torch.from_numpy(x.detach().numpy().copy())
    @torch.library.custom_op("chameleon_test::same", mutates_args=())
    def same(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.numpy().copy())
    def through_queue(x):
        import torch.multiprocessing as mp
        queue = mp.get_context("fork").SimpleQueue()
        queue.put(x)
        return queue.get()
    def to_file(x):
        with tempfile.NamedTemporaryFile() as file:
            x.untyped_storage()._write_file(file, True, False, 1)
            file.flush()
            return np.fromfile(file.name, dtype=np.float32)
"""


def every_read(away: str, pressure_mib: int, skip: Collection[str] = ()) -> None:
    """Each read finds the right bytes, and what it handed out stays right under pressure.

    Args:
        away: the statement that sends ``x`` away, or asserts that it went.
        pressure_mib: memory that is then asked for.
        skip: names of reads that are left out.

    All run in one child: what crashes is named by the last line that it printed.
    """
    chosen = {name: code for name, code in READS.items() if name not in skip}
    cases = "\n".join(f"    cases[{name!r}] = {code!r}" for name, code in chosen.items())
    done = child(
        PRELUDE
        + f"""
    from chameleon_lab.runtime import core
    cases = {{}}
{cases}
    wrong = []
    for name, code in cases.items():
        with cl.Session("16MiB") as session:
            core.of().keep_producers(True)
            print(name, flush=True)
            x = torch.arange(N, dtype=torch.float32)
            want = np.arange(N, dtype=np.float32)
            x.sum()
            {away}
            scope = dict(globals(), x=x, want=want)
            first, _, rest = code.partition("; ")
            try:
                exec(f"got = {{first}}", scope)
                exec(rest, scope)
                got, want = scope["got"], scope["want"]
                got = got.detach().numpy() if isinstance(got, torch.Tensor) else np.asarray(got, dtype=np.float32)
                if not np.array_equal(got, want):
                    wrong.append((name, "read wrong values"))
                # Whatever was handed out must stay the tensor's bytes, or a copy, under pressure.
                pressure(session, {pressure_mib})
                if not np.array_equal(got, want):
                    wrong.append((name, "wrong values after pressure"))
            except Exception as error:
                wrong.append((name, f"{{type(error).__name__}}: {{error}}"[:300]))
            scope = x = got = None
    assert not wrong, wrong
    """
    )
    assert len(done.stdout.splitlines()) >= len(chosen)


# Of C++ that asks for an address outside of any op: torch's stable C interface does so as it does.
CPP_POINTER = """
    torch_library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    ctypes.pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
    ctypes.pythonapi.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    ctypes.pythonapi.PyCapsule_GetName.restype = ctypes.c_char_p
    ctypes.pythonapi.PyCapsule_GetName.argtypes = [ctypes.py_object]

    def address_in_cpp(tensor):
        (capsule,) = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors([tensor])
        handle = ctypes.pythonapi.PyCapsule_GetPointer(capsule, ctypes.pythonapi.PyCapsule_GetName(capsule))
        address = ctypes.c_void_p()
        failed = torch_library.aoti_torch_get_data_ptr(ctypes.c_void_p(handle), ctypes.byref(address))
        assert not failed
        return address.value
"""
