"""Held-out metrics of labels, sets of labels, values and tags, and calibration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmi.model.tags.entities import OUTSIDE, groups_of
from hmi.model.tags.tag_schemes import Scheme, in_labels, scheme_of
from hmi.model.tenant.calibration import calibration_error, reliability
from hmi.training.tasks.headline import headline as headline

MAX_CONFUSION_LABELS = 20
"""The confusion matrix is kept for at most this many labels."""


def score_labels(gold: Sequence[str], got: Sequence[str], labels: Sequence[str]) -> dict[str, Any]:
    """Accuracy, macro F1 over the labels that occur in `gold`, the scores of each label, and for
    few labels the confusion matrix."""
    hits = sum(g == p for g, p in zip(gold, got, strict=True))
    per_label: dict[str, dict[str, float]] = {}
    for label in [*labels, *sorted(set(gold) - set(labels))]:
        support, predicted = sum(g == label for g in gold), sum(p == label for p in got)
        both = sum(g == p == label for g, p in zip(gold, got, strict=True))
        if support:
            per_label[label] = _of_label(both, predicted, support)
    out: dict[str, Any] = {
        "rows": len(gold),
        "accuracy": round(hits / max(1, len(gold)), 4),
        "macro_f1": _mean([v["f1"] for v in per_label.values()]),
        "per_label": per_label,
    }
    shown = sorted({*gold, *got})
    if len(shown) <= MAX_CONFUSION_LABELS:
        pairs = list(zip(gold, got, strict=True))
        out["confusion"] = {"labels": shown, "rows": [[pairs.count((g, p)) for p in shown] for g in shown]}
    return out


def score_sets(gold: NDArray[np.bool_], given: NDArray[np.bool_], labels: Sequence[str]) -> dict[str, Any]:
    """Micro F1 over all decisions, macro F1 over the labels in `gold`, and the share of rows that
    are right. `gold` and `given` are bool [rows, labels]."""
    both, predicted, support = (gold & given).sum(0), given.sum(0), gold.sum(0)
    per_label = {
        label: _of_label(int(b), int(p), int(s))
        for label, b, p, s in zip(labels, both, predicted, support, strict=True)
        if s
    }
    return {
        "rows": len(gold),
        "micro_f1": round(2 * int(both.sum()) / max(1, int(predicted.sum() + support.sum())), 4),
        "macro_f1": _mean([v["f1"] for v in per_label.values()]),
        "exact_match": round(float((gold == given).all(1).mean()), 4),
        "per_label": per_label,
    }


def score_values(gold: Sequence[float], got: Sequence[float], centre: float) -> dict[str, Any]:
    """Rank and linear correlation (0 if one side is constant), and errors in the values' own units.

    centre: the training rows' mean; `mae_of_mean` is the error of always answering it.
    """
    g, p = np.array(gold), np.array(got)
    return {
        "rows": len(g),
        "spearman": round(rank_correlation(g, p), 4),
        "pearson": round(_correlation(g, p), 4),
        "mae": float(f"{np.abs(g - p).mean():.4g}"),
        "rmse": float(f"{np.sqrt(((g - p) ** 2).mean()):.4g}"),
        "mae_of_mean": float(f"{np.abs(g - centre).mean():.4g}"),
    }


def score_tags(gold: list[list[str]], got: list[list[str]], scheme: Scheme | None = None) -> dict[str, Any]:
    """Accuracy of tags. If they mark entities, also precision, recall and F1 of entities, equal to seqeval's;
    else the scores of each tag.

    scheme: the scheme of both; None: the one that `gold` follows.
    """
    flat = [(g, p) for gs, ps in zip(gold, got, strict=True) for g, p in zip(gs, ps, strict=True)]
    accuracy = sum(g == p for g, p in flat) / max(1, len(flat))
    out: dict[str, Any] = {"rows": len(gold), "token_accuracy": round(accuracy, 4)}
    in_bio = _in_bio(gold, got, scheme)
    if in_bio is None:
        labels = sorted({g for g, _ in flat})
        return out | {
            "per_label": score_labels([g for g, _ in flat], [p for _, p in flat], labels)["per_label"]
        }
    both, predicted, support = _entity_counts(*in_bio)
    of_all = _of_label(both.total(), predicted.total(), support.total())
    out |= {"entity_f1": of_all["f1"], "precision": of_all["precision"], "recall": of_all["recall"]}
    if any(g != "O" for g, _ in flat):
        out["per_label"] = {
            label: _of_label(both[label], predicted[label], count) for label, count in sorted(support.items())
        }
    return out


def tag_parts(
    gold: list[list[str]], got: list[list[str]], scheme: Scheme | None = None
) -> NDArray[np.float64]:
    """Each row's share in the headline score of `score_tags`, [rows, 2] (`TaskObjective.parts`)."""
    pairs = list(zip(gold, got, strict=True))
    in_bio = _in_bio(gold, got, scheme)
    if in_bio is None:
        hits = [sum(g == p for g, p in zip(gs, ps, strict=True)) for gs, ps in pairs]
        return np.array([(hit, len(gs)) for hit, gs in zip(hits, gold, strict=True)], float)
    spans = [(_entities(gs), _entities(ps)) for gs, ps in zip(*in_bio, strict=True)]
    return np.array([(2 * len(gs & ps), len(gs) + len(ps)) for gs, ps in spans], float)


