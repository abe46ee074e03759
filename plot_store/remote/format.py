"""The objects of a remote, as docs/plot-format.md specifies them: their names, and the bytes of small ones.

plot-remote.json       the format, and an id of the place
refs/<ref>.json        a ref: its current version, and pushes under way; only a compare-and-swap changes it
versions/<id>.json.zst a manifest; it is put after its segments, and removed before them
segments/<name>        the bytes of a segment
erased/<id>.json       what stands for a version's segments, if n-grams were erased from it
attached/<sha256>      the bytes of an attachment; a ref's object says which of its versions need it
collecting.json        there while a collection runs
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, TypeVar

import zstandard

from plot_store.care import attachments
from plot_store.care.archive_format import Stands, dump_stands, with_stands
from plot_store.care.attachments import Attachment
from plot_store.catalogue import records
from plot_store.ground import names
from plot_store.ground.errors import Damaged, FormatTooNew, PlotStoreError
from plot_store.ground.nouns import SegmentInfo, VersionInfo

FORMAT: Final = 1
MARKER: Final = "plot-remote.json"
COLLECTING: Final = "collecting.json"
REFS, VERSIONS, SEGMENTS, ATTACHED, ERASED = "refs", "versions", "segments", "attached", "erased"
KEPT_VERSIONS: Final = 8  # a ref's list keeps this many, as `Store.gc` does by default
MAX_PUSHES: Final = 16  # pushes under way of one ref; the oldest one above that has to start over
CURE: Final = "push it again with again=True from a store that has it"
_MAX_MANIFEST: Final = 1 << 27
_LEVEL: Final = 9
T = TypeVar("T")


@dataclass(frozen=True)
class Push:
    """A push under way."""

    push: str
    since: float  # Unix seconds, by the pusher's clock


@dataclass(frozen=True)
class RemoteRef:
    """A ref of a remote."""

    ref: str
    current: str | None = None  # None until the first push has ended, and after a deletion
    versions: tuple[str, ...] = ()  # pushed last first; always holds current
    by: str = ""  # the push or deletion that set current; so no two states of a ref have the same bytes
    pushing: tuple[Push, ...] = ()
    attached: Mapping[str, tuple[Attachment, ...]] = field(default_factory=dict)  # by version

    def begun(self, push: Push) -> RemoteRef:
        """Return the ref with this push under way."""
        return self if self.has(push.push) else replace(self, pushing=(*self.pushing, push)[-MAX_PUSHES:])

    def without(self, pushes: set[str]) -> RemoteRef:
        """Return the ref without these pushes."""
        return replace(self, pushing=tuple(p for p in self.pushing if p.push not in pushes))

    def has(self, push: str) -> bool:
        """Return whether this push is still under way."""
        return any(p.push == push for p in self.pushing)

    def moved(self, version: str, by: str, attached: Iterable[Attachment]) -> RemoteRef:
        """Return the ref with this current version. Other attachments that the version has stay."""
        others = [v for v in self.versions if v != version]
        versions = (version, *others)[:KEPT_VERSIONS]
        named = {one.name: one for one in (*self.attached.get(version, ()), *attached)}
        every = {**self.attached, version: tuple(named.values())}
        kept = {v: listed for v, listed in every.items() if v in versions and listed}
        return replace(self, current=version, versions=versions, by=by, attached=kept)

    def only(self, versions: Collection[str]) -> RemoteRef:
        """Return the ref without the versions of its list that are neither current nor among these."""
        kept = tuple(v for v in self.versions if v == self.current or v in versions)
        return replace(self, versions=kept, attached={v: a for v, a in self.attached.items() if v in kept})

    def removed(self, by: str) -> RemoteRef:
        """Return the ref without versions. Pushes under way stay, and one that ends makes the ref anew."""
        return RemoteRef(self.ref, by=by, pushing=self.pushing)


def ref_name(ref: str) -> str:
    """Return the name of a ref's object. The ending keeps a ref apart from those below it, in a folder."""
    return f"{REFS}/{ref}.json"


def version_name(version: str) -> str:
    """Return the name of a manifest's object."""
    return f"{VERSIONS}/{version}.json.zst"


