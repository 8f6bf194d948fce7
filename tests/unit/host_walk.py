"""The copies of a compiled policy, made and freed op by op as the executor does."""

from __future__ import annotations

from chameleon_lab.planner.host_layout import PAGE_BYTES
from chameleon_lab.planner.memory import step_memory
from chameleon_lab.planner.program import SWAP_OUT, Program
from chameleon_lab.trace import StepTrace


def deaths(program: Program, step: StepTrace) -> dict[int, int]:
    """When in the next step a storage dies that a step leaves behind, by plan storage."""
    memory = step_memory(step, 1)
    dies = dict(enumerate((memory.ops + program.birth_op).tolist()))
    for gap, storage in enumerate(memory.gap_storage.tolist()):
        if not memory.gap_returns[gap] and memory.gap_use[gap] > memory.ops:
            dies[storage] = int(memory.gap_use[gap])
    return dies


def pages(step: StepTrace, row: int) -> int:
    return -(-int(step.storages.bytes[row]) // PAGE_BYTES) * PAGE_BYTES


def walk(program: Program, step: StepTrace, dies: dict[int, int], periods: int = 4) -> int:
    """Make and free the copies op by op, as the executor does; most bytes that existed at once.

    Knows nothing of lifetimes: only of swap-outs, uses, writes and deaths. ``dies`` says when in the next step a
    storage dies that a step leaves behind.
    """
    n = program.ops
    writes = set(
        zip(
            step.uses.storage[step.uses.writes].tolist(), step.uses.op[step.uses.writes].tolist(), strict=True
        )
    )
    used = set(zip(step.uses.storage.tolist(), step.uses.op.tolist(), strict=True))
    out = [(op, s) for op, kind, s in zip(
        program.action_op.tolist(), program.action_kind.tolist(), program.action_storage.tolist(), strict=True
    ) if kind == SWAP_OUT]  # fmt: skip
    there: set[tuple[int, int]] = set()  # plan storage, step that made it; -1 for those that live on
    most = 0
    for period in range(periods):
        for op in range(n):
            for s, born in list(there):
                row = int(program.storage_row[s])
                if program.uid[s] >= 0:
                    gone = (row, op) in writes
                else:
                    dead_at = int(step.storages.death_op[row])
                    dead_at = born * n + (dead_at if dead_at < n else dies[s])
                    gone = period * n + op > dead_at or (born == period and (row, op) in writes)
                if not program.host.kept[s] and (row, op) in used:  # it has come back
                    gone = True
                if gone:
                    there.discard((s, born))
            for at, s in out:
                if at == op:  # what the step before made of it may die in this very op
                    there -= {(s, period - 1)}
                    there.add((s, -1 if program.uid[s] >= 0 else period))
            placed = []
            for s, _ in there:
                assert program.host.place[s] >= 0, "what is swapped has a place"
                begin = int(program.host.place[s])
                placed.append((begin, begin + pages(step, int(program.storage_row[s]))))
            placed.sort()
            for (_, end), (begin, _) in zip(placed, placed[1:], strict=False):
                assert end <= begin, f"copies share bytes after op {op} of step {period}"
            assert not placed or placed[-1][1] <= program.host.pool_bytes
            most = max(most, sum(end - begin for begin, end in placed))
    return most
