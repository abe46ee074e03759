"""Entries are left out where a look-up answers nearly the same without them; an
interrupted build decides alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmi.jobs.plot import write_plot
from hmi.jobs.plot.differences import Differences
from hmi.manager import Manager
from hmi.model.sources.lower import LocalLower
from hmi.model.sources.root import load_root, lower_from
from plot_store import Reader, Schema, Store, VersionInfo, differences
from tests.hmi.labs.build_lab import attempt, create, folder, text, tiny_manager

SCHEMA = Schema(dim=32, vocab=100)


@pytest.fixture(scope="module")
def manager(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    yield from tiny_manager(tiny_source, tmp_path_factory.mktemp("size") / "data")


def entries_of(manager: Manager, version: VersionInfo) -> LocalLower:
    root = load_root(folder(manager), with_lower=True)
    return lower_from(manager.lowers.get(version.meta["lower"]), root.info, root.tokenizer.cls_id)


def test_only_entries_that_are_far_from_their_fallbacks_are_stored(manager: Manager) -> None:
    corpus = text(30, 120)
    options: dict[str, float] = {"pretrain_steps": 6, "min_difference": 0}
    whole, every = create(manager, "tiny/every", corpus, alpha=100, pretrain=True, options=options)
    least = median_difference(manager, every)
    options = {"pretrain_steps": 6, "min_difference": least}
    result, few = create(manager, "tiny/few", corpus, alpha=100, pretrain=True, options=options)
    assert (whole["dropped_trigrams"], whole["dropped_bigrams"], whole["bytes_saved"]) == (0, 0, 0)
    for kind in ("trigrams", "bigrams"):
        assert result[f"stored_{kind}"] + result[f"dropped_{kind}"] == whole[f"stored_{kind}"]
    assert result["dropped_trigrams"] > 10
    assert result["stored_trigrams"] > 10
    assert every.bytes - few.bytes == pytest.approx(result["bytes_saved"], rel=0.05)
    lower = entries_of(manager, few)
    for order in (2, 3):
        with manager.plots.reader(every.id) as all_of_it, manager.plots.reader(few.id) as reader:
            wanted, stored = all_of_it.ngrams(order), reader.ngrams(order)
            kept = {tuple(ngram) for ngram in stored.tolist()}
            left = np.array([ngram for ngram in wanted.tolist() if tuple(ngram) not in kept], np.uint32)
            # A look-up in the finished version gives nearly the vectors that were left out.
            away, depths = differences(reader, order, left, write_plot._compute(lower)(left))
            assert (depths != 0).all()
            assert away.max() < least
        parent = few.parent
        assert parent is not None
        if order == 2:  # no shorter n-gram is stored here: a bigram's fallbacks are its parent's
            with manager.plots.reader(parent) as root:
                assert differences(root, 2, stored, write_plot._compute(lower)(stored))[0].min() >= least


def median_difference(manager: Manager, version: VersionInfo) -> float:
    lower, parent = entries_of(manager, version), version.parent
    assert parent is not None
    with manager.plots.reader(version.id) as reader:
        ngrams = reader.ngrams(3)
    with manager.plots.reader(parent) as root:
        return float(np.median(differences(root, 3, ngrams, write_plot._compute(lower)(ngrams))[0]))


def test_the_default_leaves_out_only_what_was_pretrained_further(manager: Manager) -> None:
    options = {"pretrain_steps": 2}
    moved, _ = create(manager, "tiny/moved", text(1, 60), alpha=60, pretrain=True, options=options)
    assert moved["dropped_trigrams"] > 0, "two small steps hardly change what the root has"
    same, _ = create(manager, "tiny/same", text(31, 60), alpha=60)
    assert (same["dropped_trigrams"], same["bytes_saved"]) == (0, 0)
    wide, _ = create(manager, "tiny/wide", text(31, 60), alpha=60, options={"min_difference": 10})
    assert wide["stored_trigrams"] == 0 < wide["dropped_trigrams"] == same["stored_trigrams"]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_plot, "BATCH", 16)
    kwdefaults = Store.writer.__kwdefaults__
    assert kwdefaults is not None
    monkeypatch.setitem(kwdefaults, "segment_bytes", 1 << 14)


@pytest.mark.parametrize("lost", [False, True])
def test_an_interrupted_build_leaves_out_what_any_other_does(
    manager: Manager, small_pieces: None, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    corpus, name = text(32, 150), f"tiny/parts-{lost}".lower()
    options = {"pretrain_steps": 3, "min_difference": 0.1, "budget_bytes": 400_000}
    result, whole = create(manager, f"{name}-whole", corpus, pretrain=True, options=options)
    assert min(result["dropped_trigrams"], result["stored_trigrams"]) > 20
    job, attempts = manager.create_domain(name, corpus, pretrain=True, options=options), 1
    computed = count_rows(monkeypatch)
    while (made := attempt(manager, job, calls=14 + 7 * attempts)) is None:
        attempts += 1
        for log in (manager.settings.data / "jobs" / job.job).glob("kept-*"):
            if lost:  # a power cut may lose the last decisions
                log.write_bytes(log.read_bytes()[: -20 * (attempts % 2) - 1])
    assert attempts > 3
    for key in ("stored_trigrams", "stored_bigrams", "dropped_trigrams", "dropped_bigrams", "alpha"):
        assert made[key] == result[key]
    same_rows(manager, whole, manager.plots.version(name))
    if not lost:
        chosen = sum(
            result[f"{what}_{kind}"] for what in ("stored", "dropped") for kind in ("bigrams", "trigrams")
        )
        assert sum(computed) < chosen + attempts * 2 * 80, "what is durable is not computed again"


def count_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    computed: list[int] = []
    compute = write_plot._compute

    def counting(lower: LocalLower) -> write_plot.Compute:
        inner = compute(lower)

        def rows(ngrams: write_plot.Ngrams) -> np.ndarray:
            computed.append(len(ngrams))
            return inner(ngrams)

        return rows

    monkeypatch.setattr(write_plot, "_compute", counting)
    return computed


def same_rows(manager: Manager, one: VersionInfo, other: VersionInfo) -> None:
    def own(reader: Reader, order: int) -> list[Any]:
        return [reader.ngrams(order), *reader.get(order, reader.ngrams(order))]

    with manager.plots.reader(one.id) as first, manager.plots.reader(other.id) as second:
        for order in (2, 3):
            ours, theirs = own(first, order), own(second, order)
            assert np.array_equal(ours[0], theirs[0])
            np.testing.assert_allclose(ours[1], theirs[1], atol=0.02)
    assert sum(s.count for s in other.segments if s.kind == "rows") == other.entries[2] + other.entries[3]


def test_decisions_are_found_again(tmp_path: Path) -> None:
    with (
        Store.open(tmp_path / "plots", create=True) as store,
        store.writer("r", schema=SCHEMA, build="b") as writer,
    ):
        rng = np.random.default_rng(0)
        unigrams = np.arange(1, 100, dtype=np.uint32)[:, None]
        writer.add(1, unigrams, np.ones((99, 3, 32), np.float32))
        batches = [rng.integers(1, 100, (size, 2)).astype(np.uint32) for size in (13, 1, 40)]
        rows = [(1 + rng.random((len(b), 1, 1)) * np.ones((1, 4, 32))).astype(np.float32) for b in batches]
        first = Differences(tmp_path, 0.25)
        with first.of(writer, 2) as decide:
            masks = []
            for ngrams, some in zip(batches, rows, strict=True):
                assert decide.known(len(ngrams)) is None
                masks.append(decide.now(ngrams, some))
        assert 0 < sum(mask.sum() for mask in masks) < 54
        again = Differences(tmp_path, 0.25)
        with again.of(writer, 2) as decide:
            for ngrams, mask in zip(batches, masks, strict=True):
                known = decide.known(len(ngrams))
                assert known is not None
                assert np.array_equal(known, mask)
            assert decide.known(5) is None
        assert again.dropped == first.dropped
