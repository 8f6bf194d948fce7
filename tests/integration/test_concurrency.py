"""Threads, forks, garbage collection at the worst moment, and a process that ends with a session open."""

from __future__ import annotations

from pathlib import Path

import pytest
from training import child

pytestmark = pytest.mark.full


@pytest.mark.bits
@pytest.mark.gate
def test_two_threads_share_a_capacity() -> None:
    """Two models train at once under one capacity, to the bits of training one after the other."""
    child(
        """
        def loop(seed):
            generator = torch.Generator().manual_seed(seed)
            with lock:
                torch.manual_seed(seed)
                model = Gpt()
            optimizer = adamw(model.parameters())
            losses = []
            barrier.wait()
            for _ in range(6):
                loss = model(model.batch(generator))
                loss.backward()
                losses.append(raw(loss))
                optimizer.step()
                optimizer.zero_grad()
            return losses, state_bytes(model, optimizer)

        lock, barrier = threading.Lock(), threading.Barrier(1)
        want = [loop(seed) for seed in (1, 2)]
        _, live_peak = reference(Gpt)
        barrier = threading.Barrier(2)
        for link in (None, "1GiB/s"):
            got, peaks = {}, []
            def run(seed):
                try:
                    got[seed] = loop(seed)
                except BaseException as error:
                    got[seed] = error
                    barrier.abort()
                    raise
            with cl.Session(live_peak, link=link) as session:  # half of what both need
                threads = [threading.Thread(target=run, args=(seed,)) for seed in (1, 2)]
                [thread.start() for thread in threads]
                while any(thread.is_alive() for thread in threads):
                    counters = core.of().counters()
                    peaks.append(counters["resident_bytes"] + counters["cached_bytes"])
                    time.sleep(0.001)
                evictions = sum(step.swapped_out_bytes for step in session.report().history)
            assert evictions > 0
            assert max(peaks) <= live_peak
            assert [got[1], got[2]] == want
        """,
    )


@pytest.mark.bits
def test_a_plan_is_dropped_while_another_threads_op_follows_it() -> None:
    """The thread whose step ends drops the plan; an op of another thread is in its midst, and goes on without."""
    child(
        """
        dropped = []
        @torch.library.custom_op("chameleon_test::slow", mutates_args=())
        def slow(x: torch.Tensor) -> torch.Tensor:
            plans = session.report().plans if session else ()
            if plans and plans[-1].followed_steps >= 1 and not plans[-1].dropped and not dropped:
                other = threading.Thread(target=core.of().drop_program, args=(plans[-1].plan,))
                other.start()
                other.join()
                dropped.append(plans[-1].plan)
            return x + 0
        slow.register_autograd(lambda ctx, grad: grad)

        def loop():
            torch.manual_seed(0)
            model, generator = Gpt(), torch.Generator().manual_seed(0)
            optimizer = adamw(model.parameters())
            losses = []
            for _ in range(6):
                loss = slow(model(model.batch(generator)))
                loss.backward()
                losses.append(raw(loss))
                optimizer.step()
                optimizer.zero_grad()
            return losses, state_bytes(model, optimizer)

        session = None
        want = loop()
        _, live_peak = reference(Gpt)
        with cl.Session(live_peak // 2) as session:
            got = loop()
        assert dropped
        assert got == want
        """
    )


def test_a_storage_that_dies_while_another_thread_evicts_it() -> None:
    """Three threads make, check and drop storages at several times the capacity for a while."""
    child(
        """
        until = time.monotonic() + 4
        wrong = []
        def churn(size, count):
            while time.monotonic() < until:
                held = [torch.full((size,), float(k)) for k in range(count)]
                for k, block in enumerate(held):
                    if block[0].item() != k or block.sum().item() != k * size:
                        wrong.append((size, k))
                del held, block
        with cl.Session("6MiB") as session:
            threads = [threading.Thread(target=churn, args=a) for a in ((16384, 40), (65536, 20), (8192, 100))]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
            counters = core.of().counters()
            assert counters["peak_reserved_bytes"] <= 6 * MiB, counters
            assert session.report().escaped_storages == 0
        assert not wrong, wrong[:10]
        counters = core.of().counters()
        assert counters["live_bytes"] == counters["host_used_bytes"] == counters["storages"] == 0, counters
        """
    )


@pytest.mark.bits
def test_two_threads_meet_a_model_for_the_first_time_at_once() -> None:
    """One thread adopts the parameters that the other one's ops are reading."""
    child(
        """
        for round in range(12):
            torch.manual_seed(round)
            model = nn.Sequential(*[nn.Linear(768, 768) for _ in range(24)])
            x = torch.randn(32, 768)
            with torch.no_grad():
                want = model(x)
            got = [None, None]
            barrier = threading.Barrier(2)
            def run(k):
                with torch.no_grad():
                    barrier.wait()
                    time.sleep(0.001 * ((7 * round + 4 * k) % 11))
                    got[k] = model(x)
            with cl.Session("400MiB") as session:
                threads = [threading.Thread(target=run, args=(k,)) for k in (0, 1)]
                [thread.start() for thread in threads]
                [thread.join() for thread in threads]
                assert all(torch.equal(out, want) for out in got), round
                assert session.where(model[20].weight) == "resident", session.report().refused
        """
    )


