"""Writes the trace that the pictures of the panel are of: ``python tests/browser/make_trace.py``.

It is kept as a file, for a planner that gets better would draw another one. No machine has run it.
"""

import sys
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).parent
TRACE = HERE / "data" / "blocks.parquet"
_LINK_BYTES_PER_S = 0.9e9


def save_trace(path: Path) -> None:
    """Two steps of a small transformer as they are predicted at 45 % of their peak."""
    sys.path.insert(0, str(HERE.parent / "unit"))
    from synthetic import blocks_step

    from chameleon_lab.lab.panel.predicted import predicted_step
    from chameleon_lab.planner import plan
    from chameleon_lab.planner.memory import step_op_times
    from chameleon_lab.policy import Link
    from chameleon_lab.trace import Trace

    step = blocks_step()
    times, link = step_op_times(step), Link(_LINK_BYTES_PER_S, _LINK_BYTES_PER_S)
    policy = plan(step, int(0.45 * step.live_peak_bytes), link, op_times=times)
    first = replace(predicted_step(policy, step, times), session_stage="Stable", index=6)
    second = replace(first, index=7, start_s=first.duration_s)
    meta = {"device": "cpu", "capacity_bytes": policy.capacity_bytes}
    meta |= {f"link_{way}_bytes_per_s": _LINK_BYTES_PER_S for way in ("out", "in")}
    Trace([first, second], meta).save(path)


if __name__ == "__main__":
    save_trace(TRACE)
