"""Held-out metrics: accuracy and F1 for sequence tasks, entity F1 (seqeval) for tagging."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def score_labels(gold: Sequence[str], got: Sequence[str], labels: Sequence[str]) -> dict[str, Any]:
    """Accuracy, macro F1 over the labels that occur in `gold`, and each label's F1 and support."""
    hits = sum(g == p for g, p in zip(gold, got, strict=True))
    per_label: dict[str, dict[str, float]] = {}
    for label in labels:
        support, predicted = sum(g == label for g in gold), sum(p == label for p in got)
        both = sum(g == p == label for g, p in zip(gold, got, strict=True))
        if support:
            per_label[label] = {"f1": round(2 * both / (support + predicted), 4), "support": support}
    macro = sum(v["f1"] for v in per_label.values()) / max(1, len(per_label))
    return {
        "rows": len(gold),
        "accuracy": round(hits / max(1, len(gold)), 4),
        "macro_f1": round(macro, 4),
        "per_label": per_label,
    }


def score_tags(gold: list[list[str]], got: list[list[str]]) -> dict[str, Any]:
    """Entity-level precision, recall and F1 where tags are BIO (else every tag is its own class), and accuracy."""
    # Imported here: seqeval brings scikit-learn, seconds that other tasks' jobs need not spend.
    from seqeval.metrics import f1_score, precision_score, recall_score

    flat = [(g, p) for gs, ps in zip(gold, got, strict=True) for g, p in zip(gs, ps, strict=True)]
    accuracy = sum(g == p for g, p in flat) / max(1, len(flat))
    out: dict[str, Any] = {"rows": len(gold), "token_accuracy": round(accuracy, 4)}
    if is_bio({g for g, _ in flat} | {p for _, p in flat}):
        for name, f in (("entity_f1", f1_score), ("precision", precision_score), ("recall", recall_score)):
            out[name] = round(float(f(gold, got, zero_division=0)), 4)
    return out


def is_bio(tags: set[str]) -> bool:
    return all(t == "O" or t[:2] in ("B-", "I-") for t in tags)


def headline(metrics: dict[str, Any]) -> float:
    """The one figure by which epochs are compared."""
    return float(metrics.get("entity_f1", metrics.get("accuracy", metrics.get("token_accuracy", 0.0))))
