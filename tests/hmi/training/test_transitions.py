"""The loss over whole paths equals trying every path, alone and in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from math import log, prod

import pytest
import torch

from hmi.errors import InvalidInput
from hmi.model.tasks.words import UNSEEN
from hmi.model.text.batching import Encoded
from hmi.training.data.golds import SoftTags
from hmi.training.tasks.objectives import IGNORE, learn_task, objective_of
from hmi.training.tasks.objectives.base import SoftTarget
from hmi.training.tasks.transitions import MAX_TAGS, Transitions, learns_transitions

LABELS = 3
TARGETS = [[IGNORE, 0, 2, IGNORE, 1], [IGNORE, 1, IGNORE, IGNORE, IGNORE], [IGNORE] * 5, [2, 2, 0, 1, 0]]


def made() -> tuple[Transitions, torch.Tensor]:
    torch.manual_seed(0)
    transitions = Transitions(LABELS)
    torch.nn.init.normal_(transitions.table)
    return transitions, torch.randn(len(TARGETS), 5, LABELS)


SOFT = SoftTarget(((1, 0.7), (0, 0.2), (2, 0.1)))
SURER = SoftTarget(((2, 0.9), (1, 0.1)))
SOFT_TARGETS = [[IGNORE, SOFT, 2, IGNORE, SURER], [IGNORE, SURER, *[IGNORE] * 3], TARGETS[2], TARGETS[3]]


def shares_of(tag: float) -> dict[int, float]:
    return dict(tag.each) if isinstance(tag, SoftTarget) else {int(tag): 1.0}


def slow(transitions: Transitions, logits: torch.Tensor, target: Sequence[float]) -> torch.Tensor:
    """Minus the mean log-probability of one text's paths, by trying every path."""
    at = [i for i, tag in enumerate(target) if tag != IGNORE]

    def total(path: tuple[int, ...]) -> torch.Tensor:
        moves = [transitions.table[-1, path[0]], *(transitions.table[a, b] for a, b in pairwise(path))]
        return torch.stack([*moves, *(logits[i, tag] for i, tag in zip(at, path, strict=True))]).sum()

    paths = list(product(range(LABELS), repeat=len(at)))
    every = torch.stack([total(path) for path in paths])
    shares = [
        prod(shares_of(target[i]).get(tag, 0.0) for i, tag in zip(at, path, strict=True)) for path in paths
    ]
    return every.logsumexp(0) - (torch.tensor(shares) * every).sum()


@pytest.mark.parametrize("targets", [TARGETS, SOFT_TARGETS])
def test_a_batch_is_the_mean_over_words_of_all_paths(targets: list[list[float]]) -> None:
    transitions, logits = made()
    told = [i for i, target in enumerate(targets) if set(target) != {IGNORE}]
    expected = sum(slow(transitions, logits[i], targets[i]) for i in told) / 9
    assert torch.allclose(transitions.loss(logits, targets), torch.as_tensor(expected), atol=1e-5)


def test_the_loss_of_soft_tags_has_a_bound() -> None:
    """It is a cross-entropy, so it is at least the entropy of the paths, however the scores grow."""
    transitions, logits = made()
    text, target = torch.nn.Parameter(logits[:1]), SOFT_TARGETS[:1]
    least = -sum(share * log(share) for tag in (SOFT, SURER) for _, share in tag.each) / 3
    learner = torch.optim.Adam([text, transitions.table], lr=0.3)
    for _ in range(200):
        learner.zero_grad()
        transitions.loss(text, target).backward()
        learner.step()
    assert least - 1e-5 <= transitions.loss(text, target).item() < least + 0.02


@pytest.mark.parametrize("targets", [TARGETS, SOFT_TARGETS])
def test_the_gradient_of_the_loss_is_that_of_all_paths(targets: list[list[float]]) -> None:
    transitions, logits = made()
    logits.requires_grad_()
    transitions.loss(logits[:1], targets[:1]).backward()
    fast, of_table = logits.grad, transitions.table.grad
    logits.grad = transitions.table.grad = None
    (slow(transitions, logits[0], targets[0]) / 3).backward()
    assert fast is not None
    assert of_table is not None
    assert logits.grad is not None
    assert transitions.table.grad is not None
    assert torch.allclose(fast, logits.grad, atol=1e-6)
    assert torch.allclose(of_table, transitions.table.grad, atol=1e-6)


def test_texts_without_words_cost_nothing() -> None:
    transitions, logits = made()
    assert transitions.loss(logits[2:3], TARGETS[2:3]).item() == 0


@pytest.mark.parametrize(
    ("task", "labels", "weights", "wanted", "learns"),
    [
        ("tagging", 5, None, None, True),
        ("tagging", 5, None, False, False),
        ("tagging", 5, (1.0,), None, False),
        ("tagging", MAX_TAGS + 1, None, None, False),
        ("classification", 5, None, None, False),
    ],
)
def test_transitions_are_learnt_for_tagging_unless_told_otherwise(
    task, labels, weights, wanted, learns
) -> None:  # type: ignore[no-untyped-def]
    assert learns_transitions(task, labels, weights, wanted) is learns


