"""Ramps: heads on the rows between two layers, trained to answer as the whole model does (Apparate, 3.1).

Backbone, module and head are frozen. Each ramp is one linear map from what
`hmi.training.for_stages.ramp_rows` collects to the model's own output: its probabilities (soft targets), or
its value. The fit is convex, so a few dozen steps of L-BFGS end it. A penalty on the weights is chosen on
held-out texts.

A model answers the rows that it was trained on better than others, and so do ramps. So figures are those on
held-out texts, and texts that the model was not trained on are worth giving.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import floor
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from hmi.errors import InvalidInput
from hmi.model.tasks import TaskKind
from hmi.model.tenant.calibration import Floats
from hmi.model.tenant.uncertainty import (
    VALUE_TOLERANCE,
    expected_error,
    of_labels,
    of_sets,
    of_tags,
    of_values,
)
from hmi.model.text.windows import first_pieces
from hmi.training.fit.backbones import Examples, ModuleBackbone
from hmi.training.fit.learner import diverged
from hmi.training.fit.optimisers import LinearFit, minimised
from hmi.training.fit.trainer import Trainer
from hmi.training.for_stages.ramp_rows import RampRows, ramp_rows, row_numbers
from hmi.training.tasks.splits import Split

_DISAGREEMENT = 0.01
"""The disagreement at which the report says how many texts may leave."""


@dataclass(frozen=True)
class Judged:
    """One ramp's answers to texts."""

    uncertainty: Floats
    """[texts]"""
    agrees: NDArray[np.bool_]
    """[texts]: whether the whole answer is that of the model."""

    @property
    def agreement(self) -> float:
        return float(self.agrees.mean()) if len(self.agrees) else 0.0

    def may_leave(self, disagreement: float = _DISAGREEMENT) -> float:
        """The largest fraction of texts below a threshold, of which at most `disagreement` of all texts
        disagree.

        The threshold is the best one for these very texts. Texts of equal uncertainty leave together.
        """
        texts = len(self.agrees)
        order = np.argsort(self.uncertainty, kind="stable")
        u, errors = self.uncertainty[order], np.cumsum(~self.agrees[order])
        last = np.append(np.diff(u) > 0, True)[:texts] & (u < 1.0)
        fits = np.flatnonzero(last & (errors <= floor(texts * disagreement + 1e-9)))
        return float(fits[-1] + 1) / texts if len(fits) else 0.0


def _ramp_report(
    task: TaskKind, tensors: Mapping[str, Tensor], kept: RampRows, split: Split
) -> dict[str, Any]:
    """The figures of a model's report. kept: all rows of the texts of `split`, one window each."""
    sites = range(len(kept.features))
    judged = [judge_ramp(task, ramp_outputs(tensors, site, kept), kept, split) for site in sites]
    return {
        "texts": len(split.rows),
        "sites": [
            {
                "site": site,
                "agreement": round(each.agreement, 4),
                "may_leave": round(each.may_leave(), 4),
                "bytes": sum(
                    t.numel() * t.element_size() for n, t in tensors.items() if n.startswith(f"{site}.")
                ),
            }
            for site, each in zip(sites, judged, strict=True)
        ],
    }


def ramp_outputs(tensors: Mapping[str, Tensor], site: int, rows: RampRows) -> Tensor:
    """A ramp's outputs for these rows, [rows, outputs], with lexical scores, from the published tensors."""
    weight, bias = (tensors[f"{site}.out.{name}"].float() for name in ("weight", "bias"))
    outputs = rows.features[site] @ weight.T + bias
    outputs[:, : rows.offsets.shape[1]] += rows.offsets
    return outputs


def judge_ramp(task: TaskKind, outputs: Tensor, kept: RampRows, split: Split) -> Judged:
    """Compare a ramp's answers with the model's."""
    full = kept.outputs
    if task.name == "multilabel":
        at = task.rules.threshold
        agrees = ((outputs.sigmoid() >= at) == (full.sigmoid() >= at)).all(-1).numpy()
        return Judged(of_sets(outputs.numpy(), at), agrees)
    if task.name == "regression":
        near = (outputs[:, 0] - full[:, 0]).abs() <= VALUE_TOLERANCE
        return Judged(of_values(expected_error(outputs[:, 1].numpy()), VALUE_TOLERANCE), near.numpy())
    unsure = of_labels(outputs.numpy())
    if task.name != "tagging":
        return Judged(unsure, (outputs.argmax(-1) == full.argmax(-1)).numpy())
    ends = np.cumsum([0, *kept.counts])
    same = _tags(task, outputs, kept.counts, split), _tags(task, full, kept.counts, split)
    return Judged(of_tags(unsure, ends.tolist()), np.array([a == b for a, b in zip(*same, strict=True)]))


