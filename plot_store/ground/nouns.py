"""The nouns of the store. Frozen, and importing almost nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from hmi_kernels.lookup.layout import DTYPES, ID_LIMIT, MAX_N
from numpy.typing import NDArray

from plot_store.ground.errors import Invalid

DType = Literal["int8", "fp16", "fp32"]
Kind = Literal["rows", "index"]
Progress = Callable[[int, int], None]  # (done, in all): bytes, of a count entries
MAX_DIM = 1 << 16
ORDER_NAMES = ("miss", "unigram", "bigram", "trigram", "4gram", "5gram")  # by order


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The shape and type of a version's entries. Raises Invalid for a value the store cannot hold."""

    n: int = 3  # width of the window: n-grams of order n, and of every lower order to fall back on
    dim: int
    dtype: DType = "int8"
    vocab: int  # token ids are 0..vocab-1; 0 means "no neighbour"

    def __post_init__(self) -> None:
        for name, value in (("n", self.n), ("dim", self.dim), ("vocab", self.vocab)):
            if type(value) is not int:  # a float or bool would be written, and refused when it is read back
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

    @property
    def code(self) -> int:
        """The storage type's number in files and kernels."""
        return DTYPES[self.dtype]

    @property
    def orders(self) -> range:
        """The orders of n-grams that entries may have, longest first."""
        return range(self.n, 0, -1)


@dataclass(frozen=True)
class SegmentInfo:
    """One immutable file of a version."""

    name: str  # "<digest>.rows" or "<digest>.index", the name under segments/
    kind: Kind
    order: int  # 1..n
    count: int  # rows: how many; index: how many distinct n-grams
    bytes: int

    @property
    def digest(self) -> str:
        """xxh3-128 of the whole file, 32 hexadecimal digits."""
        return self.name.partition(".")[0]


@dataclass(frozen=True)
class VersionInfo:
    """One published, immutable version: the list of its own segments and its place in the tree."""

    id: str
    ref: str
    parent: str | None  # version id it falls back on, None for a root
    previous: str | None  # what the ref pointed at before this version
    created: str  # RFC 3339, UTC
    schema: Schema
    segments: tuple[SegmentInfo, ...]  # oldest first
    build: str = ""  # the caller's id of the build that published it
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def entries(self) -> dict[int, int]:
        """Distinct n-grams by order (an n-gram written again by an extending build counts in each index)."""
        totals = dict.fromkeys(self.schema.orders, 0)
        for segment in self.segments:
            if segment.kind == "index" and segment.order in totals:
                totals[segment.order] += segment.count
        return totals

    @property
    def bytes(self) -> int:
        """Bytes on disk of this version's own segments."""
        return sum(segment.bytes for segment in self.segments)


@dataclass(frozen=True)
class Hits:
    """What answered each token of a look-up."""

    order: NDArray[np.int8]  # highest order of an n-gram that filled any of the token's window, 0 nothing
    # Index in the chain of the version that served it first; -1: only unigrams, or nothing.
    depth: NDArray[np.int16]
    n: int = 3

    def counts(self) -> dict[str, int]:
        """Tokens by what served them: trigram, bigram, unigram, miss for n = 3 (above that 5gram, 4gram)."""
        tokens = np.bincount(self.order, minlength=self.n + 1)
        return {ORDER_NAMES[order]: int(tokens[order]) for order in range(self.n, -1, -1)}


@dataclass(frozen=True)
class Damage:
    """One thing that is wrong on disk."""

    segment: str  # file name, or "" for the catalogue
    what: str


@dataclass(frozen=True)
class VerifyReport:
    """Everything `Store.verify` looked at, and every damage it found."""

    versions: int
    segments: int
    bytes: int
    damages: tuple[Damage, ...]

    @property
    def ok(self) -> bool:
        return not self.damages


@dataclass(frozen=True)
class GcReport:
    """What a collection removed (or would remove, when dry_run)."""

    dry_run: bool
    versions: tuple[str, ...]  # version ids
    segments: tuple[str, ...]  # file names
    orphans: tuple[str, ...]  # files that no record names: left by a crash
    builds: tuple[str, ...]  # abandoned builds
    bytes: int
    # Why each remaining version stays, by its id.
    kept: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class StoreInfo:
    """Totals of a store."""

    path: str
    format: int
    bytes: int  # on disk, catalogue included
    segments: int  # files
    refs: int
    versions: int
    entries: dict[int, int]  # distinct n-grams by order, over the refs' current versions