def test_iob1_is_learnt_as_bio_and_answered_as_iob1() -> None:
    task = learn_task("tagging", [("I-x", "I-x", "B-x", "O"), ("O", "I-y")])
    assert task.labels == ("B-x", "B-y", "I-x", "O")
    scores = torch.full((4, 4), -9.0)
    scores[range(4), [0, 2, 0, 3]] = 0  # B-x I-x B-x O
    assert task.answer(scores).tags == ["I-x", "I-x", "B-x", "O"]
    assert objective_of(task).unknown(("I-x", "I-z")) == {"B-z"}
    assert objective_of(task).score([("I-x", "I-x", "B-x", "O")], [scores])["entity_f1"] == 1


def test_what_was_learnt_decides_between_equal_scores() -> None:
    task = learn_task("tagging", [("N", "V"), ("V", "N")])
    table = torch.zeros(3, 2)
    table[0, 1] = 1.0  # V after N
    table[2, 0] = 0.5  # N at the beginning
    assert task.with_transitions(table).answer(torch.zeros(2, 2)).tags == ["N", "V"]


def test_words_that_were_not_seen_cost_no_path_and_do_not_break_an_entity() -> None:
    task = learn_task("tagging", [("B-x", "I-x", "O"), ("O", "B-y")])
    scores = torch.full((6, 4), UNSEEN)  # words 1 and 4 are dropped by the tokenizer
    scores[:, 3] = 0
    for word, tag in ((0, 0), (2, 2), (3, 3), (5, 1)):
        scores[word] = torch.eye(4)[tag].log_softmax(-1)
    answer = task.answer(scores)
    assert answer.tags == ["B-x", "I-x", "I-x", "O", "O", "B-y"]
    assert answer.tag_scores is not None
    assert [score > 0 for score in answer.tag_scores] == [True, False, True, True, False, True]
    assert task.answer(torch.empty(0, 4)).tags == []


def test_transitions_are_refused_beside_class_weights() -> None:
    with pytest.raises(InvalidInput, match="class weights") as error:
        learns_transitions("tagging", 5, (1.0,), True)
    assert error.value.details["field"] == "options.transitions"


def test_what_a_teacher_says_in_io_can_be_learnt() -> None:
    """In IO, two touching entities of one word look like one entity of two words, which no row has."""
    task = learn_task("tagging", [("I-x", "O"), ("O", "I-x")])
    scores = torch.full((2, 3), -9.0)
    scores[:, task.labels.index("B-x")] = 0
    said = task.answer(scores).tags
    assert said == ["I-x", "I-x"]
    window = Encoded([1, 2], [0, 0], [0, 1])
    assert objective_of(task).targets(tuple(said), [window]) == [
        [task.labels.index("B-x"), task.labels.index("I-x")]
    ]


def test_a_word_that_was_not_seen_begins_no_entity() -> None:
    task = learn_task("tagging", [("O", "NOUN", "I-x")])
    scores = torch.full((3, 3), UNSEEN)
    scores[:, task.labels.index("O")] = 0
    scores[2] = torch.eye(3)[task.labels.index("I-x")].log_softmax(-1)
    assert task.answer(scores).tags == ["O", "O", "I-x"]


@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 2.0, 5.0])])
def test_without_transitions_soft_tags_are_learnt_word_by_word(weights: torch.Tensor | None) -> None:
    _, logits = made()
    objective = objective_of(learn_task("tagging", [("A", "B", "C")]))
    logs, total, weight = logits.log_softmax(-1), torch.tensor(0.0), 0.0
    for text, target in enumerate(SOFT_TARGETS):
        for place, tag in enumerate(target):
            for label, share in shares_of(tag).items() if tag != IGNORE else ():
                hard = weights is not None and not isinstance(tag, SoftTarget)
                of = share * float(weights[label]) if weights is not None and hard else share
                total, weight = total - of * logs[text, place, label], weight + of
    assert objective.loss(logits, SOFT_TARGETS, weights).item() == pytest.approx(float(total / weight), 1e-5)


def test_a_soft_tag_is_the_target_of_its_word_in_each_window() -> None:
    objective = objective_of(learn_task("tagging", [("B-x", "I-x", "O")]))
    gold = SoftTags(("O", (("B-x", 0.6), ("O", 0.4)), "I-x"))
    windows = [
        Encoded([2, 7, 8, 9, 3], [0] * 5, [None, 0, 1, 1, None]),
        Encoded([2, 8, 6, 3], [0] * 4, [None, 1, 2, None]),
    ]
    first, second = objective.targets(gold, windows)
    assert (first, second) == ([IGNORE, 2, 0, IGNORE, IGNORE], [IGNORE, 0, 1, IGNORE])
    assert [shares_of(tag) for tag in (first[2], second[1])] == [{0: 0.6, 2: 0.4}] * 2
