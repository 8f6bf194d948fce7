"""Arrays and capsules keep a storage in place while they live, and not longer; a bare address does for good."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import torch
import torch.utils.dlpack
from training import MiB, pressure

import chameleon_lab as cl
from chameleon_lab.runtime import core

N = MiB // 4

pytestmark = pytest.mark.skipif(
    not core.SEES_RAW_ACCESS, reason="before 2.13 what numpy has viewed stays where it is"
)

# What may be made of a tensor, and what holds its pointer then.
HOLDERS = {
    "array": "x.numpy()",
    "array of a view": "x[5:].numpy()",
    "view of an array": "x.numpy()[7:][3:]",
    "asarray": "np.asarray(x)",
    "memoryview": "memoryview(x.numpy())",
    "array of a memoryview": "np.frombuffer(memoryview(x.numpy()), dtype=np.float32)",
    "ctypes array": "(__import__('ctypes').c_float * N).from_buffer(x.numpy())",
    "tensor of an array": "torch.from_numpy(x.numpy())",
    "forced array": "torch.nn.Parameter(x).numpy(force=True)",
    "numpy's DLPack": "np.from_dlpack(x)",
    "torch's DLPack": "torch.from_dlpack(x)",
    "capsule": "x.__dlpack__()",
    "versioned capsule": "x.__dlpack__(max_version=(1, 0))",
    "old capsule": "torch.utils.dlpack.to_dlpack(x)",
    "tensor of a capsule": "torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))",
}


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("away", [False, True])
def test_a_storage_moves_again_when_its_last_holder_has_gone(holder: str, away: bool) -> None:
    with cl.Session("4MiB") as session:
        x = torch.arange(float(N))
        assert not away or session.evict(x)
        held = eval(HOLDERS[holder], globals() | {"x": x})
        second = eval(HOLDERS[holder], globals() | {"x": x})
        assert session.counters()["escaped"] == 1
        pressure(session, 8)
        assert not session.evict(x) and session.where(x) == "resident"
        del held
        assert not session.evict(x)
        if isinstance(second, np.ndarray | torch.Tensor):
            second[0] = 77
            assert second.shape[0] == N or "view" in holder
        del second
        gc.collect()
        assert session.counters()["escaped"] == session.counters()["escaped_bytes"] == 0
        assert session.evict(x) and session.where(x) == "away"
        pressure(session, 8)
        assert x[-1].item() == N - 1 and x[20].item() == 20


def test_what_a_holder_wrote_is_there_after_the_storage_has_moved() -> None:
    """Also where the host had a good copy of what was there before."""
    with cl.Session("4MiB") as session:
        x = torch.zeros(N)
        for value in range(1, 5):
            assert session.evict(x)
            assert x.sum().item() == N * (value - 1)  # a read: the host copy stays good
            view = x.numpy() if value % 2 else np.asarray(torch.from_dlpack(x))
            view[:] = value
            del view
        assert session.evict(x) and x.sum().item() == 4 * N


def test_a_pointer_taken_while_an_array_lives_is_kept_for_good() -> None:
    with cl.Session("4MiB") as session:
        x = torch.zeros(N)
        view = x.numpy()
        address = x.data_ptr()
        del view
        pressure(session, 8)
        assert not session.evict(x) and x.data_ptr() == address


@pytest.mark.parametrize(
    "take", ["x.numpy().ctypes.data", "memoryview(x.numpy()).obj.ctypes.data", "x.data_ptr()"]
)
def test_an_address_that_is_a_number_is_kept_for_good(take: str) -> None:
    with cl.Session("4MiB") as session:
        x = torch.zeros(N)
        address = eval(take)
        pressure(session, 8)
        assert not session.evict(x) and x.data_ptr() == address


def test_a_holder_that_outlives_its_tensor_keeps_the_bytes() -> None:
    with cl.Session("4MiB") as session:
        x = torch.full((N,), 3.0)
        arrays = [x.numpy(), np.from_dlpack(x)]
        del x
        pressure(session, 8)
        assert all(array.sum() == 3 * N for array in arrays)
    assert all(array.sum() == 3 * N for array in arrays)  # and the session
    arrays.clear()
    with cl.Session("4MiB") as session:
        pressure(session, 8)


def test_a_loan_may_end_on_any_thread_and_after_the_session() -> None:
    with cl.Session("4MiB") as session:
        x, y = torch.zeros(N), torch.ones(N)
        held = [x.numpy()]
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        assert session.evict(x)
        kept = torch.from_dlpack(y)
    del kept
    assert y.sum().item() == N


def test_a_failed_export_lends_nothing() -> None:
    with cl.Session("4MiB") as session:
        x = torch.zeros(N, requires_grad=True)
        with pytest.raises(RuntimeError, match="requires grad"):
            x.numpy()
        with pytest.raises(BufferError, match="gradient"):
            np.from_dlpack(x)
        assert session.counters()["escaped"] == 0 and session.evict(x)


def test_an_export_without_room_raises_and_lends_nothing() -> None:
    with cl.Session("4MiB") as session:
        x = torch.zeros(3 * N)
        assert session.evict(x)
        held = torch.zeros(3 * N)
        view = held.numpy()
        with pytest.raises(torch.OutOfMemoryError, match="cannot leave"):
            x.numpy()
        core.of().take_failure()
        del view
        assert x.numpy().sum() == 0
        assert session.evict(x)


def test_values_may_be_dropped_again_behind_an_array() -> None:
    """A write through the array is no part of the op that made the storage: that one is not replayed any more."""
    with cl.Session("8MiB") as session:
        core.of().keep_producers(True)
        a = torch.arange(float(N))
        b = a * 2
        view = b.numpy()
        view[0] = 5
        del view
        assert core.drop(b) != ""  # declined
        assert session.evict(b) and b[0].item() == 5
        c = b * 2
        assert core.drop(c) == "" and c[0].item() == 10


@pytest.mark.parametrize(
    "make", ["torch.tensor", "torch.as_tensor", "torch.zeros(1).new_tensor", "torch.FloatTensor"]
)
def test_a_tensor_of_numbers_may_move(make: str) -> None:
    with cl.Session("4MiB") as session:
        x = eval(make)([1.0, 2.0, 3.0, 4.0] * (N // 4))
        assert session.counters()["escaped"] == 0
        pressure(session, 8)
        assert session.evict(x) and x.sum().item() == 2.5 * N


def test_a_fresh_tensor_whose_address_is_taken_stays() -> None:
    """It looks like what torch.tensor() is about to fill, but for who asks."""

    class Number:
        def __float__(self) -> float:
            self.made = torch.empty(N)
            self.address = self.made.data_ptr()
            return 1.0

    with cl.Session("4MiB") as session:
        numbers = [Number() for _ in range(2)]
        torch.tensor(numbers, dtype=torch.float32)
        pressure(session, 8)
        for number in numbers:
            assert not session.evict(number.made) and number.made.data_ptr() == number.address
