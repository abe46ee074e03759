"""Entity scores equal seqeval's, which is the reference that others report."""

from __future__ import annotations

import random

import pytest
from seqeval.metrics import classification_report, f1_score, precision_score, recall_score

from hmi.training.tasks.scoring import score_tags

TAGS = ["O", "O", "B-a", "I-a", "B-b", "I-b", "I-c"]


def rows(seed: int, noise: float) -> tuple[list[list[str]], list[list[str]]]:
    rng = random.Random(seed)
    gold = [[rng.choice(TAGS) for _ in range(rng.randint(1, 12))] for _ in range(40)]
    return gold, [[rng.choice(TAGS) if rng.random() < noise else tag for tag in tags] for tags in gold]


@pytest.mark.parametrize("noise", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_scores_equal_seqevals(seed: int, noise: float) -> None:
    gold, got = rows(seed, noise)
    ours = score_tags(gold, got)
    for name, theirs in (("entity_f1", f1_score), ("precision", precision_score), ("recall", recall_score)):
        assert ours[name] == pytest.approx(theirs(gold, got), abs=1e-4)
    report = classification_report(gold, got, output_dict=True, zero_division=0)
    assert list(ours["per_label"]) == [name for name in report if not name.endswith(" avg")]
    for name, row in ours["per_label"].items():
        assert row["f1"] == pytest.approx(report[name]["f1-score"], abs=1e-4)
        assert row["precision"] == pytest.approx(report[name]["precision"], abs=1e-4)
        assert row["recall"] == pytest.approx(report[name]["recall"], abs=1e-4)
        assert row["support"] == report[name]["support"]


def test_without_entities_everything_is_zero() -> None:
    nothing = score_tags([["O", "O"]], [["O", "O"]])
    assert (nothing["entity_f1"], nothing["precision"], nothing["recall"]) == (0, 0, 0)
    assert "per_label" not in nothing
    assert score_tags([["O", "O"]], [["B-a", "O"]])["entity_f1"] == 0
    missed = score_tags([["B-a", "I-a"]], [["O", "O"]])
    assert missed["per_label"]["a"] == {"f1": 0.0, "precision": 0.0, "recall": 0.0, "support": 1}
