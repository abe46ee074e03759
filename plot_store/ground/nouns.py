"""The shared value types of the store: frozen dataclasses that import almost nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np
from hmi_kernels.lookup.layout import DTYPES, ID_LIMIT, MAX_N, Window
from numpy.typing import NDArray

from plot_store.ground.errors import Invalid

DType = Literal["int8", "fp16", "fp32"]
Kind = Literal["rows", "index"]
Progress = Callable[[int, int], None]  # (done, total), in bytes; in entries for counting
# (the versions that come, nearest first; for each attachment's name, a function that fetches its content)
Accept = Callable[[list["VersionInfo"], Mapping[str, Callable[[], bytes]]], None]
MAX_DIM = 1 << 16
# The format of a window's segments and archives, and of a store that has had such a version.
FORMATS: Final[dict[Window, int]] = {"centred": 3, "causal": 4}
NEWEST_FORMAT: Final = max(FORMATS.values())
ORDER_NAMES = ("miss", "unigram", "bigram", "trigram", "4gram", "5gram")  # indexed by order


def check_window(window: Window) -> Window:
    """Return a window's name. Raises Invalid for another value."""
    if not isinstance(window, str) or window not in FORMATS:
        raise Invalid(f"window {window!r} is unknown: use one of {', '.join(FORMATS)}")
    return window


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The shape and type of a version's entries. Raises Invalid for a value the store cannot hold."""

    n: int = 3  # window width; a version stores n-grams of order n and of every lower order
    dim: int
    dtype: DType = "int8"
    vocab: int  # token ids are 0..vocab-1; 0 means "no neighbour"
    window: Window = "centred"  # the n tokens around a token, or those that end with it

    def __post_init__(self) -> None:
        for name, value in (("n", self.n), ("dim", self.dim), ("vocab", self.vocab)):
            if type(value) is not int:  # a float or bool would be written, but refused when read back
                raise Invalid(f"{name} = {value!r} is not a whole number: pass an int")
        if not 1 <= self.n <= MAX_N:
            raise Invalid(f"n = {self.n} is outside 1..{MAX_N}: use n = 3 for trigrams")
        if not isinstance(self.dtype, str) or self.dtype not in DTYPES:
            raise Invalid(f"dtype {self.dtype!r} is unknown: use one of {', '.join(DTYPES)}")
        if not 0 < self.dim <= MAX_DIM:
            raise Invalid(f"dim = {self.dim} is outside 1..{MAX_DIM}: pass the model's hidden size")
        if not 0 < self.vocab <= ID_LIMIT:
            raise Invalid(
                f"vocab = {self.vocab} is outside 1..{ID_LIMIT}: pass the tokenizer's vocabulary size"
            )

        check_window(self.window)

    @property
    def shape(self) -> tuple[int, int, int, Window]:
        """What all versions of a chain have in common: n, dim, vocab and window."""
        return self.n, self.dim, self.vocab, self.window

    @property
    def format(self) -> int:
        """The number of the oldest format that can hold such entries, of those that are written."""
        return FORMATS[self.window]

    @property
    def code(self) -> int:
        """The number of `dtype` in files and kernels."""
        return DTYPES[self.dtype]

    @property
    def orders(self) -> range:
        """The orders of n-grams that entries may have, longest first."""
        return range(self.n, 0, -1)


@dataclass(frozen=True)
class SegmentInfo:
    """The record of one immutable segment of a version."""

    name: str  # "<digest>.rows" or "<digest>.index"
    kind: Kind
    order: int  # 1..n
    count: int  # number of rows, or of distinct n-grams in an index
    bytes: int

    @property
    def digest(self) -> str:
        """xxh3-128 of the whole segment, 32 hexadecimal digits."""
        return self.name.partition(".")[0]


def last_of_each(segments: Iterable[SegmentInfo]) -> tuple[SegmentInfo, ...]:
    """Remove duplicates, keeping the last. Segments of identical content have the same name."""
    listed = list(segments)
    newest = {segment.name: place for place, segment in enumerate(listed)}
    return tuple(segment for place, segment in enumerate(listed) if newest[segment.name] == place)


def entries_of(schema: Schema, segments: Iterable[SegmentInfo]) -> dict[int, int]:
    """The number of a version's n-grams by order. An n-gram that lies in several indexes counts in each."""
    totals = dict.fromkeys(schema.orders, 0)
    for segment in segments:
        if segment.kind == "index" and segment.order in totals:
            totals[segment.order] += segment.count
    return totals


@dataclass(frozen=True)
class VersionMeta:
    """A version's `meta`, for callers that need nothing else of many versions."""

    id: str
    ref: str
    meta: dict[str, Any]


