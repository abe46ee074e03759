"""Files that callers keep, in the registry. Their contents lie in `<data>/files`, named by their ids."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hmi.core import check_name
from hmi.errors import NotFound, QuotaExceeded
from hmi.stores.records.model_table import get_tenant
from hmi.stores.records.sealed import RegistryTxn
from hmi.stores.records.table import FILE, FILE_OF, RecordTable
from hmi.tenancy import FileRecord

_FILE_ID = re.compile(r"file-[a-z0-9]{1,40}")


@dataclass(frozen=True)
class FileLimits:
    """The limits on the files of one tenant."""

    files: int
    bytes: int


def no_file(file: str, field: str | None = None) -> NotFound:
    """The error for an unknown file and for one that the caller may not see. The two must look the same."""
    return NotFound(f"there is no file {file[:80]!r}: check the id", field=field)


def add_file(table: RecordTable, txn: RegistryTxn, record: FileRecord, limits: FileLimits | None) -> None:
    """Store a new file's record. Raises NotFound (no such tenant), QuotaExceeded (beyond `limits`)."""
    assert _FILE_ID.fullmatch(record.file), "a file's id is short and plain"
    if record.tenant is not None:
        get_tenant(table, txn, record.tenant)
    if limits is not None:
        _check_quota(files_of(table, txn, record.tenant), record, limits)
    table.put(txn, FILE + record.file, record)
    txn.put(_of(record.tenant) + record.file, b"")


def find_file(table: RecordTable, txn: RegistryTxn, file: str) -> FileRecord | None:
    """The record of a file; None if there is none."""
    return table.get(txn, FILE + file, FileRecord) if _FILE_ID.fullmatch(file) else None


def files_of(table: RecordTable, txn: RegistryTxn, tenant: str | None) -> list[FileRecord]:
    """The files of a tenant, or with None the administrator's, oldest first."""
    found = [table.get(txn, FILE + file, FileRecord) for file in txn.keys(_of(tenant))]
    return [record for record in found if record is not None]


def drop_file(table: RecordTable, txn: RegistryTxn, file: str) -> FileRecord:
    """Remove a file's record, and return it. Raises NotFound."""
    record = find_file(table, txn, file)
    if record is None:
        raise no_file(file)
    txn.delete(FILE + file)
    txn.delete(_of(record.tenant) + file)
    return record


def drop_files_of(txn: RegistryTxn, tenant: str) -> list[str]:
    """Remove the records of a tenant's files, damaged ones included, and return their ids."""
    files = list(txn.keys(_of(tenant)))
    for file in files:
        txn.delete(FILE + file)
        txn.delete(_of(tenant) + file)
    return files


def _check_quota(have: list[FileRecord], new: FileRecord, limits: FileLimits) -> None:
    if len(have) >= limits.files:
        raise QuotaExceeded(
            f"tenant {new.tenant} keeps {len(have)} files, and {limits.files} are allowed: delete one that "
            "is not needed any more",
            limit=limits.files,
        )
    held = sum(file.bytes for file in have)
    if held + new.bytes > limits.bytes:
        raise QuotaExceeded(
            f"tenant {new.tenant} keeps files of {held} bytes, and with this one of {new.bytes} they would "
            f"exceed {limits.bytes}: delete one that is not needed any more",
            limit=limits.bytes,
        )


def _of(tenant: str | None) -> str:
    return f"{FILE_OF}{'' if tenant is None else check_name(tenant, 'tenant')}/"
