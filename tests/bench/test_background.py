"""`bench background`: its figures."""

from __future__ import annotations

from bench.cases.background import figures
from bench.cases.background.run import SATURATED, TRAINING, Found, Pairs, PhaseFigures
from bench.harness.load import LoadFigures


def phase(ms: float, job_cpu: float = 0.0, calls: int = 100) -> PhaseFigures:
    seen = LoadFigures([ms] * (calls - 2) + [3 * ms] * 2, {}, 1.0, calls)
    return PhaseFigures(seen, calls * ms / 2e3, job_cpu)


FOUND: Found = {
    ("40%", "paced"): Pairs([phase(10.0)] * 2, [phase(10.2, 0.3)] * 2),
    ("40%", "nice only"): Pairs([phase(10.0)] * 2, [phase(14.0, 0.9)] * 2),
    (SATURATED, "paced"): Pairs([phase(10.0)] * 2, [phase(10.0, 0.01, 90)] * 2),
    (SATURATED, "nice only"): Pairs([phase(10.0)] * 2, [phase(10.0, 0.5, 80)] * 2),
}


def test_rows_say_how_much_worse_each_figure_is_and_judge_the_paced_job() -> None:
    rows = {row.id: row for row in figures.rows(TRAINING, 200.0, FOUND)}
    p99 = rows["background_40_paced_p99_over_none"]
    assert (p99.value, p99.ok) == (1.02, True)
    assert p99.why == "95% of resampled pairs: 1.020 to 1.020"
    assert (rows["background_40_paced_p99_none"].value, rows["background_40_paced_p99"].value) == (30.0, 30.6)
    slower = rows["background_saturated_paced_call_over_none"]
    assert (slower.value, slower.ok) == (1.111, False), "90 calls in the time of 100"
    assert rows["background_40_nice_only_p99_over_none"].ok is None, "it is there to compare with"
    assert rows["background_40_nice_only_cpu_over_none"].value == 1.4
    assert rows["background_40_paced_job_cpu"].value == 0.3
    assert rows["background_40_paced_failed"].ok
