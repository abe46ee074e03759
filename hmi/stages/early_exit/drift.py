"""The drift alarm: has the rate of disagreements risen above what the tenant tolerates?

The gate's evidence is about the past. The alarm watches the audits of an open gate: a Shiryaev–Roberts
procedure, averaged over several rates that the stream may have drifted to. For each rate q it keeps
R ← (R + 1)·L, where L is the likelihood of an audit at q over that at `loss`. While the rate is `loss` or
less, R − n never rises in expectation over n audits, so the mean number of audits until a false alarm is at
least `run_length` (an e-detector; Shin, Ramdas and Rinaldo, 2024, "E-detectors").
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from hmi.model.tenant.calibration import Floats

RUN_LENGTH = 10_000
"""The mean number of audits until a false alarm, at least, of a stream at exactly the tolerated rate."""
FACTOR = 2.0
"""The ratio of neighbouring rates that the alarm listens for."""
HIGHEST = 0.5
"""The highest of these rates, at most; more disagreements than this are recognised as fast."""


@dataclass(frozen=True)
class Alarm:
    """The state of the alarm of one policy. It keeps ringing once it has rung."""

    loss: float
    """The tolerated rate of disagreements, above 0 and below 1/2."""
    run_length: int = RUN_LENGTH
    score: tuple[float, ...] = ()
    """R for each of `rates_above`; empty before the first audit."""
    rung: bool = False

    def __post_init__(self) -> None:
        if not 0.0 < self.loss < HIGHEST:
            raise ValueError(f"alarm: a loss of {self.loss} is not above 0 and below {HIGHEST}")

    def after(self, disagrees: bool) -> Alarm:
        """The alarm after one more audit."""
        rates = rates_above(self.loss)
        likelihood = rates / self.loss if disagrees else (1.0 - rates) / (1.0 - self.loss)
        score = (np.array(self.score or np.zeros(len(rates))) + 1.0) * likelihood
        rings = bool(score.mean() >= self.run_length)
        return replace(self, score=tuple(np.minimum(score, 1e300).tolist()), rung=self.rung or rings)


@lru_cache(maxsize=64)
def rates_above(loss: float) -> Floats:
    """FACTOR, FACTOR², … times the tolerated rate, up to HIGHEST, which is always among them."""
    steps = int(np.floor(np.log(HIGHEST / loss) / np.log(FACTOR)))
    return np.unique(np.append(loss * FACTOR ** np.arange(1, steps + 1), HIGHEST))
