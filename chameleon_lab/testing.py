"""Helpers for tests of your own custom ops, autograd functions and extensions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from .runtime import core  # first: it says what is missing where torch is
from .session import Session  # isort: split

import torch

_ALL_OF_IT = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
_LINK = 2.0**40  # nothing is planned, so that nothing needs to know what copies cost


@contextmanager
def evict_always(
    device: str | torch.device | None = "cpu",
    seed: int | None = None,
    *,
    capacity: int | float | str | None = None,
) -> Iterator[Session]:
    """Make every op find its inputs away: whatever would break under pressure breaks here, at once and every time.

    Inside, every storage that may leave is away before each op that reads it, and after the op all are away again, so
    that raw accesses between ops meet them away too. Storages of any size count, also those that a session would
    leave alone as too small. An op's inputs come back before its kernel runs, and stay until the outermost op has
    ended. What may not leave: storages with a raw pointer outside (``numpy()``, ``data_ptr()``), those that
    ``torch.empty`` has made and no op has read yet, and tensors made before, until they are adopted: models and
    optimizers at their first use, others by the session's :meth:`~chameleon_lab.Session.adopt`.

    Args:
        device: as in :class:`~chameleon_lab.Session`.
        seed: a random eighth of what is on the device leaves around every op, so that ops meet their inputs in mixed
            places. None: all of it.
        capacity: device bytes to stay within, as in :class:`~chameleon_lab.Session`. None: all of the memory.

    Yields:
        The session that does it. ``session.report().peak_bytes`` is then the working set of the largest op.

    Raises:
        SessionError: a session is open already, or the device is not there.
        ValueError: the seed is negative, or the capacity no size.

    Example::

        want = my_op(x)
        with chameleon_lab.testing.evict_always() as session:
            session.adopt(x)
            got = my_op(x)
        assert torch.equal(got, want)
    """
    if seed is not None and not 0 <= seed < 2**63:
        raise ValueError(f"seed must be a number from 0 up, got {seed!r}")
    limit = _ALL_OF_IT if capacity is None else capacity
    with Session(limit, device=device, link=_LINK, planning=False, min_swap=1, warmup_steps=0) as session:
        core.of(session.device).evict_always(seed)
        yield session
