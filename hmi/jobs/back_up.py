"""The job that backs up the data folder to the place that the operator configured."""

from __future__ import annotations

from typing import Any

from hmi.backup.create import create
from hmi.backup.target import Target, open_target
from hmi.config import Settings
from hmi.core import check_name
from hmi.errors import Conflict
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.specs import BackupSpec

UNIT = 1 << 20


def run(ctx: JobContext) -> dict[str, Any]:
    """Run the job. A resumed one begins anew, and does not send again what was sent."""
    spec = BackupSpec.of(ctx.job)
    target = configured_target(ctx.settings, spec.folder)

    def report(done: int, total: int) -> None:
        ctx.progress(done // UNIT, total // UNIT, phase="copying (MiB)")

    made = create(ctx.settings.data, ctx.registry, ctx.plots, target, report)
    return {**made.model_dump(mode="json", exclude={"format", "files_sha256"}), "folder": spec.folder}


def configured_target(settings: Settings, folder: str) -> Target:
    """The configured place, or a folder of it. Raises Conflict if none is configured, InvalidInput."""
    if not settings.backup_location:
        raise Conflict(
            "no place for backups is configured: set HMI_BACKUP_LOCATION to a folder or a URL, and restart "
            "the server"
        )
    return open_target(settings.backup_location, below=check_name(folder, "folder") if folder else "")
