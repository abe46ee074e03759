"""Fits the map from the alignments of a tenant's pairs to scores (`hmi.model.tenant.alignment`), before a
module is trained beside it.

A module that was trained on the scores of a fitted map would see training rows that the map already knows by
heart, and would learn next to nothing. So the training rows get scores from maps that were fitted without
them, as in stacked generalisation (Wolpert, 1992): rows are divided into FOLDS parts, and each part gets the
scores of a map that the other parts fit. These maps also choose the penalty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hmi.model.tenant.alignment import FIGURES, KINDS, Alignment
from hmi.training.fit.optimisers import LinearFit, minimised

FOLDS = 5
MOST_ROWS = 4_000
"""The map is fitted on the first rows, at most this many. The others get the scores of the final map."""
PENALTIES = (1e-3, 1e-2, 1e-1)
"""The squared map times one of these is added to the loss: the one with the least loss on rows held out."""
VECTORS_SCALE = 0.1**0.5
"""Standardised vectors are multiplied by this, so that their penalty is ten times that of the figures."""
LEAST_SCALE = 0.02
"""The least standard deviation that figures are divided by."""
STEPS = 50
AT_ONCE = 256
"""Pairs whose scores are computed together."""

Targets = Sequence[Sequence[float]]
Loss = Callable[[Tensor, Targets], Tensor]
"""(scores [rows, outputs], the rows' targets) -> the mean loss."""


def fit_alignment(
    aligned: Callable[[Sequence[int]], Tensor], targets: Targets, outputs: int, loss: Loss
) -> tuple[Alignment, Tensor]:
    """Fit a map. Returns it with the scores [rows, outputs] that a module is to be trained on.

    aligned: indexes of rows -> their alignments [rows, `aligned_size`]. targets: of all rows, at least one.
    The result depends on the rows alone. It is the zero map if a fit has no finite result.
    """
    count = min(len(targets), MOST_ROWS)
    known, wanted = aligned(range(count)), targets[:count]
    alignment = Alignment(outputs, (known.shape[1] - FIGURES) // KINDS)
    alignment.mean = known[:, :FIGURES].mean(0)
    alignment.scale = known[:, :FIGURES].std(0, correction=0).clamp(min=LEAST_SCALE)
    centre = known[:, FIGURES:].mean(0)
    unit = _units(known[:, FIGURES:] - centre)
    x = torch.cat([alignment.terms(known[:, :FIGURES]), (known[:, FIGURES:] - centre) * unit], dim=-1)
    penalty, scores = _held_out(x, wanted, outputs, loss)
    fit = _fitted(x, wanted, outputs, loss, penalty)
    if bool(torch.isfinite(fit.weight).all() and torch.isfinite(scores).all()):
        alignment.weight, alignment.vectors = (
            fit.weight[:, : 2 * FIGURES],
            fit.weight[:, 2 * FIGURES :] * unit,
        )
        alignment.bias = fit.bias - alignment.vectors @ centre
    else:
        scores = torch.zeros_like(scores)
    rest = [range(at, min(at + AT_ONCE, len(targets))) for at in range(count, len(targets), AT_ONCE)]
    return alignment, torch.cat([scores, *(alignment(aligned(some)) for some in rest)])


def _units(vectors: Tensor) -> Tensor:
    """The factors [size] that give the vectors [rows, size] of each kind the same standard deviation."""
    spread = vectors.unflatten(-1, (KINDS, -1)).square().mean((0, 2)).sqrt()
    units: Tensor = VECTORS_SCALE / spread.clamp(min=1e-6)
    return units.repeat_interleave(vectors.shape[1] // KINDS)


def _held_out(x: Tensor, targets: Targets, outputs: int, loss: Loss) -> tuple[float, Tensor]:
    """The best penalty, and with it the scores of each row by a map that was fitted without it."""
    fold = torch.arange(len(x)) % FOLDS
    best: tuple[float, float, Tensor] | None = None
    for penalty in PENALTIES:
        scores = torch.zeros(len(x), outputs)
        for part in range(min(FOLDS, len(x)) if len(x) > 1 else 0):
            others = [i for i in range(len(x)) if i % FOLDS != part]
            fit = _fitted(x[others], [targets[i] for i in others], outputs, loss, penalty)
            scores[fold == part] = fit(x[fold == part])
        value = float(loss(scores, targets))
        if best is None or value < best[0]:
            best = value, penalty, scores
    assert best is not None
    return best[1:]


def _fitted(x: Tensor, targets: Targets, outputs: int, loss: Loss, penalty: float) -> LinearFit:
    """The linear map with the least loss and penalty."""
    start = LinearFit(torch.zeros(outputs, x.shape[1]), torch.zeros(outputs), 2 * penalty)
    return minimised(lambda scores: loss(scores, targets), x, start, STEPS)
