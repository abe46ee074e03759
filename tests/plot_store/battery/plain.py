"""The oracle: what a store must hold after a list of operations, kept in dictionaries.

`Op` is the vocabulary of the whole battery. `Plain.apply` says what an operation does; `play.py` does the
same to a real store; `problems` in `agree.py` compares the two.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from hmi_kernels.lookup import reference
from hmi_kernels.lookup.layout import DTYPES, Window, roles

from plot_store import Schema

DIM, VOCAB = 8, 9
TYPES: Final = ("int8", "fp16", "fp32")
WINDOWS: Final = {"q": 5, "d": 2, "c": 4}  # roots whose n is not 3
Entries = dict[tuple[int, ...], np.ndarray]
Content = dict[int, tuple[np.ndarray, np.ndarray]]


class Op(NamedTuple):
    """An operation. `kind`: see `Plain`; `seed` determines the content; `arg` is a
    position, a count or a number."""

    kind: str
    ref: str = ""
    seed: int = 0
    arg: int = 0


class Refused(Exception):
    """The operation must fail with this kind of error."""


def schema_of(ref: str) -> Schema:
    """The schema of a ref: fixed, so that a build can be extended; a branch may have
    another type than its parent."""
    dtype = TYPES[sum(map(ord, ref)) % 3]
    root = ref.partition("/")[0]
    window: Window = "causal" if root == "c" else "centred"
    return Schema(n=WINDOWS.get(root, 3), dim=DIM, vocab=VOCAB, dtype=dtype, window=window)  # type: ignore[arg-type]


@lru_cache(maxsize=256)
def content(ref: str, seed: int) -> Content:
    """Random n-grams and vectors, {order: (uint32 [m, order], float32 [m, roles, dim])}, longest first."""
    rng, schema = np.random.default_rng(seed), schema_of(ref)
    n = schema.n
    made: Content = {}
    for order in range(n, 0, -1):
        count = int(rng.integers(1, 9)) if order < n else 150 if seed % 4 == 0 else int(rng.integers(1, 25))
        ngrams = np.unique(rng.integers(0, VOCAB, (count, order)), axis=0).astype(np.uint32)
        rng.shuffle(ngrams)
        shape = (len(ngrams), roles(n, order, schema.window), DIM)
        made[order] = (ngrams, rng.standard_normal(shape).astype(np.float32))
    return made


@lru_cache(maxsize=256)
def entries(ref: str, seed: int) -> Entries:
    """The same as it comes back from the store."""
    code = DTYPES[schema_of(ref).dtype]
    return {
        tuple(map(int, gram)): vectors
        for ngrams, rows in content(ref, seed).values()
        for gram, vectors in zip(ngrams, reference.stored(rows, code), strict=True)
    }


@dataclass(frozen=True)
class Version:
    """A published version in the model."""

    ref: str
    parent: int | None
    own: Entries


@dataclass
class Plain:
    """The model: all versions ever published, where each ref points, and its history,
    newest publication first."""

    versions: list[Version] = field(default_factory=list)
    current: dict[str, int] = field(default_factory=dict)
    kept: dict[str, list[int]] = field(default_factory=dict)
    tags: dict[tuple[str, str], int] = field(default_factory=dict)
    pins: set[tuple[int, str]] = field(default_factory=set)  # version, owner
    # Unfinished builds: the parent that each began with.
    begun: dict[tuple[str, int], int | None] = field(default_factory=dict)

    def apply(self, op: Op, changed: bool = True) -> None:
        """Apply an operation. changed=False: the store found nothing to do (as a
        compaction may). Raises Refused."""
        if changed:
            getattr(self, f"_{op.kind}")(op)

    def _publish(self, op: Op) -> None:
        self._add(op.ref, self._parent(op.ref), entries(op.ref, op.seed))

    _sealed = _publish  # a publication in two steps

    def _begin(self, op: Op) -> None:
        """Begin a build and leave it. It keeps the parent that it began with
        until a collection removes it."""
        self.begun.setdefault((op.ref, op.seed), self._parent(op.ref))

    def _finish(self, op: Op) -> None:
        parent = self._parent(op.ref)
        self._add(op.ref, self.begun.pop((op.ref, op.seed), parent), entries(op.ref, op.seed))

    def _extend(self, op: Op) -> None:
        before = self.current.get(op.ref)
        old = {} if before is None else self.versions[before].own
        self._add(op.ref, self._parent(op.ref), {**old, **entries(op.ref, op.seed)})

    def _append(self, op: Op) -> None:
        self._need(op.ref)
        self._extend(op)

    def _compact(self, op: Op) -> None:
        old = self.versions[self._need(op.ref)]
        self._add(op.ref, old.parent, old.own)

    def _rollback(self, op: Op) -> None:
        self._need(op.ref)
        self.current[op.ref] = self.kept[op.ref][op.arg % len(self.kept[op.ref])]

    def _delete(self, op: Op) -> None:
        self._need(op.ref)
        if any(
            self.versions[v].ref == op.ref
            for other, tip in self.current.items()
            if other != op.ref
            for v in self.chain(tip)[1:]
        ):
            raise Refused("in_use")
        if any(ref == op.ref for ref, _ in self.tags):
            raise Refused("in_use")
        del self.current[op.ref], self.kept[op.ref]

    def _gc(self, op: Op) -> None:
        self.begun.clear()  # `play` counts every build as abandoned
        for ref in self.kept:
            self._shrink(Op("shrink", ref, op.arg))

    def _shrink(self, op: Op) -> None:
        """What a collection that keeps the newest op.seed versions has done to a ref when op.arg are left."""
        gone = set(self.leaving(op.ref, op.seed)[: max(0, len(self.kept[op.ref]) - op.arg)])
        self.kept[op.ref] = [v for v in self.kept[op.ref] if v not in gone]

    def leaving(self, ref: str, newest: int) -> list[int]:
        """The versions that a collection takes off a ref's list, in its order."""
        held = {*self.tags.values(), *(version for version, _ in self.pins), self.current[ref]}
        return [v for v in reversed(self.kept[ref][newest:]) if v not in held]

    def _tag(self, op: Op) -> None:
        current = self._need(op.ref)
        if self.tags.setdefault((op.ref, f"t{op.arg}"), current) != current:
            raise Refused("conflict")

    def _untag(self, op: Op) -> None:
        self.tags.pop((op.ref, f"t{op.arg}"), None)

    def _pin(self, op: Op) -> None:
        self.pins.add((self._need(op.ref), f"p{op.arg}"))

    def _unpin(self, op: Op) -> None:
        self.pins.discard((self._need(op.ref), f"p{op.arg}"))

    def _import(self, op: Op) -> None:
        """Import an archive of `play.prepare`: a root i<seed> and a branch of it."""
        root, branch = f"i{op.seed}", f"i{op.seed}/a"
        if branch in self.current:
            return
        self.versions.append(Version(root, None, entries(root, op.seed)))
        parent = len(self.versions) - 1
        if root not in self.current:
            self.current[root], self.kept[root] = parent, [parent]
        self._add(branch, parent, entries(branch, op.seed))

    def _export(self, op: Op) -> None:
        self._need(op.ref)

    def _need(self, ref: str) -> int:
        if ref not in self.current:
            raise Refused("not_found")
        return self.current[ref]

    def _parent(self, ref: str) -> int | None:
        if ref in self.current:
            return self.versions[self.current[ref]].parent
        return self._need(ref.rpartition("/")[0]) if "/" in ref else None

    def _add(self, ref: str, parent: int | None, own: Entries) -> None:
        self.versions.append(Version(ref, parent, own))
        self.current[ref] = len(self.versions) - 1
        self.kept[ref] = [self.current[ref], *self.kept.get(ref, [])]

    def chain(self, version: int | None) -> list[int]:
        """The version and its ancestors, nearest first."""
        found = []
        while version is not None:
            found.append(version)
            version = self.versions[version].parent
        return found


