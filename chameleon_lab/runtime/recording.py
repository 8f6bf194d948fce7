"""From the core's step logs to traces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..trace.columns import (
    Declined,
    Makings,
    Ops,
    Replays,
    Residencies,
    Stalls,
    StepTrace,
    Storages,
    Transfers,
    Uses,
)
from . import core


def step_trace(
    log: core.StepLog, session_stage: str, modules: Sequence[str], labels: Sequence[str]
) -> StepTrace:
    """The columns of one finished step. Copies that have not ended yet get NaN times."""
    ops, storages, uses = log.ops(), log.storages(), log.uses()
    transfers, stalls, residencies = log.transfers(), log.stalls(), log.residencies()
    replays, declined, makings = log.replays(), log.declined(), log.makings()
    tick_s = core.seconds_per_tick()

    def since_start(ticks: np.ndarray) -> np.ndarray:
        return (ticks - log.start_ticks) * tick_s

    def when_done(ticks: np.ndarray) -> np.ndarray:
        return np.where(ticks == 0, np.nan, since_start(ticks))

    return StepTrace(
        index=log.index,
        session_stage=session_stage,
        start_s=core.seconds(log.start_ticks),
        duration_s=(log.end_ticks - log.start_ticks) * tick_s,
        names=tuple(core.op_names()),
        modules=tuple(modules),
        labels=tuple(labels),
        stacks=tuple(log.stacks()),
        ops=Ops(
            name=ops["name"].copy(),
            module=ops["module"].copy(),
            stage=ops["stage"].copy(),
            sequence_nr=ops["sequence_nr"].copy(),
            thread=ops["thread"].copy(),
            stack=ops["stack"].copy(),
            start_s=since_start(ops["start_ticks"]),
            duration_s=(ops["end_ticks"] - ops["start_ticks"]) * tick_s,
            stall_s=ops["stall_ticks"] * tick_s,
            device_s=np.where(ops["device_ticks"] < 0, np.nan, ops["device_ticks"] * tick_s),
            live_peak_bytes=ops["live_peak_bytes"].copy(),
            resident_peak_bytes=ops["resident_peak_bytes"].copy(),
            token=ops["token"].copy(),
            plan_op=ops["plan_op"].copy(),
        ),
        storages=Storages(
            uid=storages["uid"].copy(),
            bytes=storages["bytes"].copy(),
            block_bytes=storages["block_bytes"].copy(),
            category=storages["category"].copy(),
            module=storages["module"].copy(),
            name=storages["label"].copy(),
            birth_op=storages["birth_op"].copy(),
            birth_ordinal=storages["birth_ordinal"].copy(),
            death_op=storages["death_op"].copy(),
            movable=storages["movable"].astype(bool),
        ),
        uses=Uses(
            op=uses["op"].copy(),
            storage=uses["storage"].copy(),
            reads=uses["reads"].astype(bool),
            writes=uses["writes"].astype(bool),
        ),
        transfers=Transfers(
            storage=transfers["storage"].copy(),
            direction=transfers["direction"].copy(),
            cause=transfers["cause"].copy(),
            bytes=transfers["bytes"].copy(),
            issue_op=transfers["issue_op"].copy(),
            issue_s=since_start(transfers["issue_ticks"]),
            start_s=when_done(transfers["start_ticks"]),
            end_s=when_done(transfers["end_ticks"]),
        ),
        stalls=Stalls(
            op=stalls["op"].copy(),
            storage=stalls["storage"].copy(),
            direction=stalls["direction"].copy(),
            cause=stalls["cause"].copy(),
            start_s=since_start(stalls["start_ticks"]),
            duration_s=(stalls["end_ticks"] - stalls["start_ticks"]) * tick_s,
        ),
        residencies=Residencies(
            storage=residencies["storage"].copy(),
            from_op=residencies["from_op"].copy(),
            to_op=residencies["to_op"].copy(),
            from_s=since_start(residencies["from_ticks"]),
            to_s=since_start(residencies["to_ticks"]),
        ),
        replays=Replays(
            op=replays["op"].copy(),
            storage=replays["storage"].copy(),
            name=replays["name"].copy(),
            cause=replays["cause"].copy(),
            bytes=replays["bytes"].copy(),
            start_s=since_start(replays["start_ticks"]),
            duration_s=(replays["end_ticks"] - replays["start_ticks"]) * tick_s,
        ),
        declined=Declined(
            op=declined["op"].copy(),
            storage=declined["storage"].copy(),
            name=declined["name"].copy(),
            refusal=declined["refusal"].copy(),
        ),
        makings=Makings(
            making=makings["making"].copy(),
            op=makings["op"].copy(),
            storage=makings["storage"].copy(),
            name=makings["name"].copy(),
            input=makings["input"].copy(),
            refusal=makings["refusal"].copy(),
        ),
        truncated_ops=log.truncated_ops,
        refusals=log.refusals,
        soft_ooms=log.soft_ooms,
        alloc_retries=log.alloc_retries,
        device_allocs=log.device_allocs,
        device_frees=log.device_frees,
        device_syncs=log.device_syncs,
        useless_bytes=log.useless_bytes,
    )
