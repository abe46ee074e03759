"""The catalogue's records, to JSON and back. Every field is checked, because an archive may be hostile."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from dataclasses import fields as fields_of
from typing import Any, Final, TypeVar

import xxhash
from hmi_kernels.lookup.layout import MAX_N

from plot_store.ground import names
from plot_store.ground.errors import Damaged, Invalid, PlotStoreError
from plot_store.ground.nouns import Schema, SegmentInfo, VersionInfo

MAX_META: Final = 1 << 20
MAX_META_LEVELS: Final = 64  # nested lists and objects
MAX_BYTES: Final = 1 << 50
P = TypeVar("P")
_OF_SEGMENT: Final = tuple(field.name for field in fields_of(SegmentInfo))


@dataclass(frozen=True)
class RefRecord:
    """A ref: its current version and all retained ones, as version ids."""

    current: str
    versions: tuple[str, ...]  # newest publication first; always holds current


@dataclass(frozen=True)
class BuildRecord:
    """A build in progress. While it exists, its finished segments are kept."""

    ref: str
    schema: Schema
    parent: str | None
    extend: bool
    base: str | None  # id of the version that an extending build adds to
    owner: str  # random token of the writer that holds the build; a later writer replaces it
    segments: tuple[SegmentInfo, ...]
    touched: float  # Unix seconds
    sealed: tuple[SegmentInfo, ...] | None = None  # all segments of the future version, once they are durable

    @property
    def names(self) -> set[str]:
        """The names of the files that the build keeps."""
        return {segment.name for segment in (*self.segments, *(self.sealed or ()))}


@dataclass(frozen=True)
class Node:
    """A version's place in the version tree, so that walking the tree does not read manifests."""

    ref: str
    parent: str | None
    at: float  # Unix seconds at which this store published or imported it


@dataclass(frozen=True)
class TagRecord:
    """A name for one version of a ref."""

    version: str
    at: float  # Unix seconds


@dataclass(frozen=True)
class HoldRecord:
    """A pin, or a lease if it expires. Either keeps a version and its ancestors from collection."""

    version: str
    owner: str
    at: float  # Unix seconds
    expires: float | None = None  # Unix seconds


def dump(value: Any) -> bytes:
    """Encode a value as canonical JSON. Raises Invalid if it is not JSON."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(
            f"this is not JSON ({error}): use only strings, finite numbers, lists, objects"
        ) from error


def check_meta(meta: dict[str, Any]) -> dict[str, Any]:
    """Return meta as it will be read back. Raises Invalid unless it is a JSON object within the limits."""
    if not isinstance(meta, dict):
        raise Invalid("meta must be a JSON object: pass a dict")
    try:
        text = dump(meta)
    except Invalid as error:
        raise Invalid(f"meta: {error}") from error
    if len(text) > MAX_META:
        raise Invalid(f"meta has {len(text)} bytes, the limit is {MAX_META}: store large data elsewhere")
    checked = dict(json.loads(text))
    if _levels(checked) > MAX_META_LEVELS:
        raise Invalid(f"meta is nested more than {MAX_META_LEVELS} levels deep: make it flatter")
    return checked


def _levels(value: Any) -> int:
    """The nesting depth of a JSON value, counted without recursion."""
    found, level = 0, [value]
    while level := [v for v in level if isinstance(v, dict | list)]:
        found += 1
        level = [inner for v in level for inner in (v.values() if isinstance(v, dict) else v)]
    return found


def new_version(
    *,
    ref: str,
    parent: str | None,
    previous: str | None,
    created: str,
    schema: Schema,
    segments: tuple[SegmentInfo, ...],
    build: str,
    meta: dict[str, Any],
) -> VersionInfo:
    """Create a version whose id is the hash of its manifest."""
    draft = VersionInfo("", ref, parent, previous, created, schema, segments, build, meta)
    return VersionInfo(version_id(draft), ref, parent, previous, created, schema, segments, build, meta)


def version_id(version: VersionInfo) -> str:
    """Return "v" and the xxh3-128 of the canonical manifest without its id."""
    found = version_fields(version)
    del found["id"]
    return "v" + xxhash.xxh3_128_hexdigest(dump(found))


def version_fields(record: VersionInfo | BuildRecord) -> dict[str, Any]:
    """Return a manifest, or the record of a build, as JSON values.

    A centred window is not named, so that such records stay as older releases write and read them. `asdict`
    would give the same, at half the cost of reading a manifest of many segments. A manifest lists what was
    published, so that an erasure leaves the version's id as it is.
    """
    found: dict[str, Any] = {field.name: getattr(record, field.name) for field in fields_of(record)}
    if isinstance(record, VersionInfo):
        found["segments"] = record.published
        del found["erased"]
    found["schema"] = asdict(record.schema)
    if record.schema.window == "centred":
        del found["schema"]["window"]
    for name in ("segments", "sealed"):
        if found.get(name) is not None:
            found[name] = [segment_fields(s) for s in found[name]]
    return found


def segment_fields(segment: SegmentInfo) -> dict[str, Any]:
    """Return a segment's record as JSON values."""
    return {key: getattr(segment, key) for key in _OF_SEGMENT}


