"""A trial of LMDB on a copy of its file. Imports only `lmdb_pages` of the package."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import lmdb

from plot_store.database.lmdb_pages import BadFile

TRIAL: Final = b"\xff probe"  # the key of a record that is written and deleted again


def try_copy(raw: bytes, check_record: Callable[[bytes, bytes], object]) -> int:
    """Let LMDB read and change a copy of the file `raw`, checking each record. Returns their number.

    Raises BadFile, OSError (no room for the copy), and what `check_record` raises.
    """
    with tempfile.TemporaryDirectory(prefix="plot-probe-") as folder:
        (Path(folder) / "data.mdb").write_bytes(raw)
        try:
            with lmdb.open(folder, map_size=2 * len(raw) + (1 << 24), sync=False) as env:
                with env.begin(write=True) as txn:  # takes pages from the free list and gives some back
                    txn.put(TRIAL, bytes(3 << 12))
                with env.begin(write=True) as txn:
                    txn.delete(TRIAL)
                found = 0
                with env.begin() as txn, txn.cursor() as cursor:
                    for key, value in cursor:
                        check_record(key, value)
                        found += 1
        except lmdb.Error as error:
            raise BadFile(f"LMDB says {error}") from error
    return found
