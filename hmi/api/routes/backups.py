"""The calls for backups, a part of the route table (`hmi.api.routes.table`)."""

from __future__ import annotations

from hmi.api.handlers import backups
from hmi.api.http.route import Route
from hmi.api.schemas.backups import BackupList, BackupQuery, CreateBackup
from hmi.api.schemas.shared import JobAccepted

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
