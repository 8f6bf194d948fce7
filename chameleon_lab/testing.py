"""Helpers for tests of your own custom ops, autograd functions, extensions and training loops."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager

from .runtime import core  # first: it says what is missing where torch is
from .session import Session  # isort: split

import torch

from .errors import SessionError
from .session import current_session
from .util.units import parse_bandwidth

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


class ModeledTime:
    """What ops take inside :func:`modeled_time`."""

    def __init__(self, op_s: float, op_bytes_per_s: float, link_bytes_per_s: float) -> None:
        self._bandwidths = op_bytes_per_s, link_bytes_per_s
        self._set(op_s)

    @property
    def op_s(self) -> float:
        """Seconds of each op, beside what its bytes take."""
        return self._op_s

    @op_s.setter
    def op_s(self, op_s: float) -> None:
        if not core.time_is_modeled():
            raise SessionError("modeled time has ended: set op_s inside modeled_time()")
        self._set(op_s)

    def _set(self, op_s: float) -> None:
        if not 0.0 <= op_s < math.inf:
            raise ValueError(f"op_s must be seconds from 0 up, got {op_s!r}")
        self._op_s = op_s
        core.begin_modeled_time(op_s, *self._bandwidths)


@contextmanager
def modeled_time(
    op_s: float = 20e-6, *, op_bandwidth: float | str | None = None, link: float | str = "8GiB/s"
) -> Iterator[ModeledTime]:
    """Have time pass as a model says, so that plans, stalls and reports are the same on every machine.

    Inside, a step of a session on the ``cpu`` device takes no time but that of its ops and of its waits for copies: an
    op, or its replay, takes ``op_s``, and what the bytes of the storages that it uses take at ``op_bandwidth``; a copy
    takes what the session's link says. Plans are made between two steps, so each comes at the same step everywhere.
    Threads that run ops at once share the clock. Read reports and traces inside as well: their times are the model's,
    and Unix times begin at 0.

    Args:
        op_s: seconds, 0 or more.
        op_bandwidth: bytes a second, or text such as ``"100GiB/s"``. None: only ``op_s`` counts.
        link: of sessions that name none: bytes a second each way, or text.

    Yields:
        The model: set its ``op_s`` to have later ops take longer or shorter.

    Raises:
        SessionError: a session is open at the begin or the end, or modeled time is on already.
        ValueError: ``op_s`` is negative or no finite number, or a bandwidth is none.

    Example::

        with chameleon_lab.testing.modeled_time(op_s=1e-5), chameleon_lab.Session("64MiB", device="cpu") as session:
            train(model, steps=5)
            assert session.report().stall_s == 0.0
    """
    bytes_per_s = 0.0 if op_bandwidth is None else parse_bandwidth(op_bandwidth, "op_bandwidth")
    link_bytes_per_s = parse_bandwidth(link, "link")
    if core.time_is_modeled() or current_session() is not None:
        what = "modeled time is on" if core.time_is_modeled() else "a session is open"
        raise SessionError(f"{what}: begin modeled_time() before any session, and once")
    model = ModeledTime(op_s, bytes_per_s, link_bytes_per_s)
    try:
        yield model
    finally:
        core.end_modeled_time()
    if current_session() is not None:
        raise SessionError("a session is open that began in modeled time: end it inside modeled_time()")


def wait_for_plans(session: Session) -> None:
    """Wait until the plan that is being made, if any, is there; the session takes it at the next step's end."""
    session._plans.wait()
