"""Random programs on the fake GPU (tests/fake_cuda): how many were run, what was in them, and what they read wrong."""

from __future__ import annotations

from typing import Any

from fake_gpu import on_fake_gpu


def programs(
    seed: int,
    count: int,
    drop: tuple[str, str] | None = None,
    first_error: bool = False,
    pinned: bool = True,
) -> dict[str, Any]:
    """Random programs of toy kernels around the swapper, each with its own lanes and capacity.

    A quarter of their tensors are adopted. In some programs tensors are recorded on all streams (``record_stream``)
    instead of being ordered at their deaths, and in half of them storages are dropped and made again on any stream.
    """
    ask = f"fake.run(seed, **given, steps=300, drop={[drop] if drop else []!r}, pinned={pinned})"
    return _drawn(seed, count, _lanes_and_capacities((1, 1, 2, 3), (16, 24, 40, 80)), ask, first_error)


def session_programs(
    seed: int,
    count: int,
    lanes: tuple[int, ...] = (1, 2, 3, 3),
    session: bool = True,
    threads: int = 1,
    hook: bool = True,
    overwrites: bool = False,
) -> dict[str, Any]:
    """Random programs of ops in sessions: of torch's dispatcher, with kernels that run late, on several streams.

    They make, read and write tensors, record streams, let tensors die, take raw pointers for kernels that are no ops,
    evict, restore, drop, and end a session to begin another. The user's waits are those that keep the program right
    without a session. Two threads share the tensors, on streams of their own, and ops of one run while the other is in
    the middle of one: which is drawn from the seed. It comes again with the same
    programs in a new process, but where one thread has to wait for the other inside of an op. Without the hook they are
    what torch 2.11 and 2.12 run. With ``overwrites``, half of the writes read nothing (``fill_``), and some of these
    raise.
    """
    options = f"session={session}, threads={threads}, overwrites={overwrites}"
    ask = f"fake.run_in_session(seed, **given, steps=120, {options})"
    return _drawn(seed, count, _lanes_and_capacities(lanes, _CAPACITIES_KIB), ask, before=_hooked(hook))


def failing_programs(
    seed: int, count: int, sticky: bool, threads: int = 1, hook: bool = True, overwrites: bool = False
) -> dict[str, Any]:
    """The programs of :func:`session_programs` where up to six calls of CUDA in a row fail, at a random place.

    Sticky: so do all that come after it, and each program has a process of its own. One that ends in any other way
    than it should is an error.
    """
    calls = "{'failing_call': int(2 ** draw.uniform(0, 11)), 'in_a_row': draw.choice((1, 1, 2, 3, 6))}"
    options = f"threads={threads}, sticky={sticky}, overwrites={overwrites}"
    run = f"fake.run_in_session(seed, **given, steps=120, {options}, **calls)"
    draws = _lanes_and_capacities((1, 2, 3, 3) if threads == 1 else (2, 3, 4), _CAPACITIES_KIB)
    before = _hooked(hook) + (_ALONE if sticky else _TOGETHER)
    return _drawn(seed, count, draws, f"alone(lambda calls={calls}: {run})", before=before)


def planned_programs(seed: int, count: int, failing: str = "", hook: bool = True) -> dict[str, Any]:
    """Random small trainings in sessions that plan (tests/integration/planned_program.py).

    Plans depend on no clock: a program comes again from its seed.
    """
    before = f"""
        from planned_program import planned_program, prepare
        {_hooked(hook)}
        prepare()
        {(_ALONE if failing == "gone" else _TOGETHER).strip()}
    """
    ask = f"alone(lambda: planned_program(fake, seed, {failing!r}))"
    return _drawn(seed, count, {}, ask, before=before)


def _hooked(hook: bool) -> str:
    return f"core.SEES_RAW_ACCESS &= {hook}; core.pretend_no_hook(not core.SEES_RAW_ACCESS)"


_TOGETHER = """
        def alone(run):
            return run()
"""
_ALONE = """
        def alone(run):
            reads, writes = os.pipe()
            child = fake.fork()
            if child == 0:
                os.write(writes, json.dumps(run()).encode())
                os._exit(0)
            os.close(writes)
            with os.fdopen(reads) as pipe:
                said = pipe.read()
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            return json.loads(said) if status == 0 else {"errors": [f"exit {status}"], "ended badly": 1}
"""


_CAPACITIES_KIB = (24, 40, 80, 400)


def _lanes_and_capacities(
    lanes: tuple[int, ...], capacities_kib: tuple[int, ...]
) -> dict[str, tuple[int, ...]]:
    return {"lanes": lanes, "capacity_bytes": tuple(1024 * kib for kib in capacities_kib)}


def _drawn(
    seed: int,
    count: int,
    draws: dict[str, tuple[int, ...]],
    ask: str,
    first_error: bool = False,
    before: str = "",
) -> dict[str, Any]:
    """Programs whose seeds, and one value of each of ``draws``, are drawn from a seed; ``ask`` runs one."""
    return on_fake_gpu(
        "fake_cuda",
        f"""
        import random
        from collections import Counter
        {before.strip()}
        draw = random.Random({seed})
        total, errors = Counter(), []
        for number in range({count}):
            seed = draw.getrandbits(60)
            given = {{name: draw.choice(values) for name, values in {draws!r}.items()}}
            found = {ask}
            wrong = found.pop("errors")
            errors += [f"seed {{seed}}, {{given}}: {{e}}" for e in wrong]
            total.update(found, programs=1, wrong=bool(wrong))
            if {first_error} and errors:
                break
        print(json.dumps(dict(total) | {{"errors": errors[:10]}}))
    """,
    )