def _tags(task: TaskKind, outputs: Tensor, counts: Sequence[int], split: Split) -> list[list[str] | None]:
    """The tags of each text, from the outputs of its words' first pieces."""
    found = []
    for row, window, mine in zip(split.rows, split.encoded, outputs.split(list(counts)), strict=True):
        tokens = outputs.new_zeros(len(window), outputs.shape[1])
        tokens[list(first_pieces(window.words).values())] = mine
        found.append(task.answer(task.merge([tokens], [window], len(row.text))).tags)
    return found


MAX_NUMBERS = 3 << 24
"""The most numbers that are kept of all texts, at all sites (192 MB). Of more, a sample is kept."""
HELD_SHARE = 3
"""One row in this many may be a held-out one."""
PENALTIES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4)
"""Penalties of the squared weights over standardised features, tried from the largest on until the loss on
held-out texts rises."""
STEPS, CHANGE = 60, 1e-7
"""The most steps of L-BFGS for a penalty, and the change at which it ends before."""
FLAT = 1e-3
"""A feature whose standard deviation is below this is not used."""
FEW_ROWS, FEW_OUTPUTS = 60_000, 64
"""Ramps are trained by default if the rows times the upper layers, and the outputs, are at most these: then
they take about a tenth of the training's time, and less space than the module."""
Report = Callable[[int, int], None]
"""Is called with (steps done, steps in all)."""


def ramps_by_default(windows: int, layers: int, outputs: int) -> bool:
    """Return True if a training of this many windows also trains ramps when its options do not say."""
    return windows * layers <= FEW_ROWS and outputs <= FEW_OUTPUTS


@dataclass(frozen=True)
class Ramps:
    """A model's ramps as published, and their figures for its report."""

    tensors: dict[str, Tensor]
    """As the part `ramps` of an artefact names them: weights in fp16, biases in fp32."""
    sites: tuple[int, ...]
    metrics: dict[str, Any]


@dataclass(frozen=True)
class RampTexts:
    """Texts that ramps are fitted to or judged on, in windows."""

    split: Split
    examples: Examples

    def sampled(self, most: int) -> RampTexts:
        """A sample of the windows, if there are more than `most`. Its split tells no rows apart."""
        count = len(self.split.encoded)
        if count <= most:
            return self
        return self._only(sorted(random.Random(0).sample(range(count), most)))

    def whole(self, task: TaskKind, most: int) -> RampTexts:
        """The texts of one window, since others never leave early; as many as have `most` rows for ramps."""
        tagging = task.reads == "rows"
        keep, rows = list[int](), 0
        for windows in self.split.of_rows():
            if len(windows) == 1:
                rows += len(first_pieces(self.split.encoded[windows[0]].words)) if tagging else 1
                keep += windows if rows <= most else []
        return self._only(keep)

    def _only(self, keep: list[int]) -> RampTexts:
        """These windows, each as a row of its own."""
        split, all_ = self.split, self.examples
        owners = split.owners or range(len(split.rows))
        bags = all_.bags
        return RampTexts(
            Split([split.rows[owners[i]] for i in keep], [split.encoded[i] for i in keep]),
            Examples(
                [all_.lengths[i] for i in keep],
                [all_.types[i] for i in keep],
                lambda windows: all_.features([keep[i] for i in windows]),
                [[]] * len(keep),
                None if bags is None else lambda windows: bags([keep[i] for i in windows]),
            ),
        )


def train_ramps(
    trainer: Trainer,
    task: TaskKind,
    fit: RampTexts,
    held: RampTexts,
    report: Report = lambda done, total: None,
    *,
    shuffled: int | None = None,
) -> Ramps:
    """Train a ramp before each upper layer of the trainer's model, whose weights must be the published ones.

    task: with the transitions of the model, if it has any (`Trainer.reading`). shuffled: a seed by which the
    answers are shuffled among the texts, as a control: almost no text may leave by such ramps. Raises
    InvalidInput (an embedding), InvalidData (a ramp diverged).
    """
    if task.name == "embedding":
        raise InvalidInput(
            "an embedding model has no ramps: it has no answer that a ramp could give", field="model"
        )
    assert isinstance(trainer.backbone, ModuleBackbone)
    sites = len(trainer.backbone.upper)
    most = MAX_NUMBERS // row_numbers(task, trainer.dim, sites)
    fitting = most - most // HELD_SHARE
    fit, held = fit.sampled(fitting), held.whole(task, most - fitting)
    begun = len(fit.split.encoded)
    texts = begun + len(held.split.encoded)
    total = texts + sites
    seen = ramp_rows(
        trainer, task, fit.split.encoded, fit.examples, fitting, lambda done: report(done, total)
    )
    kept = ramp_rows(
        trainer, task, held.split.encoded, held.examples, most, lambda done: report(begun + done, total)
    )
    if shuffled is not None:
        order = torch.randperm(len(seen.outputs), generator=torch.Generator().manual_seed(shuffled))
        seen = replace(seen, outputs=seen.outputs[order])
    tensors: dict[str, Tensor] = {}
    for site in range(sites):
        weight, bias = fitted(task, site, seen, kept)
        if not bool(torch.isfinite(weight).all() and torch.isfinite(bias).all()):
            raise diverged(f"the ramp at site {site} is not finite in 16 bits")
        tensors |= {f"{site}.out.weight": weight, f"{site}.out.bias": bias}
        report(texts + site + 1, total)
    metrics = _ramp_report(task, tensors, kept, held.split)
    return Ramps(tensors, tuple(range(sites)), {"fitted_to": begun, **metrics})


