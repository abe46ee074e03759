"""Where the bytes of segments lie: a record for each segment of a shared file, and one for each such file.

A segment without a record lies in the file of its own name, as every segment did before format 5. A manifest
does not name a place, so a segment may move while all manifests stay as they are. When a segment's record is
removed, its bytes stay in the file until no segment there is needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.ground import names
from plot_store.ground.errors import Damaged
from plot_store.ground.nouns import Place

PLACE: Final = "place/"
FILE: Final = "file/"


def find(txn: CatalogueTxn, segment: str) -> Place:
    """Return where a segment lies. Raises Damaged."""
    raw = txn.get(PLACE + segment)
    return Place(segment) if raw is None else _parsed(segment, raw)


def recorded(txn: CatalogueTxn) -> dict[str, str]:
    """Return the file of each segment that lies in a shared one, by the segment's name. Raises Damaged."""
    return {segment: find(txn, segment).file for segment in txn.keys(PLACE)}


def put(txn: CatalogueTxn, file: str, begins: Iterable[tuple[str, int]]) -> None:
    """Record that segments lie in this file. begins: each one's name, and where it begins."""
    begins = list(begins)
    for segment, at in begins:
        if segment == file:
            txn.delete(PLACE + segment)
        else:
            txn.put(PLACE + segment, asdict(Place(file, at)))
    if not names.is_segment(file):
        txn.put(FILE + file, [segment for segment, _ in begins])


def drop(txn: CatalogueTxn, segment: str) -> tuple[str | None, list[str]]:
    """Forget a segment. Returns its file if nothing else lies there, and the keys of the records removed.

    Raises Damaged.
    """
    file = find(txn, segment).file
    keys = [PLACE + segment] if txn.delete(PLACE + segment) else []
    return (None, keys) if is_used(txn, file) else (file, keys + drop_file(txn, file))


def drop_file(txn: CatalogueTxn, file: str) -> list[str]:
    """Forget what was written into a shared file. Returns the keys of the records removed."""
    return [FILE + file] if txn.delete(FILE + file) else []


def is_used(txn: CatalogueTxn, file: str) -> bool:
    """Return whether a segment lies in this shared file. Raises Damaged."""
    return any(find(txn, str(segment)).file == file for segment in txn.get(FILE + file) or ())


def _parsed(segment: str, raw: Any) -> Place:
    try:
        place = Place(**raw)
        good = names.is_file(place.file) and type(place.at) is int and place.at >= 0
    except TypeError:
        good = False
    if not good:
        raise Damaged(
            f"the record of where segment {segment} lies is malformed: restore the store from an export"
        )
    return place
