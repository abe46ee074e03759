"""The bodies and answers of the calls about backups."""

from __future__ import annotations

from pydantic import Field

from hmi.api.schemas.shared import Answer, Name, Query, Request

FOLDER = "A folder of the configured place, for a series of backups of its own; without it, the place itself."


class CreateBackup(Request):
    folder: Name | None = Field(default=None, description=FOLDER)
    reread: bool = Field(default=False, description="Read every file again, also those that did not change.")


class BackupQuery(Query):
    folder: Name | None = Field(default=None, description=FOLDER)


class BackupView(Answer):
    """A finished backup. If its manifest is damaged, `damage` says so and the other fields are null."""

    backup: str
    created: str | None = Field(description="The time that the backup shows.")
    files: int | None
    bytes: int | None = Field(description="The size of the restored data folder.")
    new_bytes: int | None = Field(description="What this backup added to what earlier ones had stored.")
    seconds: float | None
    remarks: list[str] = Field(description="What the data folder had lost already, one sentence each.")
    damage: str | None


class BackupList(Answer):
    """The backups at the configured place, oldest first."""

    backups: list[BackupView]
