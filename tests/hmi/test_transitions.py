"""The loss over whole paths equals trying every path, alone and in a batch."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch

from hmi.errors import InvalidInput
from hmi.model.batching import Encoded
from hmi.model.tasks.words import UNSEEN
from hmi.training.objectives import IGNORE, learn_task, objective_of
from hmi.training.transitions import MAX_TAGS, Transitions, learns_transitions

LABELS = 3
TARGETS = [[IGNORE, 0, 2, IGNORE, 1], [IGNORE, 1, IGNORE, IGNORE, IGNORE], [IGNORE] * 5, [2, 2, 0, 1, 0]]


def made() -> tuple[Transitions, torch.Tensor]:
    torch.manual_seed(0)
    transitions = Transitions(LABELS)
    torch.nn.init.normal_(transitions.table)
    return transitions, torch.randn(len(TARGETS), 5, LABELS)


def slow(transitions: Transitions, logits: torch.Tensor, target: list[int]) -> torch.Tensor:
    """Minus the log-probability of one text's path, by trying every path."""
    at = [i for i, tag in enumerate(target) if tag != IGNORE]

    def total(path: tuple[int, ...]) -> torch.Tensor:
        moves = [transitions.table[-1, path[0]], *(transitions.table[a, b] for a, b in pairwise(path))]
        return torch.stack([*moves, *(logits[i, tag] for i, tag in zip(at, path, strict=True))]).sum()

    every = torch.stack([total(path) for path in product(range(LABELS), repeat=len(at))])
    return every.logsumexp(0) - total(tuple(target[i] for i in at))


def test_a_batch_is_the_mean_over_words_of_all_paths() -> None:
    transitions, logits = made()
    told = [i for i, target in enumerate(TARGETS) if set(target) != {IGNORE}]
    expected = sum(slow(transitions, logits[i], TARGETS[i]) for i in told) / 9
    assert torch.allclose(transitions.loss(logits, TARGETS), torch.as_tensor(expected), atol=1e-5)


def test_the_gradient_of_the_loss_is_that_of_all_paths() -> None:
    transitions, logits = made()
    logits.requires_grad_()
    transitions.loss(logits[:1], TARGETS[:1]).backward()
    fast, of_table = logits.grad, transitions.table.grad
    logits.grad = transitions.table.grad = None
    (slow(transitions, logits[0], TARGETS[0]) / 3).backward()
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
