"""The calls about backups: list them, make one."""

from __future__ import annotations

import asyncio

from hmi.api.handlers.models import accepted
from hmi.api.http.call import Reply, RouteCall
from hmi.api.schemas.backups import BackupList, BackupQuery, BackupView, CreateBackup
from hmi.backup.collection import BackupEntry
from hmi.manager.backups import begin_backup, configured_backups


async def list_backups(call: RouteCall) -> Reply:
    query: BackupQuery = call.query
    found = await asyncio.to_thread(configured_backups, call.services.manager, query.folder or "")
    return Reply(BackupList(backups=[backup_view(entry) for entry in found]))


async def create_backup(call: RouteCall) -> Reply:
    body: CreateBackup = call.body
    manager, folder = call.services.manager, body.folder or ""
    return accepted(await asyncio.to_thread(begin_backup, manager, folder, reread=body.reread))


def backup_view(entry: BackupEntry) -> BackupView:
    manifest = entry.manifest
    if manifest is None:
        fields = dict.fromkeys(("created", "files", "bytes", "new_bytes", "seconds"))
        return BackupView(backup=entry.backup, **fields, remarks=[], damage=entry.damage)
    return BackupView(
        backup=entry.backup,
        created=manifest.created,
        files=manifest.files,
        bytes=manifest.bytes,
        new_bytes=manifest.new_bytes,
        seconds=manifest.seconds,
        remarks=list(manifest.remarks),
        damage=None,
    )
