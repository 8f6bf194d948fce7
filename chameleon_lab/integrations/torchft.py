"""torchft: the global batch, and the bits of every step, over any number of survivors."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
import torch.distributed as dist

from ..errors import SessionError
from ..recovery.grains import Node, Summing, deal, nodes_of, total
from ..session import current_session
from ..util.units import parse_bytes

_CALLS = (
    "allreduce",
    "current_step",
    "errored",
    "num_participants",
    "participating_rank",
    "shutdown",
    "should_commit",
    "start_quorum",
)
"""What is used of torchft's manager."""

_GRADIENTS = list[torch.Tensor | None]


class FaultTolerant:
    """Trains with torchft so that losses and weights do not depend on how many replicas are alive.

    ::

        with FaultTolerant(model, optimizer, grains=12) as ft:
            while ft.step < steps:
                for grain in ft.grains():
                    x, y = batch(ft.step, grain)
                    ft.backward(loss_of(model(x), y))
                ft.commit()

    The global batch is cut into ``grains``, micro-batches that are always the same. They are dealt to the replicas that
    are alive, and their gradients are added up in one fixed tree. The random state of a grain follows from the seed,
    the step and the grain. A step that a death has broken is repeated with fewer replicas, and a replica that comes
    back takes over the state of the others.

    torchft notices deaths, makes new process groups and moves the state. Its lighthouse has to run, and each replica
    needs the environment that its manager needs (``TORCHFT_LIGHTHOUSE``, ``MASTER_ADDR``, ``MASTER_PORT``, ``RANK``,
    ``WORLD_SIZE``), or arguments in its place.

    Args:
        model: each replica has all of it, or the same shards of it.
        optimizer: of the model's parameters. Sparse gradients are refused.
        grains: of the global batch; at least as many as there are replicas.
        seed: of the grains' random numbers; the same on all replicas.
        bucket_bytes: about the most that is sent at once, such as ``"25MiB"``: a row of gradients for each part of the
            tree that a replica adds up alone. Smaller ones need less memory at once.
        pg: torchft's process group; None: gloo for a model on the CPU, NCCL for one on a GPU.
        timeout: of what torchft does between the replicas.
        make_manager: what makes the manager; None: ``torchft.Manager``.
        manager: further arguments of torchft's manager, such as ``replica_id`` and ``min_replica_size``.

    Raises ImportError without torchft, or with one that lacks a call; ValueError or TypeError if an argument does not
    fit.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        grains: int,
        seed: int = 0,
        bucket_bytes: int | str = "25MiB",
        pg: Any = None,
        timeout: float = 60.0,
        make_manager: Callable[..., Any] | None = None,
        **manager: Any,
    ) -> None:
        if isinstance(grains, bool) or not isinstance(grains, int) or grains < 1:
            raise ValueError(f"grains is {grains!r}: give the number of micro-batches in the global batch")
        self._model, self._optimizer = model, optimizer
        self._parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        if not self._parameters:
            raise ValueError("the optimizer has no parameters that are trained")
        self.count = grains
        """Grains of the global batch."""
        self._seed = seed
        self._bucket_bytes = parse_bytes(bucket_bytes, "bucket_bytes")
        self._members = 0
        self._own = range(0)
        self._sums: Summing[_GRADIENTS] | None = None
        self._losses = torch.zeros(grains, dtype=torch.float64)
        self._grain = -1
        self.losses: tuple[float, ...] = ()
        """Of the grains of the newest committed step, whoever ran them."""
        self.failed_commits = 0
        """Steps that were repeated, since a replica had died in them."""
        self.healed = 0
        """How often the state was taken over from another replica."""
        if make_manager is None:
            make_manager, pg = _torchft(pg, self._parameters[0].device.type, timeout)
        limit = timedelta(seconds=timeout)
        defaults = {
            "min_replica_size": 1,
            "use_async_quorum": False,
            "timeout": limit,
            "quorum_timeout": limit,
        }
        self.manager = make_manager(
            pg=pg, load_state_dict=self._load, state_dict=self._save, **defaults | manager
        )
        """torchft's manager."""
        lacking = [call for call in _CALLS if not callable(getattr(self.manager, call, None))]
        if lacking:
            raise ImportError(
                f"torchft {_version()} has a manager without {', '.join(lacking)}: install a newer one, such as with "
                "`pip install --no-deps torchft-nightly`"
            )

    def __enter__(self) -> FaultTolerant:
        return self

    def __exit__(self, *exception: object) -> None:
        self.manager.shutdown(wait=False)

    # -------------------------------------------------------------------------------------------- a step

    @property
    def step(self) -> int:
        """Number of the step that runs, or is next: of the committed ones before it."""
        return int(self.manager.current_step())

    @property
    def participants(self) -> int:
        """Replicas that are in the newest step."""
        return self._members

    @property
    def loss(self) -> float:
        """The mean of :attr:`losses`, added up in their order."""
        return sum(self.losses) / self.count

    def grains(self) -> Iterator[int]:
        """Agree with the other replicas on who is there, and go through this one's grains.

        Each runs with random numbers of its own; afterwards torch's generators are as they were.
        """
        self._drop()
        self.manager.start_quorum()
        self._agree(self.manager.participating_rank(), int(self.manager.num_participants()))
        self._sums = Summing(nodes_of(self.count, self._own), _added)
        devices = {p.device for p in self._parameters if p.device.type == "cuda"}
        with torch.random.fork_rng([device.index for device in devices], enabled=True):
            for grain in self._own:
                torch.manual_seed(_seed_of(self._seed, self.step, grain))
                self._grain = grain
                yield grain
                self._sums.take(grain, self._taken())
        self._grain = -1

    def backward(self, loss: torch.Tensor) -> None:
        """The backward of a grain, of its share of the global mean. ``loss`` is the grain's own mean."""
        if self._grain < 0:
            raise SessionError("backward() belongs into the loop over grains(): call it there, once a grain")
        self._losses[self._grain] = loss.detach().double().item()
        (loss / self.count).backward()

    def commit(self) -> bool:
        """Add up all replicas' gradients, and step the optimizer unless a replica has died.

        Returns whether the step is committed; else it is to be repeated, with ``step`` unchanged.
        """
        if self._sums is None:
            raise SessionError("commit() comes after a loop over grains(): go through it first")
        whole = len(self._sums.sums) == len(nodes_of(self.count, self._own))
        if not whole:
            raise SessionError(
                f"the loop over grains() ended before its last grain, {self._own.stop - 1}: go through all of them"
            )
        losses = self._add_up()
        committed = bool(self.manager.should_commit())
        if committed:
            self.losses = tuple(losses.tolist())
            self._optimizer.step()
        else:
            self.failed_commits += 1
            session = current_session()
            if session is not None:  # the optimizer, which would end the step, does not run
                session.step()
        self._drop()
        return committed

    # -------------------------------------------------------------------------------------------- inside

    def _agree(self, rank: int | None, count: int) -> None:
        """Take this replica's grains, and hold the arguments against the others', in one small all-reduce.

        In every step: a replica that has come back at once changes no other one's rank.
        """
        own = torch.tensor([self.count, self._seed, self._bucket_bytes], dtype=torch.float64)
        facts = torch.zeros(count, len(own), dtype=torch.float64)
        if rank is not None:
            facts[rank] = own
        if count > 1:
            self.manager.allreduce(facts, reduce_op=dist.ReduceOp.SUM).wait()
        if self.manager.errored():
            facts[:] = own  # the step will be repeated
        for other, theirs in enumerate(facts.tolist()):
            for name, value, mine in zip(
                ("grains", "seed", "bucket_bytes"), theirs, own.tolist(), strict=True
            ):
                if value != mine:
                    raise ValueError(
                        f"{name} is {value:g} in replica {other}, and {mine:g} in this one: give all the same"
                    )
        self._members = count
        self._own = range(0) if rank is None else deal(self.count, count)[rank]

    def _taken(self) -> _GRADIENTS:
        """The gradients of one grain, taken off the parameters."""
        found: _GRADIENTS = []
        for parameter in self._parameters:
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None and gradient.layout is not torch.strided:
                raise TypeError(
                    f"a gradient of shape {tuple(gradient.shape)} is sparse: use dense ones (sparse=False)"
                )
            found.append(gradient)
        return found

    def _drop(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None
        self._sums = None
        self._losses.zero_()

    def _add_up(self) -> torch.Tensor:
        """Set the gradients of all grains, and return their losses."""
        assert self._sums is not None
        rank, count = self.manager.participating_rank(), self.manager.num_participants()
        shares = [nodes_of(self.count, own) for own in deal(self.count, count)]
        order = [node for nodes in shares for node in nodes]
        sums = self._sums.sums
        any_of = [
            any(gradients[k] is not None for gradients in sums.values()) for k in range(len(self._parameters))
        ]
        head = torch.cat([self._losses, torch.tensor(any_of, dtype=torch.float64)])
        if count > 1:
            self.manager.allreduce(head, reduce_op=dist.ReduceOp.SUM).wait()
        there = [k for k in range(len(self._parameters)) if head[self.count + k] > 0]
        for bucket in self._buckets(there, len(order)):
            if self.manager.errored():
                break
            self._reduce(bucket, order, [] if rank is None else shares[rank], count)
        return head[: self.count].clone()

    def _buckets(self, rows: Sequence[int], each: int) -> Iterator[list[int]]:
        """Parameters of one dtype and device whose gradients are sent together, ``each`` times over."""
        bucket: list[int] = []
        size = 0
        for k in rows:
            p = self._parameters[k]
            first = self._parameters[bucket[0]] if bucket else p
            if bucket and (
                size + each * p.nbytes > self._bucket_bytes
                or (p.dtype, p.device) != (first.dtype, first.device)
            ):
                yield bucket
                bucket, size = [], 0
            bucket.append(k)
            size += each * p.nbytes
        if bucket:
            yield bucket

    def _reduce(self, bucket: Sequence[int], order: Sequence[Node], own: Sequence[Node], count: int) -> None:
        """Each subtree's sum has a row that one replica fills: adding zeros to it changes no bit."""
        assert self._sums is not None
        parameters = [self._parameters[k] for k in bucket]
        sizes = [p.numel() for p in parameters]
        with torch.no_grad():
            rows = torch.zeros(len(order), sum(sizes), dtype=parameters[0].dtype, device=parameters[0].device)
            for node in own:
                gradients = self._sums.sums[node]
                for k, part in zip(bucket, rows[order.index(node)].split(sizes), strict=True):
                    gradient, gradients[k] = gradients[k], None
                    if gradient is not None:
                        part.copy_(gradient.reshape(-1))
            if count > 1:
                self.manager.allreduce(rows, reduce_op=dist.ReduceOp.SUM).wait()
            added = total(self.count, dict(zip(order, rows, strict=True)), torch.add)
            added = added + 0.0  # one zero for both: who adds to it decides its sign
            for parameter, part in zip(parameters, added.split(sizes), strict=True):
                parameter.grad = part.view_as(parameter).clone()

    # -------------------------------------------------------------------------------------------- healing

    def _save(self) -> dict[str, Any]:
        """The state for a replica that heals: bytes on the host, so that no tensor's address gets out.

        torchft asks for it in a thread of its own, where saving a tensor would pin it: a copy is saved, one at a time.
        """
        state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
        packed: dict[str, Any] = _packed(state)
        return packed

    def _load(self, packed: dict[str, Any]) -> None:
        """Take over another replica's state, in memory that torch's allocator makes: a session adopts no other."""
        self._model.load_state_dict(_unpacked(packed["model"]))
        self._optimizer.load_state_dict(_unpacked(packed["optimizer"]))
        self.healed += 1


@dataclass(frozen=True)
class _Packed:
    """A tensor as bytes."""

    saved: bytes


def _packed(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        file = io.BytesIO()
        torch.save(value.detach().clone(), file)
        return _Packed(file.getvalue())
    if isinstance(value, dict):
        return {key: _packed(each) for key, each in value.items()}
    return type(value)(_packed(each) for each in value) if isinstance(value, list | tuple) else value


def _unpacked(value: Any) -> Any:
    if isinstance(value, _Packed):
        return torch.load(io.BytesIO(value.saved), weights_only=True).clone()
    if isinstance(value, dict):
        return {key: _unpacked(each) for key, each in value.items()}
    return type(value)(_unpacked(each) for each in value) if isinstance(value, list | tuple) else value


def _added(first: _GRADIENTS, second: _GRADIENTS) -> _GRADIENTS:
    """Sum of two lists of gradients, in the memory of the first."""
    found: _GRADIENTS = []
    with torch.no_grad():
        for k, (one, other) in enumerate(zip(first, second, strict=True)):
            found.append(other if one is None else one if other is None else one.add_(other))
            first[k] = second[k] = None
    return found


def _seed_of(seed: int, step: int, grain: int) -> int:
    """Mixed well: neighboring steps and grains have nothing in common."""
    mixed = (seed << 1) ^ 0x9E3779B97F4A7C15
    for part in (step, grain):
        mixed = (mixed ^ part) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return mixed >> 1


def _version() -> str:
    for name in ("torchft-nightly", "torchft"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "(unknown)"


def _torchft(pg: Any, device: str, timeout: float) -> tuple[Callable[..., Any], Any]:
    """The manager's class, and a process group of torchft's."""
    try:
        import torchft
    except ImportError as error:
        raise ImportError(
            f"chameleon_lab.integrations.torchft needs torchft, which does not load ({error}): install it without its "
            "torch, `pip install --no-deps torchft-nightly`, and `pip install opentelemetry-sdk "
            "opentelemetry-exporter-otlp-proto-http`"
        ) from error
    name = "ProcessGroupNCCL" if device == "cuda" else "ProcessGroupGloo"
    lacking = [each for each in ("Manager", name) if not hasattr(torchft, each)]
    if lacking:
        raise ImportError(
            f"torchft {_version()} has no {', '.join(lacking)}: install a newer one, such as with "
            "`pip install --no-deps torchft-nightly`"
        )
    if pg is None:
        pg = getattr(torchft, name)(timeout=timedelta(seconds=timeout))
    return torchft.Manager, pg