@dataclass(frozen=True)
class Place:
    """The place of a segment's bytes in this store. Another store may have it elsewhere."""

    file: str  # file name under segments/: the segment's own name, or "<digest>.pack"
    at: int = 0  # bytes before the segment in this file


@dataclass(frozen=True)
class VersionInfo:
    """One published, immutable version: its own segments and its place in the version tree."""

    id: str
    ref: str
    parent: str | None  # id of the version it falls back on; None for a root
    previous: str | None  # id of the ref's current version before this one
    created: str  # RFC 3339, UTC
    schema: Schema
    segments: tuple[SegmentInfo, ...]  # oldest first
    build: str = ""  # id of the build that published it
    meta: dict[str, Any] = field(default_factory=dict)
    # Each segment that was published, and what stands for it since an erasure; () if all are as published.
    erased: tuple[tuple[SegmentInfo, SegmentInfo | None], ...] = ()

    @property
    def published(self) -> tuple[SegmentInfo, ...]:
        """The segments that the manifest lists, oldest first, erased ones included."""
        return tuple(segment for segment, _ in self.erased) or self.segments

    def standing(self, stands_for: Callable[[SegmentInfo], SegmentInfo | None]) -> VersionInfo:
        """Return the version with what stands for each segment that was published; None: nothing does."""
        pairs = tuple((segment, stands_for(segment)) for segment in self.published)
        if all(segment == now for segment, now in pairs):
            return replace(self, segments=self.published, erased=())
        segments = last_of_each(now for _, now in pairs if now is not None)
        return replace(self, segments=segments, erased=pairs)

    @property
    def entries(self) -> dict[int, int]:
        """See `entries_of`."""
        return entries_of(self.schema, self.segments)

    def indexes(self, order: int) -> list[SegmentInfo]:
        """Return the version's own indexes of an order, oldest first."""
        return [s for s in self.segments if s.kind == "index" and s.order == order]

    @property
    def bytes(self) -> int:
        """Bytes on disk of this version's own segments."""
        return sum(segment.bytes for segment in self.segments)


@dataclass(frozen=True)
class Transfer:
    """What a push or a pull moved."""

    version: VersionInfo  # the ref's current version, at both ends
    segments: int  # number of segments that were not there
    bytes: int  # of these segments and attachments
    attachments: tuple[str, ...] = ()  # names of the attachments that were not there


@dataclass(frozen=True)
class Hits:
    """The origin of each token's vector in a look-up."""

    order: NDArray[np.int8]  # [total] length of the longest n-gram that filled a part of the window; 0: none
    # [total] position in the chain of the version that filled it first; -1: only unigrams, or nothing.
    depth: NDArray[np.int16]
    n: int = 3

    def counts(self) -> dict[str, int]:
        """Count tokens by the name of their order: trigram, bigram, unigram and miss for n = 3."""
        tokens = np.bincount(self.order, minlength=self.n + 1)
        return {ORDER_NAMES[order]: int(tokens[order]) for order in range(self.n, -1, -1)}


@dataclass(frozen=True)
class Damage:
    """One damage found on disk."""

    segment: str  # file name; "" for the catalogue
    what: str


@dataclass(frozen=True)
class VerifyReport:
    """The numbers of versions, segments and bytes that `Store.verify` checked, and every damage found."""

    versions: int
    segments: int
    bytes: int
    damages: tuple[Damage, ...]

    @property
    def ok(self) -> bool:
        """Whether no damage was found."""
        return not self.damages


@dataclass(frozen=True)
class GcReport:
    """The things that a garbage collection removed, or would remove with `dry_run`."""

    dry_run: bool
    versions: tuple[str, ...]  # version ids
    segments: tuple[str, ...]  # file names
    orphans: tuple[str, ...]  # names of files that no record mentions: a crash left them
    builds: tuple[str, ...]  # ids of abandoned builds
    bytes: int
    # The reasons why each remaining version stays, by version id.
    kept: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class EraseReport:
    """The changes of an erasure. With `dry_run` these are the changes that it would make."""

    dry_run: bool
    ngrams: dict[int, int]  # by order, how many of the given distinct n-grams were stored
    refs: tuple[str, ...]  # the refs of these versions
    versions: tuple[str, ...]  # ids of the versions that lost n-grams
    segments: tuple[str, ...]  # names of the segments that were replaced
    rows: int  # number of rows removed from them
    bytes: int  # of these segments
    held: tuple[str, ...] = ()  # ids of these versions that readers of this process still show as they were
    left: tuple[str, ...] = ()  # files that may still hold n-grams, each with the reason and the cure


@dataclass(frozen=True)
class StoreInfo:
    """Totals of a store."""

    path: str
    format: int
    bytes: int  # size on disk, catalogue included
    segments: int  # number of files of segments
    refs: int
    versions: int
    entries: dict[int, int]  # distinct n-grams by order, over the refs' current versions
