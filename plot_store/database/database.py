"""One LMDB environment: checked before it is opened, grown as needed, safe at forks.

LMDB must never be opened twice in a process: `plot_store.database.shared` gives each path one owner.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import lmdb

from plot_store.database.lmdb_errors import DatabaseLabel, as_ours, damaged, too_many
from plot_store.database.lmdb_file import check_length, check_pages
from plot_store.database.lmdb_pages import BadFile
from plot_store.ground.errors import Closed, Forked, ReadOnly, StoreIO
from plot_store.ground.files import io_error
from plot_store.ground.holding import HOLDING
from plot_store.ground.host import check_host

MAX_WAIT_S: Final = 60.0  # many times the duration of a transaction, sync on a busy disk included
# The wait after one that timed out, until the lock is acquired again: a server's threads must not all block.
_RETRY_WAIT_S: Final = 1.0
_MIN_POLL_S: Final = 0.0005
_MAX_POLL_S: Final = 0.005
_FLOCK: Final = "hhqqi"  # struct flock of Linux: type, whence, start, length, pid


class _WriterLock:
    """The write lock of one LMDB environment in this process: a lock file beside its data. Not re-entrant.

    It stands in front of LMDB's own, bounds the wait and names the holder: LMDB alone waits forever if a
    stopped or hanging process holds its lock. Mutual exclusion still comes from LMDB. So where this lock is
    missing or lost (an older release, another thread that closes the file), only the time limit is lost.
    """

    def __init__(self, folder: Path, of: str) -> None:
        """of: what the folder holds, as messages name it, such as "the store at …"."""
        self._path = folder / "write.lock"
        self._of = of
        self._ours = threading.Lock()
        self._hung = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock in the block. Raises StoreIO if it is not acquired within MAX_WAIT_S.

        After such a failure, the wait is _RETRY_WAIT_S until an attempt succeeds.
        """
        wait_s = min(_RETRY_WAIT_S, MAX_WAIT_S) if self._hung else MAX_WAIT_S
        end = time.monotonic() + wait_s
        if not self._ours.acquire(timeout=wait_s):
            raise self._held_by(f"another thread of this process ({os.getpid()})", wait_s)
        try:
            with _opened(self._path) as fd:  # closing it releases the lock
                if fd is not None:
                    self._wait(fd, end, wait_s)
                self._hung = False
                yield
        finally:
            self._ours.release()

    def _wait(self, fd: int, end: float, wait_s: float) -> None:
        """Poll for the lock: only a signal, which is the main thread's, could bound a blocking call."""
        pause = _MIN_POLL_S
        while not _try_lock(fd):
            if time.monotonic() > end:
                holder = _holder(fd)
                raise self._held_by(f"process {holder}" if holder else "a process (lsof names it)", wait_s)
            time.sleep(pause)
            pause = min(2 * pause, _MAX_POLL_S)

    def _held_by(self, holder: str, wait_s: float) -> StoreIO:
        self._hung = True
        return StoreIO(
            f"{holder} holds the write lock of {self._of} and did not release it within {wait_s:g} s, so "
            "nothing was changed: it is stopped (kill -CONT resumes it), waits for the disk, or hangs (kill "
            "-KILL ends it, and LMDB undoes its transaction); then try again"
        )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    """Open the lock file. Yields its descriptor, or None on an error, which LMDB will report better."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def give_way() -> None:
    """Wait between two of many write transactions, so that whoever polls for the lock gets it first."""
    time.sleep(2 * _MAX_POLL_S)


def _try_lock(fd: int) -> bool:
    """Try to take the lock without waiting. Returns whether it succeeded."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _holder(fd: int) -> int:
    """Return the id of the process that holds the lock; 0 if it just ended or is in another container."""
    if not sys.platform.startswith("linux"):
        return 0
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    return 0 if kind == fcntl.F_UNLCK else max(0, int(pid))


MAX_READERS: Final = 4096  # LMDB's reader slots; a process keeps one, and takes more for concurrent threads
_MAX_PAUSE_S: Final = 30.0
T = TypeVar("T")


