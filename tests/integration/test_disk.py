"""The disk of a session: never a wrong number, whatever becomes of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training import ROOT, Gpt, KiB, MiB, adamw, child, disk_folder, raw, reference, tight_bytes, train

import chameleon_lab as cl
from chameleon_lab.runtime import core

ALWAYS = 1024
FAULTS = ("writes", "reads", "short_moves", "flips", "full", "flushes")


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    for name in FAULTS:
        core.set_disk_fault(name)
    core.refuse_direct_moves(False)


@pytest.fixture(params=["direct", "buffered"])
def any_way(request: pytest.FixtureRequest) -> str:
    """Past the page cache where the file system has that, and through it."""
    core.refuse_direct_moves(request.param == "buffered")
    return request.param


def session(capacity: int | str = "8MiB", **options: Any) -> cl.Session:
    return cl.Session(capacity, device="cpu", **{"disk": disk_folder(), "rematerialize": False, **options})


def deleted_files() -> list[str]:
    """Of this process, open without a name, in the folder."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if target.startswith(str(disk_folder())):
            found.append(f"/proc/self/fd/{number}")
    return found


def numbers(count: int = 4, size: int = MiB) -> list[torch.Tensor]:
    """Tensors that differ, made by an op: they may leave."""
    return [torch.arange(size // 4, dtype=torch.float32) + number for number in range(count)]


def check_numbers(tensors: list[torch.Tensor], plus: float = 0.0) -> None:
    for number, tensor in enumerate(tensors):
        wanted = torch.arange(tensor.numel(), dtype=torch.float32) + number + plus
        assert torch.equal(tensor, wanted)
        del wanted


def trained(**options: Any) -> tuple[Any, Any]:
    """The run without Chameleon Lab, and one with a disk at a quarter of its peak."""
    bare, peak = reference(Gpt, adamw, 4)
    capacity = max(peak // 4, tight_bytes(Gpt, adamw, 4))
    run = train(Gpt, adamw, 4, {"capacity": capacity, "min_swap": "2KiB", "disk": disk_folder(), **options})
    return bare, run


# ---------------------------------------------------------------------------------------------------- the file


@pytest.mark.bits
def test_the_file_has_no_name_and_belongs_to_this_process_alone() -> None:
    with session():
        tensors = numbers()
        for tensor in tensors:
            assert cl.current_session().evict(tensor)
        (file,) = deleted_files()
        found = os.stat(file)
        assert found.st_nlink == 0 and found.st_mode & 0o777 == 0o600
        assert found.st_blocks * 512 >= 4 * MiB
        assert list(disk_folder().iterdir()) == []
        check_numbers(tensors)
    assert deleted_files() == []
    check_numbers(tensors)


@pytest.mark.bits
def test_nothing_of_it_lies_in_the_hosts_memory() -> None:
    with session() as opened:
        tensors = numbers(6)
        for tensor in tensors:
            opened.evict(tensor)
        assert opened.counters()["resident_bytes"] < MiB
        assert opened.report().disk.used_bytes == 6 * MiB
        check_numbers(tensors)


@pytest.mark.bits
@pytest.mark.parametrize("size", [512, 5 * KiB, 64 * KiB, 100_000, 2 * MiB, 2 * MiB + 4, 5 * MiB + 12])
def test_storages_of_any_size_come_back(size: int, any_way: str) -> None:
    with session("24MiB", verify=True) as opened:
        tensor = torch.arange(size // 4, dtype=torch.int32)
        for step in range(3):
            assert opened.evict(tensor)
            assert opened.where(tensor) == "away"
            assert torch.equal(tensor, torch.arange(size // 4, dtype=torch.int32) + step)
            tensor += 1
        assert opened.report().disk.direct <= (any_way == "direct")


@pytest.mark.bits
@pytest.mark.parametrize("folder", ["/dev/shm", "/nowhere/at/all", str(ROOT / "README.md"), "/proc"])
def test_a_folder_that_cannot_take_it_is_named(folder: str) -> None:
    if folder == "/dev/shm" and " /dev/shm tmpfs " not in Path("/proc/self/mounts").read_text():
        pytest.skip("/dev/shm of this machine does not lie in memory")
    with pytest.raises(cl.SessionError, match="disk=") as raised:
        session(disk=folder).start()
    assert folder in str(raised.value)
    with session():  # and the next session begins
        check_numbers(numbers())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"disk": "/scratch:"}, "write it like"),
        ({"disk": ":5GiB"}, "names no folder"),
        ({"disk": "/scratch:5Gobs"}, "is not a size"),
        ({"disk": "/scratch", "host_capacity": "1GiB"}, "leave out host_capacity"),
        ({"disk": "/scratch", "capacity": None}, "give one"),
        ({"disk": None, "verify": True}, "give disk="),
    ],
)
def test_arguments_that_mean_nothing_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        cl.Session(**{"capacity": "8MiB", "device": "cpu", **options})


def test_the_report_begins_with_the_disk() -> None:
    disk = f"{disk_folder()}:64MiB"
    with session(disk=disk, verify=True) as opened:
        opened.evict(numbers(1)[0])
        report = opened.report()
        name, where, remark = report.rows()[0]
        assert (name, where) == ("Disk", str(disk_folder()))
        assert "64.0 MiB at most" in remark and "checked" in remark
        assert opened.link.out_bytes_per_s > 0 and opened.link.in_bytes_per_s > 0
        assert report.disk.written_bytes >= MiB
        assert report.to_dict()["disk"]["folder"] == str(disk_folder())
    assert opened.report().disk.written_bytes == report.disk.written_bytes  # and stays, when it has ended


@pytest.mark.bits
def test_a_link_is_the_most_that_the_disk_is_asked_for() -> None:
    with session(link=60e6) as opened:
        assert 0 < opened.link.out_bytes_per_s <= 61e6
        assert 0 < opened.link.in_bytes_per_s <= 61e6
        tensors = numbers(3)
        for tensor in tensors:
            opened.evict(tensor)
        check_numbers(tensors)


def test_the_page_cache_is_said_to_be_used(any_way: str) -> None:
    with session() as opened:
        text = str(opened.report())
    assert ("page cache" in text) == (not opened.report().disk.direct)
    if any_way == "buffered":
        assert "page cache" in text


# ---------------------------------------------------------------------------------------------------- faults


@pytest.mark.bits
def test_training_through_the_page_cache_gives_the_same_bits() -> None:
    core.refuse_direct_moves(True)
    bare, run = trained()
    assert run.same(bare) and run.report.swapped_out_bytes > 0


@pytest.mark.bits
def test_moves_that_are_cut_short_are_carried_on(any_way: str) -> None:
    core.set_disk_fault("short_moves", 300)
    bare, run = trained()
    assert run.same(bare)
    assert run.report.disk.short_moves > 0 and run.report.disk.failed_reads == 0


@pytest.mark.bits
@pytest.mark.parametrize("fault", ["writes", "flushes"])
def test_a_failed_write_leaves_the_storage_resident(fault: str) -> None:
    core.refuse_direct_moves(fault == "flushes")
    with session() as opened:
        tensors = numbers(2)
        core.set_disk_fault(fault, ALWAYS, 1)
        assert not opened.evict(tensors[0])
        assert opened.where(tensors[0]) == "resident"
        assert opened.evict(tensors[0]) and opened.where(tensors[0]) == "away"
        report = opened.report()
        assert report.disk.failed_writes == 1 and report.disk.refusal == ""
        check_numbers(tensors)


@pytest.mark.bits
def test_training_goes_on_over_two_failed_writes(any_way: str) -> None:
    made = core.disk_faults_made("writes")
    opened: list[cl.Session] = []

    def fail(step: int, _: nn.Module, run: cl.Session | None) -> None:
        if run and step == 2:
            opened.append(run)
            core.set_disk_fault("writes", ALWAYS, 2)

    bare, peak = reference(Gpt, adamw, 4)
    run = train(
        Gpt,
        adamw,
        4,
        {"capacity": peak // 2, "min_swap": "2KiB", "disk": disk_folder()},
        each_step=fail,
    )
    assert opened and core.disk_faults_made("writes") == made + 2
    assert run.same(bare)
    assert run.report.disk.failed_writes == 2
    assert any("writes to" in note for note in run.report.notes)


@pytest.mark.bits
def test_after_three_failed_writes_the_disk_is_used_no_more() -> None:
    with session() as opened:
        tensors = numbers(3)
        assert opened.evict(tensors[0])
        core.set_disk_fault("writes", ALWAYS)
        assert [opened.evict(tensors[1]) for _ in range(4)] == [False] * 4
        core.set_disk_fault("writes")
        assert not opened.evict(tensors[2]), "it is used no more"
        report = opened.report()
        assert report.disk.failed_writes == 3 and "3 writes" in report.disk.refusal
        check_numbers(tensors)  # what is there comes back, and the rest fits
        with pytest.raises(
            torch.OutOfMemoryError, match="takes no more storages.*3 writes.*Input/output error"
        ):
            torch.zeros(8 * MiB // 4)
        with pytest.warns(UserWarning, match="takes no more"):
            opened.step()
        assert any("takes no more" in note for note in opened.report().notes)


@pytest.mark.bits
def test_a_failed_read_raises_with_the_tensors_name_and_is_tried_again(any_way: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256))
    before = [raw(parameter) for parameter in model.parameters()]
    with session() as opened:
        opened.adopt(model)
        assert opened.evict(model[1].weight)
        core.set_disk_fault("reads", ALWAYS)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="1.weight.*Input/output error"):
                model(torch.ones(1, 256))
        with pytest.raises(RuntimeError, match="1.weight"):
            opened.restore(model[1].weight)
        with pytest.raises(RuntimeError, match="1.weight"):
            model[1].weight.data_ptr()
        assert opened.where(model[1].weight) == "away"
        assert opened.report().disk.failed_reads == 4
        core.set_disk_fault("reads")
        assert [raw(parameter) for parameter in model.parameters()] == before


@pytest.mark.bits
@pytest.mark.parametrize("options", [{}, {"planning": False}])
@pytest.mark.parametrize("fault", ["reads", "flips"])
def test_training_with_a_bad_disk_gives_right_numbers_or_an_error(
    fault: str, options: dict[str, Any]
) -> None:
    """A prototype without a way to say that a read had failed trained on, to NaN."""
    bare, peak = reference(Gpt, adamw, 4)
    capacity = max(peak // 4, tight_bytes(Gpt, adamw, 4))
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model, losses = Gpt(), []
    with (
        pytest.raises(
            RuntimeError, match="could not be brought back: (Input/output error|the disk gave back)"
        ),
        session(capacity, min_swap="2KiB", verify=True, **options),
    ):
        optimizer = adamw(model.parameters())
        core.set_disk_fault(fault, 2)
        while True:
            if len(losses) == len(bare.losses) - 1:
                core.set_disk_fault(fault, ALWAYS)
            loss = model(model.batch(generator))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(raw(loss))
            del loss
    assert tuple(losses) == bare.losses[: len(losses)]


@pytest.mark.bits
def test_a_flipped_bit_is_found(any_way: str) -> None:
    with session(verify=True) as opened:
        tensors = numbers(2, 5 * MiB // 2)
        core.set_disk_fault("flips", ALWAYS, 1)
        assert opened.evict(tensors[0]) and opened.evict(tensors[1])
        with pytest.raises(RuntimeError, match="checksum differs"):
            tensors[0] + 1
        assert opened.report().disk.bad_checksums > 0
        assert torch.equal(tensors[1], torch.arange(5 * MiB // 8, dtype=torch.float32) + 1)
        del tensors


@pytest.mark.bits
def test_what_cannot_be_read_when_the_session_ends_raises_for_good() -> None:
    with session() as opened:
        tensors = numbers(3)
        opened.evict(tensors[1])
        core.set_disk_fault("reads", ALWAYS)
    core.set_disk_fault("reads")
    with pytest.raises(RuntimeError, match="bytes are lost"):
        tensors[1] + 1
    check_numbers(tensors[:1])
    with session() as opened:  # and it is in nobody's way
        opened.adopt(tensors[0])
        assert opened.evict(tensors[0])
        check_numbers(tensors[:1])
        with pytest.raises(RuntimeError, match="bytes are lost"):
            tensors[1].sum()


@pytest.mark.bits
@pytest.mark.parametrize("way", ["fault", "size"])
def test_a_full_disk_is_told_with_its_name(way: str) -> None:
    disk = f"{disk_folder()}:6MiB" if way == "size" else str(disk_folder())
    with session(disk=disk) as opened:
        tensors = numbers(6)
        for tensor in tensors[:3]:
            assert opened.evict(tensor)
        if way == "fault":
            core.set_disk_fault("full", ALWAYS)
        with pytest.raises(torch.OutOfMemoryError, match="takes no more storages") as raised:
            tensors += numbers(96)
        assert str(disk_folder()) in str(raised.value)
        core.set_disk_fault("full")
        assert all(
            torch.equal(one, torch.arange(MiB // 4) + number) for number, one in enumerate(tensors[:6])
        )


def test_a_disk_that_is_full_at_the_start_is_told() -> None:
    core.set_disk_fault("full", ALWAYS)
    with pytest.raises(cl.SessionError, match="cannot be used: No space left"):
        session().start()


@pytest.mark.bits
def test_a_folder_that_vanishes_takes_nothing_with_it() -> None:
    folder = disk_folder() / "vanishes"
    folder.mkdir()
    with session(disk=folder) as opened:
        tensors = numbers(6)
        for tensor in tensors[:3]:
            opened.evict(tensor)
        folder.rmdir()
        for tensor in tensors[3:]:
            opened.evict(tensor)
        check_numbers(tensors)
    check_numbers(tensors)


def test_reads_outside_of_ops_find_the_bytes() -> None:
    with session() as opened:
        tensor = torch.arange(2 * MiB // 4 + 8, dtype=torch.float32) + 0
        opened.evict(tensor)
        assert tensor.tolist()[-1] == tensor.numel() - 1
        opened.evict(tensor)
        assert tensor.numpy()[-1] == tensor.numel() - 1


# ---------------------------------------------------------------------------------------------------- processes


def test_a_killed_process_leaves_no_file() -> None:
    code = f"""
        import sys
        sys.path[:0] = [{str(ROOT)!r}]
        import torch
        import chameleon_lab as cl
        with cl.Session("4MiB", device="cpu", disk={str(disk_folder())!r}) as session:
            tensors = [torch.arange(1 << 18) + 0 for _ in range(4)]
            print("away" if session.report().disk.used_bytes else "nothing", flush=True)
            sys.stdin.read()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "away\n"
        assert list(disk_folder().iterdir()) == []
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert list(disk_folder().iterdir()) == []
    finally:
        process.kill()
        process.wait()


@pytest.mark.bits
def test_a_child_reads_what_was_away_and_never_writes_to_the_parents_file() -> None:
    child(f"""
        folder = {str(disk_folder())!r}
        numbers = lambda: [torch.arange(MiB // 4, dtype=torch.float32) + n for n in range(6)]
        fits = lambda tensors, plus: all(
            torch.equal(one, torch.arange(MiB // 4, dtype=torch.float32) + n + plus) for n, one in enumerate(tensors))
        with cl.Session("8MiB", device="cpu", disk=folder + ":64MiB", verify=True) as session:
            tensors = numbers()
            assert all(session.evict(one) for one in tensors)
            goes, went = os.pipe()
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    os.close(went)
                    os.read(goes, 1)  # the parent has written all of them again, and more
                    right = fits(tensors, 0)
                    for one in tensors:
                        one.add_(5)
                    status = 0 if right and fits(tensors, 5) else 3
                finally:
                    os._exit(status)
            for plus in (1, 2, 3):
                for one in tensors:
                    one.add_(1)
                    assert session.evict(one)
            held = session.report().disk.file_bytes
            os.write(went, b"1")
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            assert fits(tensors, 3)
            for _ in range(12):  # the child has ended: its places are used again
                for one in tensors:
                    one.add_(1)
                    assert session.evict(one)
            assert session.report().disk.file_bytes <= 64 * MiB
            assert fits(tensors, 15)
        assert fits(tensors, 15)
    """)


def test_a_child_opens_a_session_of_its_own() -> None:
    child(f"""
        folder = {str(disk_folder())!r}
        with cl.Session("8MiB", device="cpu", disk=folder) as session:
            tensors = [torch.arange(MiB // 4) + n for n in range(4)]
            assert all(session.evict(one) for one in tensors)
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    session.stop()
                    with cl.Session("8MiB", device="cpu", disk=folder) as own:
                        made = torch.arange(MiB // 4) + 7
                        assert own.evict(made) and own.where(made) == "away"
                        assert made[-1] == MiB // 4 + 6
                        assert all(one[-1] == MiB // 4 - 1 + n for n, one in enumerate(tensors))
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            assert all(one[-1] == MiB // 4 - 1 + n for n, one in enumerate(tensors))
    """)


def test_the_command_line_takes_a_disk(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "kept = [torch.arange(1 << 18) + n for n in range(8)]\n"
        "assert all(one[-1] == (1 << 18) - 1 + n for n, one in enumerate(kept))\n"
    )
    command = [sys.executable, "-m", "chameleon_lab", "run", "--device", "cpu", "--capacity", "8MiB"]
    command += ["--disk", f"{disk_folder()}:100MiB", "--verify", str(tmp_path / "train.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first = next(line for line in done.stderr.splitlines() if line.startswith("  Disk"))
    assert str(disk_folder()) in first and "100 MiB at most" in first


# ---------------------------------------------------------------------------------------------------- checksums


def test_the_checksum_is_crc32c() -> None:
    assert core.crc32c(b"123456789") == (0xE3069283, 0xE3069283)
    assert core.crc32c(bytes(32)) == (0x8A9136AA, 0x8A9136AA)
    for length in range(70):
        data = bytes((7 * length + 13 * place) % 256 for place in range(length))
        by_instruction, by_table = core.crc32c(data)
        assert by_instruction == by_table
