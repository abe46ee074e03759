"""One LMDB environment: checked before it is opened, growing as needed, one writer among all processes, safe
at forks.

LMDB must never be opened twice in a process: `plot_store.database.shared` gives each path one owner.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import lmdb

from plot_store.database.lmdb_errors import Label, as_ours, damaged, too_many
from plot_store.database.lmdb_file import check_length, check_pages
from plot_store.database.lmdb_pages import BadFile
from plot_store.database.writer_lock import WriterLock
from plot_store.ground.errors import Closed, Forked, ReadOnly, StoreIO
from plot_store.ground.files import io_error
from plot_store.ground.host import check_host

MAX_READERS: Final = (
    4096  # places in the table of transactions that read; a process keeps one, and more for threads
)
_LONGEST_PAUSE_S: Final = 30.0
T = TypeVar("T")


class Database:
    """The LMDB environment of one folder in this process. Raises Forked when used after a fork."""

    def __init__(
        self,
        folder: Path,
        label: Label,
        *,
        create: bool,
        first_map: int,
        read_only: bool = False,
        misplaced: Callable[[str], None] | None = None,
    ) -> None:
        """Open it. first_map: bytes, the least size of the map.

        With `misplaced` every page is checked first, and `misplaced` is told of leaves whose keys are not in
        order; without it, only the file's length is checked. Raises Damaged, StoreFull, StoreIO.
        """
        self.fork_refused: str | None = None  # why children forked from here may not open it
        self._pid = os.getpid()
        self._gate = threading.Condition()
        self._active, self._resizing = 0, False
        self._folder, self._label, self._read_only = folder, label, read_only
        self._writer = WriterLock(folder, label.owner)
        check_host(folder, label.owner)
        with _LIVE_LOCK:  # no fork while LMDB opens
            self._env: Any = self._open(create, first_map, misplaced)
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
            env.reader_check()  # who died in a transaction since the last opening or change gives up its slot
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
        """Run `body` on LMDB's own transaction that reads one snapshot; it must not keep anything of it."""
        return self._run(body, write=False)

    def write(self, body: Callable[[Any], T]) -> T:
        """Run `body` in the one write transaction and commit durably; an exception aborts it.

        `body` may run again after the map has grown, so its effects elsewhere must be idempotent. Raises
        StoreIO if another process holds the write lock for a minute.
        """
        if self._read_only:
            raise ReadOnly(
                f"{self._label.owner} was opened read-only: open it with read_only=False to change it"
            )
        self._check_process()
        with (
            self._writer.held()
        ):  # before `_enter`, so that who waits for another process holds up nothing in this
            return self._run(body, write=True)

    def generation(self) -> int:
        """A number that each committed change, of whichever process, makes larger."""
        self._enter()
        try:
            return int(self._env.info()["last_txnid"])
        finally:
            self._leave()

    def forget_dead_readers(self) -> int:
        """Free the reader slots of processes that died; how many."""
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
                    self._env.reader_check()  # readers that died keep pages from being used again
                with self._env.begin(write=write) as raw:
                    return body(raw)
            except lmdb.MapFullError:
                size = 2 * self._env.info()["map_size"]
            except lmdb.MapResizedError:
                size = 0  # another process has made it larger
            except lmdb.ReadersFullError as error:
                if checked:
                    raise too_many(self._label) from error
                self._env.reader_check()  # perhaps only because processes died in a transaction
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
        """Count a transaction of this process, once the map is not being resized; `_leave` ends it."""
        self._check_process()
        with self._gate:
            while self._resizing:
                self._gate.wait()
            if self._env is None:
                raise Closed(f"{self._label.owner} has been closed: open it again")
            self._active += 1

    def _leave(self) -> None:
        with self._gate:
            self._active -= 1
            if not self._active:
                self._gate.notify_all()

    def _resize(self, size: int) -> None:
        """Give the map this size, or take over another process's (0), with no transaction of ours open."""
        with self._gate:
            self._gate.wait_for(lambda: not self._resizing)
            self._resizing = True
            try:
                self._gate.wait_for(lambda: not self._active)
                # Another thread may have grown it while this one waited.
                if self._env is not None and (size == 0 or size > self._env.info()["map_size"]):
                    self._env.set_mapsize(size)
            finally:
                self._resizing = False
                self._gate.notify_all()

    def pause(self) -> None:
        """Wait until no transaction of this process runs and let none begin; `resume` ends it.

        Raises StoreIO when one goes on for too long (it may wait for another process); nothing is paused
        then.
        """
        with self._gate:
            if not self._gate.wait_for(lambda: not self._active and not self._resizing, _LONGEST_PAUSE_S):
                raise StoreIO(
                    f"a transaction of {self._label.owner} ran for more than {_LONGEST_PAUSE_S:g} s while "
                    "this process "
                    "forked: use it only in processes that were spawned, or fork when it is idle"
                )
            self._resizing = True

    def resume(self) -> None:
        with self._gate:
            self._resizing = False
            self._gate.notify_all()

    def abandon(self) -> None:
        """In a child process: drop the parent's environment, so that the child may open one of its own.
        Raises Forked where the child may not."""
        assert os.getpid() != self._pid
        if self.fork_refused is not None:  # not even closed: that would undo the parent's transaction
            raise Forked(self.fork_refused)
        if self._env is not None:
            self._env.close()
            self._env = None

    def close(self) -> None:
        """Close the environment after the running transactions. In a forked child only forget it."""
        if os.getpid() != self._pid:
            return
        with self._gate:
            self._gate.wait_for(lambda: not self._active and not self._resizing)
            if self._env is not None:
                self._env.close()
                self._env = None


_LIVE: weakref.WeakSet[Database] = weakref.WeakSet()
_LIVE_LOCK = threading.Lock()


def _ours() -> list[Database]:
    return [database for database in _LIVE if database._pid == os.getpid()]


def _before_fork() -> None:
    """No transaction may run at a fork: the child's copy of one would undo the parent's."""
    _LIVE_LOCK.acquire()
    for database in _ours():
        database.fork_refused = None
        try:
            database.pause()
        except StoreIO as error:  # raising would not stop the fork: what the child may do is refused instead
            database.fork_refused = str(error)


def _after_fork_in_parent() -> None:
    for database in _ours():
        if database.fork_refused is None:
            database.resume()
    _LIVE_LOCK.release()


def _after_fork_in_child() -> None:
    global _LIVE_LOCK
    _LIVE_LOCK = threading.Lock()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)
