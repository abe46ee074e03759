"""Jobs that damage segments, catalogue records and exports: all damage is found, and no
wrong vector is returned."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agree
import lmdb
import plain
import plotlab as lab
from job_crash import Ops
from plain import Op, Plain

from plot_store import Damaged, PlotStoreError, Store

Emit = Callable[[Any], None]
TEXTS = 6


def spoil(rng: random.Random, good: bytes) -> tuple[str, bytes]:
    """Bytes that differ from `good`, and how they were made."""
    places = [rng.randrange(len(good)) for _ in range(rng.choice((1, 16)))]
    at = next((place for place in places if good[place]), places[0])  # half of the time, avoid the padding
    kind = rng.choices(["flip", "cut", "grow", "zeros", "noise"], [16, 3, 1, 2, 2])[0]
    end = min(len(good), at + rng.choice((8, 512, 4096)))
    piece = {
        "flip": bytes([good[at] ^ 1 << rng.randrange(8)]) + good[at + 1 : end],
        "cut": b"",
        "grow": good[at:] + rng.randbytes(rng.randint(1, 5000)),
        "zeros": bytes(end - at),
        "noise": rng.randbytes(end - at),
    }[kind]
    bad = good[:at] + piece + (b"" if kind in ("cut", "grow") else good[end:])
    return (f"{kind} at {at} of {len(good)}", bad) if bad != good else spoil(rng, good)


def spoil_words(rng: random.Random, good: bytes) -> tuple[str, bytes]:
    """Flip one bit in several neighbouring 8-byte words, often the highest, which a
    sum of words may not show."""
    bad, bit = bytearray(good), rng.choice((63, rng.randrange(64)))
    near = range(rng.randrange(max(1, len(good) // 8 - 32)), len(good) // 8)[:32]
    words = rng.sample(near, rng.choice((2, 2, 2, 4, 8)))
    for word in words:
        bad[8 * word + bit // 8] ^= 1 << bit % 8
    return f"bit {bit} of words {sorted(words)} of {len(good) // 8}", bytes(bad)


def segments(*, emit: Emit, folder: str, ops: Ops, changed: list[bool], first: int, count: int) -> Any:
    """Damage one segment after another in its file. Emits {"found", "answers"}."""
    path, model = Path(folder) / "store", plain.after([Op(*op) for op in ops], changed)
    found: list[str] = []
    answers: Counter[str] = Counter()
    with Store.open(path) as store:
        listed = {s.name for ref in store.refs() for v in store.history(ref) for s in v.segments}
        pieces = [lab.piece(store, name) for name in sorted(listed)]
    for seed in range(first, first + count):
        rng = random.Random(seed)
        piece = rng.choice(pieces)
        name, whole, good = piece.name, piece.file.read_bytes(), piece.read_bytes()
        how, bad = (spoil_words if rng.random() < 0.4 else spoil)(rng, good)
        piece.write_bytes(bad)
        with Store.open(path) as store:
            longer = bad.startswith(good)  # what follows a segment in a shared file is not its own
            if name not in {damage.segment for damage in store.verify().damages} and not longer:
                found.append(f"{how} of {name}: verify does not name it")
            found += [f"{how} of {name}: {what}" for what in believed(store, model, answers)]
        lab.replace(piece.file, whole)
    return {"found": found, "answers": answers}


def believed(store: Store, model: Plain, answers: Counter[str]) -> list[str]:
    """Wrong answers of any current version. An error of the store is not a wrong answer."""
    found = []
    for ref, index in model.current.items():
        chain = agree.oracle(model, index)
        try:
            reader = store.reader(ref)
        except PlotStoreError as error:
            answers[f"reader: {error.kind}"] += 1
            continue
        with reader:
            asks = [
                lambda r=reader, c=chain, o=order: agree.wrong_entries(r, c, o)
                for order in reader.version.schema.orders
            ]
            asks += [lambda r=reader, c=chain, s=seed: agree.wrong_texts(r, c, s) for seed in range(TEXTS)]
            for ask in asks:
                try:
                    wrong = ask()
                    answers["right"] += not wrong
                    found += wrong
                except Damaged:
                    answers["look-up: damaged"] += 1
    return found


def records(*, emit: Emit, folder: str, ops: Ops, changed: list[bool], first: int, count: int) -> Any:
    """Damage one record of the catalogue after another (LMDB itself stays sound). As `segments`."""
    path, model = Path(folder) / "store", plain.after([Op(*op) for op in ops], changed)
    found: list[str] = []
    answers: Counter[str] = Counter()
    with lmdb.open(str(path / "catalogue")) as env, env.begin() as txn:
        good = dict(txn.cursor())
    for seed in range(first, first + count):
        rng = random.Random(seed)
        key = rng.choice(sorted(good))
        how, bad = spoil(rng, good[key])
        _put(path, key, bad)
        try:
            with Store.open(path) as store:
                if store.verify().ok:
                    found.append(f"{how} of record {key!r}: verify finds nothing")
                found += [f"{how} of record {key!r}: {what}" for what in believed(store, model, answers)]
        except PlotStoreError as error:
            answers[f"open or verify: {error.kind}"] += 1
        _put(path, key, good[key])
    return {"found": found, "answers": answers}


def _put(path: Path, key: bytes, value: bytes) -> None:
    with lmdb.open(str(path / "catalogue")) as env, env.begin(write=True) as txn:
        txn.put(key, value)


def archives(*, emit: Emit, side: str, first: int, count: int) -> Any:
    """Damage an export repeatedly: the import refuses each, and leaves nothing behind."""
    found: list[str] = []
    answers: Counter[str] = Counter()
    good = (Path(side) / "i1.plot").read_bytes()
    with lab.scratch() as folder:
        bad_file = folder / "bad.plot"
        for seed in range(first, first + count):
            how, bad = spoil(random.Random(seed), good)
            bad_file.write_bytes(bad)
            with Store.open(folder / "store", create=True) as store:
                try:
                    store.import_archive(bad_file)
                    found.append(f"export, {how}: imported")
                except PlotStoreError as error:
                    answers[error.kind] += 1
                left = [*store.refs(), *(file.name for file in (store.path / "segments").iterdir())]
                found += [f"export, {how}: left {name}" for name in left]
    return {"found": found, "answers": answers}
