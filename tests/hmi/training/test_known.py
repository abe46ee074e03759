"""A model's record of its own texts: means, similarities, the threshold at a share; and Platt's scaling."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hmi.model.network.shape import EncoderShape
from hmi.model.sources.lower import InputBias
from hmi.model.tags.entities import calibrated_score, log_odds
from hmi.model.tenant.calibration import calibration_error, fit_odds
from hmi.model.tenant.novelty import (
    Others,
    OwnTexts,
    at_shares,
    by_length,
    class_means,
    mean_rows,
    similarities,
)
from hmi.model.tenant.novelty_threshold import SHARES, threshold_of
from hmi.training.fit.everyday import EVERYDAY
from hmi.training.fit.novelty import LENGTHS, length_table
from hmi.training.tasks.calibration import calibrated_entities


def test_vectors_are_means_of_each_windows_rows() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    found = mean_rows(rows, [0, 1, 4, 6])
    np.testing.assert_allclose(found, [rows[0], rows[1:4].mean(0), rows[4:6].mean(0)])


def test_the_nearest_mean_counts() -> None:
    vectors = np.array([[2, 0], [4, 0], [0, 3]], np.float32)
    means = class_means(vectors, ["x", "x", "y"])
    np.testing.assert_allclose(means, [[1, 0], [0, 1]])
    asked = np.array([[5, 0], [1, 1], [-1, 0], [0, 0]], np.float32)
    np.testing.assert_allclose(similarities(asked, means), [1, 0.5**0.5, 0, 0], atol=1e-6)


def test_a_length_has_no_part_in_a_similarity() -> None:
    """Means of few rows lie further from any other mean, and further apart, than means of many."""
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(3_000, 90, 8)).astype(np.float32) + 1
    tokens = rng.integers(3, 90, 3_000)
    found = similarities(
        np.stack([text[:n].mean(0) for text, n in zip(rows, tokens, strict=True)]),
        class_means(rows[:, 0], ["x"] * 3_000),
    )
    lengths = length_table(found, tokens, np.array([60, 61, 62]))
    fair = by_length(found, tokens.tolist(), lengths)
    bands = [(tokens >= a) & (tokens < b) for a, b in ((4, 6), (6, 9), (9, 15), (15, 30), (30, 60), (60, 90))]
    plain = [float(np.quantile(found[band], 0.03)) for band in bands]
    lows = [float(np.quantile(fair[band], 0.03)) for band in bands]
    middles = [float(np.median(fair[band])) for band in bands]
    spread = middles[-1] - lows[-1]
    assert plain[-1] - plain[0] > 5 * spread
    assert np.ptp(middles) < spread / 2
    assert np.ptp(lows) < spread
    same = by_length(found[:1], [60], lengths)
    assert same == pytest.approx(found[:1], abs=spread / 2), "a text of the usual length keeps its cosine"


def test_lengths_that_no_text_has_count_as_the_nearest_that_one_has() -> None:
    rng = np.random.default_rng(5)
    lengths = length_table(rng.random(500).astype(np.float32), rng.integers(8, 20, 500), np.array([10]))
    assert set(lengths[0].tolist()) < set(map(float, LENGTHS))
    alike = by_length(np.full(4, 0.5, np.float32), [1, int(lengths[0][0]), int(lengths[0][-1]), 512], lengths)
    assert (alike[0], alike[3]) == (alike[1], alike[2])


def test_equal_texts_and_few_texts_have_a_table() -> None:
    equal = length_table(np.full(100, 0.7, np.float32), np.full(100, 9), np.full(100, 9))
    assert by_length(np.array([0.7, 0.5], np.float32), [9, 9], equal) == pytest.approx([0.7, 0.5], abs=1e-5)
    few = length_table(np.array([0.7, 0.9], np.float32), np.array([5, 9]), np.array([9]))
    assert by_length(np.array([0.7], np.float32), [3], few) == pytest.approx([0.7])


def test_what_a_version_keeps_comes_back_from_its_tensors() -> None:
    rng = np.random.default_rng(6)
    vectors = rng.normal(size=(60, 8)).astype(np.float32) * np.arange(1, 9, dtype=np.float32)
    others = Others.of(vectors, vectors)
    standard = others.standardised(vectors)
    assert standard.mean(0) == pytest.approx(np.zeros(8), abs=1e-5)
    assert np.ptp(standard.std(0)) < np.ptp(vectors.std(0)) / 5
    lengths = np.array([[4, 8], [2, 1], [-1, 0]], np.float32)
    own = OwnTexts(class_means(standard[:20], ["x"] * 20), others, lengths)
    again = OwnTexts.of(own.tensors)
    assert again is not None
    assert again.similarities(vectors, [8] * 60).tolist() == own.similarities(vectors, [8] * 60).tolist()
    assert own.similarities(vectors, [4] * 60) == pytest.approx(2 * own.similarities(vectors, [8] * 60) - 1)
    assert own.fits(8)
    assert not own.fits(9)


def test_versions_of_earlier_releases_are_compared_as_they_were() -> None:
    means = class_means(np.eye(3, dtype=np.float32), ["x", "y", "y"])
    old = OwnTexts.of({"means": means})
    assert old is not None
    asked = np.array([[5, 0, 0], [0, 1, 1]], np.float32)
    assert old.similarities(asked, [3, 300]).tolist() == similarities(asked, means).tolist()
    assert (old.fits(3), old.fits(4)) == (True, False)
    assert OwnTexts.of({}) is None
    assert OwnTexts.of({"own": means, "centre": means[0]}) is None, "a part of a record is none"


def test_texts_that_the_tokenizer_does_not_tell_apart_divide_by_nothing_small() -> None:
    own = np.random.default_rng(7).normal(size=(60, 8)).astype(np.float32)
    standard = Others.of(np.ones((60, 8), np.float32), own).standardised(own)
    assert np.abs(standard).max() < 100


def test_the_mean_of_the_bias_is_that_of_what_is_added() -> None:
    bias = InputBias(
        EncoderShape(vocab=9, dim=6, layers=2, heads=2, ffn=8, positions=16, types=2, eps=1e-12), 1
    )
    torch.nn.init.normal_(bias.position)
    torch.nn.init.normal_(bias.token_type)
    types = [[0] * 5, [0] * 3 + [1] * 4, [0]]
    rows = torch.zeros(13, 6)
    with torch.no_grad():
        bias.add_packed(rows, types)
    wanted = torch.stack([part.mean(0) for part in rows.split([5, 7, 1])])
    torch.testing.assert_close(torch.from_numpy(bias.means(types)), wanted)


def test_everyday_sentences_are_many_and_differ() -> None:
    assert len(set(EVERYDAY)) == len(EVERYDAY) >= 100
    assert all(text.strip() == text != "" for text in EVERYDAY)


@given(st.lists(st.floats(-1, 1, width=32), min_size=40, max_size=80), st.floats(0.5, 0.999))
def test_the_threshold_is_what_the_share_reaches(own: list[float], share: float) -> None:
    found = at_shares(np.array(own, np.float32))
    assert list(found) == sorted(found)
    limit = threshold_of(found, share)
    assert limit == pytest.approx(float(np.interp(share, SHARES[::-1], found[::-1])), abs=1e-9)


def test_no_threshold_without_figures_or_share() -> None:
    assert threshold_of((), 0.97) is None
    assert threshold_of(tuple(SHARES), None) is None


def test_entities_scores_are_calibrated_for_themselves() -> None:
    """The scores of 2,000 entities say much more than they should."""
    rng = np.random.default_rng(3)
    odds = rng.normal(3.0, 1.5, 2000)
    right = rng.random(2000) < 1 / (1 + np.exp(-(0.5 * odds - 1.0)))
    fitted, told = calibrated_entities(odds, right, np.arange(2000))
    assert fitted == pytest.approx((0.5, -1.0), abs=0.15)
    assert told["entities"]["ece_calibrated"] < 0.05 < told["entities"]["ece"]
    assert fitted is not None
    sure = [calibrated_score(1 / (1 + np.exp(-x)), fitted) for x in odds]
    assert calibration_error(sure, right) < 0.03


def test_scores_that_say_nothing_are_left_alone() -> None:
    assert fit_odds([3.0, 2.0, -1.0], [False, False, True]) is None
    assert calibrated_entities(np.zeros(3), np.ones(3, np.bool_), np.arange(3)) == (None, {})
    slope, _ = fit_odds([1.0, 2.0, 3.0, -3.0], [True, True, True, False]) or (0.0, 0.0)
    assert slope > 0
    assert np.isfinite([log_odds(0.0), log_odds(1.0)]).all()
