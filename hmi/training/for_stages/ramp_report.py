"""Measures ramps on held-out texts: how often each answers as the whole model does, and how many texts may
leave at it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

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
from hmi.training.for_stages.ramp_rows import RampRows
from hmi.training.tasks.splits import Split

DISAGREEMENT = 0.01
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

    def may_leave(self, disagreement: float = DISAGREEMENT) -> float:
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


def ramp_report(
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