def _in_bio(
    gold: list[list[str]], got: list[list[str]], scheme: Scheme | None
) -> tuple[list[list[str]], list[list[str]]] | None:
    """Both in BIO; None if their tags mark no entities."""
    scheme = scheme or scheme_of(gold)
    both = [[list(in_labels(tags, scheme)) for tags in side] for side in (gold, got)]
    return (both[0], both[1]) if is_bio({tag for side in both for row in side for tag in row}) else None


def rank_correlation(gold: NDArray[np.float64], got: NDArray[np.float64]) -> float:
    """Spearman's rank correlation; 0 if one side is constant."""
    return _correlation(_ranks(gold), _ranks(got))


def _entity_counts(
    gold: list[list[str]], got: list[list[str]]
) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Count, for each label, the entities that both have, that `got` has, and that `gold` has.

    An entity is right if its label, first and last word are (CoNLL-2003).
    """
    counts = Counter[str](), Counter[str](), Counter[str]()
    for right, given in zip(gold, got, strict=True):
        wanted, found = _entities(right), _entities(given)
        for count, entities in zip(counts, (wanted & found, found, wanted), strict=True):
            count.update(label for label, _ in entities)
    return counts


def _entities(tags: list[str]) -> set[tuple[str, range]]:
    return {entity for entity in groups_of(tags, joined=True) if entity[0] != OUTSIDE}


def calibration(sure: Sequence[float], right: Sequence[bool]) -> dict[str, Any]:
    """The expected calibration error of probabilities, and the bins of a reliability plot.

    Bins have equal widths. Empty bins are left out.
    """
    bins = [
        {"rows": b.rows, "confidence": round(b.confidence, 4), "right": round(b.right, 4)}
        for b in reliability(sure, right)
    ]
    return {"ece": round(calibration_error(sure, right), 4), "bins": bins}


def is_bio(tags: set[str]) -> bool:
    return all(t == "O" or t[:2] in ("B-", "I-") for t in tags)


def _of_label(both: int, predicted: int, support: int) -> dict[str, float]:
    return {
        "f1": round(2 * both / max(1, support + predicted), 4),
        "precision": round(both / max(1, predicted), 4),
        "recall": round(both / max(1, support), 4),
        "support": support,
    }


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / max(1, len(values)), 4)


def _correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / size if size > 0 else 0.0


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 0. Equal values get the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: NDArray[np.float64] = (last - 1 + last - counts) / 2
    return means[inverse]
