"""Made-up step traces: a small GPT's training step, and arbitrary ones for property tests. No torch involved."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from chameleon_lab.trace import (
    Category,
    Cause,
    Declined,
    Direction,
    Makings,
    Ops,
    Replays,
    Residencies,
    Stage,
    Stalls,
    StepTrace,
    Storages,
    Transfers,
    Uses,
)

REASONS = ("", *(f"reason {number}" for number in range(1, 7)))
"""Of a step, why something is not replayed."""


@dataclass
class StepBuilder:
    """Collects ops and storages, and works out the live bytes; ``build`` gives the step."""

    op_s: float = 1e-3
    names: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    ops: list[tuple[int, int, int, int, float]] = field(
        default_factory=list
    )  # name, module, stage, scratch, s
    storages: list[list[int]] = field(default_factory=list)
    uses: dict[tuple[int, int], list[bool]] = field(default_factory=dict)
    makings: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)  # the columns

    def carried(self, category: Category, size: int, label: str = "", movable: bool = True) -> int:
        """A storage that is alive when the step begins; its row."""
        name = self._index(self.labels, label) if label else -1
        self.storages.append([size, int(category), -1, name, -1, -1, -1, int(movable)])
        return len(self.storages) - 1

    def op(
        self,
        name: str,
        *,
        reads: tuple[int, ...] = (),
        writes: tuple[int, ...] = (),
        makes: tuple[tuple[Category, int], ...] = (),
        stage: Stage = Stage.FORWARD,
        module: str = "",
        scratch: int = 0,
        seconds: float | None = None,
    ) -> tuple[int, ...]:
        """One op; the rows of the storages that it makes."""
        index, where = len(self.ops), self._index(self.modules, module) if module else -1
        duration = self.op_s if seconds is None else seconds
        self.ops.append((self._index(self.names, name), where, int(stage), scratch, duration))
        for row in reads:
            self.uses.setdefault((index, row), [False, False])[0] = True
        for row in writes:
            self.uses.setdefault((index, row), [False, False])[1] = True
        made = []
        for ordinal, (category, size) in enumerate(makes):
            self.storages.append([size, int(category), where, -1, index, ordinal, -1, 1])
            made.append(len(self.storages) - 1)
            self.uses[(index, made[-1])] = [False, True]
        return tuple(made)

    def making(self, row: int, name: str | None, reads: tuple[int, ...] = (), refusal: int = 0) -> None:
        """In the op made last a call made a value of a storage, of ``reads``: in place where ``row`` is among them.

        ``name`` None: a write that nobody can repeat.
        """
        number = self.makings[-1][0] + 1 if self.makings else 0
        index = -1 if name is None else self._index(self.names, name)
        for read in reads or (-1,):
            self.makings.append((number, len(self.ops) - 1, row, index, read, refusal))

    def free(self, *rows: int) -> None:
        """These storages die in the op made last."""
        for row in rows:
            self.storages[row][6] = len(self.ops) - 1

    def build(self, index: int = 0) -> StepTrace:
        """The step; storages that nobody freed outlive it."""
        n = len(self.ops)
        table = np.array(self.storages, dtype=np.int64).reshape(-1, 8)
        size, birth, death = table[:, 0], table[:, 4], np.where(table[:, 6] < 0, n, table[:, 6])
        change = np.zeros(n + 2, dtype=np.int64)
        np.add.at(change, np.maximum(birth, 0), size)
        np.subtract.at(change, np.minimum(death + 1, n + 1), size)
        ops = np.array([row[:4] for row in self.ops], dtype=np.int64).reshape(-1, 4)
        live = np.cumsum(change)[:n] + ops[:, 3]
        durations = np.array([row[4] for row in self.ops], dtype=np.float64)
        clock = np.concatenate([[0.0], np.cumsum(durations)])
        keys = sorted(self.uses)
        marks = np.array([self.uses[key] for key in keys], dtype=bool).reshape(-1, 2)
        positions = np.array(keys, dtype=np.int32).reshape(-1, 2)
        return StepTrace(
            index=index,
            session_stage="Profile",
            start_s=0.0,
            duration_s=float(durations.sum()),
            names=tuple(self.names),
            modules=tuple(self.modules),
            labels=tuple(self.labels),
            ops=Ops(
                name=ops[:, 0].astype(np.int32),
                module=ops[:, 1].astype(np.int32),
                stage=ops[:, 2].astype(np.uint8),
                sequence_nr=np.full(n, -1, dtype=np.int64),
                thread=np.zeros(n, dtype=np.int32),
                stack=np.full(n, -1, dtype=np.int32),
                start_s=clock[:n],
                duration_s=durations,
                stall_s=np.zeros(n),
                device_s=np.full(n, np.nan),
                live_peak_bytes=live,
                resident_peak_bytes=live.copy(),
                token=(ops[:, 0] * 1000 + ops[:, 1] * 8 + ops[:, 2]).astype(np.uint32),
                plan_op=np.full(n, -1, dtype=np.int32),
            ),
            storages=Storages(
                uid=np.arange(100, 100 + len(table), dtype=np.int64),
                bytes=size.copy(),
                block_bytes=size.copy(),
                category=table[:, 1].astype(np.uint8),
                module=table[:, 2].astype(np.int32),
                name=table[:, 3].astype(np.int32),
                birth_op=birth.astype(np.int32),
                birth_ordinal=table[:, 5].astype(np.int32),
                death_op=death.astype(np.int32),
                movable=table[:, 7].astype(bool),
            ),
            uses=Uses(
                op=positions[:, 0].copy(),
                storage=positions[:, 1].copy(),
                reads=marks[:, 0].copy(),
                writes=marks[:, 1].copy(),
            ),
            transfers=no_transfers(),
            stalls=no_stalls(),
            residencies=Residencies(
                storage=np.arange(len(table), dtype=np.int32),
                from_op=np.maximum(birth, 0).astype(np.int32),
                to_op=np.minimum(death + 1, n).astype(np.int32),
                from_s=clock[np.maximum(birth, 0)],
                to_s=clock[np.minimum(death + 1, n)],
            ),
            reasons=REASONS,
            makings=Makings(
                *(column.astype(np.int32) for column in np.array(self.makings).reshape(-1, 6).T[:5]),
                refusal=np.array([row[5] for row in self.makings], dtype=np.uint8),
            ),
        )

    @staticmethod
    def _index(words: list[str], word: str) -> int:
        if word not in words:
            words.append(word)
        return words.index(word)


def no_transfers() -> Transfers:
    i, b, f = np.empty(0, np.int32), np.empty(0, np.uint8), np.empty(0)
    return Transfers(i, b, b, np.empty(0, np.int64), i, f, f, f)


def no_stalls() -> Stalls:
    i, b, f = np.empty(0, np.int32), np.empty(0, np.uint8), np.empty(0)
    return Stalls(i, i, b, b, f, f)


def gpt_step(layers: int = 4, size: int = 1 << 20, tokens: int = 4, foreach: bool = False) -> StepTrace:
    """A training step: per layer a matmul and an activation function, then a loss, backward and Adam.

    A weight has ``size`` bytes, an activation ``tokens * size``. Gradients are born in backward and freed by the
    optimizer; each weight has two optimizer states.
    """
    step, activation = StepBuilder(), (Category.ACTIVATION, tokens * size)
    weights = [step.carried(Category.PARAMETER, size, f"h.{k}.weight") for k in range(layers)]
    states = [
        [
            step.carried(Category.OPTIMIZER_STATE, size, f"{state} of h.{k}.weight")
            for state in ("exp_avg", "exp_avg_sq")
        ]
        for k in range(layers)
    ]
    (x,) = step.op("aten::embedding", makes=(activation,), module="wte")
    saved = []
    for k in range(layers):
        (y,) = step.op("aten::mm", reads=(x, weights[k]), makes=(activation,), module=f"h.{k}")
        (z,) = step.op("aten::gelu", reads=(y,), makes=(activation,), module=f"h.{k}")
        saved.append((x, y))
        x = z
    (grad,) = step.op("aten::mse_loss_backward", reads=(x,), makes=(activation,), stage=Stage.BACKWARD)
    step.free(x)
    gradients = []
    for k in reversed(range(layers)):
        x, y = saved[k]
        kwargs = {"stage": Stage.BACKWARD, "module": f"h.{k}"}
        (inner,) = step.op("aten::gelu_backward", reads=(y, grad), makes=(activation,), **kwargs)
        step.free(y, grad)
        gradients.append(
            step.op("aten::mm", reads=(x, inner), makes=((Category.GRADIENT, size),), **kwargs)[0]
        )
        (grad,) = step.op("aten::mm", reads=(inner, weights[k]), makes=(activation,), **kwargs)
        step.free(x, inner)
    step.op("aten::embedding_dense_backward", reads=(grad,), stage=Stage.BACKWARD, module="wte")
    step.free(grad)
    gradients.reverse()
    if foreach:
        every = (*weights, *(state for pair in states for state in pair))
        step.op("aten::_foreach_addcdiv_", reads=tuple(gradients), writes=every, stage=Stage.OPTIMIZER)
        step.free(*gradients)
    else:
        for k in range(layers):
            step.op("aten::mul_", reads=(gradients[k],), writes=tuple(states[k]), stage=Stage.OPTIMIZER)
            step.op("aten::addcdiv_", reads=tuple(states[k]), writes=(weights[k],), stage=Stage.OPTIMIZER)
            step.free(gradients[k])
    return step.build()


def blocks_step(layers: int = 6, unit: int = 1 << 18) -> StepTrace:
    """A training step of a transformer, with the module paths, op names and sizes of one; for pictures of it.

    Some 40 ops a block, in forward and backward. An activation has ``unit`` bytes, those within the MLP four times as
    much; ops take 0.1 to 2 ms, by what they are.
    """
    step = StepBuilder()
    took = {"linear": 2e-3, "scaled_dot_product_attention": 1.6e-3, "gelu": 6e-4, "native_layer_norm": 4e-4}

    def run(name, module, reads, makes=(), stage=Stage.FORWARD):
        seconds = took.get(name.removesuffix("_backward"), 1.5e-4) * (1.5 if "backward" in name else 1.0)
        return step.op(f"aten::{name}", reads=reads, makes=makes, stage=stage, module=module, seconds=seconds)

    parts = {
        "ln_1": ("native_layer_norm", 1, 1 / 16),
        "attn.in_proj": ("linear", 3, 3),
        "attn": ("scaled_dot_product_attention", 1, 0),
        "attn.out_proj": ("linear", 1, 1),
        "ln_2": ("native_layer_norm", 1, 1 / 16),
        "mlp.up": ("linear", 4, 4),
        "mlp.gelu": ("gelu", 4, 0),
        "mlp.down": ("linear", 1, 4),
    }
    weights: dict[str, int] = {}
    states: dict[str, list[int]] = {}
    for k in range(layers):
        for part, (_, _, size) in parts.items():
            if size:
                path, bytes_ = f"model.blocks.{k}.{part}", int(size * unit)
                weights[path] = step.carried(Category.PARAMETER, bytes_, f"{path}.weight")
                states[path] = [
                    step.carried(Category.OPTIMIZER_STATE, bytes_, f"{state} of {path}.weight")
                    for state in ("exp_avg", "exp_avg_sq")
                ]
    (x,) = run("embedding", "model.tokens", (), ((Category.ACTIVATION, unit),))
    tape: list[tuple[str, str, int, int]] = []
    for k in range(layers):
        for part, (name, size, _) in parts.items():
            path = f"model.blocks.{k}.{part}"
            reads = (x, weights[path]) if path in weights else (x,)
            (made,) = run(name, path, reads, ((Category.ACTIVATION, size * unit),))
            run("view", path, (made,))
            tape.append((path, name, x, made))
            x = made
        run("add_", f"model.blocks.{k}", (x,))
    (grad,) = run("nll_loss_backward", "loss", (x,), ((Category.OTHER, unit),), Stage.BACKWARD)
    gradients: dict[str, int] = {}
    for path, name, before, after in reversed(tape):
        size = step.storages[before][0]
        made = ((Category.OTHER, size),)
        (inner,) = run(f"{name}_backward", path, (before, after, grad), made, Stage.BACKWARD)
        step.free(after, grad)
        if path in weights:
            bytes_ = step.storages[weights[path]][0]
            (gradients[path],) = run(
                "mm", path, (before, inner), ((Category.GRADIENT, bytes_),), Stage.BACKWARD
            )
        grad = inner
    run("embedding_dense_backward", "model.tokens", (grad,), stage=Stage.BACKWARD)
    step.free(grad, tape[0][2])
    for path, weight in weights.items():
        step.op("aten::lerp_", reads=(gradients[path],), writes=tuple(states[path]), stage=Stage.OPTIMIZER)
        step.op(
            "aten::addcdiv_", reads=tuple(states[path]), writes=(weight,), stage=Stage.OPTIMIZER, seconds=4e-4
        )
        step.free(gradients[path])
    return step.build()


def swapped_step(layers: int = 4) -> tuple[StepTrace, int]:
    """The GPT step, with one activation away in the middle of its life, and a stall for its way in; and its row."""
    step = gpt_step(layers)
    row = int(np.flatnonzero(step.storages.category == Category.ACTIVATION)[1])
    birth, death = int(step.storages.birth_op[row]), int(step.storages.death_op[row])
    start = step.ops.start_s
    out, back = birth + 2, death
    held = step.residencies
    place = int(np.flatnonzero(held.storage == row)[0])
    end_op, end_s = held.to_op[place], held.to_s[place]
    columns = {name: column.copy() for name, column in held.columns().items()}
    columns["to_op"][place], columns["to_s"][place] = out, start[out]
    more = {"storage": row, "from_op": back, "to_op": end_op, "from_s": start[back], "to_s": end_s}
    columns = {
        name: np.append(column, np.array(more[name], column.dtype)) for name, column in columns.items()
    }
    size = step.storages.block_bytes[row]
    a = np.array
    transfers = Transfers(
        a([row, row], np.int32),
        a([Direction.OUT, Direction.IN], np.uint8),
        a([Cause.PLANNED, Cause.PLANNED], np.uint8),
        a([size, size]),
        a([birth + 1, back - 2], np.int32),
        a([start[birth + 1], start[back - 2]]),
        a([start[birth + 1], start[back - 2]]),
        a([start[out], start[back]]),
    )
    stalls = Stalls(
        a([back], np.int32),
        a([row], np.int32),
        a([Direction.IN], np.uint8),
        a([Cause.PLANNED], np.uint8),
        a([start[back - 1]]),
        a([start[back] - start[back - 1]]),
    )
    return replace(step, residencies=Residencies(**columns), transfers=transfers, stalls=stalls), row


def dropped_step(layers: int = 4) -> tuple[StepTrace, int]:
    """As :func:`swapped_step`, but the activation is dropped and replayed. A drop of the first one is declined."""
    step, row = swapped_step(layers)
    none = gpt_step(layers)
    birth, back = int(step.storages.birth_op[row]), int(step.stalls.op[0])
    name, size = step.ops.name[birth], step.storages.block_bytes[row]
    start_s = float(step.ops.start_s[back])
    a = np.array
    replays = Replays(
        a([back], np.int32),
        a([row], np.int32),
        a([name], np.int32),
        a([Cause.DEMAND], np.uint8),
        a([size]),
        a([start_s]),
        a([0.25 * float(step.ops.duration_s[back])]),
    )
    first = int(np.flatnonzero(step.storages.category == Category.ACTIVATION)[0])
    declined = Declined(
        *(a([value], np.int32) for value in (birth, first, step.ops.name[step.storages.birth_op[first]])),
        a([1], np.uint8),
    )
    step = replace(step, transfers=none.transfers, stalls=none.stalls, replays=replays, declined=declined)
    return step, row


def declining(step: StepTrace, *keys: str) -> StepTrace:
    """The step, in which drops of these storages were declined."""
    rows = np.array([step.storage_keys.index(key) for key in keys], np.int32)
    ops = step.storages.birth_op[rows].astype(np.int32)
    declined = Declined(ops, rows, step.ops.name[ops].astype(np.int32), np.full(len(rows), 1, np.uint8))
    return replace(step, declined=declined)


def random_step(seed: int, ops: int = 20, storages: int = 8, unit: int = 1 << 14) -> StepTrace:
    """An arbitrary step: persistent, carried, local and escaping storages of 1 to 9 units, some too small or pinned."""
    random = np.random.default_rng(seed)
    step = StepBuilder(op_s=float(random.choice([0.0, 1e-3])))
    fate: list[str] = []
    births: list[int] = []
    deaths: list[int] = []
    for _ in range(storages):
        kind = str(random.choice(["persistent", "carried", "local", "escaping"]))
        birth = int(random.integers(ops)) if kind in ("local", "escaping") else -1
        death = int(random.integers(max(birth, 0), ops)) if kind in ("local", "carried") else ops
        fate.append(kind)
        births.append(birth)
        deaths.append(death)
    sizes = [int(random.choice([unit // 4, *range(unit, 10 * unit, unit)])) for _ in range(storages)]
    rows: dict[int, int] = {}
    for k in range(storages):
        if births[k] < 0:
            category = Category.PARAMETER if fate[k] == "persistent" else Category.GRADIENT
            rows[k] = step.carried(category, sizes[k], f"{fate[k]}.{k}", movable=bool(random.random() < 0.9))
    density = float(random.choice([0.1, 0.3]))
    for i in range(ops):
        alive = [k for k in rows if births[k] < i <= deaths[k]]
        used = [k for k in alive if random.random() < density]
        writes = tuple(rows[k] for k in used if random.random() < 0.4)
        born = [k for k in range(storages) if births[k] == i]
        made = step.op(
            str(random.choice(["aten::mm", "aten::add", "aten::empty"])),
            reads=tuple(rows[k] for k in used),
            writes=writes,
            makes=tuple((Category.ACTIVATION, sizes[k]) for k in born),
            stage=Stage(min(3 * i // ops, 2)),
            scratch=int(random.integers(3)) * unit,
            seconds=None if random.random() < 0.8 else float(random.random()) * 1e-2,
        )
        rows.update(zip(born, made, strict=True))
        step.free(*(rows[k] for k in rows if deaths[k] == i))
    return step.build()


def random_calls_step(seed: int, ops: int = 20, unit: int = 1 << 14) -> StepTrace:
    """An arbitrary step whose trace says how values are made: ops of several calls, some in place, some unknown."""
    random = np.random.default_rng(seed)
    step = StepBuilder(op_s=1e-3)
    lasting = [step.carried(Category.PARAMETER, unit * k, f"p.{k}") for k in (1, 3)]
    local: list[int] = []

    def some(rows: list[int], most: int) -> tuple[int, ...]:
        count = min(len(rows), int(random.integers(most + 1)))
        return tuple(int(row) for row in random.choice(rows, count, replace=False)) if count else ()

    for i in range(ops):
        first = len(step.storages)  # rows of what the op makes come from here on
        sizes: list[int] = []
        calls: list[tuple[int, str | None, tuple[int, ...], int]] = []
        for _ in range(int(random.integers(4))):
            known = lasting + local + list(range(first, first + len(sizes)))
            kind = str(
                random.choice(
                    ["new", "in place", "filled", "written", "refused"], p=[0.5, 0.25, 0.1, 0.05, 0.1]
                )
            )
            read = some(known, 2)
            if kind in ("new", "refused"):
                target = first + len(sizes)
                sizes.append(int(random.integers(1, 9)) * unit)
            else:
                target = int(random.choice(known))
                read = tuple(row for row in read if row != target)
            if kind == "in place":
                read = (target, *read)
            name = None if kind == "written" else str(random.choice(["aten::gelu", "aten::mm"]))
            calls.append(
                (target, name, () if kind in ("filled", "written") else read, int(kind == "refused"))
            )
        step.op(
            "aten::outer",
            reads=tuple(
                {row for _, _, read, _ in calls for row in read if row < first} | set(some(local, 2))
            ),
            writes=tuple({target for target, *_ in calls if target < first}),
            makes=tuple((Category.ACTIVATION, size) for size in sizes),
            stage=Stage(min(3 * i // ops, 2)),
            scratch=int(random.integers(3)) * unit,
            seconds=None if random.random() < 0.8 else float(random.random()) * 1e-2,
        )
        for call in calls:
            step.making(*call)
        local += range(first, first + len(sizes))
        dead = [row for row in local if random.random() < (0.4 if row >= first else 0.1)]
        step.free(*dead)
        local = [row for row in local if row not in dead]
    return step.build()
