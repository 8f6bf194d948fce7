"""`step.flame(op)` and `trace.growth()`: bytes by module and by Python line, and what steps leave behind."""

from dataclasses import replace

import numpy as np
import pytest
from synthetic import gpt_step

from chameleon_lab.lab.panel.dispatch import answer
from chameleon_lab.lab.panel.file_names import trace_files
from chameleon_lab.lab.panel.icicle import grown, icicle
from chameleon_lab.lab.panel.notes import KEY, Notes
from chameleon_lab.lab.panel.protocol import VERSION, ProtocolError
from chameleon_lab.lab.panel.scene import Scene
from chameleon_lab.lab.panel.sources import Sources
from chameleon_lab.trace import Trace
from chameleon_lab.trace.flame import own_frames

FRAMES = (
    "/x/site-packages/torch/nn/modules/module.py:9 _call_impl\n/home/a/model.py:7 forward\n/home/a/train.py:12 step",
    "/home/a/loss.py:3 loss\n/home/a/train.py:13 step",
)
STEP = gpt_step(layers=4)
STEP = replace(
    STEP,
    stacks=FRAMES,
    ops=replace(STEP.ops, stack=np.arange(len(STEP.ops), dtype=np.int32) % 3 - 1),
)


def checked(node):
    """Children add up to their parent, and no storage is in two of them."""
    if node.children:
        assert sum(child.bytes for child in node.children.values()) == node.bytes
        rows = [row for child in node.children.values() for row in child.rows]
        assert sorted(rows) == sorted(node.rows) and len(set(rows)) == len(rows)
    for child in node.children.values():
        checked(child)


@pytest.mark.parametrize("by", ["module", "stack"])
@pytest.mark.parametrize("op", [None, 3, len(STEP.ops) - 1])
def test_a_tree_divides_what_is_alive_to_the_byte(op, by):
    tree = STEP.flame(op, by)
    assert tree.bytes == STEP.alive(op).bytes and len(tree.rows) == len(STEP.alive(op))
    checked(tree)
    assert [node.bytes for node in tree.sorted()] == sorted(
        (node.bytes for node in tree.children.values()), reverse=True
    )


def test_a_tree_by_module_has_the_modules_sums_and_one_by_stack_the_lines():
    for module, size in STEP.alive().by_module(2).items():
        if module:
            assert STEP.flame().children[module].bytes == size
    tree = STEP.flame(by="stack")
    assert set(tree.children) == {
        "Made before the step",
        "No Python stack",
        "/home/a/train.py:12 step",
        "/home/a/train.py:13 step",
    }
    assert set(tree.children["/home/a/train.py:12 step"].children) == {"/home/a/model.py:7 forward"}
    assert set(tree.children["Made before the step"].children) <= {"parameter", "optimizer state", "input"}
    with pytest.raises(ValueError, match="by is 'line': give one of module, stack"):
        STEP.flame(by="line")


def test_frames_of_libraries_are_left_out_unless_there_are_no_others():
    assert own_frames(FRAMES[0]) == ["/home/a/train.py:12 step", "/home/a/model.py:7 forward"]
    alone = "/x/site-packages/torch/a.py:1 f\n/x/site-packages/torch/b.py:2 g"
    assert own_frames(alone) == ["/x/site-packages/torch/b.py:2 g", "/x/site-packages/torch/a.py:1 f"]


@pytest.mark.parametrize("by", ["module", "stack"])
def test_the_panels_tree_is_flat_nested_and_sums_up_what_is_too_small(by):
    scene = Scene([STEP, replace(STEP, index=STEP.index + 1)], {})
    at = float(len(STEP.ops) + 9)
    found = icicle(scene, "op", at, by)
    assert (found["step"], found["op"], found["bytes"]) == (STEP.index + 1, 9, STEP.alive(9).bytes)
    nodes = found["nodes"]
    assert nodes[0]["depth"] == 0 and nodes[0]["bytes"] == found["bytes"]
    for i, node in enumerate(nodes):
        below = []
        for other in nodes[i + 1 :]:
            if other["depth"] <= node["depth"]:
                break
            below += [other] if other["depth"] == node["depth"] + 1 else []
        assert not below or sum(child["bytes"] for child in below) == node["bytes"]
        assert not below or below[0]["start_bytes"] == node["start_bytes"]
        assert (node["uid"] >= 0) == (node["count"] == 1)


def leaking(count):
    """Steps of which each leaves one more storage of one op behind, as an activation that nobody uses."""
    steps = []
    op = int(np.flatnonzero(STEP.storages.birth_op >= 0)[0])
    birth = int(STEP.storages.birth_op[op])
    n = len(STEP.ops)
    for k in range(count):
        storages = STEP.storages
        columns = {}
        for name, column in storages.columns().items():
            extra = np.repeat(column[op : op + 1], k + 1)
            if name == "uid":
                extra = 10_000 + np.arange(k + 1)
            elif name == "birth_op":
                extra = np.array([-1] * k + [birth])
            elif name == "birth_ordinal":
                extra = np.array([-1] * k + [77])
            elif name == "death_op":
                extra = np.full(k + 1, n)
            columns[name] = np.concatenate([column, extra]).astype(column.dtype)
        steps.append(replace(STEP, index=k, storages=replace(storages, **columns)))
    return steps


