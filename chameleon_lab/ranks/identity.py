"""Which rank of a job this process is: of the process group where there is one, else as the launcher says."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),  # torchrun, accelerate, Lightning, DeepSpeed
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    # srun sets the second one for the processes that it starts, and for nothing else of an allocation.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)
"""Of each launcher the variables of the rank, the world size, and both on this machine."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Identity:
    """One rank of a job."""

    rank: int
    world_size: int
    local_rank: int | None = None
    """Its number among the ranks of its machine; None: nobody said."""
    local_world_size: int | None = None
    """How many ranks of the job run on its machine; None: nobody said."""
    host: str = ""

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size}"

    @property
    def is_alone(self) -> bool:
        """Is it the only rank of its job?"""
        return self.world_size == 1

    @property
    def share_of_machine(self) -> int:
        """Among how many ranks the machine's memory is divided; 1 where nobody said."""
        return self.local_world_size or 1

    def to_meta(self) -> dict[str, Any]:
        """What a trace's meta holds of it."""
        return asdict(self)

    @classmethod
    def of_meta(cls, meta: Mapping[str, Any]) -> Identity | None:
        """Of a trace's meta; None where it says nothing, or no rank that there can be."""
        found = [meta.get(name) for name in ("rank", "world_size", "local_rank", "local_world_size")]
        rank, world_size, local_rank, local_world_size = (
            value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
            for value in found
        )
        if rank is None or world_size is None or rank >= world_size:
            return None
        return cls(rank, world_size, local_rank, local_world_size or None, str(meta.get("host") or ""))


ALONE = Identity(0, 1, 0, 1)
"""Of a process that nobody has launched as one of several."""


def identity(environment: Mapping[str, str] | None = None) -> Identity:
    """Which rank this process is; :data:`ALONE`, with the host's name, where nobody says that there are several.

    torch.distributed knows best, once it is initialized; before that, and for what it does not know, the launcher's
    variables do. Does not import torch. ``environment``: in place of the process's.
    """
    variables = os.environ if environment is None else environment
    launched = _launched(variables)
    host = socket.gethostname()
    group = _process_group() if environment is None else None
    if group is None:
        rank, world_size, local_rank, local_world_size = launched or (0, 1, 0, 1)
        return Identity(rank, world_size, local_rank, local_world_size, host)
    if launched is not None and launched[:2] == group:
        return Identity(*launched, host)
    if group[1] == 1:
        return Identity(*group, 0, 1, host)
    if variables.get("MASTER_ADDR") in _LOOPBACK:  # a job that meets there has no other machine
        return Identity(*group, *group, host)
    return Identity(*group, host=host)


def _launched(variables: Mapping[str, str]) -> tuple[int, int, int | None, int | None] | None:
    for names in _LAUNCHERS:
        rank, world_size, local_rank, local_world_size = (_number(variables.get(name)) for name in names)
        if rank is not None and world_size is not None and rank < world_size:
            return rank, world_size, local_rank, local_world_size or None
    return None


def _number(text: str | None) -> int | None:
    """A count; of Slurm's ``4(x2)``, 4 tasks on each of 2 machines, what holds for all of them."""
    text = (text or "").partition("(x")[0]
    return int(text) if text.isascii() and text.isdigit() else None


def _process_group() -> tuple[int, int] | None:
    """Rank and world size of the default process group; None without one."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return None
        return distributed.get_rank(), distributed.get_world_size()
    except (AttributeError, RuntimeError, ValueError):  # half imported, or destroyed meanwhile
        return None


def process_groups() -> dict[str, list[int]]:
    """The ranks of each process group of torch.distributed that this rank is in, by the group's name."""
    if _process_group() is None:
        return {}
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(c10d, "_world", None)
    found = {}
    with_names = getattr(world, "pg_names", None) or {}
    for group, ranks in dict(getattr(world, "pg_group_ranks", None) or {}).items():
        if group in with_names:
            found[str(with_names[group])] = sorted(int(rank) for rank in ranks)
    return found


class RankWatch:
    """The rank and the process groups of this process, as known last: a script leaves its groups at its end."""

    def __init__(self) -> None:
        self.identity = identity()
        self.groups: dict[str, list[int]] = {}

    def look(self) -> None:
        """Look again: a script may make its process groups at any time."""
        if (groups := process_groups()) or not self.groups:
            self.identity, self.groups = identity(), groups

    def to_meta(self) -> dict[str, Any]:
        """What a trace's meta holds of it."""
        self.look()
        groups = {"groups": dict(self.groups)} if self.groups else {}
        return self.identity.to_meta() | groups