def segment_name(info: SegmentInfo) -> str:
    """Return the name of a segment's object."""
    return f"{SEGMENTS}/{info.name}"


def erased_name(version: str) -> str:
    """Return the name of the object that says what was erased from a version."""
    return f"{ERASED}/{version}.json"


def attachment_name(one: Attachment) -> str:
    """Return the name of an attachment's object."""
    return f"{ATTACHED}/{one.sha256}"


def dump_ref(ref: RemoteRef) -> bytes:
    """Return the bytes of a ref's object."""
    return records.dump({"format": FORMAT, **asdict(ref)})


def parse_ref(data: bytes, name: str) -> RemoteRef:
    """Parse a ref's object. Raises Damaged, FormatTooNew."""

    def parse(raw: dict[str, Any]) -> RemoteRef:
        pushing = tuple(Push(str(one["push"]), float(one["since"])) for one in raw["pushing"])
        attached = {v: tuple(attachments.parse(listed)) for v, listed in raw["attached"].items()}
        found = RemoteRef(
            raw["ref"], raw["current"], tuple(raw["versions"]), str(raw["by"]), pushing, attached
        )
        ids = [*found.versions, *found.attached, *([] if found.current is None else [found.current])]
        if not all(map(names.is_id, ids)):
            raise ValueError("a version's id is impossible")
        if ref_name(names.check_ref(found.ref)) != name:
            raise ValueError(f"it is of the ref {found.ref}")
        return found

    return _parsed(data, name, parse)


def dump_marker(place_id: str) -> bytes:
    """Return the bytes of the object that makes a place a remote."""
    return records.dump({"format": FORMAT, "id": place_id})


def parse_marker(data: bytes) -> str:
    """Return the id of the place. Raises Damaged, FormatTooNew."""

    def parse(raw: dict[str, Any]) -> str:
        found = raw["id"]
        if not re.fullmatch(r"[0-9a-f]{32}", found):
            raise ValueError("its id is impossible")
        return str(found)

    return _parsed(data, MARKER, parse)


def dump_version(version: VersionInfo) -> bytes:
    """Return the bytes of a manifest's object."""
    return zstandard.ZstdCompressor(level=_LEVEL).compress(records.dump(records.version_fields(version)))


def parse_version(data: bytes, version_id: str) -> VersionInfo:
    """Parse a manifest's object, whose hash is in its id. Raises Damaged."""
    name = version_name(version_id)
    try:
        if zstandard.frame_content_size(data) > _MAX_MANIFEST:
            raise ValueError("it claims to be larger than any manifest")
        raw = zstandard.ZstdDecompressor().decompress(data, max_output_size=_MAX_MANIFEST)
        version = records.parse_version(json.loads(raw))
    except (zstandard.ZstdError, ValueError, RecursionError, Damaged) as error:
        raise Damaged(f"the object {name} is damaged ({error}): {CURE}") from error
    if version.id != version_id:
        raise Damaged(f"the object {name} holds version {version.id}: {CURE}")
    return version


def dump_erased(stands: Stands) -> bytes:
    """Return the bytes of the object that says what stands for a version's segments."""
    return records.dump({"format": FORMAT, "erased": dump_stands(stands)})


def parse_erased(data: bytes, version: VersionInfo) -> tuple[VersionInfo, Stands]:
    """Return a version with what stands for its segments by such an object, and all that the object names.

    Raises Damaged, FormatTooNew.
    """

    def parse(raw: dict[str, Any]) -> tuple[VersionInfo, Stands]:
        (found,), stands = with_stands([version], raw["erased"], more=True)
        return found, stands

    return _parsed(data, erased_name(version.id), parse)


def _parsed(data: bytes, name: str, parse: Callable[[dict[str, Any]], T]) -> T:
    try:
        raw = json.loads(data)
        found = raw["format"]
        if type(found) is int and found > FORMAT:
            raise FormatTooNew(
                f"the object {name} has format {found}, this release reads up to {FORMAT}: upgrade the "
                "release"
            )
        return parse(raw)
    except FormatTooNew:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, PlotStoreError) as error:
        raise Damaged(
            f"the object {name} is damaged ({error}): restore it from the bucket's versions, or remove it "
            "and push again"
        ) from error
