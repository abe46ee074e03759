"""The job that damages data.mdb and then serves from it as far as the probe and the store allow."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agree
import plain
import play
import plotlab as lab
from job_crash import Ops
from plain import Op, Plain

from plot_store import PlotStoreError, Store
from plot_store.care.scrub import probe

PAGE = 4096


def spoil_pages(rng: random.Random, good: bytes) -> tuple[str, bytes]:
    """A damaged data.mdb, and how it was damaged."""
    bad = bytearray(good)
    pages = len(bad) // PAGE
    kind = rng.choice(
        ["bits", "bits", "zero page", "noise page", "swap", "cut", "short", "header", "meta", "old page"]
    )
    at = rng.randrange(pages) * PAGE
    if kind == "bits":
        for _ in range(rng.choice((1, 1, 4, 32))):
            bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
    elif kind in ("zero page", "noise page"):
        bad[at : at + PAGE] = bytes(PAGE) if kind == "zero page" else rng.randbytes(PAGE)
    elif kind == "swap":
        other = rng.randrange(pages) * PAGE
        bad[at : at + PAGE], bad[other : other + PAGE] = good[other : other + PAGE], good[at : at + PAGE]
    elif kind == "cut":
        del bad[at:]
    elif kind == "short":
        del bad[len(bad) - rng.randint(1, PAGE) :]
    elif kind == "header":  # the headers, where LMDB keeps page numbers, flags and offsets
        bad[at + rng.randrange(16)] ^= 1 << rng.randrange(8)
    elif kind == "meta":
        bad[rng.choice((0, PAGE)) + rng.randrange(152)] ^= 1 << rng.randrange(8)
    else:
        bad[at : at + PAGE] = good[(at + PAGE) % len(good) :][:PAGE]
    return f"{kind} at page {at // PAGE} of {pages}", bytes(bad)


def catalogue(
    *, emit: Callable[[Any], None], folder: str, side: str, ops: Ops, changed: list[bool], seed: int
) -> Any:
    """Emits {"found", "answer"}: "refused" by the probe or the store, or "valid"."""
    rng, model = random.Random(seed), plain.after([Op(*op) for op in ops], changed)
    good = (Path(folder) / "store" / "catalogue" / "data.mdb").read_bytes()
    how, bad = spoil_pages(rng, good)
    with lab.scratch() as made:
        shutil.copytree(folder, made, dirs_exist_ok=True)
        (made / "store" / "catalogue" / "data.mdb").write_bytes(bad)
        emit({"how": how})
        try:
            probe(made / "store")
        except PlotStoreError as error:
            return {"how": how, "found": [], "answer": f"probe: {error.kind}"}
        emit({"how": f"{how}, sound to the probe"})
        answers: Counter[str] = Counter()
        found = _serve(made / "store", model, Path(side), answers)
    return {
        "how": how,
        "found": found,
        "answer": "valid" if answers["valid"] else f"store: {sorted(answers)}",
    }


def _serve(path: Path, model: Plain, side: Path, answers: Counter[str]) -> list[str]:
    """Use the store as a server does: all published versions are there, and it can publish and collect."""
    try:
        with Store.open(path) as store:
            found = agree.problems(store, model)
            play.play(store, Op("publish", "top", 3), 1000, side)
            play.play(store, Op("gc", arg=2), 1001, side)
            found += [f"verify: {damage.what}" for damage in store.verify().damages]
            answers["valid"] += 1
    except PlotStoreError as error:
        answers[error.kind] += 1
        return []
    return found
