"""The audit log's files: the chain, torn lines, several writers, a full disk, retention, pages."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from hmi.errors import StorageFull
from hmi.stores.audit import log as log_module
from hmi.stores.audit.lines import files, next_name
from hmi.stores.audit.log import AuditLog
from hmi.stores.audit.reading import read_page
from hmi.stores.audit.verifying import Report, verify
from tests.disks import small_disk

REPO = Path(__file__).parents[3]


def written(folder: Path, count: int = 5, **settings: int) -> AuditLog:
    """A log with a line for each of `count` appends."""
    log = AuditLog(folder, **settings)
    for i in range(count):
        log.append([{"event": "change", "who": "acme", "object": {"model": f"acme.m{i}"}}], sync=True)
    return log


def all_lines(folder: Path) -> list[dict[str, object]]:
    return read_page(folder, None, None, lambda line: True, 10**6).lines


def whole(folder: Path) -> Report:
    found = verify(folder)
    assert found.faults == []
    return found


def test_lines_are_numbered_chained_and_private(tmp_path: Path) -> None:
    log = written(tmp_path / "audit")
    assert log.append([{"event": "a"}, {"event": "b"}], sync=False) == 8
    report = whole(log.folder)
    assert (report.lines, report.first, report.last, report.notes) == (8, 1, 8, [])
    lines = all_lines(log.folder)
    assert [line["n"] for line in lines] == list(range(1, 9))
    assert [line["event"] for line in lines] == ["opened", *["change"] * 5, "a", "b"]
    assert (log.folder.stat().st_mode & 0o777, files(log.folder)[0].stat().st_mode & 0o777) == (0o700, 0o600)


@pytest.mark.parametrize("seed", range(30))
def test_any_change_of_the_files_shows(tmp_path: Path, seed: int) -> None:
    log = written(tmp_path, 12, file_bytes=900)
    found, rng = files(tmp_path), random.Random(seed)
    assert len(found) > 2
    file = rng.choice(found)
    lines = file.read_bytes().splitlines(keepends=True)
    at = rng.randrange(len(lines))
    match rng.choice(["bit", "remove", "swap", "repeat", "file", "end", "forge"]):
        case "bit":
            data = bytearray(lines[at])
            data[rng.randrange(len(data) - 1)] ^= 1
            lines[at] = bytes(data)
        case "remove":
            del lines[at]
        case "swap":
            lines[at], lines[at - 1] = lines[at - 1], lines[at] if len(lines) > 1 else b""
        case "repeat":
            lines.insert(at, lines[at])
        case "file":
            file.unlink()
            lines = []
        case "end":  # cut off at a line's end: nothing is torn
            file, lines = found[-1], found[-1].read_bytes().splitlines(keepends=True)[:-1]
        case "forge":  # a line of the same form, with a hash that is made up
            forged = json.loads(lines[at])
            forged["who"] = "nobody"
            lines[at] = json.dumps(forged, separators=(",", ":")).encode() + b"\n"
    if lines:
        file.write_bytes(b"".join(lines))
    assert verify(tmp_path).faults
    log.close()


def test_a_log_that_was_written_anew_shows_by_a_head_noted_elsewhere(tmp_path: Path) -> None:
    noted = whole(written(tmp_path / "a").folder)
    other = AuditLog(tmp_path / "b")
    other.append([{"event": "forged"}] * 9, sync=True)
    assert verify(other.folder).faults == []
    assert "rewritten" in verify(other.folder, {noted.last: noted.hash}).faults[0]
    assert verify(tmp_path / "a", {noted.last: noted.hash}).faults == []


@pytest.mark.parametrize("keep", [1, 40, 150])
def test_a_torn_last_line_is_kept_and_reported(tmp_path: Path, keep: int) -> None:
    written(tmp_path).close()
    (file,) = files(tmp_path)
    *_, last = file.read_bytes().splitlines(keepends=True)
    with file.open("ab") as opened:
        opened.write(last[:keep])  # what a killed process has left
    report = whole(tmp_path)
    assert f"{keep} bytes of a line" in report.notes[0]
    before = file.read_bytes()
    again = written(tmp_path, 2)
    assert file.read_bytes() == before, "nothing is removed"
    report = whole(tmp_path)
    assert (report.last, len(files(tmp_path))) == (9, 2)
    assert "says so" in report.notes[0]
    assert [line["n"] for line in all_lines(tmp_path)] == list(range(1, 10))
    again.close()


def test_a_file_without_a_whole_line_is_no_obstacle(tmp_path: Path) -> None:
    written(tmp_path).close()
    (first,) = files(tmp_path)
    for content in (b"", b'{"n":7,"at":"20', b"\0" * 70_000):
        name = next_name(files(tmp_path)[-1].name, first.name[:8])
        (tmp_path / name).write_bytes(content)
        written(tmp_path, 1).close()
        whole(tmp_path)
    numbers = [line["n"] for line in all_lines(tmp_path)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_several_processes_and_threads_write_one_chain(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from hmi.stores.audit.log import AuditLog\n"
        "log = AuditLog(Path(sys.argv[1]), 4000)\n"
        "for i in range(60): log.append([{'event': 'x', 'who': sys.argv[2]}], sync=i % 20 == 0)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    others = [subprocess.Popen([*command, name], cwd=REPO) for name in ("b", "c")]
    log = AuditLog(tmp_path, 4000)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: log.append([{"event": "x", "who": "a"}] * 2, sync=False), range(60)))
    assert [other.wait() for other in others] == [0, 0]
    whole(tmp_path)
    who = [line.get("who") for line in all_lines(tmp_path) if line["event"] == "x"]
    assert {name: who.count(name) for name in "abc"} == {"a": 120, "b": 60, "c": 60}


def test_a_killed_writer_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from hmi.stores.audit.log import AuditLog\n"
        "log = AuditLog(Path(sys.argv[1]))\n"
        "lines = [{'event': 'x', 'object': {'a': 'y' * 150}}] * 3\n"
        "while True: print(log.append(lines, sync=True), flush=True)"
    )
    for _ in range(3):
        command = [sys.executable, "-c", code, str(tmp_path)]
        with subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            told = [writer.stdout.readline() for _ in range(20)]
            os.kill(writer.pid, signal.SIGKILL)
            told += writer.stdout.readlines()
        report = whole(tmp_path)
        assert report.last >= max(int(number) for number in told if number.endswith(b"\n"))


def fill(file: Path) -> None:
    """Leave no room on a disk."""
    with suppress(OSError), file.open("wb", buffering=0) as opened:
        while True:
            opened.write(b"x" * 4096)


def append_forever(log: AuditLog) -> None:
    while True:
        log.append([{"event": "begun", "object": {"a": "y" * 150}}] * 8, sync=False)


def test_a_full_disk_refuses_new_changes_and_keeps_room_for_outcomes(tmp_path: Path) -> None:
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(tmp_path / "small", 1 << 20))
        log = stack.enter_context(closing(written(disk / "audit", 1)))
        log.keep_reserve()
        fill(disk / "filler")
        with pytest.raises(StorageFull):
            append_forever(log)  # until the last page of the log's own file is full
        last = whole(log.folder).last
        while (log.folder / "reserve").exists():
            assert log.append([{"event": "change"}] * 8, sync=True, must=True) == (last := last + 8)
        with pytest.raises(StorageFull):
            log.keep_reserve()  # the next change is refused before it begins
        (disk / "filler").unlink()
        log.keep_reserve()
        log.append([{"event": "begun"}], sync=False)
        assert whole(log.folder).notes == []


def test_old_files_go_and_the_log_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    days = iter(["2020-01-01", "2020-01-02", "2020-01-03"])
    for day in days:
        monkeypatch.setattr(log_module, "now", lambda day=day: f"{day}T00:00:00.000Z")
        written(tmp_path, 2).close()
    monkeypatch.undo()
    log = written(tmp_path, 1)
    assert [f.name[:8] for f in files(tmp_path)[:3]] == ["20200101", "20200102", "20200103"]
    old = files(tmp_path)[0].read_bytes()
    assert log.drop_old(36500) == []
    assert len(log.drop_old(30)) == 3
    report = whole(tmp_path)
    assert (report.first, len(files(tmp_path))) == (10, 1)
    (said,) = (line for line in all_lines(tmp_path) if line["event"] == "dropped")
    assert said["object"] == {"files": 3, "through": "20200103-0001.jsonl"}
    (tmp_path / "20200101-0001.jsonl").write_bytes(old)  # and one comes back
    assert verify(tmp_path).faults
    log.close()


def test_names_sort_by_age_whatever_the_clock_says() -> None:
    assert next_name(None, "20260101") == "20260101-0001.jsonl"
    assert next_name("20260101-0009.jsonl", "20260101") == "20260101-0010.jsonl"
    assert next_name("20260101-0001.jsonl", "20251231") == "20260101-0002.jsonl"
    assert next_name("20260101-0001.jsonl", "20260102") == "20260102-0001.jsonl"


def test_pages_go_on_where_the_last_one_ended(tmp_path: Path) -> None:
    log = written(tmp_path, 20, file_bytes=900)
    position, seen = None, []
    while True:
        page = read_page(tmp_path, position, None, lambda line: line["event"] == "change", 3)
        seen += [line["object"] for line in page.lines]
        position = page.position
        if not page.more:
            break
    assert [o["model"] for o in seen] == [f"acme.m{i}" for i in range(20)]
    assert read_page(tmp_path, position, None, lambda line: True, 3).lines == []
    log.append([{"event": "new"}], sync=False)
    lines = read_page(tmp_path, position, None, lambda line: True, 3).lines
    assert [line["event"] for line in lines][-1] == "new"
    for odd in ("../../etc/passwd", "99990101-0001.5", "20200101-0001.99999", "x"):
        read_page(tmp_path, odd, None, lambda line: True, 3)
    later = time.strftime("%Y-%m-%dT%H:%M:%S.999Z", time.gmtime(time.time() + 60))
    assert read_page(tmp_path, None, later, lambda line: True, 3).lines == []
    log.close()


def test_long_values_are_cut(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    log.append(
        [{"event": "x", "who": "y" * 10_000, "object": {"k" * 999: "v" * 999, "none": None}}], sync=True
    )
    line = all_lines(tmp_path)[-1]
    assert (len(str(line["who"])), line["object"]) == (200, {"k" * 200: "v" * 200})
    log.close()