def after(ops: Sequence[Op], changed: Sequence[bool] = ()) -> Plain:
    """The model after these operations; refused ones change nothing. `changed` has one
    value for each that has ended."""
    plain = Plain()
    for i, op in enumerate(ops):
        try:
            plain.apply(op, changed[i] if i < len(changed) else True)
        except Refused:
            continue
    return plain


REFS: Final = ("r", "s", "r/a", "r/b", "r/a/x", "q", "q/x", "d", "c", "c/x")
ODDS_TEXT = """
publish=16 sealed=5 extend=8 append=10 compact=6 begin=4 finish=4 rollback=6
delete=7 gc=8 tag=4 untag=2 pin=3 unpin=3 import=4 export=2
"""
ODDS: Final = {kind: int(odds) for kind, odds in (part.split("=") for part in ODDS_TEXT.split())}
"""How often each kind of operation is drawn."""


def draw(rng: random.Random, number: int) -> Op:
    """A random operation at position `number` of its list. About one in ten is one
    that the store must refuse."""
    kind = rng.choices(list(ODDS), list(ODDS.values()))[0]
    seed = rng.randint(1, 3) if kind == "import" else rng.randint(0, 40)
    if kind == "gc":
        return Op("gc", arg=rng.randint(1, 3))
    if kind == "begin":
        return Op("begin", rng.choice(REFS), seed, number)
    return Op(kind, rng.choice(REFS), seed, rng.randint(0, 2))


# Every kind of operation at least once, in an order in which none is refused.
SCRIPT = [
    Op("publish", "r", 1),
    Op("publish", "r/a", 2),
    Op("append", "r/a", 3),
    Op("publish", "r", 4),
    Op("tag", "r", 0, 1),
    Op("publish", "r", 4),  # the same segments again, whose names exist already
    Op("begin", "s", 5),
    Op("finish", "s", 5),
    Op("append", "r/a", 6),  # merges: see `play.merge_early`
    Op("append", "r/a", 9),
    Op("compact", "r/a"),
    Op("import", "i1", 1),
    Op("pin", "r/a", 0, 1),
    Op("publish", "q", 8),
    Op("delete", "s"),
    Op("rollback", "r", 0, 1),
    Op("gc", arg=1),
    Op("extend", "q", 9),
    Op("unpin", "r/a", 0, 1),
    Op("compact", "q"),
    Op("delete", "q"),
    Op("publish", "c", 8),
    Op("publish", "c/x", 12),
    Op("append", "c/x", 3),
    Op("compact", "c/x"),
    Op("append", "c/x", 7),
    Op("append", "c/x", 2),
    Op("sealed", "r", 10),
    Op("gc", arg=1),
    Op("import", "i2", 2),
    Op("export", "i2/a"),
]
