"""What a look-up gives for an n-gram that is not stored, against the oracle's windows;
the bytes that entries take."""

from __future__ import annotations

import numpy as np
import plotlab as lab
import pytest
from hmi_kernels.lookup import reference
from hmi_kernels.lookup.layout import before

from plot_store import Store, differences, disk_bytes, entries_within, fallbacks

WIDTHS = {1: (3,), 2: (9, 3), 3: (40, 9, 3), 4: (90, 40, 9, 3), 5: (200, 90, 40, 9, 3)}
FEW = 5


def asked(order: int, n: int) -> np.ndarray:
    """N-grams to ask for: those of order n also with ids 0 outside the text, but
    never with an empty centre."""
    drawn = np.random.default_rng(order).integers(0, FEW, (300, order)).astype(np.uint32)
    if order < n:
        return drawn[(drawn > 0).all(axis=1)]
    text = drawn > 0
    centre = before(n)
    # Only ids beyond the ends of a text are outside: there is no hole inside.
    left = np.logical_and.accumulate(text[:, centre::-1], axis=1)[:, ::-1]
    right = np.logical_and.accumulate(text[:, centre:], axis=1)
    whole = np.concatenate([left[:, :-1], right], axis=1) == text
    return np.asarray(drawn[text[:, centre] & whole.all(axis=1)])


@pytest.mark.parametrize("n", WIDTHS)
def test_fallbacks_are_what_the_oracle_fills_a_window_with(store: Store, n: int) -> None:
    chain: list[lab.Entries] = []
    for depth, dtype in enumerate(("int8", "fp16")):
        made = lab.content(10 * n + depth, WIDTHS[n], vocab=FEW)
        lab.put(store, "/".join("rb"[: depth + 1]), made, dtype=dtype, n=n, vocab=FEW)
        chain.insert(0, lab.entries(made, dtype))
    seen = set()
    with store.reader("r/b") as reader:
        for order in range(1, n + 1):
            ngrams = asked(order, n)
            given, depths = fallbacks(reader, order, ngrams)
            assert given.shape[0] == len(ngrams) > 0
            # A longer n-gram around this one belongs to another window and is no fallback.
            known = [{g: v for g, v in entries.items() if len(g) <= order} for entries in chain]
            seen |= {(order, min(int(depth), 0)) for depth in depths}
            for ngram, rows, depth in zip(ngrams.tolist(), given, depths.tolist(), strict=True):
                for place in range(n - order + 1):
                    if not place <= before(n) < place + order:
                        continue  # the oracle's windows are centred on a token
                    window = (*[0] * place, *ngram, *[0] * (n - order - place))
                    wanted, served, _ = reference.window(known, window, lab.DIM)
                    assert (depth >= 0) == (served == order)
                    mine = rows.reshape(-1, order, lab.DIM)[place]
                    np.testing.assert_allclose(mine, wanted[place : place + order], rtol=0, atol=1e-6)
    assert {(n, 0), (n, -1)} <= seen, "both stored and absent n-grams were asked for"


@pytest.mark.parametrize("n", WIDTHS)
def test_a_causal_fallback_is_the_row_of_the_last_token(store: Store, n: int) -> None:
    chain: list[lab.Entries] = []
    for depth, dtype in enumerate(("int8", "fp16")):
        made = lab.content(10 * n + depth, WIDTHS[n], vocab=FEW, window="causal")
        lab.put(store, "/".join("rb"[: depth + 1]), made, dtype=dtype, n=n, vocab=FEW, window="causal")
        chain.insert(0, lab.entries(made, dtype))
    with store.reader("r/b") as reader:
        for order in range(1, n + 1):
            ngrams = np.random.default_rng(order).integers(0, FEW, (300, order)).astype(np.uint32)
            ngrams = ngrams[(ngrams[:, :-1] > 0).all(axis=1)]
            given, depths = fallbacks(reader, order, ngrams)
            wanted, orders, _ = reference.lookup(chain, ngrams.tolist(), lab.DIM, n, window="causal")
            assert np.array_equal(given[:, 0], wanted[order - 1 :: order])
            assert ((depths >= 0) == (np.array(orders[order - 1 :: order]) == order)).all()
            away, _ = differences(reader, order, ngrams, given * np.float32(1.25))
            np.testing.assert_allclose(away[given.any(axis=(1, 2))], 0.2, rtol=1e-5)


