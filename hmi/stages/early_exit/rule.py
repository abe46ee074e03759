"""The exit rule: a text leaves at the first ramp that is less uncertain than the ramp's threshold.

The uncertainty is a number in [0, 1], which `hmi.model.tenant.uncertainty` defines for each form of answer.
The comparison is strict, so a threshold of 0 never lets a text leave. NaN is less than nothing, so a text
whose outputs are no numbers goes on to the last layer, where it is reported.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hmi.model.tenant.calibration import Floats
from hmi.model.tenant.uncertainty import NEVER as NEVER
from hmi.model.tenant.uncertainty import expected_error as expected_error
from hmi.model.tenant.uncertainty import of_labels as of_labels
from hmi.model.tenant.uncertainty import of_sets as of_sets
from hmi.model.tenant.uncertainty import of_tags as of_tags
from hmi.model.tenant.uncertainty import of_values as of_values


def exit_index(uncertainty: ArrayLike, thresholds: ArrayLike) -> NDArray[np.int64]:
    """The ramp at which each text leaves: [texts, ramps], thresholds [ramps] -> int64 [texts].

    Ramps count from 0. The number of ramps means that the text stays to the end, so a higher index is always
    later, and 0 is a ramp like any other. Raising a threshold never raises an index.
    """
    u, t = np.asarray(uncertainty, np.float64), checked(thresholds)
    if u.ndim != 2 or u.shape[1] != len(t):
        raise ValueError(f"uncertainty: shape {u.shape}, but there are {len(t)} thresholds")
    at_end = np.ones((len(u), 1), np.bool_)
    index: NDArray[np.int64] = np.concatenate([u < t, at_end], 1).argmax(1)
    return index


def errs(uncertainty: Sequence[float], agrees: Sequence[bool], thresholds: Sequence[float]) -> bool:
    """Return whether one text would leave with another answer than the full model's. All are [ramps].

    `exit_index` is slower for one text.
    """
    for u, right, threshold in zip(uncertainty, agrees, thresholds, strict=True):
        if u < threshold:
            return not right
    return False


def checked(thresholds: ArrayLike) -> Floats:
    """Thresholds as float64 [ramps]. Raises ValueError if one is not in [0, 1]."""
    t = np.asarray(thresholds, np.float64)
    if t.ndim != 1 or not ((t >= 0.0) & (t <= 1.0)).all():
        raise ValueError(f"thresholds: {t.tolist()} must be a list of numbers from 0 to 1")
    return t
