"""The rule that chooses an executor by measured times. Loads no torch, so any command can apply it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from hmi.stores.profiles import Measured

ALLOWED: dict[str, tuple[str, ...]] = {"auto": ("fp32", "bf16", "int16"), "fp32": ("fp32",)}
"""The precisions that compete under a setting. Other settings allow themselves alone."""
MIN_COSINE = 0.999
"""Under `auto`, an executor is rejected if a row has a smaller cosine to the same row in fp32."""


def precision_of(name: str) -> str:
    """Return the numbers that an executor's products multiply; see `precision.Precision`."""
    return name.rpartition(" ")[2]


def fastest(measured: Sequence[Measured], wanted: str) -> Measured:
    """Return the fastest executor that the setting `precision` allows.

    The fastest has the least mean of its times divided by the reference's, so each measured batch counts the
    same. The first of `measured` is the reference, packed torch in fp32, which runs where nothing else is
    allowed.
    """
    base, allowed = measured[0], ALLOWED.get(wanted, (wanted,))
    able = [m for m in measured if precision_of(m.name) in allowed]
    if wanted == "auto":
        able = [m for m in able if m.cosine >= MIN_COSINE]
    return min(able, key=lambda m: _slowness(m, base), default=base)


def _slowness(one: Measured, base: Measured) -> float:
    return fmean(one.us_per_token[name] / us for name, us in base.us_per_token.items())
