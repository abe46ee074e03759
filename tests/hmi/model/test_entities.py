"""Entities of raw texts: offsets, and the rules of transformers' TokenClassificationPipeline."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hmi.core import TaskRules
from hmi.model.tags.entities import entities_of
from hmi.model.tasks.words import Tagging
from hmi.model.tenant.answer import AGGREGATIONS, Aggregation
from hmi.model.text.batching import Encoded
from hmi.model.text.splitting import Splitter

LABELS = ("B-loc", "B-per", "I-loc", "I-per", "O")


@given(st.text(), st.sampled_from(AGGREGATIONS), st.data())
def test_the_text_of_an_entity_is_that_of_its_place(text: str, aggregation: Aggregation, data: Any) -> None:
    split = Splitter().split(text)
    count = len(split.words)
    tags = data.draw(st.lists(st.sampled_from((*LABELS, "NOUN")), min_size=count, max_size=count))
    found = entities_of(text, split, tags, [0.5] * count, aggregation)
    assert all(e.text == text[e.start : e.end] and e.start < e.end for e in found)
    assert all(a.end <= b.start for a, b in itertools.pairwise(found))
    covered = {i for e in found for i, (a, b) in enumerate(split.spans) if e.start <= a and b <= e.end}
    assert covered == {i for i, tag in enumerate(tags) if tag != "O"}


def pieces_of(words: int, rng: random.Random) -> Encoded:
    """A window of words of one to three pieces."""
    each = [word for word in range(words) for _ in range(rng.randint(1, 3))]
    return Encoded([2, *range(10, 10 + len(each)), 3], [0] * (len(each) + 2), [None, *each, None])


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_same_entities_as_transformers(aggregation: Aggregation) -> None:
    """Tags without transitions and with a free scheme, where HMI's answer depends on nothing but the outputs.

    transformers' `none` and `simple` look at pieces: HMI's words are compared with words of one piece each.
    """
    pipelines = pytest.importorskip("transformers.pipelines.token_classification")
    theirs = object.__new__(pipelines.TokenClassificationPipeline)
    theirs.model = type("Model", (), {"config": type("C", (), {"id2label": dict(enumerate(LABELS))})})()
    theirs.tokenizer = type(
        "T",
        (),
        {"convert_ids_to_tokens": staticmethod(str), "convert_tokens_to_string": staticmethod(" ".join)},
    )()
    rng = random.Random(3)
    torch.manual_seed(3)
    task = Tagging(LABELS, TaskRules(scheme="free")).by_pieces(aggregation)
    for _ in range(60):
        text = " ".join("w" * rng.randint(3, 9) for _ in range(rng.randint(1, 9)))
        split, window = Splitter().split(text), None
        one_each = aggregation in ("none", "simple")
        window = pieces_of(len(split.words), rng if not one_each else _Ones())
        output = torch.randn(len(window), len(LABELS)) * 2
        answer = task.answer(task.merge([output], [window], len(split.words)))
        ours = task.entities(answer, text, split).entities or []
        pre = list(_pre_entities(window, split.spans, output))
        want = theirs.aggregate(pre, pipelines.AggregationStrategy(aggregation))
        wanted = [e for e in want if e.get("entity", e.get("entity_group")) != "O"]
        assert [(e.label, e.start, e.end) for e in ours] == [
            (e.get("entity", e.get("entity_group")), e["start"], e["end"]) for e in wanted
        ]
        if aggregation != "average":  # theirs averages a word's other probabilities, not only its tag's
            assert [e.score for e in ours] == pytest.approx([float(e["score"]) for e in wanted], abs=1e-5)


class _Ones(random.Random):
    def randint(self, a: int, b: int) -> int:
        return 1


def _pre_entities(window: Encoded, spans: list[tuple[int, int]], output: torch.Tensor) -> Any:
    """Tokens as that pipeline gathers them: the first piece of a word takes what the others leave."""
    probabilities = output.softmax(-1).numpy()
    for position, word in enumerate(window.words):
        if word is None:
            continue
        start, end = spans[word]
        nth = position - window.words.index(word)
        last = position + 1 == len(window) or window.words[position + 1] != word
        a, b = start + nth, end if last else start + nth + 1
        yield {
            "word": str(position),
            "scores": probabilities[position],
            "start": a,
            "end": b,
            "index": position,
            "is_subword": nth > 0,
        }


def test_average_and_max_read_all_pieces_of_a_word() -> None:
    window = Encoded([2, 10, 11, 12, 3], [0] * 5, [None, 0, 0, 0, None])
    rows = torch.tensor([[0.7, 0.3], [0.1, 0.9], [0.6, 0.4]])
    output = torch.cat([torch.zeros(1, 2), rows.log(), torch.zeros(1, 2)])
    task = Tagging(("A", "O"))
    for aggregation, wanted in {"first": 0.7, "simple": 0.7, "average": 1.4 / 3, "max": 0.1}.items():
        merged = task.by_pieces(aggregation).merge([output], [window], 1)  # type: ignore[arg-type]
        assert math.exp(merged[0, 0]) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("scheme", ["bio", "iob1", "io", "free"])
def test_neighbours_of_one_type_are_apart_if_the_second_begins(scheme: Any) -> None:
    text = "Ann Bob Carl"
    task = Tagging(LABELS, TaskRules(scheme=scheme))
    merged = torch.full((3, 5), -9.0)
    for word, label in enumerate((1, 1, 3)):  # B-per, B-per, I-per
        merged[word, label] = -0.01
    found = task.entities(task.answer(merged), text, Splitter().split(text)).entities or []
    wanted = ["Ann Bob Carl"] if scheme == "io" else ["Ann", "Bob Carl"]
    assert [e.text for e in found] == wanted
