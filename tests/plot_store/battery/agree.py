"""Comparison of a store with the plain oracle, bit for bit, and the check that the store is sound."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import plain
import play
import plotlab as lab
from hmi_kernels.lookup import reference
from plain import Plain

from plot_store import PlotStoreError, Reader, Store


def problems(store: Store, model: Plain, *, thorough: bool = True) -> list[str]:
    """All differences, in words; empty if there are none. `thorough` compares all versions and all bytes."""
    try:
        found = _names(store, model) or _vectors(store, model, thorough)
        if thorough:
            found += [f"verify: {damage.segment} {damage.what}" for damage in store.verify().damages]
    except PlotStoreError as error:
        return [f"{error.kind}: {error}"]
    return found


def _names(store: Store, model: Plain) -> list[str]:
    """Differences in refs, histories, tags and pins."""
    refs = {ref: version.id for ref, version in store.refs().items()}
    if refs.keys() != model.current.keys():
        return [f"refs are {sorted(refs)}, not {sorted(model.current)}"]
    found = []
    for ref, kept in model.kept.items():
        ids = [version.id for version in store.history(ref)]
        if len(ids) != len(kept):
            return [f"{ref} has {len(ids)} versions, not {len(kept)}"]
        if ids[kept.index(model.current[ref])] != refs[ref]:
            found.append(f"{ref} points at place {ids.index(refs[ref])} of its history")
        tags = {
            f"{ref}@{name}": kept.index(version) for (of, name), version in model.tags.items() if of == ref
        }
        if {tag: ids.index(version_id) for tag, version_id in store.tags(ref).items()} != tags:
            found.append(f"{ref} has tags {store.tags(ref)}, not {tags}")
    return found + _pins(store, model)


def _pins(store: Store, model: Plain) -> list[str]:
    """Whether each pin still opens, as a version that its owner pinned."""
    owned = sorted(owner for _, owner in model.pins)
    if sorted(pin.owner for pin in store.pins()) != owned:
        return [f"pins are {store.pins()}, not of {owned}"]
    found = []
    for pin in store.pins():
        with store.reader(pin.version) as reader:
            meant = [
                v
                for v, owner in model.pins
                if owner == pin.owner and model.versions[v].ref == reader.version.ref
            ]
            if all(wrong_vectors(reader, model, v) for v in meant):
                found.append(f"{pin.owner} pins {pin.version}, which is none of the versions that it should")
    return found


def _vectors(store: Store, model: Plain, thorough: bool) -> list[str]:
    """Compare all kept (or current) versions: each n-gram of the chain, absent n-grams, and two texts."""
    found: list[str] = []
    for ref, kept in model.kept.items():
        for version, index in zip(store.history(ref), kept, strict=True):
            if not thorough and index != model.current[ref]:
                continue
            with store.reader(version.id) as reader:
                found += [f"{ref} version {index}: {what}" for what in wrong_vectors(reader, model, index)]
    return found


def wrong_vectors(reader: Reader, model: Plain, index: int) -> list[str]:
    """The answers of a reader of version `index` that differ from the oracle's."""
    chain = oracle(model, index)
    if len(reader.chain) != len(chain):
        return [f"its chain has {len(reader.chain)} versions, not {len(chain)}"]
    found = [what for order in reader.version.schema.orders for what in wrong_entries(reader, chain, order)]
    return found + wrong_texts(reader, chain, index)


def oracle(model: Plain, index: int) -> list[plain.Entries]:
    """The entries of each version of the chain, nearest first."""
    return [model.versions[v].own for v in model.chain(index)]


def wrong_entries(reader: Reader, chain: list[plain.Entries], order: int) -> list[str]:
    """The n-grams of one order, stored and absent, for which `get` differs from the oracle."""
    found = []
    grams = sorted({gram for own in chain for gram in own if len(gram) == order})
    absent = np.random.default_rng(len(grams)).integers(0, plain.VOCAB, (3, order)).astype(np.uint32)
    asked = np.concatenate([np.array(grams, np.uint32).reshape(-1, order), absent])
    vectors, depths = reader.get(order, asked)
    for gram, vector, depth in zip(map(tuple, asked.tolist()), vectors, depths.tolist(), strict=True):
        right, at = reference.find(chain, gram)
        if at != depth or not np.array_equal(np.zeros_like(vector) if right is None else right, vector):
            found.append(f"{gram} is wrong (depth {depth}, not {at})")
    return found


def wrong_texts(reader: Reader, chain: list[plain.Entries], seed: int) -> list[str]:
    """Whether a look-up of some texts differs from the oracle."""
    tokens, offsets = play.some_text(seed)
    texts = [tokens[a:b].tolist() for a, b in pairwise(offsets)]
    out, hits = reader.lookup(tokens, offsets)
    n, _, _, window = reader.version.schema.shape
    expected, orders, depths = reference.lookup(chain, texts, plain.DIM, n, window=window)
    if not np.array_equal(out, expected):
        return [f"a look-up is wrong at tokens {np.flatnonzero((out != expected).any(axis=1)).tolist()}"]
    if hits.order.tolist() != orders or hits.depth.tolist() != depths:
        return ["a look-up tells wrong hits"]
    return []


def strays(store: Store, held: Iterable[str] = ()) -> list[str]:
    """Files that no version names, and named files that are missing, after a collection. `held`:
    versions of open readers."""
    ids = {version.id for ref in store.refs() for version in store.history(ref)}
    ids |= {pin.version for pin in store.pins()} | set(held)
    named = {segment.name for version in ids for link in store.chain(version) for segment in link.segments}
    there = {path.name for path in (store.path / "segments").iterdir()}
    files = lab.files(store, named)
    left, lost = sorted(there - files), sorted(files - there)
    return [f"left over: {name}" for name in left] + [f"lost: {name}" for name in lost]