def test_a_difference_is_relative_to_the_entry(store: Store) -> None:
    content = lab.content(1, (30, 9, 5))
    lab.put(store, "r", content, dtype="fp32")
    ngrams, rows = content[3]
    nowhere = np.array([[lab.VOCAB - 1] * 3], np.uint32)
    assert not (ngrams == nowhere).all(axis=1).any()
    with store.reader("r") as reader:
        away, depths = differences(reader, 3, ngrams, rows)
        assert away.max() == 0
        assert (depths == 0).all()
        away, _ = differences(reader, 3, ngrams, rows * np.float32(1.25))
        np.testing.assert_allclose(away, 0.2, rtol=1e-5)
        given, _ = fallbacks(reader, 3, nowhere)
        one = np.ones((1, 3, lab.DIM), np.float32)
        away, depths = differences(reader, 3, nowhere, one)
        assert depths.tolist() == [-1]
        np.testing.assert_allclose(away, np.linalg.norm(one - given) / np.linalg.norm(one), rtol=1e-5)
        assert differences(reader, 3, nowhere, one * 0)[0] == pytest.approx(np.linalg.norm(given))
        assert [a.shape for a in fallbacks(reader, 3, nowhere[:0])] == [(0, 3, lab.DIM), (0,)]


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["int8", "fp32"])
def test_entries_fit_where_they_are_said_to(store: Store, order: int, dtype: str) -> None:
    schema = lab.schema(dtype, vocab=4000)
    assert entries_within(schema, order, 100) == disk_bytes(schema, order, 0) == 0
    for room in (60_000, 300_000):
        most = entries_within(schema, order, room)
        assert disk_bytes(schema, order, most) <= room < disk_bytes(schema, order, most + 1)
        ngrams = np.arange(1, most + 1, dtype=np.uint32)[:, None].repeat(order, axis=1)
        rows = np.ones((most, order * (4 - order), lab.DIM), np.float32)
        with store.writer(f"r{room}", schema=schema, build=f"b{room}") as writer:
            writer.add(order, ngrams, rows)
            made = writer.publish()
        assert room / 2 < made.bytes <= disk_bytes(schema, order, most)


def test_a_build_can_be_looked_at_before_it_is_published(store: Store) -> None:
    lab.put(store, "r", lab.content(1, (9, 9, 12)))
    mine = lab.content(2, (500, 30, 5))
    texts = lab.texts(3, (5, 40, 90))
    with store.writer("r/b", schema=lab.schema(), build="b", parent="r", segment_bytes=1 << 14) as writer:
        with writer.so_far() as empty, store.reader("r") as parent:
            assert np.array_equal(lab.look(empty, texts)[0], lab.look(parent, texts)[0])
        for order in (1, 2):
            writer.add(order, *mine[order])
        view = writer.so_far()
        before = lab.look(view, texts)
        writer.add(3, *mine[3])
        assert np.array_equal(lab.look(view, texts)[0], before[0]), "a view stays as it was"
        assert not store.gc(orphan_age_s=3600).segments
        with writer.so_far() as whole:
            wanted = lab.look(whole, texts)
        published = writer.publish()
    with store.reader("r/b") as reader:
        out, hits = lab.look(reader, texts)
        assert np.array_equal(out, wanted[0])
        assert hits.order.tolist() == wanted[1].order.tolist()
        assert hits.counts()["trigram"] > before[1].counts()["trigram"]
    view.close()
    assert published.entries[3] == len(mine[3][0])
    lab.check(store)


def test_an_extending_build_is_seen_on_top_of_its_base(store: Store) -> None:
    lab.put(store, "r", lab.content(1, (40, 9, 12)))
    more = lab.content(2, (50, 0, 0))[3]
    with store.writer("r", schema=lab.schema(), build="b", extend=True) as writer:
        writer.add(3, *more)
        with writer.so_far() as view, store.reader("r") as old:
            assert view.contains(3, more[0]).all()
            assert view.contains(3, old.ngrams(3)).all()
        assert [v.ref for v in view.chain] == ["r"]
