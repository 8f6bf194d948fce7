"""Ranks for tests: processes forked from one that has imported everything, joined by gloo over a file."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

from training import child

_AROUND = """
    import json, os, signal, sys, time, traceback
    import datetime
    import torch.distributed as dist
    import torch.distributed.fsdp, torch.distributed.tensor.parallel
    from torch import nn
    import rank_training
    from rank_training import *

    folder, world = {folder!r}, {world}

    def one_rank(rank):
        limit = datetime.timedelta(seconds=120)
        dist.init_process_group(
            "gloo", init_method="file://" + folder + "/store", rank=rank, world_size=world, timeout=limit
        )
        scope = dict(globals(), rank=rank, result=None)
        exec(code, scope)
        with open(folder + f"/result.{{rank}}", "w") as file:
            json.dump(scope["result"], file)

    code = {code!r}
    children = {{}}
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                one_rank(rank)
                status = 0
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        children[pid] = rank
    failed = []
    while children:
        pid, status = os.wait()
        rank = children.pop(pid)
        if os.waitstatus_to_exitcode(status) not in {expected!r}.get(rank, (0,)):
            failed.append(rank)
            for other in children:  # they would wait for it
                os.kill(other, signal.SIGKILL)
    assert not failed, failed
"""


def ranks(
    code: str, folder: Path, world: int = 2, expected: dict[int, tuple[int, ...]] | None = None
) -> list[Any]:
    """Run code in each of some ranks: it finds ``rank``, ``world`` and ``folder``, and leaves its ``result``.

    ``expected``: by rank, the exit codes that are no failure, where 0 is none.
    """
    around = textwrap.dedent(_AROUND).format(
        folder=str(folder), world=world, code=textwrap.dedent(code), expected=expected or {}
    )
    child(around)
    files = [folder / f"result.{rank}" for rank in range(world)]
    return [json.loads(file.read_text()) if file.exists() else None for file in files]