class Database:
    """The LMDB environment of one folder in this process. Raises Forked when used after a fork."""

    def __init__(
        self,
        folder: Path,
        label: DatabaseLabel,
        *,
        create: bool,
        first_map: int,
        read_only: bool = False,
        misplaced: Callable[[str], None] | None = None,
    ) -> None:
        """Open the environment in `folder`.

        first_map: the minimum size of the memory map, in bytes. misplaced: if given, every page is checked
        before the file is opened, and misplaced(message) is called for leaves whose keys are out of order;
        otherwise only the file's length is checked. Raises Damaged, StoreFull, StoreIO.
        """
        self.fork_refused: str | None = None  # why a forked child may not open the database
        self._pid = os.getpid()
        self._gate = threading.Condition()
        self._active, self._resizing = 0, False
        self._folder, self._label, self._read_only = folder, label, read_only
        self._data = str(folder / "data.mdb")
        self._writer = _WriterLock(folder, label.owner)
        check_host(folder, label.owner)
        with HOLDING, _LIVE_LOCK:  # no fork while LMDB opens
            self._env: Any = self._open(create, first_map, misplaced)
            self._file = self._placed_file()
            _LIVE.add(self)

    def _open(self, create: bool, first_map: int, misplaced: Callable[[str], None] | None) -> Any:
        data, label = self._folder / "data.mdb", self._label
        env: Any = None
        try:
            if misplaced is None:
                check_length(data)
            else:
                check_pages(data, misplaced)
            env = lmdb.open(
                str(self._folder),
                map_size=max(first_map, data.stat().st_size if data.exists() else 0),
                create=create,
                readonly=self._read_only,
                sync=True,
                metasync=True,
                writemap=False,
                readahead=False,
                max_readers=MAX_READERS,
            )
            env.reader_check()  # frees the slots of processes that died in a transaction
        except BadFile as error:
            raise damaged(error, label) from error
        except lmdb.ReadersFullError as error:
            raise too_many(label) from error
        except lmdb.Error as error:
            if env is not None:
                env.close()
            raise as_ours(error, "opening", self._folder, label) from error
        except OSError as error:
            raise io_error(error, f"opening {label.name}") from error
        return env

    def read(self, body: Callable[[Any], T]) -> T:
        """Run `body` in an LMDB read transaction, which sees one snapshot.

        `body` must not keep a reference to the transaction. Raises Closed, Forked, Damaged, StoreIO.
        """
        return self._run(body, write=False)

    def write(self, body: Callable[[Any], T]) -> T:
        """Run `body` in a write transaction and commit durably; an exception aborts it.

        `body` runs again if the map has to grow, so its effects elsewhere must be idempotent. Raises
        ReadOnly, Closed, Forked, Damaged, StoreFull, and StoreIO, also when another process holds the write
        lock for a minute.
        """
        if self._read_only:
            raise ReadOnly(
                f"{self._label.owner} was opened read-only: open it with read_only=False to change it"
            )
        self._check_process()
        # The lock comes before `_enter`: waiting for another process must not block this one's readers.
        with HOLDING, self._writer.held():
            return self._run(body, write=True)

    def copy(self, folder: Path, look: Callable[[Any], T]) -> T:
        """Write a compact copy of one snapshot into `folder`, which has no environment yet, without blocking
        writers. Returns what `look` returns for a read transaction on the same snapshot.

        Raises Closed, Forked, Damaged, StoreIO.
        """

        def body(raw: Any) -> T:
            self._env.copy(str(folder), compact=True, txn=raw)
            return look(raw)

        return self._run(body, write=False)

    def generation(self) -> int:
        """Return a number that grows with each committed change of any process.

        Every later transaction sees the change of this number. LMDB's `info` may name a change that nobody
        sees yet: while it is being synced; and if its process is killed then, until another process writes.
        """
        return self._run(lambda raw: int(raw.id()), write=False)

    def check_place(self) -> None:
        """Raises Closed unless the open file still lies in its place. Elsewhere, nobody changes it."""
        if self._placed_file() != self._file:
            raise Closed(
                f"the folder of {self._label.owner} was removed or replaced, perhaps by a restored copy: "
                "close the store and open it again"
            )

    def _placed_file(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._data)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def forget_dead_readers(self) -> int:
        """Free the reader slots of processes that died. Returns their number."""
        self._enter()
        try:
            return int(self._env.reader_check())
        finally:
            self._leave()

    def _run(self, body: Callable[[Any], T], *, write: bool) -> T:
        checked = False
        while True:
            self._enter()
            try:
                if write:
                    self._env.reader_check()  # dead readers keep free pages from being reused
                with self._env.begin(write=write) as raw:
                    return body(raw)
            except lmdb.MapFullError:
                size = 2 * self._env.info()["map_size"]
            except lmdb.MapResizedError:
                size = 0  # another process has grown the map: take over its size
            except lmdb.ReadersFullError as error:
                if checked:
                    raise too_many(self._label) from error
                self._env.reader_check()  # processes that died in a transaction may hold the slots
                checked = True
                continue
            except lmdb.Error as error:
                raise as_ours(error, "using", self._folder, self._label) from error
            finally:
                self._leave()
            self._resize(size)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise Forked(f"{self._label.owner} was opened before a fork: open it again in the child process")

    def _enter(self) -> None:
        """Begin a transaction of this process, waiting while the map is being resized; `_leave` ends it."""
        self._check_process()
        with self._gate:
            while self._resizing:
                self._gate.wait()
            if self._env is None:
                raise Closed(f"{self._label.owner} has been closed: open it again")
            self._active += 1
        HOLDING.__enter__()  # readers, too: a stopped one would keep LMDB from using pages again

    def _leave(self) -> None:
        HOLDING.__exit__(None, None, None)
        with self._gate:
            self._active -= 1
            if not self._active:
                self._gate.notify_all()

    def _resize(self, size: int) -> None:
        """Resize the map once no transaction of this process is open. 0: adopt another process's size."""
        with self._gate:
            self._gate.wait_for(lambda: not self._resizing)
            self._resizing = True
            try:
                self._gate.wait_for(lambda: not self._active)
                # Another thread may have grown the map while this one waited.
                if self._env is not None and (size == 0 or size > self._env.info()["map_size"]):
                    self._env.set_mapsize(size)
            finally:
                self._resizing = False
                self._gate.notify_all()

    def pause(self) -> None:
        """Wait until no transaction of this process runs, and let none begin until `resume`.

        Raises StoreIO if a transaction runs for too long (it may wait for another process);
        nothing is paused then.
        """
        with self._gate:
            if not self._gate.wait_for(lambda: not self._active and not self._resizing, _MAX_PAUSE_S):
                raise StoreIO(
                    f"a transaction of {self._label.owner} ran for more than {_MAX_PAUSE_S:g} s while this "
                    "process forked: use it only in processes that were spawned, or fork while it is idle"
                )
            self._resizing = True

    def resume(self) -> None:
        """Let transactions begin again after `pause`."""
        with self._gate:
            self._resizing = False
            self._gate.notify_all()

    def abandon(self) -> None:
        """In a forked child, drop the parent's environment, so that the child may open its own.

        Raises Forked if the fork happened during a transaction.
        """
        assert os.getpid() != self._pid
        if self.fork_refused is not None:  # closing would abort the parent's transaction
            raise Forked(self.fork_refused)
        if self._env is not None:
            self._env.close()
            self._env = None

    def close(self) -> None:
        """Wait for the running transactions and close the environment. Does nothing in a forked child."""
        if os.getpid() != self._pid:
            return
        with self._gate:
            self._gate.wait_for(lambda: not self._active and not self._resizing)
            if self._env is not None:
                with HOLDING:
                    self._env.close()
                self._env = None


_LIVE: weakref.WeakSet[Database] = weakref.WeakSet()
_LIVE_LOCK = threading.Lock()


def _own_databases() -> list[Database]:
    return [database for database in _LIVE if database._pid == os.getpid()]


def _before_fork() -> None:
    """Pause every database: if the child inherited a transaction, its copy would abort the parent's."""
    _LIVE_LOCK.acquire()
    for database in _own_databases():
        database.fork_refused = None
        try:
            database.pause()
        except StoreIO as error:  # an exception here would not stop the fork, so the child is refused later
            database.fork_refused = str(error)


def _after_fork_in_parent() -> None:
    for database in _own_databases():
        if database.fork_refused is None:
            database.resume()
    _LIVE_LOCK.release()


def _after_fork_in_child() -> None:
    global _LIVE_LOCK
    _LIVE_LOCK = threading.Lock()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)
