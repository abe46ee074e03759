"""Claims: notes in a target by which pruning and the making of backups keep out of each other's way.

A backup relies on objects that the target holds already, and pruning removes objects that no manifest names.
So each writes its claim first and then looks for claims of the other kind: of two that meet, at least one
sees the other and refuses. A claim is renewed while its process lives, and counts for ten minutes after.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

from hmi.backup.target import Target, read_bytes
from hmi.errors import Conflict, HmiError, NotFound

CLAIMS = "running"
RENEW_S, DEAD_S = 60.0, 600.0
Kind = Literal["create", "prune"]


@contextmanager
def claimed(target: Target, kind: Kind) -> Iterator[None]:
    """Hold a claim in the block. Raises Conflict while a claim of the other kind is alive."""
    name = f"{CLAIMS}/{kind}-{uuid.uuid4().hex}.json"
    _write(target, name)
    ended = threading.Event()
    thread = threading.Thread(target=_renew, args=(target, name, ended), daemon=True)
    try:
        _refuse_other(target, kind)
        thread.start()
        yield
    finally:
        ended.set()
        if thread.is_alive():
            thread.join()
        target.remove([name])


def _refuse_other(target: Target, kind: Kind) -> None:
    for name in target.sizes(CLAIMS):
        other = name.rpartition("/")[2].partition("-")[0]
        if other != kind and _age_s(target, name) < DEAD_S:
            what = "a backup is being made" if other == "create" else "backups are being pruned"
            raise Conflict(
                f"{what} at {target.name}: wait for its end (the note {name} counts for {DEAD_S / 60:.0f} "
                "minutes after a process that was killed)"
            )


def _age_s(target: Target, name: str) -> float:
    try:
        return time.time() - float(json.loads(read_bytes(target, name))["at"])
    except NotFound:
        return DEAD_S
    except (ValueError, KeyError, TypeError):
        return 0.0  # unreadable: better to refuse


def _renew(target: Target, name: str, ended: threading.Event) -> None:
    while not ended.wait(RENEW_S):
        with suppress(HmiError):
            _write(target, name)


def _write(target: Target, name: str) -> None:
    target.put(name, json.dumps({"at": time.time()}).encode())
