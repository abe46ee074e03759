"""Backups to the place that the operator configured, as jobs."""

from __future__ import annotations

from hmi.backup.collection import BackupEntry, entries
from hmi.core import JobRecord
from hmi.jobs.back_up import configured_target
from hmi.jobs.specs import BackupSpec
from hmi.manager.manager import Manager


def begin_backup(manager: Manager, folder: str = "", *, reread: bool = False) -> JobRecord:
    """Start a job that backs up the data folder. folder: a folder of the configured place; "": itself.
    reread: read every file again.

    Raises Conflict (no place is configured, or a job backs up to this folder already), InvalidInput.
    """
    configured_target(manager.settings, folder)
    return manager.runner.submit("backup", BackupSpec(folder=folder, reread=reread).stored())


def configured_backups(manager: Manager, folder: str = "") -> list[BackupEntry]:
    """The backups in a folder of the configured place, oldest first. Raises Conflict (none is configured),
    InvalidInput, Unavailable."""
    return entries(configured_target(manager.settings, folder))
