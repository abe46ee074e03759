"""Erased segments: for each segment from which n-grams were erased, a record of the one that stands for it.

A manifest does not change when n-grams are erased, so a version keeps its id. Whoever reads a version's
segments follows these records. A record stays for good: it keeps an older export, a remote or a build from
bringing the erased bytes back. What stands for a segment has fewer rows, so the records form no cycle.

Rows may be stored again later, under the same n-grams or others. Equal bytes would then have the name of an
erased segment. So rows segments that are written after an erasure carry its random number, their edition.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from plot_store.catalogue import records
from plot_store.catalogue.catalogue import ERASING_CATALOGUE_FORMAT, CatalogueTxn, stamp
from plot_store.ground.errors import Conflict
from plot_store.ground.nouns import SegmentInfo, VersionInfo

ERASED: Final = "erased/"


def new_edition() -> int:
    """Return the edition of what an erasure writes, and of all rows segments that come after it."""
    return 1 + secrets.randbelow((1 << 32) - 1)


def edition(txn: CatalogueTxn) -> int:
    """Return the edition of the rows segments that are written now; 0 if nothing was ever erased."""
    return int((txn.get("format") or {}).get("edition", 0))


def put(txn: CatalogueTxn, stands: Mapping[str, SegmentInfo | None], edition: int) -> None:
    """Record what stands for segments from now on, by name; None: nothing does. Raises Damaged.

    It also stands for what these stood for, so that no record leads to one that leads on. Older releases
    refuse the store from then on.
    """
    txn.put("format", {**stamp(txn, ERASING_CATALOGUE_FORMAT), "edition": edition})
    before = {name: records.parse_erased(txn.get(ERASED + name)) for name in txn.keys(ERASED)}
    earlier = {name: stands[by.name] for name, by in before.items() if by is not None and by.name in stands}
    for segment, by in (earlier | dict(stands)).items():
        txn.put(ERASED + segment, {"by": None if by is None else records.segment_fields(by)})


def is_erased(txn: CatalogueTxn, segment: str) -> bool:
    """Return whether n-grams were erased from the segment of this name."""
    return txn.raw(ERASED + segment) is not None


def stands_for(txn: CatalogueTxn, segment: SegmentInfo) -> SegmentInfo | None:
    """Return what stands for a segment: itself if nothing was erased from it. Raises Damaged."""
    now: SegmentInfo | None = segment
    while now is not None and (raw := txn.get(ERASED + now.name)) is not None:
        now = records.parse_erased(raw)
    return now


def behind(txn: CatalogueTxn, version: VersionInfo) -> dict[str, SegmentInfo | None]:
    """Return the records that tell a store with any earlier state of a version what stands for its segments
    now, by name. Some of those that say that nothing does may be of other versions. Raises Damaged.
    """
    now = {segment for _, segment in version.erased}
    found = {name: records.parse_erased(txn.get(ERASED + name)) for name in txn.keys(ERASED)}
    return {name: segment for name, segment in found.items() if segment is None or segment in now}


def applied(txn: CatalogueTxn, version: VersionInfo) -> VersionInfo:
    """Return a version with what stands for its segments. Raises Damaged."""
    return version.standing(partial(stands_for, txn)) if txn.has_any(ERASED) else version


def standing(txn: CatalogueTxn, segments: Iterable[SegmentInfo]) -> list[SegmentInfo]:
    """Return what stands for each of these segments, if anything does. Raises Damaged."""
    if not txn.has_any(ERASED):
        return list(segments)
    return [now for segment in segments if (now := stands_for(txn, segment)) is not None]


def standing_names(txn: CatalogueTxn, segments: Iterable[str]) -> set[str]:
    """Return the names of the segments that stand for those of these names, as `standing` does."""
    found = set(segments)
    for name in [name for name in found if is_erased(txn, name)] if txn.has_any(ERASED) else ():
        found.remove(name)
        now = records.parse_erased(txn.get(ERASED + name))
        now = None if now is None else stands_for(txn, now)
        if now is not None:
            found.add(now.name)
    return found


def refuse(txn: CatalogueTxn, segments: Iterable[str]) -> None:
    """Raises Conflict if one of these segments, given by name, would bring erased n-grams back."""
    if txn.has_any(ERASED) and (back := sorted(name for name in segments if is_erased(txn, name))):
        raise Conflict(
            f"segment {back[0]} holds n-grams that were erased from this store: begin again, and leave them "
            "out of a build"
        )
