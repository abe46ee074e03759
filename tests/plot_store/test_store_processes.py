"""Several processes and threads on one store: races have one winner, and a fork is noticed."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import subprocess
import sys
import threading
from pathlib import Path

import plotlab as lab
import pytest

from plot_store import Conflict, Store, StoreIO, VersionInfo
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.environment.environment import Environment
from plot_store.reading import reader
from plot_store.reading.backoff import Step
from plot_store.reading.mapped import MappedChain, map_chain
from plot_store.segments.segment import SegmentCache

RACE = """
import sys, plotlab as lab
from plot_store import Store, Conflict
with Store.open(sys.argv[1]) as store:
    writer = store.writer("r", schema=lab.schema(), build="b" + sys.argv[2])
    writer.add(3, *lab.content(int(sys.argv[2]))[3])
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        print(writer.publish().id)
    except Conflict:
        print("lost")
"""


def test_of_racing_processes_one_wins(store: Store) -> None:
    lab.put(store, "r", {})
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(store.path), str(i)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=lab.child_env(),
        )
        for i in range(3)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    said = [racer.communicate(timeout=60)[0].strip() for racer in racers]
    assert sorted(said)[:2] == ["lost", "lost"]
    assert store.version("r").id == sorted(said)[2]
    lab.check(store)


def test_of_racing_threads_one_wins(store: Store) -> None:
    writers = [store.writer("r", schema=lab.schema(), build=f"b{i}") for i in range(6)]
    won: list[str] = []

    def work(i: int) -> None:
        with contextlib.suppress(Conflict):  # what this test counts
            won.append(writers[i].publish().id)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [store.version("r").id]


def _forked(store: Store, path: Path, queue: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    try:
        store.refs()
    except Exception as error:
        queue.put(getattr(error, "kind", repr(error)))
    with Store.open(path) as fresh:
        queue.put(sorted(fresh.refs()))


def test_use_after_fork_is_refused_and_a_fresh_open_works(store: Store) -> None:
    lab.put(store, "r", {})
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=_forked, args=(store, store.path, queue))
    process.start()
    assert queue.get(timeout=60) == "forked"
    assert queue.get(timeout=60) == ["r"]
    process.join(60)
    assert process.exitcode == 0
    lab.put(store, "s", {})
    assert sorted(store.refs()) == ["r", "s"]


def _opened(path: Path, queue: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    try:
        with Store.open(path) as store:
            queue.put(sorted(store.refs()))
    except Exception as error:
        queue.put(f"{type(error).__name__}: {error}")


def test_a_fork_in_the_middle_of_a_transaction_gives_a_child_without_the_store(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fork cannot be refused, so the child is: it would undo the transaction of which it has a copy."""
    monkeypatch.setattr("plot_store.database.database._MAX_PAUSE_S", 0.2)
    lab.put(store, "r", {})
    inside, go_on = threading.Event(), threading.Event()
    kept: list[int] = []

    def slow(txn: CatalogueTxn) -> None:
        txn.put("pin/slow", {})
        inside.set()
        assert go_on.wait(60)
        kept.append(len(txn.keys("ref/")))

    thread = threading.Thread(target=lambda: store._env().catalogue.write(slow))
    thread.start()
    assert inside.wait(60)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=_opened, args=(store.path, queue))
    process.start()
    said = queue.get(timeout=60)
    process.join(60)
    assert said.startswith("Forked: a transaction of")
    assert "spawned" in said
    assert sorted(store.refs()) == ["r"]  # nothing waits for a pause that never came
    go_on.set()
    thread.join(60)
    assert kept == [1]
    assert store._env().catalogue.read(lambda txn: txn.has("pin/slow"))
    store._env().catalogue.write(lambda txn: txn.delete("pin/slow"))
    process = context.Process(target=_opened, args=(store.path, queue))
    process.start()
    assert queue.get(timeout=60) == ["r"]
    process.join(60)
    lab.check(store)


