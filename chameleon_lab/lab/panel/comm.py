"""The panel's line to the kernel: a Jupyter comm that answers requests, and a thread that says what is new.

ipykernel runs a comm's messages on a subshell, a thread of its own, where panel and kernel both can; then requests
are answered while a cell trains. Where they cannot, requests wait for the cell, and the thread's news still arrive.
"""

from __future__ import annotations

import threading
import time
from contextvars import Context, copy_context
from typing import Any

from .dispatch import answer
from .protocol import PANEL_TARGET, TARGET, ProtocolError, event, failure
from .sources import Sources

NEWS_EVERY_S = 0.25
"""The panel hears of what is new at most this often."""


class PanelLine:
    """Every panel that is connected to this kernel.

    Args:
        sources: what the panels draw.
    """

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self._lock = threading.Lock()
        self._comms: dict[str, tuple[Any, Context]] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def opened(self, comm: Any, message: dict[str, Any]) -> None:
        """A panel has connected; the comm target's callback."""
        comm.on_msg(lambda message: self._answer(comm, message))
        comm.on_close(lambda message: self._closed(comm))
        with self._lock:
            # ipykernel sends a comm's next requests to the shell whose message its newest one answered. So the news
            # go out as answers to this opening: sent from the thread's own context, they would bind the comm to the
            # main shell, where requests wait for the running cell.
            self._comms[comm.comm_id] = (comm, copy_context())
            if self._thread is None:
                self._stop.clear()
                thread = threading.Thread(target=self._tell_news, name="chameleon-lab-news", daemon=True)
                thread.start()
                self._thread = thread

    def close(self) -> None:
        """Hang up on every panel."""
        with self._lock:
            comms, self._comms = [comm for comm, _ in self._comms.values()], {}
            thread, self._thread = self._thread, None
            self._stop.set()
            self.sources.news.set()
        for comm in comms:
            comm.close()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=2)
        self.sources.close()

    def _closed(self, comm: Any) -> None:
        with self._lock:
            self._comms.pop(comm.comm_id, None)
            if not self._comms:
                self._thread = None
                self._stop.set()

    def _answer(self, comm: Any, message: dict[str, Any]) -> None:
        envelope, buffers = answer(self.sources, message["content"].get("data"))
        comm.send(envelope, buffers=buffers)

    def _tell_news(self) -> None:
        """Send the status when it has changed, until the last panel is gone."""
        me, sent, sent_s = threading.current_thread(), None, -NEWS_EVERY_S
        drafts: dict[str, int] = {}
        failed = ""
        while not self._stop.is_set():
            self.sources.news.wait(NEWS_EVERY_S)
            self.sources.news.clear()
            with self._lock:
                if self._thread is not me:
                    return
                comms = list(self._comms.values())
            envelopes = []
            try:
                mark = (self.sources.mark(), tuple(comm.comm_id for comm, _ in comms))
                if mark != sent and time.monotonic() - sent_s >= 0.9 * NEWS_EVERY_S:
                    sent, sent_s = mark, time.monotonic()
                    envelopes.append(event("status", self.sources.status()))
                for source, news in self.sources.draft_news().items():
                    if drafts.get(source) != news:
                        drafts[source] = news
                        envelopes.append(event("draft", {"source": source, "news": news}))
            except Exception as error:  # the thread must outlive what a session in the midst of ending does
                text = f"{type(error).__name__}: {error}"
                envelopes = [] if text == failed else [failure(None, ProtocolError("internal", text))]
                failed = text
            for envelope in envelopes:
                for comm, context in comms:
                    context.run(comm.send, envelope)


_line: PanelLine | None = None


def register() -> bool:
    """Take calls from panels, and tell the front end so. False outside a Jupyter kernel."""
    global _line
    if not _in_kernel():
        return False
    from comm import get_comm_manager

    if _line is None:
        _line = PanelLine(Sources())
        get_comm_manager().register_target(TARGET, _line.opened)
    call_panel("loaded")
    return True


def unregister() -> None:
    """Hang up, and take no more calls."""
    global _line
    if _line is None:
        return
    from comm import get_comm_manager

    get_comm_manager().targets.pop(TARGET, None)
    line, _line = _line, None
    line.close()


def call_panel(action: str) -> None:
    """Send ``"loaded"`` or ``"show"`` to the panel's extension in the front end, if it has one."""
    from comm import create_comm

    create_comm(target_name=PANEL_TARGET, data={"action": action}, primary=True).close()


def _in_kernel() -> bool:
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None
