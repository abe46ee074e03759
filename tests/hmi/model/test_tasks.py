"""The kinds of task against plain arithmetic: targets, losses, decisions and metrics."""

from __future__ import annotations

import math
import random

import pytest
import torch

from hmi.core import TaskRules
from hmi.errors import InvalidData, InvalidInput
from hmi.model.tags.tag_schemes import breaks, scheme_of
from hmi.model.tasks import KINDS, task_of
from hmi.model.tasks.multilabel import MultiLabel
from hmi.model.text.batching import Encoded
from hmi.training.data.golds import SoftLabel
from hmi.training.tasks.objectives import IGNORE, OBJECTIVES, learn_task, objective_of
from hmi.training.tasks.scoring import calibration, headline, score_labels, score_tags, score_values


def one_piece_a_word(words: int, start: int = 0) -> Encoded:
    """A window of one-piece words between [CLS] and [SEP]."""
    return Encoded(
        [2, *range(10, 10 + words), 3], [0] * (words + 2), [None, *range(start, start + words), None]
    )


def test_every_kind_says_what_it_wants() -> None:
    for name, kind in KINDS.items():
        assert kind.name == name
        assert task_of(name).forms[1]
    assert task_of("regression").forms[0] is str
    assert task_of("regression", (), TaskRules(paired=True)).forms[0] is tuple
    assert task_of("pair", ("a", "b")).reads == "compare", "also of versions that were made without rules"


def test_labels_sets_and_values_are_learnt_from_rows() -> None:
    assert learn_task("classification", ["b", "a", "b"]).labels == ("a", "b")
    assert learn_task("multilabel", [("b", "a"), (), ("b",)]).labels == ("a", "b")
    task = learn_task("regression", [1.0, 3.0], paired=True)
    assert (task.rules.centre, task.rules.spread, task.reads, task.windowed) == (2.0, 1.0, "compare", False)
    assert learn_task("tagging", [("B-x", "I-x"), ("O", "O")]).rules.scheme == "bio"


@pytest.mark.parametrize(
    ("name", "golds", "message"),
    [
        ("classification", ["a", "a"], "at least two classes"),
        ("multilabel", [("a",), ("a",)], "'a' is on all"),
        ("multilabel", [(), ()], "no row has any"),
        ("regression", [2.5, 2.5], "the value 2.5"),
        ("multilabel", [(str(i),) for i in range(1001)], "1001 different labels"),
    ],
)
def test_rows_that_teach_nothing_are_refused(name: str, golds: list[object], message: str) -> None:
    with pytest.raises(InvalidData, match=message):
        learn_task(name, golds)  # type: ignore[arg-type]


def test_a_loss_is_what_its_kind_says() -> None:
    logits = torch.tensor([[2.0, -1.0], [0.5, 0.5]])
    ce = -math.log(math.exp(2) / (math.exp(2) + math.exp(-1))) / 2 + math.log(2) / 2
    assert OBJECTIVES["classification"].loss(logits, [[0], [1]], None).item() == pytest.approx(ce)
    bce = (math.log1p(math.exp(-2)) + math.log1p(math.exp(-1)) + 2 * math.log1p(math.exp(-0.5))) / 4
    assert OBJECTIVES["multilabel"].loss(logits, [[1.0, 0.0], [1.0, 1.0]], None).item() == pytest.approx(bce)
    assert OBJECTIVES["regression"].loss(logits[:, :1], [[1.0], [0.0]], None).item() == pytest.approx(
        (1 + 0.25) / 2
    )
    words = torch.stack([logits, logits])
    assert OBJECTIVES["tagging"].loss(words, [[0, IGNORE], [IGNORE]], None).item() == pytest.approx(
        2 * ce - math.log(2)
    )
    assert OBJECTIVES["tagging"].loss(words, [[IGNORE], [IGNORE]], None).item() == 0.0


@pytest.mark.parametrize("weights", [None, torch.tensor([3.0, 0.5, 1.0])])
def test_odds_are_learnt_like_so_many_rows_of_each_label(weights: torch.Tensor | None) -> None:
    kind = task_of("classification", ("a", "b", "c"))
    rows = [
        objective_of(kind).targets(gold, [one_piece_a_word(1)])[0]
        for gold in ("c", SoftLabel((("a", 0.75), ("c", 0.25))))
    ]
    assert rows == [[2], [0.75, 0.0, 0.25]]
    logits = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    # Like four copies of the first row, three of the second as a and one as c. Soft labels are not
    # weighted.
    each = [
        objective_of(kind).loss(logits[i : i + 1], [[label]], None).item()
        for i, label in ((0, 2), (1, 0), (1, 2))
    ]
    heavy = 1.0 if weights is None else float(weights[2])
    want = (4 * heavy * each[0] + 3 * each[1] + each[2]) / (4 * heavy + 4)
    assert objective_of(kind).loss(logits, rows, weights).item() == pytest.approx(want, rel=1e-5)


def test_class_weights_make_rare_labels_heavier_within_bounds() -> None:
    weights = OBJECTIVES["classification"].weights([[0]] * 30 + [[1]] * 10, 2)
    assert weights.tolist() == pytest.approx([40 / 60, 2.0])
    assert OBJECTIVES["classification"].weights([[0]] * 1000 + [[1]], 2)[1] == 10
    assert OBJECTIVES["tagging"].weights([[0, IGNORE, 0], [1]], 2).tolist() == pytest.approx([0.75, 1.5])
    assert OBJECTIVES["multilabel"].weights([[1.0, 0.0]] * 3 + [[0.0, 1.0]], 2).tolist() == [1.0, 3.0]
    with pytest.raises(InvalidInput, match="regression has none"):
        OBJECTIVES["regression"].weights([[0.5]], 1)


