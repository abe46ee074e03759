"""A quick check of a store's catalogue, in a process of its own; see `plot_store.care.scrub.probe`.

It walks every page of a copy in memory and compares each record's checksum. Then LMDB reads and writes a copy in a
temporary folder, so that the live locks stay untouched. Prints one line of JSON: {"sound": true, "records": …},
{"damaged": "what"} or {"failed": "why"}.

Imports nothing of the package but `lmdb_pages`, so that it starts in a twentieth of a second. Never call it in a
process that has the store open: closing a file drops the locks that LMDB holds on it.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import lmdb
import xxhash

from plot_store.database.lmdb_pages import BadFile, Walk, metas, newest, reaches

TRIES: Final = 100
PAUSE_S: Final = 0.02
HEAD: Final = 1 << 17  # two of the largest pages
TRIAL: Final = b"\xff probe"
_SUM: Final = 8


def check_record(key: bytes, value: bytes) -> bytes:
    """The key, if its value matches its checksum; see plot_store/catalogue/catalogue.py. Raises BadFile."""
    if value[:_SUM] != xxhash.xxh3_64_digest(key + value[_SUM:]):
        raise BadFile(f"the record {key.decode(errors='replace')!r} does not match its checksum")
    try:
        json.loads(value[_SUM:])
    except ValueError as error:
        raise BadFile(f"the record {key.decode(errors='replace')!r} is no JSON ({error})") from error
    return key


def read_settled(path: Path) -> bytes:
    """Read the whole file without a commit in between: an open write transaction then touches only free pages.

    Raises BadFile, TimeoutError (a writer never paused).
    """
    with open(path, "rb") as file:
        for _ in range(TRIES):
            before = metas(file.read(HEAD))
            file.seek(0)
            raw = file.read()
            file.seek(0)
            if before == metas(raw) == metas(file.read(HEAD)):
                return raw
            file.seek(0)
            time.sleep(PAUSE_S)
    raise TimeoutError("the catalogue is being written all the time: try again")


def check_length(data: Path) -> None:
    """Raises BadFile for a file that ends before a page in use, or begins with no meta pages.

    LMDB maps the file without looking, and a page beyond its end kills the process. No more than the meta pages is read
    unless the file ends before its last page. Nothing is said of an empty or missing one, which LMDB makes anew, nor of
    one that another process writes all the time, which has opened it. Raises OSError.
    """
    try:
        with open(data, "rb") as file:
            head = file.read(HEAD)
            for _ in range(TRIES):  # until no commit changes the meta pages while they are read
                file.seek(0)
                again = file.read(HEAD)
                if not head or metas(head) == metas(again):
                    break
                head = again
            size = os.fstat(file.fileno()).st_size  # after the meta pages: a writer makes the file longer first
    except FileNotFoundError:
        return
    meta = newest(head) if head else None
    if meta is not None and not reaches(meta, size):
        with contextlib.suppress(TimeoutError):
            _check_tail(read_settled(data))


def _check_tail(raw: bytes) -> None:
    """Raises BadFile where a page that is used lies behind the end."""
    try:
        meta = newest(raw)
        if meta is not None:
            for _ in Walk(raw, meta).records():
                pass
    except struct.error as error:
        raise BadFile(f"a page is malformed ({error})") from error


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


def lmdb_agrees(raw: bytes, records: int | None) -> int:
    """Let LMDB read a copy and write into it; how many records it finds. Raises BadFile, OSError (no room for it)."""
    with tempfile.TemporaryDirectory(prefix="plot-probe-") as folder:
        (Path(folder) / "data.mdb").write_bytes(raw)
        try:
            with lmdb.open(folder, map_size=2 * len(raw) + (1 << 24), sync=False) as env:
                with env.begin(write=True) as txn:  # takes pages from the free list and gives some back
                    txn.put(TRIAL, bytes(3 << 12))
                with env.begin(write=True) as txn:
                    txn.delete(TRIAL)
                with env.begin() as txn, txn.cursor() as cursor:
                    found = [check_record(key, value) for key, value in cursor]
        except lmdb.Error as error:
            raise BadFile(f"LMDB says {error}") from error
    if records not in (None, len(found)):
        raise BadFile(f"LMDB finds {len(found)} records where the pages hold {records}")
    return len(found)


def probe(store: Path) -> int:
    """How many records the catalogue holds; 0 where there is none yet. Raises BadFile, OSError."""
    path = store / "catalogue" / "data.mdb"
    raw = read_settled(path) if path.exists() and path.stat().st_size else b""
    records = walk(raw) if raw else 0
    if records == 0 and has_segments(store):  # opening would make a new catalogue, and gc would take the segments
        raise BadFile("data.mdb is missing or empty beside segments")
    if not raw:
        return 0
    try:
        return lmdb_agrees(raw, records)
    except OSError:
        if records is None:  # of a version that only LMDB can judge
            raise
        return records


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
