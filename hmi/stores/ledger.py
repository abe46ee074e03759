"""A small durable key-value table in LMDB: short transactions, one writer in all processes, readers never wait."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import lmdb

import plot_store
from hmi.errors import Damaged, HmiError, StorageFull, Unavailable
from hmi.stores.plots import plot_errors
from hmi.stores.sealed import CURE, Txn, is_sealed, problems, upgrade
from plot_store.care.scrub import check_pages
from plot_store.database.writer_lock import WriterLock
from plot_store.ground.host import check_host

log = logging.getLogger("hmi.stores")
FIRST_MAP = 16 << 20
READERS = 4096
NEARLY_FULL = 1 << 20
T = TypeVar("T")


class Ledger:
    """The LMDB environment of one folder in this process; `open` shares it, since LMDB must not be opened twice."""

    _opened: dict[str, Ledger] = {}  # noqa: RUF012 — one for the process, guarded by _opening
    _opening = threading.Lock()

    def __init__(self, folder: Path, first_map: int) -> None:
        self._folder, self._pid, self._users = folder, os.getpid(), 0
        self._gate = threading.Condition()
        self._active, self._resizing = 0, False
        self._writer = WriterLock(folder, "the registry")
        with plot_errors():
            check_host(folder, "the registry")
        _check_pages(folder)
        try:
            with _translated("opening the registry", folder):
                self._env: Any = lmdb.open(
                    str(folder), map_size=max(first_map, _size(folder)), max_readers=READERS, writemap=False,
                    readahead=False,
                )  # fmt: skip
                self._env.reader_check()
        except lmdb.ReadersFullError as error:
            raise _too_many() from error
        try:
            if not self._run(is_sealed, write=False):
                with self._alone():
                    self._run(upgrade, write=True)
        except BaseException:
            self._env.close()
            raise

    @classmethod
    def open(cls, folder: Path, first_map: int = FIRST_MAP) -> Ledger:
        """Open or share the ledger at `folder`, which exists. Raises Damaged, StorageFull, Unavailable (the disk)."""
        key = os.path.realpath(folder)
        with cls._opening:
            found = cls._opened.get(key)
            if found is not None and found._pid != os.getpid():
                # After a fork: LMDB closes the copy without touching what is the parent's.
                found._env.close()
                found = None
            if found is None:
                found = cls._opened[key] = cls(Path(key), first_map)
            found._users += 1
            return found

    def close(self) -> None:
        """Give back one use; the last one closes the environment, after the transactions that run."""
        with Ledger._opening:
            self._users -= 1
            if self._users or self._pid != os.getpid():
                return
            Ledger._opened.pop(str(self._folder), None)
            with self._gate:
                self._gate.wait_for(lambda: not self._active and not self._resizing)
                self._env.close()
                self._env = None

    def generation(self) -> int:
        """A number that each committed change, of whichever process, makes larger."""
        with self._entered():
            return int(self._env.info()["last_txnid"])

    def read(self, body: Callable[[Txn], T]) -> T:
        """Run `body` on one snapshot. It must take all it needs: nothing of the transaction outlives it."""
        return self._run(lambda raw: body(Txn(raw)), write=False)

    def problems(self) -> list[str]:
        """Every record that is damaged or missing; one sentence each."""
        return self._run(problems, write=False)

    def write(self, body: Callable[[Txn], T]) -> T:
        """Run `body` alone among all processes and commit durably; an exception undoes it.

        `body` runs again after the map has grown, so its effects elsewhere must be idempotent. It may use this ledger
        only through its Txn. Raises Unavailable if another process holds the registry for a minute.
        """
        self._check_process()
        with self._alone():  # before `_entered`, so that who waits for another process holds up no reader in this one
            return self._run(lambda raw: body(Txn(raw)), write=True)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with ExitStack() as stack:
            with plot_errors():
                stack.enter_context(self._writer.held())
            yield

    def _run(self, body: Callable[[Any], T], *, write: bool) -> T:
        checked = False
        while True:
            with self._entered():
                try:
                    with _translated("using the registry", self._folder):
                        if write:
                            self._env.reader_check()  # readers that died keep pages from being used again
                        with self._env.begin(write=write) as raw:
                            return body(raw)
                except lmdb.MapFullError:
                    size = 2 * self._env.info()["map_size"]
                except lmdb.MapResizedError:
                    size = 0  # another process has made it larger: take its size
                except lmdb.ReadersFullError as error:
                    if checked:
                        raise _too_many() from error
                    self._env.reader_check()  # perhaps only because processes died in a transaction
                    checked = True
                    continue
            self._resize(size)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise AssertionError("a registry was used in a forked child: open it there")

    @contextmanager
    def _entered(self) -> Iterator[None]:
        self._check_process()
        with self._gate:
            self._gate.wait_for(lambda: not self._resizing)
            if self._env is None:
                raise Unavailable("the registry has been closed: the process is stopping, try again after its restart")
            self._active += 1
        try:
            yield
        finally:
            with self._gate:
                self._active -= 1
                self._gate.notify_all()

    def _resize(self, size: int) -> None:
        """Change the map's size while no transaction of this process runs."""
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


def _too_many() -> Unavailable:
    return Unavailable(
        "all places for transactions of the registry are taken: run fewer commands at once; where many were "
        "killed, the server's next change frees their places"
    )


def _check_pages(folder: Path) -> None:
    """Check every page before LMDB opens the file: LMDB follows page numbers unchecked, and damage could crash it or
    make it destroy more.

    Raises Damaged, Unavailable (the disk refused).
    """
    try:
        for problem in check_pages(folder):
            log.error("the registry: %s; some records cannot be found: %s", problem, CURE)
    except plot_store.Damaged as error:
        raise Damaged(f"the registry is damaged ({error}): {CURE}") from error
    except OSError as error:
        raise Unavailable(
            f"the disk failed while opening the registry ({error.strerror}): try again; if it stays so, check the disk "
            "and its permissions"
        ) from error


def _size(folder: Path) -> int:
    data = folder / "data.mdb"
    return data.stat().st_size if data.exists() else 0


@contextmanager
def _translated(doing: str, folder: Path) -> Iterator[None]:
    """LMDB's errors as ours; those about the map's size and the table of readers pass."""
    try:
        yield
    except (HmiError, lmdb.MapFullError, lmdb.MapResizedError, lmdb.ReadersFullError):
        raise
    except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.VersionMismatchError) as error:
        raise Damaged(f"the registry is damaged ({error}): {CURE}") from error
    except lmdb.Error as error:
        if _is_full(str(error), folder):
            raise StorageFull(f"no room left while {doing}: free some space and try again") from error
        raise Unavailable(
            f"the disk failed while {doing} ({error}): try again; if it stays so, check the disk and its permissions"
        ) from error


def _is_full(message: str, folder: Path) -> bool:
    """LMDB calls the short write on a disk that gets full an input/output error, so the disk is asked, too."""
    said = "No space left" in message or "quota" in message.lower()
    return said or ("Input/output error" in message and shutil.disk_usage(folder).free < NEARLY_FULL)