def test_several_labels_are_those_over_the_threshold() -> None:
    task = task_of("multilabel", ("a", "b", "c"))
    logits = torch.tensor([0.1, 2.0, -0.1])
    answer = task.answer(logits, scores=True)
    assert answer.labels is not None
    assert [label for label, _ in answer.labels] == ["b", "a"]
    assert answer.scores is not None
    assert answer.scores["c"] == pytest.approx(1 / (1 + math.exp(0.1)))
    strict = task_of("multilabel", ("a", "b", "c"), TaskRules(threshold=0.95))
    assert strict.answer(logits).labels == []


def test_the_threshold_is_chosen_where_rows_suffice() -> None:
    task = MultiLabel(("a", "b"))
    golds: list[tuple[str, ...]] = [("a",) if i % 2 else () for i in range(60)]
    # Probability .3 where the label applies and .1 elsewhere: only a threshold between them is right.
    merged = [torch.logit(torch.tensor([0.3 if "a" in g else 0.1, 0.01])) for g in golds]
    tuned = objective_of(task).tuned(golds, merged)
    assert objective_of(tuned).score(golds, merged)["micro_f1"] == 1.0
    assert objective_of(task).score(golds, merged)["micro_f1"] == 0.0
    assert objective_of(task).tuned(golds[:49], merged[:49]).rules.threshold == 0.5


def test_a_value_comes_back_in_the_users_units() -> None:
    task = learn_task("regression", [10.0, 30.0, 20.0])
    (target,) = objective_of(task).targets(25.0, [one_piece_a_word(2)])
    assert task.answer(torch.tensor(target)).value == pytest.approx(25.0)


def test_an_embedding_has_length_one_where_the_root_says_so() -> None:
    answer = task_of("embedding").answer(torch.tensor([3.0, 4.0]))
    assert answer.embedding == pytest.approx([0.6, 0.8])
    assert task_of("embedding", (), TaskRules(normalise=False)).answer(
        torch.tensor([3.0, 4.0])
    ).embedding == [3.0, 4.0]


def test_words_that_no_window_holds_are_outside_and_paths_stay_legal() -> None:
    task = task_of("tagging", ("B-x", "I-x", "O"), TaskRules(scheme="bio"))
    window = Encoded([2, 10, 11, 3], [0] * 4, [None, 0, 2, None])  # the tokenizer drops word 1
    outputs = torch.tensor([[0.0, 0, 0], [5, 0, 0], [0, 5, 4], [0, 0, 0]])
    answer = task.answer(task.merge([outputs], [window], 5))
    assert answer.tags == ["B-x", "I-x", "I-x", "O", "O"], (
        "word 2 goes on with word 0's entity, so word 1 is in it"
    )
    assert answer.tag_scores is not None
    assert answer.tag_scores[1] == answer.tag_scores[3] == answer.tag_scores[4] == 0.0
    assert answer.tag_scores[0] > 0.9


def test_slips_are_named_and_do_not_cost_the_scheme() -> None:
    good = [["B-x", "I-x", "O"]] * 200
    assert scheme_of([*good, ["O", "I-x"]]) == "bio"
    assert scheme_of([*good[:50], ["O", "I-x"]]) == "free"
    assert list(breaks([["O"], ["O", "I-x", "I-x"], ["B-x", "I-y"]])) == [
        (2, 2, "O", "I-x"),
        (3, 2, "B-x", "I-y"),
    ]
    assert list(breaks([["NOUN", "I-x"]])) == []


def test_label_scores_equal_their_definitions() -> None:
    rng = random.Random(0)
    gold, got = rng.choices("abc", k=200), rng.choices("abc", k=200)
    metrics = score_labels(gold, got, ("a", "b", "c"))
    for label in "abc":
        both = sum(g == p == label for g, p in zip(gold, got, strict=True))
        found = metrics["per_label"][label]
        assert found["precision"] == pytest.approx(both / got.count(label), abs=1e-4)
        assert found["recall"] == pytest.approx(both / gold.count(label), abs=1e-4)
    assert sum(map(sum, metrics["confusion"]["rows"])) == 200
    assert score_labels(["a", "z"], ["a", "a"], ("a", "b"))["per_label"]["z"]["f1"] == 0, (
        "a label only dev has counts"
    )


def test_values_are_scored_by_rank_and_error() -> None:
    metrics = score_values([1, 2, 3, 4], [10, 20, 20, 1000], 2.5)
    assert metrics["spearman"] == pytest.approx(0.9487)  # ranks 0 1.5 1.5 3 and 0 1 2 3
    assert metrics["mae_of_mean"] == 1.0
    assert score_values([1, 2], [5, 5], 1.5)["spearman"] == 0.0
    assert headline(metrics) == metrics["spearman"]


def test_entities_are_scored_by_type() -> None:
    metrics = score_tags([["B-x", "I-x", "O", "B-y"]], [["B-x", "O", "O", "B-y"]])
    assert metrics["entity_f1"] == 0.5
    assert metrics["per_label"]["y"] == {"f1": 1.0, "precision": 1.0, "recall": 1.0, "support": 1}
    assert metrics["per_label"]["x"]["f1"] == 0.0
    assert "entity_f1" not in score_tags([["NOUN"]], [["VERB"]])
    assert "per_label" not in score_tags([["O"]], [["O"]])


def test_calibration_is_the_gap_between_given_and_right() -> None:
    sure = [0.95] * 100 + [0.55] * 100
    right = [True] * 95 + [False] * 5 + [True] * 25 + [False] * 75
    found = calibration(sure, right)
    assert found["ece"] == pytest.approx(0.15)
    assert [b["rows"] for b in found["bins"]] == [100, 100]
    assert calibration([1.0], [True])["ece"] == 0.0
