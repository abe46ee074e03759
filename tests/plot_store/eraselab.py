"""Shared by the tests of erasure: what is stored and erased, and the search for traces of it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import plotlab as lab
from hmi_kernels.lookup.layout import pack_keys, words

from plot_store import Store

Ngrams = dict[int, np.ndarray]
TEXTS = lab.texts(7, (300, 1, 2, 50))
BASE = lab.content(1, (200, 40, 8))
MORE = lab.content(2, (60, 20, 5))
GONE: Ngrams = {3: BASE[3][0][:25], 2: BASE[2][0][:5], 1: np.array([[3], [5]], np.uint32)}


def without(made: lab.Content, gone: Ngrams) -> lab.Content:
    """The content that a build without the n-grams would have added."""
    kept = {}
    for order, (ngrams, rows) in made.items():
        dropped = set(map(tuple, gone.get(order, np.empty((0, order))).tolist()))
        stays = np.array([tuple(g) not in dropped for g in ngrams.tolist()], bool)
        kept[order] = (ngrams[stays], rows[stays])
    return kept


OTHERS = without(MORE, GONE)


def left_of(known: lab.Entries, gone: Ngrams) -> lab.Entries:
    dropped = {tuple(g) for ngrams in gone.values() for g in ngrams.tolist()}
    return {ngram: rows for ngram, rows in known.items() if ngram not in dropped}


def contains(store: Store, version: str, gone: Ngrams) -> set[bool]:
    with store.reader(version) as reader:
        return {bool(has) for order, g in gone.items() for has in reader.contains(order, g)}


def keys_of(gone: Ngrams) -> set[bytes]:
    """The bytes of the n-grams' keys."""
    return {key.astype("<u8").tobytes() for ngrams in gone.values() for key in pack_keys(ngrams)}


def rows_of(store: Store, versions: Iterable[str], gone: Ngrams) -> set[bytes]:
    """The bytes of the n-grams' rows in all segments of these versions, without their keys."""
    found = set()
    for version in versions:
        with store.reader(version) as reader:
            assert reader._mapped is not None
            for segment in reader._mapped.segments:
                order = segment.info.order
                keys, size = keys_of({order: gone[order]} if order in gone else {}), 8 * words(order)
                rows = [row.tobytes() for row in segment.rows] if segment.info.kind == "rows" else []
                found |= {row[size:] for row in rows if row[:size] in keys}
    return found


def traces(folder: Path, wanted: set[bytes]) -> int:
    """How many of these byte strings any file of a folder, or this file, holds."""
    files = folder.rglob("*") if folder.is_dir() else [folder]
    raw = [path.read_bytes() for path in files if path.is_file()]
    return sum(any(one in file for file in raw) for one in wanted)


def expect(store: Store, version: str, chain: list[lab.Entries]) -> None:
    with store.reader(version) as reader:
        lab.same_as(reader, chain, TEXTS)
