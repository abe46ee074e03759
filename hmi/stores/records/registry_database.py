"""The registry's database: `plot_store`'s LMDB environment, holding sealed records
(`hmi.stores.records.sealed`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from hmi.errors import HmiError, InvalidInput, Unavailable
from hmi.stores.journal.journal import Journal
from hmi.stores.plot.plots import as_hmi
from hmi.stores.records.journaled import POSITION, Journaled, position_of
from hmi.stores.records.sealed import CURE, RegistryTxn, is_sealed, problems, upgrade
from plot_store import Closed, PlotStoreError
from plot_store.database.database import Database
from plot_store.database.lmdb_errors import DatabaseLabel
from plot_store.database.shared import Shared

log = logging.getLogger("hmi.stores")
FIRST_MAP = 16 << 20
T = TypeVar("T")


class RegistryDatabase:
    """Short transactions over the registry's records. One process writes at a time; readers never wait."""

    _shared: Final[Shared[RegistryDatabase]] = Shared()

    def __init__(self, folder: Path, first_map: int, checked: bool) -> None:
        label, misplaced = DatabaseLabel("the registry", "the registry", CURE), None if checked else _warn
        self._database = Database(folder, label, create=True, first_map=first_map, misplaced=misplaced)
        self._journaled: Journaled | None = None
        try:
            if not self._database.read(is_sealed):
                self._database.write(upgrade)
        except BaseException:
            self._database.close()
            raise

    @classmethod
    def open(cls, folder: Path, first_map: int = FIRST_MAP, *, checked: bool = False) -> RegistryDatabase:
        """Open the database in the existing `folder`, or share it if this process has it open.

        checked: a process that lives has checked every page at its own start, so this one need not. Raises
        Damaged, StorageFull, and Unavailable on an I/O error.
        """
        try:
            return cls._shared.acquire(folder, lambda real: cls(real, first_map, checked))
        except PlotStoreError as error:
            raise _as_ours(error) from error

    def release(self) -> None:
        """End one use. The last one closes the database, after the transactions that run."""
        self._shared.release(self)

    def follow(self, journal: Journal) -> None:
        """Share the records with other nodes from now on, by a journal; see `Journaled.join`."""
        journaled = Journaled(self._database, journal)
        try:
            journaled.join()
        except PlotStoreError as error:
            raise _as_ours(error) from error
        self._journaled = journaled

    def catch_up(self) -> bool:
        """Take over other nodes' changes; see `Journaled.catch_up`. False if the records are not shared."""
        try:
            return self._journaled is not None and self._journaled.catch_up()
        except PlotStoreError as error:
            raise _as_ours(error) from error

    def position(self) -> int:
        """The number of the journal's last change that this database has; 0 if the records are not shared."""
        found = self._database.read(position_of)
        return 0 if found is None else found.at

    def leave_journal(self) -> None:
        """Forget the journal that the records followed: they are this data folder's own from now on."""
        try:
            self._database.write(lambda raw: RegistryTxn(raw).delete(POSITION))
        except PlotStoreError as error:
            raise _as_ours(error) from error

    def generation(self) -> int:
        """A number that grows with each committed change of any process."""
        try:
            return self._database.generation()
        except PlotStoreError as error:
            raise _as_ours(error) from error

    def read(self, body: Callable[[RegistryTxn], T]) -> T:
        """Run `body` on one snapshot. Its RegistryTxn must not be used after it returns."""
        try:
            return self._database.read(lambda raw: body(RegistryTxn(raw)))
        except PlotStoreError as error:
            raise _as_ours(error) from error

    def copy(self, folder: Path, look: Callable[[RegistryTxn], T]) -> T:
        """Write a copy of one snapshot into the empty `folder`; returns `look` of the same snapshot."""
        try:
            return self._database.copy(folder, lambda raw: look(RegistryTxn(raw)))
        except PlotStoreError as error:
            raise _as_ours(error) from error

    def problems(self) -> list[str]:
        """Check all records; returns one sentence for each that is damaged or missing."""
        try:
            return self._database.read(problems)
        except PlotStoreError as error:
            raise _as_ours(error) from error

    def write(self, body: Callable[[RegistryTxn], T]) -> T:
        """Run `body` as the only writer of all processes, and commit durably; an exception rolls it back.

        `body` may run again after the map has grown, so its effects elsewhere must be idempotent. It may use
        this database only through its RegistryTxn. Raises Unavailable if another process holds the write lock
        for a minute, or the place of the journal does not answer; InvalidInput if the records are shared and
        this process does not know where.
        """
        try:
            if self._journaled is not None:
                return self._journaled.write(body)
            return self._database.write(lambda raw: body(_unshared(raw)))
        except PlotStoreError as error:
            raise _as_ours(error) from error

    def abandon(self) -> None:
        """See `Database.abandon`."""
        self._database.abandon()

    def close(self) -> None:
        """See `Database.close`."""
        self._database.close()


def _unshared(raw: Any) -> RegistryTxn:
    if position_of(raw) is not None:
        raise InvalidInput(
            "this data folder shares its registry with other nodes: name their bucket (HMI_BUCKET), else a "
            "change here would be lost",
            field="bucket",
        )
    return RegistryTxn(raw)


def _warn(problem: str) -> None:
    log.error("the registry: %s; some records cannot be found: %s", problem, CURE)


def _as_ours(error: PlotStoreError) -> HmiError:
    """The corresponding HmiError."""
    if isinstance(error, Closed):
        return Unavailable(
            "the registry has been closed: the process is stopping, try again after its restart"
        )
    return as_hmi(error)