LOADER = """
    class Data(torch.utils.data.Dataset):
        def __init__(self, table):
            self.table = table  # made inside the session, away when the workers read it
        def __len__(self):
            return 24
        def __getitem__(self, index):
            part = self.table[index * 1000 : index * 1000 + 1000]
            return part.clone() * 2, torch.full((5000,), float(index))

    def main():
        with cl.Session("4MiB", link="200MiB/s") as session:
            table = torch.arange(24_000 * 20.0).reshape(24_000, 20)  # 1.8 MiB
            want = table * 2
            assert session.evict(table)
            options = dict(batch_size=4, num_workers=2, multiprocessing_context=METHOD)
            loader = torch.utils.data.DataLoader(Data(table), **options)
            for epoch in range(2):
                assert epoch or session.where(table) == "away"
                ballast = [torch.full((MiB // 8,), float(k)) for k in range(20)]  # copies in flight
                for number, (rows, labels) in enumerate(loader):
                    ballast[number].add_(1)
                    assert torch.equal(rows.flatten(0, 1), want[number * 4000 : number * 4000 + 4000]), number
                    assert labels[:, 0].tolist() == [number * 4.0 + k for k in range(4)]
                assert [b[-1].item() for b in ballast] == [k + (k < 6) for k in range(20)]
            assert session.report().peak_bytes <= 4 * MiB

    if __name__ == "__main__":
        main()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loader_workers_read_what_is_away(method: str, tmp_path: Path) -> None:
    child(LOADER.replace("METHOD", repr(method)), folder=tmp_path)


@pytest.mark.bits
def test_fork_with_copies_in_flight() -> None:
    """The child reads what is away, leaving or returning, writes, trains and exits; the parent never notices."""
    child(
        """
        bare, live_peak = reference(Gpt)
        def forks(number, model, session):
            if session is None or number not in (1, 3, 4):
                return
            held = [torch.full((MiB // 4,), float(k)) for k in range(8)]
            session.restore(held[0])  # a plan may have dropped it, as times go: then nothing is there to send out
            assert session.evict(held[0])
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    ok = session.where(held[0]) == "away"
                    ok = ok and all(t[0].item() == t[-1].item() == k for k, t in enumerate(held))
                    for t in held:
                        t.add_(1)
                    ok = ok and held[0].numpy()[5] == 1 and held[3].sum().item() == MiB
                    generator = torch.Generator().manual_seed(1)
                    model(model.batch(generator)).backward()
                    code = 0 if ok else 2
                    with cl_quiet(session):
                        pass
                finally:
                    os._exit(code)
            deadline = time.monotonic() + HANGS_AFTER_S / 2
            while True:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    break
                assert time.monotonic() < deadline, "the forked child hangs"
                time.sleep(0.01)
            assert status == 0, status
            assert all(t[0].item() == t[-1].item() == k for k, t in enumerate(held))

        from contextlib import contextmanager
        @contextmanager
        def cl_quiet(session):
            session.stop()  # in the child: must not hang either
            yield

        for link in ("100MiB/s", None):
            run = train(Gpt, session_kwargs={"capacity": live_peak // 2, "link": link}, each_step=forks)
            assert run.same(bare)
        """,
    )


@pytest.mark.bits
def test_a_forked_child_can_open_a_session_of_its_own() -> None:
    child(
        """
        bare, live_peak = reference(Gpt)
        model = Gpt()
        with cl.Session(live_peak // 2) as session:
            model(model.batch(torch.Generator())).backward()
            pid = os.fork()
            if pid == 0:
                try:
                    session.stop()
                    run = train(Gpt, session_kwargs={"capacity": live_peak // 2})
                    os._exit(0 if run.same(bare) and run.report.peak_bytes <= live_peak // 2 else 3)
                except BaseException:
                    import traceback
                    traceback.print_exc()
                    os._exit(4)
            assert os.waitpid(pid, 0)[1] == 0
        """
    )


@pytest.mark.bits
def test_garbage_collection_in_the_middle_of_swaps() -> None:
    """Cycles that hold storages die inside allocations, hooks and other threads."""
    child(
        """
        bare, live_peak = reference(Gpt)
        class Knot:
            def __init__(self, k):
                self.me, self.block, self.k = self, torch.full((20_000,), float(k)), k
        knots = 0
        def storm(number, model, session):
            global knots
            for k in range(40):
                Knot(k)  # away or resident when it dies, nobody knows when
                knots += 1
        gc.collect()
        gc.freeze()
        gc.set_threshold(40, 3, 3)
        stop = threading.Event()
        def collect():
            while not stop.wait(0.003):
                gc.collect()
        collector = threading.Thread(target=collect)
        collector.start()
        try:
            for link in (None, "500MiB/s"):
                run = train(Gpt, session_kwargs={"capacity": live_peak // 4, "link": link}, each_step=storm)
                assert run.same(bare)
        finally:
            stop.set()
            collector.join()
        assert knots == 480
        gc.collect()
        counters = core.of().counters()
        assert counters["live_bytes"] == counters["host_used_bytes"] == 0, counters
        """,
    )


@pytest.mark.parametrize(
    "end", ["sys.exit(0)", "del outs, model, optimizer, error", "session.stop()", "os._exit(0)"]
)
def test_the_process_ends_with_copies_in_flight(end: str) -> None:
    """Over a link so slow that a copy takes seconds: the exit may not wait for what nobody will read."""
    done = child(
        f"""
        class Leave(Exception):
            pass
        _, live_peak = reference(Gpt)
        model, outs, slow = Gpt(), [], False
        session = cl.Session(live_peak // 2).start()
        optimizer = adamw(model.parameters())
        generator = torch.Generator().manual_seed(0)
        def look(module, args, out):
            if slow:
                outs.append(out)
                if [session.where(o) for o in outs].count("leaving") >= 2:
                    raise Leave
        for module in model.modules():
            module.register_forward_hook(look)
        try:
            for number in range(6):
                slow = number == 5
                if slow:
                    core.of().set_link(400 * KiB, 400 * KiB)
                model(model.batch(generator)).backward()
                optimizer.step()
                optimizer.zero_grad()
        except Leave as left:
            error = left
        print("in flight:", [session.where(o) for o in outs].count("leaving"), flush=True)
        {end}
        """,
    )
    assert "in flight: 0" not in done.stdout


def test_a_session_opened_and_closed_while_another_thread_computes() -> None:
    """Ops that began before the session did, and ops that end after it: no crash, no wrong number."""
    child(
        """
        stop = threading.Event()
        wrong = []
        def compute():
            torch.manual_seed(3)
            a = torch.randn(300, 300)
            want = (a @ a).relu().sum().item()
            while not stop.is_set():
                b = a.clone()
                if (b @ b).relu().sum().item() != want or (a @ b).relu().sum().item() != want:
                    wrong.append(1)
        threads = [threading.Thread(target=compute) for _ in range(2)]
        [thread.start() for thread in threads]
        for round in range(60):
            with cl.Session("4MiB") as session:
                pressure(session, 6)
        stop.set()
        [thread.join() for thread in threads]
        assert not wrong
        """
    )


def test_a_process_ends_while_a_daemon_thread_is_in_the_core() -> None:
    """Python ends such a thread when it asks for the interpreter again, which must not end the process with SIGABRT."""
    child(
        """
        session = cl.Session(link="1GiB/s")
        session.start()
        inside = threading.Event()
        def loop():
            while True:
                inside.set()
                core.of().measure_link()
        threading.Thread(target=loop, daemon=True).start()
        assert inside.wait(HANGS_AFTER_S)
        time.sleep(0.05)
        """
    )


def test_what_is_made_inside_an_op_that_nobody_saw_begin_stays() -> None:
    """It began before the session, and its kernel may go on reading what the ops inside it have made."""
    child(
        """
        began, opened, asked = threading.Event(), threading.Event(), threading.Event()
        inside = []

        @torch.library.custom_op("chameleon_test::outer", mutates_args=())
        def outer(x: torch.Tensor) -> torch.Tensor:
            began.set()
            assert opened.wait(HANGS_AFTER_S)
            inside.append((x * 2) + 0)
            assert asked.wait(HANGS_AFTER_S)
            return x.clone()

        def run():
            outer(torch.ones(MiB // 4))
            inside.append(inside[0] + 1)  # used by an op that is seen from its begin

        thread = threading.Thread(target=run)
        thread.start()
        assert began.wait(HANGS_AFTER_S)
        with cl.Session("16MiB", min_swap="1KiB") as session:
            opened.set()
            while not inside:
                time.sleep(0.001)
            assert not session.evict(inside[0])
            asked.set()
            thread.join(HANGS_AFTER_S)
            assert not thread.is_alive()
            assert len(inside) == 2 and session.evict(inside[0])
        assert (inside[0] == 2).all()
        """
    )


def test_a_thread_that_only_makes_tensors_of_numbers_finds_room() -> None:
    """Python makes them with autograd's keys off, as kernels do what they call."""
    child(
        """
        made = []
        def run():
            made.extend(torch.full((MiB // 16,), float(k)) for k in range(12))  # 256 KiB each
        with cl.Session("1MiB", min_swap="1KiB") as session:
            thread = threading.Thread(target=run)
            thread.start()
            thread.join(HANGS_AFTER_S)
            assert not thread.is_alive()
            assert len(made) == 12
            assert all((one == k).all() for k, one in enumerate(made))
        """
    )
