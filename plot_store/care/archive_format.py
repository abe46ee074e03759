"""The bytes of an export, as specified in docs/plot-format.md.

    magic "PLOTARC\\0", u16 format, 6 zero bytes, u64 length and u64 xxh3-64 of the manifest, then the
        manifest (JSON)
    then each attachment and then each segment the manifest lists, in its order, as chunks of at most 1 MiB:
        u32 compressed length, u32 raw length, u64 xxh3-64 of the raw bytes, one zstd frame
    then the SHA-256 of everything before, and nothing after it

A reader bounds every length before it allocates memory. An export holds no LMDB file, so none from
elsewhere is ever opened.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Final

import xxhash
import zstandard

from plot_store.catalogue import records
from plot_store.catalogue.version_tree import MAX_DEPTH
from plot_store.ground import names
from plot_store.ground.errors import Damaged, FormatTooNew
from plot_store.ground.nouns import FORMATS, NEWEST_FORMAT, SegmentInfo, VersionInfo

MAGIC: Final = b"PLOTARC\0"
CHUNK: Final = 1 << 20
MAX_PACKED: Final = CHUNK + (1 << 14)
MAX_MANIFEST: Final = 1 << 27
LEVEL: Final = 3
ERASING_ARCHIVE_FORMAT: Final = NEWEST_FORMAT + 1  # of an archive whose manifest lists erased segments
# By a segment's name, what stands for it since n-grams were erased; None: nothing does.
Stands = Mapping[str, SegmentInfo | None]
_HEAD: Final = struct.Struct("<8sH6xQQ")
_CHUNK: Final = struct.Struct("<IIQ")
CURE: Final = "export it again, or copy it again from where it came from"


def segments_of(versions: list[VersionInfo]) -> list[tuple[SegmentInfo, VersionInfo]]:
    """Return each distinct segment with the first version that lists it, in the order of an archive."""
    found: dict[str, tuple[SegmentInfo, VersionInfo]] = {}
    for version in versions:
        for info in version.segments:
            found.setdefault(info.name, (info, version))
    return list(found.values())


class Packer:
    """Encodes the pieces of an archive: call `head`, then `chunk` for all content, then `tail`."""

    def __init__(self) -> None:
        self._whole = hashlib.sha256()
        self._zstd = zstandard.ZstdCompressor(level=LEVEL)

    def head(self, versions: list[VersionInfo], attachments: Sequence[Mapping[str, Any]] = ()) -> bytes:
        """Return the beginning of the archive, with the manifest."""
        manifest: dict[str, Any] = {"versions": [records.version_fields(version) for version in versions]}
        if attachments:
            manifest["attachments"] = list(attachments)
        # Since 3 with attachments, otherwise the frame of format 1.
        written = max([FORMATS["centred"], *(version.schema.format for version in versions)])
        if stands := dump_stands(erased_in(versions)):
            written = ERASING_ARCHIVE_FORMAT
            manifest["erased"] = stands
        body = records.dump(manifest)
        return self._counted(_HEAD.pack(MAGIC, written, len(body), xxhash.xxh3_64_intdigest(body)) + body)

    def chunk(self, raw: bytes) -> bytes:
        """Compress at most CHUNK bytes of an attachment or segment."""
        packed = self._zstd.compress(raw)
        return self._counted(_CHUNK.pack(len(packed), len(raw), xxhash.xxh3_64_intdigest(raw)) + packed)

    def tail(self) -> bytes:
        """Return the end of the archive: the hash of everything before."""
        return self._whole.digest()

    def _counted(self, piece: bytes) -> bytes:
        self._whole.update(piece)
        return piece


class Unpacker:
    """Reads an archive in order. All methods raise Damaged for bytes that `Packer` would not have written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._whole = hashlib.sha256()
        self._zstd = zstandard.ZstdDecompressor(max_window_size=1 << 23)
        self.cure = CURE
        self.attachments: Any = []
        """The manifest's list of attachments, unchecked. `head` sets it."""

    def head(self) -> list[VersionInfo]:
        """Read the manifest. Returns a checked chain of versions, nearest first. Raises FormatTooNew too."""
        magic, version, size, checksum = _HEAD.unpack(self._read(_HEAD.size))
        if magic != MAGIC:
            raise Damaged("this file is not an export of a PLOT store: pass a file that `export` wrote")
        if version > ERASING_ARCHIVE_FORMAT:
            raise FormatTooNew(
                f"the export has format {version}, this release reads up to {ERASING_ARCHIVE_FORMAT}: "
                "upgrade the release"
            )
        if size > MAX_MANIFEST:
            raise Damaged(f"the export's manifest claims {size} bytes: {CURE}")
        body = self._read(size)
        if xxhash.xxh3_64_intdigest(body) != checksum:
            raise Damaged(f"the export's manifest is damaged: {CURE}")
        try:
            manifest = json.loads(body)
            listed, self.attachments = manifest["versions"], manifest.get("attachments", [])
            changed = manifest.get("erased", {})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Damaged(f"the export's manifest is malformed ({error}): {CURE}") from error
        versions, _ = with_stands(_checked_chain(listed), changed)
        if (needed := versions[0].schema.format) > max(version, FORMATS["centred"]):
            raise Damaged(f"the export has format {version}, but its versions need {needed}: {CURE}")
        return versions

    def chunks(self, name: str, size: int) -> Iterator[bytes]:
        """Yield the raw bytes of the next attachment or segment, which has `size` bytes."""
        left = size
        while left:
            packed, raw, checksum = _CHUNK.unpack(self._read(_CHUNK.size))
            if raw != min(CHUNK, left) or packed > MAX_PACKED:
                raise Damaged(f"a chunk of {name} has an impossible size: {CURE}")
            chunk = self._unpack(self._read(packed), raw, name)
            if xxhash.xxh3_64_intdigest(chunk) != checksum:
                raise Damaged(f"a chunk of {name} is damaged: {CURE}")
            left -= raw
            yield chunk

    def skipped(self, name: str, size: int) -> Iterator[bytes]:
        """Go past the next segment. Its bytes are read, since the hash at the end is of them, too."""
        return self.chunks(name, size)

    def tail(self) -> None:
        """Check the hash of the whole archive, and that nothing follows it."""
        expected = self._whole.digest()
        if self._read(len(expected)) != expected or self._file.read(1):
            raise Damaged(f"the export's end does not match its content: {CURE}")

    def _unpack(self, packed: bytes, raw: int, name: str) -> bytes:
        try:  # zstd allocates what the frame claims, so the claim is checked first
            if zstandard.frame_content_size(packed) == raw:
                return self._zstd.decompress(packed, max_output_size=raw)
        except zstandard.ZstdError as error:
            raise Damaged(f"a chunk of {name} does not decompress ({error}): {CURE}") from error
        raise Damaged(f"a chunk of {name} has another size than it says: {CURE}")

    def _read(self, size: int) -> bytes:
        """Read exactly `size` bytes. Memory is bounded by the bytes in the file, not by `size`."""
        parts: list[bytes] = []
        while size:
            parts.append(self._file.read(min(MAX_PACKED, size)))
            if not parts[-1]:
                raise Damaged(f"the export ends too early: {CURE}")
            self._whole.update(parts[-1])
            size -= len(parts[-1])
        return b"".join(parts)