def parse_version(raw: Any) -> VersionInfo:
    """Parse a manifest. Raises Damaged if a field is malformed or the id does not match the hash."""
    try:
        fields = dict(raw)
        schema = _schema(fields.pop("schema"))
        segments = tuple(parse_segment(s) for s in fields.pop("segments"))
        if "erased" in fields:
            raise ValueError("a manifest says nothing of erasures")
        version = VersionInfo(schema=schema, segments=segments, **fields)
        _check_fields(version)
        good = version.id == version_id(version)
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError, PlotStoreError) as error:
        raise Damaged(f"a version manifest is malformed ({error}): restore it from an export") from error
    if not good:
        raise Damaged(f"version {version.id!r} does not match the hash in its id: restore it from an export")
    return version


def _check_fields(version: VersionInfo) -> None:
    names.check_ref(version.ref)
    for name in (version.parent, version.previous):
        if name is not None and not names.is_id(name):
            raise ValueError(f"{name!r} is not a version id")
    if (
        not isinstance(version.created, str)
        or not isinstance(version.build, str)
        or len(version.created) > 40
    ):
        raise ValueError("created and build must be short strings")
    if not isinstance(version.meta, dict) or len(dump(version.meta)) > MAX_META:
        raise ValueError("meta must be a JSON object of at most 1 MiB")
    if len({segment.name for segment in version.segments}) != len(version.segments):
        raise ValueError("a segment is listed twice")


def _schema(raw: Any) -> Schema:
    schema = Schema(**raw)
    if not all(type(x) is int for x in (schema.n, schema.dim, schema.vocab)):
        raise ValueError("n, dim and vocab must be integers")
    return schema


def parse_segment(raw: Any) -> SegmentInfo:
    """Parse a segment's record. Raises ValueError or TypeError if it is malformed."""
    info = SegmentInfo(**raw)
    if (
        not isinstance(info.name, str)
        or not names.is_segment(info.name)
        or not info.name.endswith("." + info.kind)
    ):
        raise ValueError(f"{info.name!r} is not a segment's name")
    numbers = (info.order, info.count, info.bytes)
    if not all(type(x) is int for x in numbers) or not 1 <= info.order <= MAX_N:
        raise ValueError(f"segment {info.name} has impossible numbers")
    if not (0 <= info.count < 1 << 40 and 0 < info.bytes < MAX_BYTES):
        raise ValueError(f"segment {info.name} has impossible sizes")
    return info


def field_of(raw: Any, name: str) -> Any:
    """Return a field of a manifest without looking at the others. Raises Damaged."""
    try:
        return raw[name]
    except (TypeError, KeyError) as error:
        raise Damaged(f"a version manifest is malformed ({error}): restore it from an export") from error


def segments_in(raw: Any) -> tuple[Schema, list[SegmentInfo]]:
    """Return schema and segments of a manifest. Other fields are not looked at. Raises Damaged."""
    try:
        return _schema(raw["schema"]), [SegmentInfo(**segment) for segment in raw["segments"]]
    except (TypeError, KeyError, ValueError, PlotStoreError) as error:
        raise Damaged(f"a version manifest is malformed ({error}): restore it from an export") from error


def parse_ref(raw: Any) -> RefRecord:
    """Parse a ref's record. Raises Damaged."""
    try:
        record = RefRecord(current=str(raw["current"]), versions=tuple(str(v) for v in raw["versions"]))
    except (TypeError, KeyError) as error:
        raise Damaged(f"a ref's record is malformed ({error}): restore the store from an export") from error
    return record


def parse_build(raw: Any) -> BuildRecord:
    """Parse a build's record. Raises Damaged."""
    try:
        fields = dict(raw)
        schema = _schema(fields.pop("schema"))
        segments = tuple(parse_segment(s) for s in fields.pop("segments"))
        sealed = fields.pop("sealed", None)  # absent in records of older releases
        final = None if sealed is None else tuple(parse_segment(s) for s in sealed)
        return BuildRecord(schema=schema, segments=segments, sealed=final, **fields)
    except (TypeError, ValueError, KeyError, PlotStoreError) as error:
        raise Damaged(
            f"a build's record is malformed ({error}): abandon the build and start it again"
        ) from error


def parse_node(raw: Any) -> Node:
    """Parse a version's place in the tree. Raises Damaged."""
    return _plain(Node, raw, "a version's place")


def parse_tag(raw: Any) -> TagRecord:
    """Parse a tag's record. Raises Damaged."""
    return _plain(TagRecord, raw, "a tag")


def parse_hold(raw: Any) -> HoldRecord:
    """Parse the record of a pin or lease. Raises Damaged."""
    return _plain(HoldRecord, raw, "a pin")


def parse_erased(raw: Any) -> SegmentInfo | None:
    """Parse what stands for an erased segment; None if nothing does. Raises Damaged."""
    try:
        return None if raw["by"] is None else parse_segment(raw["by"])
    except (TypeError, KeyError, ValueError) as error:
        raise Damaged(
            f"the record of an erased segment is malformed ({error}): restore the store from an export"
        ) from error


def parse_collected(raw: Any) -> float:
    """Parse the time at which a version was collected, in Unix seconds. Raises Damaged."""
    try:
        return float(raw["at"])
    except (TypeError, KeyError, ValueError) as error:
        raise Damaged(
            f"the record of a collected version is malformed ({error}): restore the store from an export"
        ) from error


def _plain(kind: type[P], raw: Any, what: str) -> P:
    try:
        return kind(**raw)
    except TypeError as error:
        raise Damaged(
            f"the record of {what} is malformed ({error}): restore the store from an export"
        ) from error
