"""`bench store`: its measuring tools are right, and every row of its table can be measured."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hmi_kernels.lookup import reference
from hmi_kernels.lookup.layout import pack_keys

from bench.__main__ import bench
from bench.cases.store import data
from bench.cases.store.chain import BATCH, SCALES, TEXTS_AT_ONCE, Chain, choose, summed
from bench.cases.store.peers import PEERS, keys_of
from bench.cases.store.run import SECTIONS, StorePlan, run
from bench.harness.page_cache import drop_folder
from bench.harness.report import Figure, in_turn, paired_ratio, result, rotating
from hmi.errors import InvalidInput, Unavailable


def test_a_row_says_which_goals_it_reaches() -> None:
    def reached(value: float | None, at_least: bool) -> tuple[bool | None, bool | None]:
        row = Figure("r", value, "x", 2.0, at_least, stretch=3.0 if at_least else 1.0)
        return row.ok, row.stretch_ok

    assert reached(2.5, True) == (True, False)
    assert reached(3.0, True) == (True, True)
    assert reached(1.5, False) == (True, False)
    assert reached(2.5, False) == (False, False)
    assert reached(None, True) == (None, None)
    told = result("b", [Figure("r", 2.5, "x", 2.0, stretch=3.0)])["rows"][0]
    assert (told["ok"], told["stretch_ok"], told["stretch"]) == (True, False, 3.0)


def test_a_ratio_is_of_the_clock_it_was_given() -> None:
    at = 0.0

    def takes(seconds: float) -> None:
        nonlocal at
        at += seconds

    assert paired_ratio(lambda: takes(6), lambda: takes(2), 4, clock=lambda: at) == 3


def test_works_take_turns_and_each_gets_its_next_number() -> None:
    order: list[str] = []

    def told(name: str, number: int) -> float:
        order.append(name)
        return float(number)

    found = in_turn({name: rotating(partial(told, name), 3, start=1) for name in "abc"}, 4)
    assert found == {name: [2, 0, 1, 2] for name in "abc"}
    turns = [order[at : at + 3] for at in range(0, len(order), 3)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert turns[2] == turns[1][::-1]


def test_synthetic_text_has_the_keys_asked_for_and_hits_like_real_text() -> None:
    sample = data.zipf_sample(100_000)
    stored = pack_keys(data.distinct(data.trigrams(sample.parts[0])))
    assert 100_000 <= len(stored) < 100_000 + data.LENGTH
    assert sample.parts[0].min() > 0
    assert max(part.max() for part in (*sample.parts, sample.unseen)) < data.VOCAB
    again = data.zipf_sample(100_000)
    np.testing.assert_array_equal(again.unseen, sample.unseen)
    pairs = [pack_keys(data.distinct(data.bigrams(part))) for part in sample.parts]
    hit = np.isin(pack_keys(data.bigrams(sample.unseen)), np.concatenate(pairs)).mean()
    assert 0.3 < hit < 0.9


def test_real_text_is_cut_and_parted_by_document(tmp_path: Path) -> None:
    words = ["cell", "gene", "protein", "market", "price", "shows", "binds", "not", "the", "of", "in", "acid"]
    rng = np.random.default_rng(1)
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(" ".join(rng.choice(words, 200)) for _ in range(1500)))
    sample = data.corpus_sample(corpus, 1000)
    assert sample.source == "corpus.txt"
    assert len(data.distinct(data.trigrams(sample.parts[0]))) >= 1000
    assert len(data.distinct(data.trigrams(sample.parts[0][:-1]))) < 1000
    assert {data.part_of(str(i)) for i in range(200)} == {0, 1, 2, 3, 4}
    corpus.write_text("too short\nby far\n")
    with pytest.raises(InvalidInput, match="too little text"):
        data.corpus_sample(corpus, 1000)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return Chain(tmp_path_factory.mktemp("chain"), choose(data.zipf_sample(6000)), 32)


def test_plain_rows_summed_in_numpy_are_what_the_store_and_its_reference_return(chain: Chain) -> None:
    tables = chain.tables
    numbers, tokens = tables.rows_of[0], tables.batches[0]
    windows = data.trigrams(tokens.reshape(-1, data.LENGTH))
    np.testing.assert_array_equal(tables.root[numbers], windows)
    plain = chain.rows().plain(numbers)
    given, hits = chain.shallow.lookup(tokens, np.arange(TEXTS_AT_ONCE + 1, dtype=np.int64) * data.LENGTH)
    assert (hits.order == 3).all()
    np.testing.assert_allclose(summed(plain, 32), given, rtol=1e-5, atol=1e-5)
    scales = plain[:, :SCALES].copy().view(np.float32)
    vectors = plain[:, SCALES:].view(np.int8).reshape(BATCH, 3, 32) * scales[:, :, None]
    entries = {tuple(map(int, gram)): rows for gram, rows in zip(windows, vectors, strict=True)}
    slow, _, _ = reference.lookup([entries], tokens.reshape(-1, data.LENGTH)[:2].tolist(), 32)
    np.testing.assert_allclose(slow, given[: 2 * data.LENGTH], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", PEERS, ids=lambda make: make.__name__)
def test_every_mode_of_a_peer_returns_the_rows_in_the_order_asked(
    make: type, chain: Chain, tmp_path: Path
) -> None:
    rng = np.random.default_rng(2)
    keys, rows = (
        np.sort(rng.choice(10**9, 500, replace=False)).astype(np.uint64),
        rng.integers(0, 256, (500, 90), np.uint8),
    )
    try:
        peer = make(tmp_path / "peer", 500, 90)
    except Unavailable as error:
        pytest.skip(error.message)
    for part in (slice(0, 300), slice(300, 500)):
        peer.put(keys_of(keys[part]), rows[part])
    peer.finish()
    wanted = rng.integers(0, 500, 64)
    modes = peer.modes()
    assert len(modes) == 2
    for read in modes.values():
        np.testing.assert_array_equal(read(keys_of(keys[wanted])), rows[wanted])
    peer.close()


def test_dropping_files_says_why_where_it_cannot(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(os.urandom(1 << 20))
    why = drop_folder(tmp_path)
    assert why is None or "--data" in why


@pytest.mark.slow
def test_every_section_measures_its_rows(tmp_path: Path) -> None:
    plan, real = StorePlan(keys=6000, dims=(32,), runs=3, long_runs=2, phase_s=0.05, phases=1), os.fsync
    rows = {row.id: row for row in run(plan, tmp_path, print)}
    assert not list(tmp_path.iterdir())
    goals = [
        "fused_over_gather_depth_1_hits_d32",
        "fused_over_gather_depth_4_hits_d32",
        "fused_over_gather_depth_4_natural_d32",
        "lmdb_rows_over_fused_d32",
        "index_build",
        "index_at_1e8_keys",
        "bulk_build_over_flat_write_d32",
        "space_over_vectors_and_scales_d32",
        "publish_syncs_after_seal",
        "reader_publishing_over_idle",
        "torn_reads",
    ]
    for name in goals:
        assert rows[name].value is not None, name
        assert rows[name].goal is not None, name
    assert rows["torn_reads"].value == 0
    assert rows["publish_syncs_after_seal"].value == 1
    walks = [row for row in rows.values() if row.id.endswith(("_refs_of_1", "_refs_of_20", "_lock_held"))]
    assert len(walks) == 30
    assert all(row.value is not None for row in walks)
    assert os.fsync is real
    unmeasured = [row for row in rows.values() if row.value is None]
    assert all(row.why for row in unmeasured)
    assert len(rows) > 30


def test_the_command_prints_json_and_refuses_an_unknown_section() -> None:
    done = CliRunner().invoke(bench, ["store", "--keys", "6000", "--dim", "32", "--only", "index", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["bench"] == "store"
    assert {"index_build", "index_at_1e8_keys"} <= {row["id"] for row in found["rows"]}
    wrong = CliRunner().invoke(bench, ["store", "--quick", "--only", "everything"])
    assert isinstance(wrong.exception, InvalidInput)
    assert all(section in str(wrong.exception) for section in SECTIONS)