def fitted(task: TaskKind, site: int, seen: RampRows, kept: RampRows) -> tuple[Tensor, Tensor]:
    """Weight (fp16) and bias (fp32) of one site's ramp. kept: held-out rows, to choose the penalty."""
    x, mean, scale = _standardised(seen.features[site])
    held = (kept.features[site] - mean).div_(scale)
    loss = LOSSES.get(task.name, _soft_labels)
    start = torch.zeros(seen.outputs.shape[1])

    def mine(z: Tensor) -> Tensor:
        return loss(z + seen.offsets, seen.outputs)

    def judge(z: Tensor) -> Tensor:
        return loss(z + kept.offsets, kept.outputs)

    found = _best(mine, judge, x, held, start)
    if task.name == "regression":
        found = _with_error(found, x, seen, held, kept)
    weight = (found.weight / scale).half()
    # The bias makes up for the weights' rounding at the mean of the features. It may be large: it stays fp32.
    return weight, found.bias - weight.float() @ mean


def _standardised(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Features of mean 0 and standard deviation 1, with their means and scales; a flat one becomes 0."""
    mean, scale = x.mean(0), x.std(0, correction=0)
    scale = torch.where(scale < FLAT, torch.inf, scale)
    return (x - mean).div_(scale), mean, scale


Loss = Callable[[Tensor, Tensor], Tensor]
"""(a ramp's outputs, the model's), both [rows, outputs] -> the mean loss."""


def _soft_labels(z: Tensor, full: Tensor) -> Tensor:
    return -(full.softmax(-1) * z.log_softmax(-1)).sum(-1).mean()


def _soft_sets(z: Tensor, full: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(z, full.sigmoid(), reduction="none").sum(-1).mean()


def _values(z: Tensor, full: Tensor) -> Tensor:
    return F.mse_loss(z, full)


LOSSES: dict[str, Loss] = {"multilabel": _soft_sets, "regression": _values}
"""The losses of ramps, by task. All other tasks compare distributions over labels."""


def _best(
    loss: Callable[[Tensor], Tensor], judge: Callable[[Tensor], Tensor], x: Tensor, held: Tensor, bias: Tensor
) -> LinearFit:
    """The fit to x with the penalty that is best on the held-out rows. bias: where the first fit starts.

    Both losses take a map's outputs. Without held-out rows it is the fit with the middle penalty.
    """
    best, least = LinearFit(torch.zeros(len(bias), x.shape[1]), bias, 0.0), torch.inf
    now = best
    for penalty in PENALTIES if len(held) else PENALTIES[len(PENALTIES) // 2 :][:1]:
        now = minimised(loss, x, replace(now, penalty=penalty), STEPS, CHANGE)
        value = judge(now(held)).item() if len(held) else 0.0
        if not value < least:
            break
        best, least = now, value
    return best


def _with_error(found: LinearFit, x: Tensor, seen: RampRows, held: Tensor, kept: RampRows) -> LinearFit:
    """A value's map with a second output: the absolute error that it expects (`expected_error`).

    The error is the scale of a Laplace distribution. It is fitted to errors on rows that the map was not
    fitted to: of each half of the rows under the fit to the other half.
    """
    wanted, halves = seen.outputs - seen.offsets, torch.arange(len(x)) % 2
    off = torch.empty_like(wanted)
    for half in (0, 1):
        mine, other = halves == half, halves != half
        fit = minimised(partial(_values, full=wanted[other]), x[other], found, STEPS, CHANGE)
        off[mine] = (fit(x[mine]) - wanted[mine]).abs()
    held_off = (found(held) - (kept.outputs - kept.offsets)).abs()
    start = off.mean().clamp(min=1e-3).expm1().log()[None]  # softplus of it is the mean error
    error = _best(lambda z: _laplace(z, off), lambda z: _laplace(z, held_off), x, held, start)
    return LinearFit(
        torch.cat([found.weight, error.weight]), torch.cat([found.bias, error.bias]), found.penalty
    )


def _laplace(raw: Tensor, off: Tensor) -> Tensor:
    """The mean negative log-likelihood of absolute errors, by their expectation before the link."""
    expected = F.softplus(raw).clamp(min=1e-6)
    return (expected.log() + off / expected).mean()