def test_what_a_step_leaves_behind_each_time_grows_and_the_rest_does_not():
    found = Trace(leaking(4)).growth()
    size = int(found.rows[0].bytes[0])
    assert len(found.rows) == 1 and found.steps == (0, 1, 2, 3)
    (row,) = found.rows
    assert row.bytes == (size, 2 * size, 3 * size, 4 * size) and row.counts == (1, 2, 3, 4)
    assert row.bytes_per_step == size and row.uid == 10_003
    assert found.bytes[-1] - found.bytes[0] == 3 * size
    assert "a step" in str(found) and row.origin in str(found)
    told = grown(leaking(4))
    assert told["count"] == 1 and told["rows"][0]["bytes"] == list(row.bytes)


def test_without_a_leak_nothing_grows():
    again = [replace(STEP, index=k) for k in range(3)]
    assert Trace(again).growth().rows == ()
    assert "Nothing has grown" in str(Trace(again).growth())
    assert Trace([STEP]).growth().rows == () and "two steps or more" in str(Trace([STEP]).growth())


def test_notes_are_kept_at_an_op_and_come_back_with_the_trace(tmp_path):
    scene, notes = Scene([STEP], {}), Notes()
    notes.add("session:1", scene, "op", 7.5, " here ")
    notes.add("draft:session:1", scene, "time", 0.0, "there")
    (first, second) = notes.shown("session:1", scene)
    assert (first["op"], first["text"], first["at"]["op"]) == (7, "here", 7.0)
    assert first["at"]["time"] == pytest.approx(float(STEP.ops.start_s[7])) and second["op"] == 0
    path = tmp_path / "a.parquet"
    Trace([STEP], {KEY: notes.all("session:1")}).save(str(path))
    later = Notes()
    later.take("file:a", Trace.load(str(path)).meta)
    assert later.all("file:a") == notes.all("session:1")
    later.forget("file:a", 0)
    assert [note["text"] for note in later.all("file:a")] == ["there"]
    with pytest.raises(ProtocolError, match="no note 5"):
        later.forget("file:a", 5)
    with pytest.raises(ProtocolError, match="needs a text"):
        later.add("file:a", scene, "op", 1.0, "  ")


@pytest.mark.parametrize(
    "given",
    [None, 3, "x", [3], [{"step": "0", "op": 1, "text": "a"}], [{"step": 0, "op": True, "text": "a"}]],
)
def test_what_is_no_note_is_left_out(given):
    notes = Notes()
    notes.take("file:a", {KEY: given})
    assert notes.all("file:a") == []


def test_files_are_offered_the_newest_first_and_not_from_hidden_folders(tmp_path):
    import os

    for number, name in enumerate(
        ["a.parquet", "sub/b.json", ".git/c.json", "sub/deep/er/still/d.parquet", "e.txt"]
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        os.utime(path, (number, number))
    assert trace_files(str(tmp_path)) == ["sub/b.json", "a.parquet"]


def test_a_trace_is_saved_with_its_notes_and_over_no_other_unasked(tmp_path):
    sources = Sources()
    given, kept = str(tmp_path / "given.parquet"), str(tmp_path / "kept.parquet")
    Trace([STEP], {"kernels": "a CPU"}).save(given)

    def asked(method, **params):
        message = {"version": VERSION, "type": "request", "id": 1, "method": method, "params": params}
        found, buffers = answer(sources, message)
        assert buffers == []
        return found.get("error") or found["result"]

    source = asked("open", path=given)["source"]
    steps = {"source": source, "first": STEP.index, "last": STEP.index}
    assert asked("notes", **steps)["notes"] == []
    (note,) = asked("note", **steps, axis="op", at=5.0, text="here")["notes"]
    assert asked("save_trace", source=source, path=kept.removesuffix(".parquet"))["path"] == kept
    assert asked("save_trace", source=source, path=kept)["code"] == "exists"
    assert asked("save_trace", source=source, path=kept, overwrite=True)["steps"] == 1
    again = Trace.load(kept)
    assert again.meta == {"kernels": "a CPU", KEY: [{"step": STEP.index, "op": 5, "text": "here"}]}
    reopened = asked("open", path=kept)["source"]
    assert asked("notes", **(steps | {"source": reopened}))["notes"] == [note]
    assert asked("forget_note", **steps, index=0)["notes"] == []
    assert asked("forget_note", **steps, index=0)["code"] == "not_found"
    assert asked("save_trace", source="session:7", path=kept)["code"] == "gone"
    nowhere = str(tmp_path / "no" / "a.parquet")
    assert asked("save_trace", source=source, path=nowhere)["code"] == "bad_file"
    assert asked("growth", source=source)["rows"] == []
    assert asked("icicle", **steps, axis="op", at=5.0, by="stack")["bytes"] == STEP.alive(5).bytes
    assert asked("icicle", **steps, axis="op", at=5.0, by="line")["code"] == "malformed"
