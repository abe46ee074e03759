"""Jobs of rare cases: a lost segment, a map that grows under readers, a base that only a build holds,
thousands of dead readers, as many mappings as the system allows.

Each emits {"found": what is wrong, "tried": how often}.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import agree
import numpy as np
import plain
import play
import plotlab as lab
import sabotage
from job_history import spawn
from plain import Op

from plot_store import Conflict, Store, StoreIO
from plot_store.catalogue import version_tree
from plot_store.catalogue.catalogue import Catalogue, CatalogueTxn
from plot_store.database.database import MAX_READERS
from plot_store.segments.mapping import map_read_only

Emit = Callable[[Any], None]
EACH = 64  # transactions of each process that dies
RECORD = 3000  # bytes of each record that fills the map


def lost(*, emit: Emit, refs: list[str], bug: str = "") -> Any:
    """The disk loses each finished segment of an unfinished build in turn; the resumed build is complete."""
    sabotage.plant(bug)
    found, tried = [], 0
    for ref in refs:
        place = 0
        while (what := _lose(ref, place)) is not None:
            found += [f"{ref} without segment {place}: {w}" for w in what]
            place, tried = place + 1, tried + 1
    return {"found": found, "tried": tried}


def _lose(ref: str, place: int) -> list[str] | None:
    """What is wrong after this segment was lost; None if the build has no such segment."""
    begin, finish = Op("begin", ref, 4), Op("finish", ref, 4)
    with lab.scratch() as folder, Store.open(folder / "store", create=True) as store:
        play.play(store, begin, 0, folder)
        record = store._env().catalogue.read(lambda txn: version_tree.get_build(txn, play.build_of(begin)))
        assert record is not None
        if place >= len(record.segments):
            return None
        (name,) = lab.files(store, [record.segments[place].name])
        (store.path / "segments" / name).unlink()
        play.play(store, finish, 1, folder)
        return agree.problems(store, plain.after([begin, finish]))


def growing(*, emit: Emit, folder: str, bug: str = "") -> Any:
    """Threads read all records, step by step, while another thread fills the map repeatedly."""
    sabotage.plant(bug)
    catalogue = Catalogue(Path(folder), create=True, read_only=False, first_map=1 << 16)
    done, found, walks = threading.Event(), [], [0, 0]

    def walk(number: int) -> None:
        while not done.is_set():
            try:
                found.extend(catalogue.read(_wrong_records))
            except Exception as error:
                found.append(repr(error))
            walks[number] += 1

    threads = [threading.Thread(target=walk, args=(number,)) for number in range(len(walks))]
    for thread in threads:
        thread.start()
    for number in range(200):
        catalogue.write(lambda txn, n=number: txn.put(f"x/{n:03}", _record(n)))
    done.set()
    for thread in threads:
        thread.join()
    keys = catalogue.read(lambda txn: txn.keys("x/"))
    catalogue.close()
    found += [] if len(keys) == 200 else [f"{len(keys)} records are there"]
    return {"found": found, "tried": sum(walks)}


def _record(number: int) -> str:
    return f"{number:03}" * (RECORD // 3)


def _wrong_records(txn: CatalogueTxn) -> list[str]:
    found = []
    with txn._raw.cursor() as cursor:
        for key, value in cursor:
            if key.startswith(b"x/") and bytes(value[8:]).decode() != f'"{_record(int(key[2:]))}"':
                found.append(f"{key!r} is wrong")
            time.sleep(0.0001)  # so a transaction is open whenever the map is full
    return found


def ground(*, emit: Emit, folder: str, bug: str = "") -> Any:
    """A build that extends a version resumes on that version, though the ref has moved on and
    another process has collected."""
    sabotage.plant(bug)
    path, found = Path(folder) / "store", []
    ref, added = "r", {**plain.entries("r", 4), **plain.entries("r", 3)}
    with Store.open(path, create=True) as store:
        play.play(store, Op("publish", ref, 4), 0, path)
        with store.writer(ref, schema=plain.schema_of(ref), build="late", extend=True) as writer:
            play.play(store, Op("publish", ref, 8), 1, path)
            pid = spawn(lambda: _collect(path))
            assert os.waitpid(pid, 0)[1] == 0
            for order, (ngrams, rows) in plain.content(ref, 3).items():
                writer.add(order, ngrams, rows)
            with writer.so_far() as view:
                for order in view.version.schema.orders:
                    found += [f"the build: {what}" for what in agree.wrong_entries(view, [added], order)]
            try:
                writer.publish()
                found.append("the build was published over what came first")
            except Conflict:
                writer.abort()
        play.play(store, Op("gc", arg=1), 2, path)
        found += agree.problems(store, plain.after([Op("publish", ref, 8)])) + agree.strays(store)
    return {"found": found, "tried": 1}


def _collect(path: Path) -> None:
    """Collect everything but current versions and what builds need."""
    with Store.open(path) as store:
        store.gc(keep_versions=1, orphan_age_s=play.AT_ONCE)


def dead(*, emit: Emit, folder: str) -> Any:
    """More transactions than there are reader slots die at one moment; this
    process and new ones still work."""
    path = Path(folder) / "store"
    with Store.open(path, create=True) as store:
        play.play(store, Op("publish", "r", 1), 0, path)
        incoming, outgoing = os.pipe()
        pids = [spawn(lambda: _hold(path, outgoing)) for _ in range(MAX_READERS // EACH + 1)]
        told = 0
        while told < MAX_READERS // EACH - 1:  # a process that comes too late is refused, and ends
            told += len(os.read(incoming, 1 << 10))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
        read = store._env().catalogue.read
        # the second process needs a slot of its own
        keys = read(lambda txn: read(lambda inner: inner.keys("ref/")))
        found = [] if keys == ["r"] else [f"refs are {keys}"]
        play.play(store, Op("publish", "r", 2), 1, path)
        found += ["a new process failed"] if os.waitpid(spawn(lambda: _collect(path)), 0)[1] else []
        found += agree.problems(
            store, plain.after([Op("publish", "r", 1), Op("publish", "r", 2), Op("gc", arg=1)])
        )
    return {"found": found, "tried": told * EACH}


def _hold(path: Path, out: int) -> None:
    """Open EACH transactions, report it, and wait to be killed."""
    read = Store.open(path)._env().catalogue.read

    def deeper(left: int) -> None:
        if left:
            read(lambda txn: deeper(left - 1))
        os.write(out, b"!")
        time.sleep(600)

    deeper(EACH)


def mappings(*, emit: Emit, folder: str) -> Any:
    """Map segments until the system refuses. Then all calls work but opening more, which works
    again once some are closed."""
    path = Path(folder) / "store"
    with Store.open(path, create=True) as store:
        for number, ref in enumerate("rs"):
            play.play(store, Op("publish", ref, 1), number, path)
        with store.reader("r") as reader:
            file = next((path / "segments").iterdir())
            fd = os.open(file, os.O_RDONLY)
            held, found = list(_until_refused(fd, file.stat().st_size)), []
            thread = threading.Thread(target=np.ones(1 << 23).sum)  # both need mappings
            thread.start()
            thread.join()
            try:
                store.reader("s").close()
                found.append("a further reader was opened")
            except StoreIO as error:
                found += [] if "vm.max_map_count" in str(error) else [str(error)]
            found += agree.wrong_texts(reader, [plain.entries("r", 1)], 5)
            play.play(store, Op("append", "r", 3), 2, path)
            tried = len(held)
            held.clear()
        found += agree.problems(
            store, plain.after([Op("publish", "r", 1), Op("publish", "s", 1), Op("append", "r", 3)])
        )
    return {"found": found, "tried": tried}


def _until_refused(fd: int, size: int) -> Iterator[Any]:
    try:
        while True:
            yield map_read_only(fd, size)
    except StoreIO:
        return
