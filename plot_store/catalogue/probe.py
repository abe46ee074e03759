"""A quick check of a store's catalogue, in a process of its own; see `plot_store.care.scrub.probe`.

It reads the file into memory, walks every page, and compares each record's checksum. Then LMDB reads and
writes a copy in a temporary folder, so that the live locks stay untouched. The process prints one line of
JSON: {"sound": true, "records": …}, {"damaged": "what"} or {"failed": "why"}.

It imports only `plot_store.database`'s checks of LMDB's file, so it starts in 50 ms. Never call it in a
process that has the store open: closing the file drops the locks that LMDB holds on it.
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
    """Return the key. Raises BadFile unless its value matches its checksum and is JSON."""
    body = unseal(key, value)
    if body is None:
        raise BadFile(f"the record {key.decode(errors='replace')!r} does not match its checksum")
    try:
        json.loads(body)
    except ValueError as error:
        raise BadFile(f"the record {key.decode(errors='replace')!r} is not JSON ({error})") from error
    return key


def walk(raw: bytes) -> int | None:
    """Count the records of a file. Returns None for a version of LMDB's format that this code cannot read.

    Raises BadFile.
    """
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
    """Count the records of a store's catalogue; 0 if it does not exist yet. Raises BadFile, OSError."""
    path = store / "catalogue" / "data.mdb"
    raw = read_settled(path) if path.exists() and path.stat().st_size else b""
    records = walk(raw) if raw else 0
    # With a new, empty catalogue, gc would remove the segments.
    if records == 0 and has_segments(store):
        raise BadFile("data.mdb is missing or empty beside segments")
    if not raw:
        return 0
    try:
        found = try_copy(raw, check_record)
    except OSError:
        if records is None:  # only LMDB can read this version of its format
            raise
        return records
    if records not in (None, found):
        raise BadFile(f"LMDB finds {found} records where the pages hold {records}")
    return found


def has_segments(store: Path) -> bool:
    """Return whether the store's folder holds segment files."""
    folder = store / "segments"
    return folder.is_dir() and any(file.suffix in (".rows", ".index", ".pack") for file in folder.iterdir())


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
