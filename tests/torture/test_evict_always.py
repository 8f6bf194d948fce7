"""The lever: inside it every op finds its inputs away, gets the right bytes, and code that goes behind torch breaks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from training import Gpt, child, reference, train

import chameleon_lab as cl
from chameleon_lab.runtime import core
from chameleon_lab.testing import evict_always

pytestmark = pytest.mark.bits


def test_all_that_may_leave_is_away_between_ops() -> None:
    with evict_always() as session:
        escaped = session.report().escaped_storages  # of tests before, in cycles
        x = torch.arange(10.0)
        y = x + 1
        z = y.view(2, 5)[1]
        assert [session.where(t) for t in (x, y, z)] == ["away"] * 3
        session.restore(y)
        assert session.where(y) == "resident"
        (x * 2).sum()
        assert session.where(y) == "away"
        assert y.tolist() == list(range(1, 11)) and z.sum().item() == 40
        assert session.report().escaped_storages == escaped
    assert session.where(y) is None and y[3].item() == 4


def test_each_op_brings_its_inputs_in() -> None:
    """What makes every other test here worth something: the inputs really travel, at each op."""
    with evict_always():
        x, y = torch.ones(600), torch.ones(600)
        core.of().take_transitions()
        torch.add(x, y)
        moves = core.of().take_transitions()
    came = [uid for uid, start, end in moves if end == "resident" and start == "returning"]
    assert len(came) == 2, moves


def test_with_a_seed_a_random_part_is_away() -> None:
    def places(seed: int) -> list[str | None]:
        with evict_always(seed=seed) as session:
            held = [torch.full((200,), float(k)) for k in range(60)]
            (held[0] * 1).sum()
            found = [session.where(t) for t in held]
            assert all(t[7].item() == k for k, t in enumerate(held))
        return found

    one, same, other = places(5), places(5), places(6)
    assert one == same != other
    assert {"away", "resident"} <= set(one) and len(set(one)) == 2


def test_storages_of_any_size_leave_and_sessions_after_it_leave_small_ones_alone() -> None:
    with evict_always() as session:
        one = torch.ones(1) * 3
        assert session.where(one) == "away"
    with cl.Session("8MiB") as session:
        one = torch.ones(1) * 3
        assert session.where(one) is None


def test_what_numpy_views_stays() -> None:
    with evict_always() as session:
        x = torch.zeros(50)
        view = x.numpy()
        for k in range(9):
            view[k] = k
            assert x[k].item() == k
            x[k] += 1
            assert view[k] == k + 1
        assert session.where(x) == "resident"


def test_tensors_made_before_leave_once_they_are_adopted() -> None:
    x, model = torch.arange(40.0), nn.Linear(40, 3)
    with torch.no_grad():
        want = model(x)
    with evict_always() as session, torch.no_grad():
        assert session.where(x) is None
        session.adopt(x)
        assert torch.equal(model(x), want)
        assert session.where(x) == session.where(model.weight) == "away"


def test_a_capacity_holds_too() -> None:
    with evict_always(seed=1, capacity="64KiB"):
        held = [torch.full((2000,), float(k)) for k in range(40)]
        assert core.of().counters()["peak_resident_bytes"] <= 64 << 10
        with pytest.raises(torch.OutOfMemoryError, match="capacity of 64 KiB"):
            torch.ones(20_000)
        assert all(t[-1].item() == k for k, t in enumerate(held))


def test_training_gives_the_same_bits() -> None:
    bare, _ = reference(Gpt)
    for seed in (None, 3):
        with evict_always(seed=seed):
            assert train(Gpt).same(bare)


def _cell(kind: type[nn.RNNCellBase], **options) -> Callable[[torch.Tensor], torch.Tensor]:
    """Six steps of a batch."""
    torch.manual_seed(0)
    cell = kind(96, 32, **options)

    def run(x: torch.Tensor) -> torch.Tensor:
        state = None
        for _ in range(6):
            state = cell(x, state)
        return state[0] if isinstance(state, tuple) else state

    return run


def _embedded(x: torch.Tensor) -> torch.Tensor:
    """Bags that do not lie one behind the other in memory, so that the op copies them first."""
    places = torch.arange(256).reshape(2, 128).t() % 128
    return F.embedding_bag(places, x, mode="sum")


def _recurrent(kind: type[nn.RNNBase], **options) -> Callable[[torch.Tensor], torch.Tensor]:
    """A sequence of 96 steps, whose lengths are read step by step."""
    torch.manual_seed(0)
    network = kind(8, 16, batch_first=True, **options)

    def run(x: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            x.reshape(16, 96, 8), torch.arange(96, 80, -1), batch_first=True
        )
        return network(packed)[0].data

    return run


def _attention_of_products(x: torch.Tensor) -> torch.Tensor:
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(*[x.view(2, 4, 16, 96)] * 3, attn_mask=x[:16, :16] > -9)


SEEN_THROUGH: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "packed LSTM": _recurrent(nn.LSTM),
    "packed LSTM, both ways": _recurrent(nn.LSTM, bidirectional=True),
    "packed GRU": _recurrent(nn.GRU),
    "packed RNN": _recurrent(nn.RNN),
    "packed RNN of ReLU": _recurrent(nn.RNN, nonlinearity="relu"),
    "LSTM cell": _cell(nn.LSTMCell),
    "GRU cell": _cell(nn.GRUCell),
    "RNN cell": _cell(nn.RNNCell),
    "RNN cell of ReLU": _cell(nn.RNNCell, nonlinearity="relu"),
    "cross entropy": lambda x: F.cross_entropy(x, x.softmax(-1), label_smoothing=0.1, reduction="none"),
    "cross entropy of classes": lambda x: F.cross_entropy(
        x, x.argmax(-1), x[0].detach().abs(), label_smoothing=0.1, reduction="none"
    ),
    "cosine similarity": lambda x: F.cosine_similarity(x, x.flip(0)),
    "cosine loss": lambda x: F.cosine_embedding_loss(x, x.flip(0), x[:, 0].detach().sign(), reduction="none"),
    "pairwise distance": lambda x: F.pairwise_distance(x, x.flip(0), p=3.0),
    "L1 loss": lambda x: F.l1_loss(x, x.flip(0), reduction="none"),
    "hinge loss": lambda x: F.hinge_embedding_loss(x, x.sign(), reduction="none"),
    "ranking loss": lambda x: F.margin_ranking_loss(x, x.flip(0), x.sign(), reduction="none"),
    "Poisson loss": lambda x: F.poisson_nll_loss(x, x.abs(), full=True, reduction="none"),
    "KL divergence": lambda x: F.kl_div(x, x.softmax(-1), reduction="none"),
    "triplet loss": lambda x: F.triplet_margin_loss(x, x.flip(0), x * 2, reduction="none"),
    "matrix power": lambda x: torch.linalg.matrix_power(x, 5),
    "product of many": lambda x: torch.linalg.multi_dot([x, x, x, x]),
    "chain of products": lambda x: torch.chain_matmul(x, x, x, x),
    "power of a matrix": lambda x: torch.matrix_power(x, 5),
    "einsum": lambda x: torch.einsum("ij,jk,kl->il", x, x, x),
    "correlation": torch.corrcoef,
    "gradient": lambda x: torch.stack(torch.gradient(x)),
    "trapezoids": lambda x: torch.trapezoid(x, x.cumsum(1)),
    "trapezoids by their other name": lambda x: torch.trapz(x, dx=0.5) + torch.trapz(x, x.cumsum(1)),
    "trapezoids so far": lambda x: torch.cumulative_trapezoid(x, x.cumsum(1)),
    "differences": lambda x: torch.diff(x, n=3, prepend=x),
    "quantiles": lambda x: torch.quantile(x, torch.tensor([0.1, 0.5, 0.9]), dim=1),
    "quantiles without NaN": lambda x: torch.nanquantile(x.where(x > -2, torch.nan), 0.3, dim=1),
    "what is close": lambda x: torch.isclose(x, x + 1e-6 * x.flip(0)),
    "power in doubles": lambda x: torch.float_power(x, 3),
    "normal distribution": torch.special.ndtr,
    "histogram": lambda x: torch.histogramdd(x.detach()[:, :3], [4, 3, 5])[0],
    "combinations": lambda x: torch.combinations(x[0], 2),
    "product of sets": lambda x: torch.cartesian_prod(x[0], x[1]),
    "rank": lambda x: torch.linalg.matrix_rank(x.detach()),
    "bags": _embedded,
    "instance norm": lambda x: F.instance_norm(x.view(1, 8, 16, 96)),
    "Fourier on a line": lambda x: (
        torch.fft.irfft(x.to(torch.complex64)) + torch.fft.hfft(x.to(torch.complex64))
    ),
    "Fourier, n-dimensional": lambda x: (
        torch.fft.irfftn(torch.fft.rfftn(x)) + torch.fft.ifftn(torch.fft.fft2(x)).real
    ),
    "Hermitian Fourier, n-dimensional": lambda x: torch.fft.ihfft2(
        torch.fft.hfftn(x.to(torch.complex64))
    ).abs(),
    "Fourier": lambda x: torch.fft.irfft2(torch.fft.rfft2(x)) + torch.fft.ifft2(torch.fft.fftn(x)).real,
    "Hermitian Fourier": lambda x: torch.fft.ihfftn(torch.fft.hfft2(x.to(torch.complex64))).abs(),
    "short-time Fourier": lambda x: torch.istft(
        torch.stft(x.view(8, -1), 64, window=torch.hann_window(64), return_complex=True),
        64,
        window=torch.hann_window(64),
    ),
    "attention": lambda x: F.scaled_dot_product_attention(
        *[x.view(2, 4, 16, 96)] * 3, attn_mask=x[:16, :16] > -9
    ),
    "attention made of products": _attention_of_products,
}


SQUARE = ("matrix power", "power of a matrix", "product of many", "chain of products", "einsum")


@pytest.mark.parametrize("name", SEEN_THROUGH)
def test_ops_that_are_seen_through_keep_no_pointer_to_what_leaves(name: str) -> None:
    """Between the ops inside of them, what they were given may go; what they hold a pointer to may not."""
    call, x = SEEN_THROUGH[name], _given(name)
    want = _called(call, x)
    for seed in range(6):
        with evict_always(seed=seed) as session:
            mine = x.clone()
            session.adopt(mine)
            got = [value.clone() for value in _called(call, mine)]
        assert len(got) == len(want), seed
        assert all(torch.equal(mine, its) for mine, its in zip(got, want, strict=True)), seed


def _given(name: str) -> torch.Tensor:
    x = torch.randn(128, 96, generator=torch.Generator().manual_seed(0))
    return x[:96] / 16 if name in SQUARE else x


def _called(call: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
    """The result without gradients; and where it has one, with them, and the gradient."""
    with torch.no_grad():
        found = [call(x)]
    of = x.detach().requires_grad_()
    again = call(of)
    if again.requires_grad:
        again.sum().backward()
        assert of.grad is not None
        found += [again.detach(), of.grad]
    return found


def test_each_op_that_is_seen_through_is_among_these() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for name, call in SEEN_THROUGH.items():
            _called(call, _given(name))
    assert core.names_seen_through() - {event.key for event in profile.key_averages()} == set()


def test_what_is_seen_through_is_not_changed_under_an_open_session() -> None:
    names = core.names_seen_through()
    with cl.Session("8MiB"), pytest.raises(RuntimeError, match="a session is open"):
        core.see_through(())
    assert core.names_seen_through() == names
    try:
        core.see_through(())
        with evict_always() as session:
            torch.linalg.multi_dot([torch.eye(20)] * 3)
            session.step()
            step = session.trace().last
    finally:
        core.see_through(None)
    assert "aten::linalg_multi_dot" in {step.op_name(number) for number in range(len(step.ops))}
    assert core.names_seen_through() == names


@pytest.mark.parametrize(
    "arguments, error", [({"seed": -1}, ValueError), ({"device": "tpu"}, cl.SessionError)]
)
def test_wrong_arguments_are_named(arguments, error) -> None:
    with pytest.raises(error, match="-1|tpu"), evict_always(**arguments):
        pass
    assert cl.current_session() is None


def test_it_does_not_nest_and_leaves_nothing_on() -> None:
    with evict_always(), pytest.raises(cl.SessionError), evict_always():
        pass
    with cl.Session("8MiB") as session:
        x = torch.ones(50_000)
        x.add_(1)
        assert session.where(x) == "resident"
    with pytest.raises(RuntimeError, match="open session"):
        core.of().evict_always(None)


def test_a_const_pointer_that_meets_an_away_storage_reads_the_right_bytes() -> None:
    """The C++ behind tolist() reads after its ops have ended; here everything is away again by then."""
    child("""
        from chameleon_lab.testing import evict_always

        read = torch._C.TensorBase.tolist  # not the one that a session puts in its place
        with evict_always() as session:
            x = torch.arange(3000.0)
            for step in range(3):
                assert read(x) == [float(k + step) for k in range(3000)]
                assert read(x[5:9]) == [float(k + step) for k in range(5, 9)]
                assert session.where(x) == "away"
                x.add_(1)
            assert session.report().escaped_storages == 0
            held = [torch.full((500,), float(k)) for k in range(50)]
            assert [read(t) for t in held] == [[float(k)] * 500 for k in range(50)]
        assert read(x) == [float(k + 3) for k in range(3000)]
    """)


def test_a_fault_handler_that_was_dropped_is_back_in_the_next_session() -> None:
    child("""
        import faulthandler

        from chameleon_lab.testing import evict_always

        with cl.Session("8MiB"):
            torch.ones(3).add_(1)
        faulthandler.disable()  # it was on: this puts back the handler from before the session's
        with evict_always():
            assert torch._C.TensorBase.tolist(torch.arange(3000.0)) == list(range(3000))
    """)


def test_other_faults_are_left_to_whoever_handles_them() -> None:
    """A wrong address outside of our marks still ends the process, with Python's own report."""
    import subprocess
    import sys

    code = """
import ctypes, torch
import chameleon_lab as cl
with cl.Session("8MiB"):
    ctypes.string_at(16)
"""
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", code], capture_output=True, text=True)
    assert done.returncode == -11 and "Segmentation fault" in done.stderr
