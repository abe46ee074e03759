"""A quick check of a store's catalogue, in a process of its own; see `plot_store.care.scrub.probe`.

It walks every page of a copy in memory and compares each record's checksum. Then LMDB reads and writes a copy
in a temporary folder, so that the live locks stay untouched. Prints one line of JSON: {"sound": true,
"records": …}, {"damaged": "what"} or {"failed": "why"}.

Of the package it imports only LMDB's file and its checks, so that it starts in a twentieth of a second. Never
call it in a process that has the store open: closing a file drops the locks that LMDB holds on it.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

from plot_store.database.checksum import unseal
from plot_store.database.lmdb_file import read_settled
from plot_store.database.lmdb_pages import BadFile, Walk, newest
from plot_store.database.trial import try_copy


def check_record(key: bytes, value: bytes) -> bytes:
    """The key, if its value matches its checksum; see plot_store/catalogue/catalogue.py. Raises BadFile."""
    body = unseal(key, value)
    if body is None:
        raise BadFile(f"the record {key.decode(errors='replace')!r} does not match its checksum")
    try:
        json.loads(body)
    except ValueError as error:
        raise BadFile(f"the record {key.decode(errors='replace')!r} is no JSON ({error})") from error
    return key


def walk(raw: bytes) -> int | None:
    """How many records the file holds; None where only LMDB can judge. Raises BadFile."""
    try:
        meta = newest(raw)
        if meta is None:
            return None
        keys = [check_record(key, value) for key, value in Walk(raw, meta).records()]
    except struct.error as error:
        raise BadFile(f"a page is malformed ({error})") from error
    if keys and b"format" not in keys:
        raise BadFile("the record of the format is missing")
    return len(keys)


def probe(store: Path) -> int:
    """How many records the catalogue holds; 0 where there is none yet. Raises BadFile, OSError."""
    path = store / "catalogue" / "data.mdb"
    raw = read_settled(path) if path.exists() and path.stat().st_size else b""
    records = walk(raw) if raw else 0
    if records == 0 and has_segments(
        store
    ):  # opening would make a new catalogue, and gc would take the segments
        raise BadFile("data.mdb is missing or empty beside segments")
    if not raw:
        return 0
    try:
        found = try_copy(raw, check_record)
    except OSError:
        if records is None:  # of a version that only LMDB can judge
            raise
        return records
    if records not in (None, found):
        raise BadFile(f"LMDB finds {found} records where the pages hold {records}")
    return found


def has_segments(store: Path) -> bool:
    folder = store / "segments"
    return folder.is_dir() and any(file.suffix in (".rows", ".index") for file in folder.iterdir())


def main() -> None:
    try:
        answer: dict[str, object] = {"sound": True, "records": probe(Path(sys.argv[1]))}
    except BadFile as error:
        answer = {"damaged": str(error)}
    except OSError as error:
        answer = {"failed": str(error)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
