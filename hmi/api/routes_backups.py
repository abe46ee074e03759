"""The calls for backups, a part of the route table (`hmi.api.routes`)."""

from __future__ import annotations

from hmi.api.handlers import backups
from hmi.api.route import Route
from hmi.api.schemas import JobAccepted
from hmi.api.schemas_backups import BackupList, BackupQuery, CreateBackup

BACKUPS = (
    Route(
        "GET",
        "/manage/backups",
        backups.list_backups,
        "List the backups at the configured place.",
        BackupList,
        "admin",
        query=BackupQuery,
        kinds=("conflict",),
    ),
    Route(
        "POST",
        "/manage/backups",
        backups.create_backup,
        "Back up the data folder to the configured place.",
        JobAccepted,
        "admin",
        202,
        body=CreateBackup,
        creates=True,
        kinds=("conflict",),
    ),
)
