"""The fitted cost, and its correction by measurements."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hmi.stages.planning.cost import MAX_OVERRUN, Correction, Cost, Sample, fit

TRUE = Cost(2e-4, 5e-5, 2e-6, 3e-9, 1e-5, {"merge 20%": (1e-4, 1e-6)})
ROWS = {"off": (1.0,) * 6, "merge 20%": (1.0, 0.9, 0.8, 0.8, 0.7, 0.6)}


def samples(noise: float, count: int = 120) -> list[Sample]:
    rng = np.random.default_rng(3)
    made = []
    for _ in range(count):
        setting = str(rng.choice(list(ROWS)))
        windows = [int(n) for n in rng.integers(3, 128, int(rng.integers(1, 40)))]
        blank = Sample(setting, ROWS[setting], windows, int(rng.integers(1, 8)), 0.0)
        seconds = TRUE.seconds(blank) * math.exp(noise * rng.standard_normal())
        made.append(Sample(setting, ROWS[setting], windows, blank.modules, seconds))
    return made


def test_the_fit_finds_the_cost_that_made_the_samples() -> None:
    found = fit(samples(0.0))
    for name in ("batch", "text", "row", "square", "module"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=1e-6)
    assert found.stalls["merge 20%"] == pytest.approx(TRUE.stalls["merge 20%"], rel=1e-6)
    assert found.margin == pytest.approx(1)


def test_nine_of_ten_batches_end_within_the_margin() -> None:
    made = samples(0.2, 400)
    found = fit(made)
    within = sum(sample.seconds <= found.margin * found.seconds(sample) for sample in made)
    assert 0.88 * len(made) <= within <= 0.92 * len(made)
    assert 1.1 < found.margin < 1.5


def test_no_coefficient_is_negative() -> None:
    falling = [Sample("off", (1.0,), [n], 1, 1e-3 / n) for n in range(1, 30)]
    found = fit(falling)
    assert min(found.batch, found.text, found.row, found.square, found.module) >= 0
    with pytest.raises(ValueError, match="no batches"):
        fit([])


def test_a_batch_costs_the_sum_of_its_texts_and_its_fixed_part() -> None:
    rows = ROWS["merge 20%"]
    whole = Sample("merge 20%", rows, [10, 20, 30], 2, 0.0)
    by_hand = 2e-4 + 3 * 5e-5 + 60 * 2e-6 * sum(rows) + 1400 * 3e-9 * sum(r * r for r in rows) + 2e-5
    assert TRUE.seconds(whole) == pytest.approx(by_hand + 1e-4 + 60e-6)


def test_the_correction_follows_what_is_measured_and_shrugs_off_one_stall() -> None:
    correction = Correction()
    assert correction.ratio == 1
    assert correction.error == math.inf
    for _ in range(200):
        correction.ran(0.01, 0.013)
    assert correction.ratio == pytest.approx(1.3, abs=0.06)
    assert math.exp(correction.logarithm) == pytest.approx(1.3)
    assert correction.error == pytest.approx(0, abs=1e-6)
    correction.ran(0.01, 5.0)
    assert math.exp(correction.logarithm) < 1.3 * (1 + (MAX_OVERRUN - 1) / 15)


def test_the_first_batch_moves_the_correction_little() -> None:
    correction = Correction()
    correction.ran(0.01, 0.02)
    assert correction.ratio == pytest.approx(1.2)
