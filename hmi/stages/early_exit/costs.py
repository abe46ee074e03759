"""Measured times of layers and ramps, by batch key."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from hmi.execution.batch import BatchKey
from hmi.model.tenant.calibration import Floats
from hmi.stages.early_exit.account import AUDITED
from hmi.stages.early_exit.ramps import Costs

LAST, RAMP = 0.15, 0.02
"""Before anything is measured: the times of a last layer of which heads read [CLS] alone (0008), and of a
ramp, as fractions of another layer's."""
FIXED = ("begin", "record", "stay")
Fixed = Literal["begin", "record", "stay"]
"""The work of the stage for a text besides ramps: to begin with it, and, once it has run to the end, to
record it or to note that it stayed."""
MEMORY = 8192
"""The texts that a mean is over: older ones count half, a quarter and so on."""


class ExitCosts:
    """The costs of batches of one key. Thread-safe."""

    def __init__(self, key: BatchKey, layers: int) -> None:
        self.layers, self._lock = layers, threading.Lock()
        self.relative = relative(key, layers)
        """To divide a time that is known of several layers together."""
        # [layers or FIXED][2]: seconds, and the texts that they were spent on. For so few numbers lists are
        # faster than arrays.
        self._layer, self._ramp, self._fixed = ([[0.0, 0.0] for _ in range(n)] for n in (layers, layers, 3))
        self._known: dict[tuple[int, ...], tuple[Costs, float]] = {}
        self._took = self._known_at = 0
        """The batches so far, and those when `_known` began."""

    @property
    def known(self) -> bool:
        """True once something has been measured."""
        return any(texts for _, texts in self._layer)

    def took(
        self,
        spans: Sequence[tuple[int, int, float, int]],
        ramps: Mapping[int, tuple[float, int]],
        fixed: Mapping[Fixed, tuple[float, int]] | None = None,
    ) -> None:
        """Take note of a batch. spans: (layer, end, seconds, texts). ramps: by site, (seconds, texts). fixed:
        the same for what the stage does besides."""
        with self._lock:
            self._took += 1
            for what, (seconds, texts) in (fixed or {}).items():
                _add(self._fixed[FIXED.index(what)], seconds, texts)
            for begin, end, seconds, texts in spans:
                whole = float(self.relative[begin:end].sum())
                for layer in range(begin, end):
                    _add(self._layer[layer], seconds * float(self.relative[layer]) / whole, texts)
            for site, (seconds, texts) in ramps.items():
                _add(self._ramp[site], seconds, texts)

    def costs(self, sites: Sequence[int]) -> tuple[Costs, float]:
        """The seconds of a text: of the layers from each of these sites to the next, and of the ramps there;
        and of the layers before the first. Relative numbers before anything is measured.

        They may lack the last few batches of many.
        """
        of = tuple(sites)
        with self._lock:
            if self._took - self._known_at > min(self._known_at // 16, 64):
                self._known, self._known_at = {}, self._took
            if of not in self._known:
                self._known[of] = self._costs(of)
            return self._known[of]

    def _costs(self, sites: Sequence[int]) -> tuple[Costs, float]:
        layer = _means(self._layer, self.relative)
        ramp = _means(self._ramp, np.full(self.layers, RAMP * layer[0]))
        ends = [*sites[1:], self.layers]
        spans = tuple(float(layer[a:b].sum()) for a, b in zip(sites, ends, strict=True))
        begin, record, stay = (s / n if n else 0.0 for s, n in self._fixed)
        more = record - stay if stay and record else 0.0
        fixed = begin + (stay or record) + AUDITED * more
        return Costs(spans, tuple(ramp[list(sites)].tolist()), fixed, more), float(layer[: sites[0]].sum())


def _add(sums: list[float], seconds: float, texts: int) -> None:
    sums[0] += seconds
    sums[1] += texts
    if sums[1] > MEMORY:
        sums[:] = sums[0] / 2, sums[1] / 2


def relative(key: BatchKey, layers: int) -> Floats:
    """[layers]: the times of layers relative to each other."""
    times = np.ones(layers)
    if key.reads == "cls":
        times[-1] = LAST
    return times


def _means(measured: Sequence[Sequence[float]], relative: Floats) -> Floats:
    """Seconds a text; what was not measured yet is scaled from `relative` by what was."""
    sums = np.array(measured)
    seen = sums[:, 1] > 0
    if not seen.any():
        return relative
    means = sums[:, 0] / np.maximum(sums[:, 1], 1e-12)
    scale = means[seen].sum() / relative[seen].sum()
    out: Floats = np.where(seen, means, relative * scale)
    return out