def erased_in(versions: Sequence[VersionInfo]) -> Stands:
    """Return what stands for the segments of these versions from which n-grams were erased, by name."""
    pairs = [pair for version in versions for pair in version.erased]
    return {segment.name: now for segment, now in pairs if segment != now}


def dump_stands(stands: Stands) -> dict[str, Any]:
    """Return what stands for segments as JSON values."""
    return {name: None if now is None else records.segment_fields(now) for name, now in stands.items()}


def with_stands(
    versions: list[VersionInfo], raw: Any, *, more: bool = False
) -> tuple[list[VersionInfo], Stands]:
    """Return versions with what stands for their segments, and the whole list of what stands for which.

    raw: the list, as `dump_stands` returned it. more: it may name segments that these versions do not have.
    Raises Damaged for an impossible list.
    """
    published = {segment.name: segment for version in versions for segment in version.published}
    try:
        found = {name: None if now is None else records.parse_segment(now) for name, now in raw.items()}
        for name, now in found.items():
            was = published.get(name)
            if was is None and not (more and names.is_segment(name)):
                raise ValueError(f"no version has the segment {name}")
            if now is not None and now.name in found:
                raise ValueError(f"something stands for {now.name}, too")
            if was is None or now is None:
                continue
            if (was.kind, was.order) != (now.kind, now.order):
                raise ValueError(f"{now.name} cannot stand for {name}")
            if was.count <= now.count:
                raise ValueError(f"{now.name} has no fewer rows than {name}")
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise Damaged(f"the list of erased segments is malformed ({error}): {CURE}") from error
    return [version.standing(lambda one: found.get(one.name, one)) for version in versions], found


def _checked_chain(listed: Any) -> list[VersionInfo]:
    """Parse the manifest's versions. Raises Damaged unless they form a chain that ends at a root."""
    if not isinstance(listed, list) or not 0 < len(listed) <= MAX_DEPTH:
        raise Damaged(f"the export does not list a chain of versions: {CURE}")
    versions = [records.parse_version(raw) for raw in listed]
    check_chain(versions, CURE)
    return versions


def check_chain(versions: list[VersionInfo], cure: str) -> None:
    """Raises Damaged unless versions, nearest first, form a chain that ends at a root.

    `cure` ends the message.
    """
    parents = [version.parent for version in versions]
    if parents != [*(version.id for version in versions[1:]), None]:
        raise Damaged(f"the versions that came are not one chain that ends at a root: {cure}")
    shapes = {version.schema.shape for version in versions}
    if len(shapes) != 1 or len({v.ref for v in versions}) != len(versions):
        raise Damaged(f"the versions that came differ in n, dim, vocab or window, or share a ref: {cure}")
