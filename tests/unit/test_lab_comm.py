import threading
from contextvars import ContextVar

import pytest
from hangs import HANGS_AFTER_S

from chameleon_lab.lab.panel import comm as lab_comm
from chameleon_lab.lab.panel.protocol import VERSION
from chameleon_lab.lab.panel.sources import Sources

shell = ContextVar("shell", default="main")


class FakeComm:
    """A comm that keeps what is sent, and from which shell's context."""

    def __init__(self, comm_id):
        self.comm_id = comm_id
        self.sent = []
        self.closed = False
        self.arrived = threading.Event()

    def on_msg(self, callback):
        self.say = callback

    def on_close(self, callback):
        self.hang_up = callback

    def send(self, data, buffers=None):
        self.sent.append((data, shell.get(), threading.current_thread().name))
        self.arrived.set()

    def close(self):
        self.closed = True

    def events(self):
        return [entry for entry in self.sent if entry[0]["type"] == "event"]


@pytest.fixture
def line():
    line = lab_comm.PanelLine(Sources())
    yield line
    line.close()


def opened(line, name):
    comm = FakeComm(name)
    token = shell.set("subshell")
    line.opened(comm, {})
    shell.reset(token)
    return comm


def test_news_comes_by_itself_as_an_answer_to_the_opening(line):
    comm = opened(line, "a")
    assert comm.arrived.wait(HANGS_AFTER_S)
    (message, context, thread) = comm.events()[0]
    assert message["name"] == "status"
    assert set(message["body"]) == {"session", "files", "policies"}
    assert context == "subshell"  # or ipykernel would send what comes next to the main shell
    assert thread == "chameleon-lab-news"


def test_unchanged_status_is_not_told_again_but_a_new_panel_hears_it(line, monkeypatch):
    monkeypatch.setattr(lab_comm, "NEWS_EVERY_S", 0.01)
    looks, looked = [], threading.Event()
    mark = line.sources.mark

    def look():
        looks.append(mark())
        if len(looks) > 5:
            looked.set()
        return looks[-1]

    monkeypatch.setattr(line.sources, "mark", look)
    first = opened(line, "a")
    assert first.arrived.wait(HANGS_AFTER_S) and looked.wait(HANGS_AFTER_S)
    assert len(first.events()) == 1
    second = opened(line, "b")
    assert second.arrived.wait(HANGS_AFTER_S)


def test_requests_are_answered_whatever_they_are(line):
    comm = opened(line, "a")
    for data in (
        {"version": VERSION, "type": "request", "id": 3, "method": "hello", "params": {}},
        None,
        "x",
    ):
        comm.say({"content": {"data": data}})
    answers = [data for data, _, thread in comm.sent if thread == threading.current_thread().name]
    assert [(a["type"], a["id"]) for a in answers] == [("reply", 3), ("error", None), ("error", None)]


def test_the_thread_ends_with_the_last_panel(line):
    comm = opened(line, "a")
    thread = line._thread
    comm.hang_up({})
    thread.join(HANGS_AFTER_S)
    assert not thread.is_alive()
    assert opened(line, "b").arrived.wait(HANGS_AFTER_S)


def test_closing_hangs_up(line):
    comm = opened(line, "a")
    line.close()
    assert comm.closed


def test_outside_a_kernel_there_is_nobody_to_register_with():
    assert lab_comm.register() is False