def _spawned(path: Path, number: int, queue: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    """Read, append, tag and pin in a process that was not forked."""
    with Store.open(path) as store:
        with store.reader("r@base") as reader:
            lab.same_as(reader, [lab.entries(lab.content(1))], lab.texts(1))
        lab.put(store, f"r/{number}", lab.content(number), parent="r@base")
        while True:
            try:
                store.append("r", lab.content(10 + number))
                break
            except Conflict:
                continue
        queue.put(store.pin("r", f"worker:{number}").owner)


def test_processes_that_are_spawned_work_side_by_side(store: Store) -> None:
    lab.put(store, "r", lab.content(1))
    store.tag("r", "base")
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    workers = [context.Process(target=_spawned, args=(store.path, number, queue)) for number in (2, 3)]
    for worker in workers:
        worker.start()
    assert sorted(queue.get(timeout=120) for _ in workers) == ["worker:2", "worker:3"]
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert store.children("r") == ["r/2", "r/3"]
    assert len(store.history("r")) == 3
    known = {k: v for seed in (1, 12, 13) for k, v in lab.entries(lab.content(seed)).items()}
    with store.reader("r") as reader:
        assert set(map(tuple, reader.ngrams(3).tolist())) == {g for g in known if len(g) == 3}
    assert len(store.pins()) == 2
    lab.check(store)


DEAD_READERS = """
import os, sys, lmdb
env = lmdb.open(sys.argv[1] + "/catalogue", readonly=True)
found = []
try:
    while True:
        found.append(env.begin())
except lmdb.ReadersFullError:
    print(len(found), flush=True)
    os._exit(9)
"""


def test_readers_that_were_killed_block_nobody(store: Store, tmp_path: Path) -> None:
    """While this process has the store open, only a check for dead readers frees
    their slots in LMDB's table."""
    lab.put(store, "r", {})
    read = store._env().catalogue.read
    assert int(lab.child(DEAD_READERS, store.path).stdout) > 4000
    # LMDB cannot be opened anew, so no new process can check
    with pytest.raises(StoreIO, match="next change by a process"):
        _open_anew(store.path)
    # The second process needs a slot of its own.
    assert read(lambda txn: read(lambda inner: inner.keys("ref/"))) == ["r"]
    assert store._env().catalogue.forget_dead_readers() == 0
    for change in (lambda: store.tag("r", "x"), lambda: _open_anew(store.path)):
        lab.child(
            "import os, sys, lmdb; t = lmdb.open(sys.argv[1]).begin(); os._exit(9)", store.path / "catalogue"
        )
        change()
        assert store._env().catalogue.forget_dead_readers() == 0


def _open_anew(path: Path) -> None:
    """Open the store in another process, and raise its error."""
    done = lab.child("import sys; from plot_store import Store; Store.open(sys.argv[1]).close()", path)
    if done.returncode:
        raise StoreIO(done.stderr)


STOPPED = """
import os, signal, sys
from plot_store import Store
with Store.open(sys.argv[1]) as store:
    def body(txn):
        print("inside", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        txn.put("pin/late", {})
    store._env().catalogue.write(body)
"""


@pytest.mark.parametrize("ending", [signal.SIGCONT, signal.SIGKILL])
def test_a_writer_that_is_stopped_holds_others_for_a_time_only(
    store: Store, monkeypatch: pytest.MonkeyPatch, ending: signal.Signals
) -> None:
    version = lab.put(store, "r", {})
    monkeypatch.setattr("plot_store.database.database.MAX_WAIT_S", 0.3)
    stopped = subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(store.path)],
        stdout=subprocess.PIPE,
        text=True,
        env=lab.child_env(),
    )
    try:
        assert stopped.stdout is not None
        assert stopped.stdout.readline() == "inside\n"
        with pytest.raises(StoreIO, match=f"process {stopped.pid} holds the write lock.*kill -CONT"):
            store.tag("r", "new")
        monkeypatch.setattr("plot_store.database.database.MAX_WAIT_S", 600.0)
        with pytest.raises(StoreIO, match="in 1 s"):  # later ones wait less
            store.tag("r", "new")
        assert store.version("r") == version  # readers do not wait
        assert store.tags("r") == {}
    finally:
        stopped.send_signal(ending)
        stopped.wait(60)
        stopped.stdout.close()
    monkeypatch.undo()
    store.tag("r", "new")
    assert store._env().catalogue.read(lambda txn: txn.has("pin/late")) == (ending == signal.SIGCONT)
    store._env().catalogue.write(lambda txn: txn.delete("pin/late"))
    lab.check(store)


def test_a_thread_that_hangs_in_a_transaction_holds_others_for_a_time_only(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.put(store, "r", {})
    inside, go_on = threading.Event(), threading.Event()

    def slow(txn: CatalogueTxn) -> None:
        inside.set()
        assert go_on.wait(60)

    thread = threading.Thread(target=lambda: store._env().catalogue.write(slow))
    thread.start()
    assert inside.wait(60)
    monkeypatch.setattr("plot_store.database.database.MAX_WAIT_S", 0.1)
    with pytest.raises(StoreIO, match="another thread of this process"):
        store.tag("r", "new")
    monkeypatch.undo()
    go_on.set()
    thread.join(60)
    store.tag("r", "new")


OVERTAKE = """
import sys, plotlab as lab
from plot_store import Store
for seed in sys.stdin:
    with Store.open(sys.argv[1]) as store:
        lab.put(store, "r", lab.content(int(seed)))
        store.gc(keep_versions=1, keep_days=0, orphan_age_s=-60)
    print("done", flush=True)
"""


def test_an_opening_reader_may_be_overtaken_any_number_of_times(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven times over, another process publishes and collects between reading the
    catalogue and mapping the files."""
    lab.put(store, "r", lab.content(1))
    missed: list[str] = []

    def late(
        environment: Environment, chain: list[VersionInfo], steps: list[Step] | None
    ) -> tuple[MappedChain | None, str]:
        if len(missed) < 7:
            told.write(f"{10 + len(missed)}\n")
            told.flush()
            assert says.readline() == "done\n"
            environment.segments = SegmentCache(environment.folder)  # nothing is mapped yet
        mapped, missing = map_chain(environment, chain, steps)
        missed.extend([missing] if mapped is None else [])
        return mapped, missing

    monkeypatch.setattr(reader, "map_chain", late)
    command = [sys.executable, "-c", OVERTAKE, str(store.path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=lab.child_env()
    ) as other:
        told, says = other.stdin, other.stdout
        assert told is not None
        assert says is not None
        with store.reader("r") as opened:
            lab.same_as(opened, [lab.entries(lab.content(16))], lab.texts(1))
        told.close()
    assert len(set(missed)) == 7
